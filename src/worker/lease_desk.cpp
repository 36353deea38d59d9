#include "worker/lease_desk.hpp"

#include <utility>

namespace hat {

LeaseDesk::LeaseDesk(const RunPlan& plan, int worker, const Dataset& dataset, Mailbox& mailbox, Waiting& waiting,
                     BarrierSchedule& barriers)
    : plan_(plan), worker_(worker), dataset_(dataset), mailbox_(mailbox), waiting_(waiting), barriers_(barriers) {}

void LeaseDesk::ask(bool idle, int64_t closed_step) {
  mailbox_.post(LeaseRequest{.worker = worker_, .idle = idle, .closed_step = closed_step},
                plan_.roles.rank_of_server[0], MailTag::to_server);
}

void LeaseDesk::progress() {
  const std::unique_ptr<Mail> mail = mailbox_.try_receive();
  if (!mail) return;
  if (mail->kind() != MessageKind::lease) {
    throw Error(fmt::format("worker {} received a message of kind {}, which is not for workers", worker_,
                            static_cast<int>(mail->kind())));
  }
  answer_ = mail->open<Lease>();
  barriers_.learn(answer_->barrier_changes, answer_->barriers_before);
  if (answer_->sequences.empty()) return;
  const Split split = answer_->kind == LeaseKind::train ? Split::train : Split::validation;
  next_batch_ = thread_.submit([this, split, sequences = answer_->sequences] {  //
    return read_batch(dataset_, split, sequences);
  });
}

Lease LeaseDesk::take_lease() {
  waiting_.until(Activity::wait_work, "a lease from server 0", [this] { return answer_.has_value(); });
  batch_ = std::move(next_batch_);
  return *std::exchange(answer_, std::nullopt);
}

PackedBatch LeaseDesk::take_batch() {
  waiting_.until(Activity::wait_work, "text to be read", [this] { return is_ready(batch_); });
  return batch_.get();
}

}  // namespace hat
