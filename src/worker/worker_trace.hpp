#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "hat/comm/messages.hpp"
#include "hat/device/profiler.hpp"
#include "hat/metrics/account.hpp"
#include "hat/metrics/trace.hpp"

namespace hat {

/// The passes of a worker as a profiler sees them: a range for each block, one behind the other.
class PassRanges {
 public:
  explicit PassRanges(const std::vector<std::string>& block_names) {
    for (const std::string& name : block_names) {
      forward_.push_back("forward " + name);
      backward_.push_back("backward " + name);
    }
  }
  ~PassRanges() { end(); }
  PassRanges(const PassRanges&) = delete;
  PassRanges& operator=(const PassRanges&) = delete;

  void forward(int64_t block) { next(forward_[static_cast<size_t>(block)]); }
  void backward(int64_t block) { next(backward_[static_cast<size_t>(block)]); }
  void end() {
    if (is_open_) end_profiler_range();
    is_open_ = false;
  }
  int64_t blocks() const { return std::ssize(forward_); }

 private:
  void next(const std::string& name) {
    end();
    begin_profiler_range(name.c_str());
    is_open_ = true;
  }
  std::vector<std::string> forward_;  // names, by block
  std::vector<std::string> backward_;
  bool is_open_ = false;
};

/// What a worker tells the trace and profilers; without a recorder nothing is recorded. The passes of a unit follow
/// each other block by block: one begins where the one before ends.
class WorkerTrace {
 public:
  WorkerTrace(TraceRecorder* recorder, const std::vector<std::string>& block_names)
      : recorder_(recorder), ranges_(block_names) {}

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
    ranges_.forward(block);
    if (recorder_ == nullptr) return;
    end_forward();
    open_ = {.kind = TraceKind::forward, .step = step_, .unit = unit_, .version = version};
    open_.block = static_cast<int32_t>(block);
    open_.begin_s = now_s();
  }
  void backward_begins() {
    ranges_.backward(ranges_.blocks() - 1);
    if (recorder_ == nullptr) return;
    end_forward();
    backward_from_s_ = now_s();
  }
  void backward_ends(int64_t block) {
    ranges_.end();
    if (block > 0) ranges_.backward(block - 1);
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
    ranges_.end();
    end_forward();
  }

 private:
  void end_forward() {
    if (recorder_ == nullptr || open_.block < 0) return;
    open_.end_s = now_s();
    recorder_->add(open_);
    open_.block = -1;
  }

  TraceRecorder* recorder_;
  PassRanges ranges_;
  int64_t step_ = 0;
  int64_t unit_ = -1;
  TraceEvent open_;  // block -1: none
  double backward_from_s_ = 0;
};

}  // namespace hat
