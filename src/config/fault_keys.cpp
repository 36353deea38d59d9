#include "config/fault_keys.hpp"

#include "hat/config/checks.hpp"

namespace hat {

void add_fault_keys(OptionSet& options, FaultConfig& fault) {
  options.add_named<FaultPoint>(
      "fault.at", fault.at, {{"none", FaultPoint::none},         {"start", FaultPoint::start},
                             {"pull", FaultPoint::pull},         {"compute", FaultPoint::compute},
                             {"push", FaultPoint::push},         {"barrier", FaultPoint::barrier},
                             {"update", FaultPoint::update},     {"publish", FaultPoint::publish},
                             {"log", FaultPoint::log},           {"checkpoint", FaultPoint::checkpoint},
                             {"complete", FaultPoint::complete}, {"replay", FaultPoint::replay},
                             {"regroup", FaultPoint::regroup},   {"metrics", FaultPoint::metrics},
                             {"shutdown", FaultPoint::shutdown}, {"lease_request", FaultPoint::lease_request},
                             {"lease", FaultPoint::lease},       {"report", FaultPoint::report},
                             {"commit", FaultPoint::commit},     {"control", FaultPoint::control}},
      "To see what becomes of a run: where fault.rank dies, freezes or is slow, loses a message or writes badly. "
      "Workers pull, compute, push, come to barriers, and send lease_request and report; servers update, publish, log, "
      "write checkpoints and send commit; server 0 completes these, saves metrics, and sends lease and control; every "
      "rank replays and regroups");
  options.add("fault.rank", fault.rank, "The rank, as mpirun counts")->check(integer_in(0, 1'000'000));
  options.add("fault.after", fault.after, "Times that it passes the point before")->check(integer_in(0, kMany));
  options.add_named<FaultAction>("fault.action", fault.action,
                                 {{"kill", FaultAction::kill},
                                  {"stop", FaultAction::stop},
                                  {"kill_job", FaultAction::kill_job},
                                  {"delay", FaultAction::delay},
                                  {"drop", FaultAction::drop},
                                  {"duplicate", FaultAction::duplicate},
                                  {"fail", FaultAction::fail},
                                  {"shorten", FaultAction::shorten}},
                                 "SIGKILL or SIGSTOP to itself, SIGKILL to the launcher and itself, or a pause of "
                                 "fault.delay_s each time; of messages (push, lease_request, lease, report, commit, "
                                 "control): drop one, or send all from then on twice; of writes (log, checkpoint, "
                                 "complete, metrics): fail as on a full disk, or shorten one and say nothing (log: "
                                 "a torn write, of which the rank dies)");
  options.add("fault.delay_s", fault.delay_s, "Seconds of fault.action = delay")->check(real_in(0, 3600));
  // Or the run would meet the same end again when it is continued.
  for (const char* key : {"fault.at", "fault.rank", "fault.after", "fault.action", "fault.delay_s"}) {
    options.leave_out(key);
  }
}

void check_fault(const OptionSet& options, const FaultConfig& fault) {
  const bool needs_message = fault.action == FaultAction::drop || fault.action == FaultAction::duplicate;
  const bool needs_write = fault.action == FaultAction::fail || fault.action == FaultAction::shorten;
  if (fault.at == FaultPoint::none) return;
  if (needs_message && !is_of_messages(fault.at)) {
    throw options.error("fault.action", "is of messages: push, lease_request, lease, report, commit or control",
                        {"fault.at"});
  }
  if (needs_write && !is_of_writes(fault.at)) {
    throw options.error("fault.action", "is of writes: log, checkpoint, complete or metrics", {"fault.at"});
  }
}

}  // namespace hat
