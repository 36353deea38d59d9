#pragma once
#include <cstdint>

#include "hat/comm/messages.hpp"
#include "hat/metrics/account.hpp"
#include "hat/metrics/trace.hpp"

namespace hat {

/// What a worker tells the trace; without a recorder every call returns at once. The passes of a unit follow each other
/// block by block: one begins where the one before ends.
class WorkerTrace {
 public:
  explicit WorkerTrace(TraceRecorder* recorder) : recorder_(recorder) {}

  /// Time that `account` charges is recorded from now on.
  void follow(Account& account, int64_t first_step) {
    if (recorder_ == nullptr) return;
    step_ = first_step;
    account.set_listener([this](Activity activity, double begin_s, double end_s) {
      recorder_->add_activity({.activity = activity, .begin_s = begin_s, .end_s = end_s, .step = step_, .unit = unit_});
    });
  }
  /// What happens next belongs to this unit (-1: to none) of this step.
  void set_unit(Account& account, int64_t step, int64_t unit) {
    if (recorder_ == nullptr) return;
    account.change(account.current());  // what was before does not
    step_ = step;
    unit_ = unit;
  }

  void forward_begins(int64_t block, int64_t version) {
    if (recorder_ == nullptr) return;
    pass_ends();
    open_ = {.kind = TraceKind::forward, .step = step_, .unit = unit_, .version = version};
    open_.block = static_cast<int32_t>(block);
    open_.begin_s = now_s();
  }
  void backward_begins() {
    if (recorder_ == nullptr) return;
    pass_ends();
    backward_from_s_ = now_s();
  }
  void backward_ends(int64_t block) {
    if (recorder_ == nullptr) return;
    const double now = now_s();
    TraceEvent event{.kind = TraceKind::backward, .begin_s = backward_from_s_, .end_s = now, .step = step_};
    event.unit = unit_;
    event.block = static_cast<int32_t>(block);
    recorder_->add(event);
    backward_from_s_ = now;
  }
  /// A block that was asked for at `begin_s` is here. (The unit is the one computed meanwhile.)
  void pulled(int64_t block, int64_t version, double begin_s) {
    if (recorder_ == nullptr) return;
    recorder_->add({.kind = TraceKind::pull,
                    .begin_s = begin_s,
                    .end_s = now_s(),
                    .step = step_,
                    .unit = unit_,
                    .version = version,
                    .block = static_cast<int32_t>(block)});
  }
  /// The forward pass of the block that began last ends.
  void pass_ends() {
    if (recorder_ == nullptr || open_.block < 0) return;
    open_.end_s = now_s();
    recorder_->add(open_);
    open_.block = -1;
  }

 private:
  TraceRecorder* recorder_;
  int64_t step_ = 0;
  int64_t unit_ = -1;
  TraceEvent open_;  // block -1: none
  double backward_from_s_ = 0;
};

}  // namespace hat
