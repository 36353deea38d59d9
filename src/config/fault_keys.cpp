#include "config/fault_keys.hpp"

#include "hat/config/checks.hpp"

namespace hat {

void add_fault_keys(OptionSet& options, FaultConfig& fault) {
  options.add_named<FaultPoint>(
      "fault.at", fault.at,
      {{"none", FaultPoint::none},
       {"start", FaultPoint::start},
       {"pull", FaultPoint::pull},
       {"compute", FaultPoint::compute},
       {"push", FaultPoint::push},
       {"barrier", FaultPoint::barrier},
       {"update", FaultPoint::update},
       {"publish", FaultPoint::publish},
       {"log", FaultPoint::log},
       {"checkpoint", FaultPoint::checkpoint},
       {"complete", FaultPoint::complete},
       {"replay", FaultPoint::replay},
       {"regroup", FaultPoint::regroup},
       {"shutdown", FaultPoint::shutdown}},
      "To see what becomes of a run: where fault.rank dies, freezes or is slow. Workers pull, "
      "compute, push and come to barriers; servers update, publish, log and write checkpoints; "
      "server 0 completes these; every rank replays and regroups");
  options.add("fault.rank", fault.rank, "The rank, as mpirun counts")->check(integer_in(0, 1'000'000));
  options.add("fault.after", fault.after, "Times that it passes the point before")->check(integer_in(0, kMany));
  options.add_named<FaultAction>("fault.action", fault.action,
                                 {{"kill", FaultAction::kill},
                                  {"stop", FaultAction::stop},
                                  {"kill_job", FaultAction::kill_job},
                                  {"delay", FaultAction::delay}},
                                 "SIGKILL or SIGSTOP to itself, SIGKILL to the launcher and itself, or a pause of "
                                 "fault.delay_s each time");
  options.add("fault.delay_s", fault.delay_s, "Seconds of fault.action = delay")->check(real_in(0, 3600));
  // Or the run would meet the same end again when it is continued.
  for (const char* key : {"fault.at", "fault.rank", "fault.after", "fault.action", "fault.delay_s"}) {
    options.leave_out(key);
  }
}

}  // namespace hat
