#include "worker/lease_desk.hpp"

#include <optional>
#include <utility>

namespace hat {

namespace {
/// Of worker `worker` in the gang of a lease; none: it has no gang.
std::optional<GangRange> range_of(const Lease& lease, int64_t worker) {
  if (lease.gang.empty()) return std::nullopt;
  GangRange range{.bounds = {0}};
  for (const GangMember& member : lease.gang) {
    if (member.worker == worker) range.member = range.members();
    range.bounds.push_back(range.bounds.back() + member.length);
  }
  return range;
}
}  // namespace

LeaseDesk::LeaseDesk(const RunPlan& plan, int worker, const Dataset& dataset, Mailbox& mailbox, Waiting& waiting,
                     BarrierSchedule& barriers)
    : plan_(plan), worker_(worker), dataset_(dataset), mailbox_(mailbox), waiting_(waiting), barriers_(barriers) {}

void LeaseDesk::ask(bool idle, int64_t closed_step) {
  mailbox_.post(LeaseRequest{.worker = worker_, .idle = idle, .closed_step = closed_step},
                plan_.roles.rank_of_server[0], MailTag::to_server);
  ++asked_;
}

void LeaseDesk::progress() {
  while (const std::unique_ptr<Mail> mail = mailbox_.try_receive()) {
    waiting_.heard();
    if (mail->kind() == MessageKind::alive) continue;
    if (mail->kind() == MessageKind::stop_at) {
      run_stops_ = true;
      continue;
    }
    if (mail->kind() != MessageKind::lease) {
      throw Error(fmt::format("worker {} received a message of kind {}, which is not for workers", worker_,
                              static_cast<int>(mail->kind())));
    }
    LeasedWork& answer = answers_.emplace_back(LeasedWork{.lease = mail->open<Lease>(), .batch = {}});
    barriers_.learn(answer.lease.barrier_changes, answer.lease.barriers_before);
    if (answer.lease.sequences.empty()) continue;
    const Split split = answer.lease.kind == LeaseKind::train ? Split::train : Split::validation;
    answer.batch =
        thread_.submit([this, split, sequences = answer.lease.sequences, range = range_of(answer.lease, worker_)] {
          PackedBatch batch = read_batch(dataset_, split, sequences);
          batch.range = range;
          return batch;
        });
  }
}

LeasedWork LeaseDesk::take() {
  waiting_.until(Activity::wait_work, "a lease from server 0", [this] { return !answers_.empty(); });
  LeasedWork work = std::move(answers_.front());
  answers_.pop_front();
  --asked_;
  return work;
}

PackedBatch LeaseDesk::text_of(LeasedWork& work) {
  waiting_.until(Activity::wait_work, "text to be read", [&] { return is_ready(work.batch); });
  return work.batch.get();
}

}  // namespace hat
