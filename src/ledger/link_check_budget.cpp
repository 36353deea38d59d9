#include "hat/ledger/link_check_budget.hpp"

#include <algorithm>

namespace hat {

namespace {
constexpr double kShare = 0.01;  // of the time
constexpr double kAsPredicted = 0.5;
constexpr int64_t kMostPatience = 1024;
}  // namespace

void LinkCheckBudget::advance(double now_s) {
  if (last_s_ >= 0) left_s_ += kShare * (now_s - last_s_);
  last_s_ = now_s;
}

void LinkCheckBudget::plan(int64_t step, double predicted_s) {
  left_s_ -= predicted_s;
  next_step_ = step + patience_;
}

void LinkCheckBudget::observe(double predicted_s, double waited_s) {
  left_s_ += predicted_s - waited_s;
  patience_ = waited_s < kAsPredicted * predicted_s ? 1 : std::min(kMostPatience, 2 * patience_);
}

}  // namespace hat
