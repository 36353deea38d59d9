#include "hat/gradient/gradient_sum.hpp"

#include "hat/core/error.hpp"

namespace hat {

GradientSum::GradientSum(int64_t count, int64_t step_tokens, AddingOrder order)
    : sum_(std::make_shared<std::vector<float>>(static_cast<size_t>(count), 0.0F)),
      step_tokens_(step_tokens),
      order_(order) {}

void GradientSum::add_now(int64_t begin, std::span<const float> values, int64_t tokens) {
  float* sum = sum_->data() + begin;
  for (size_t i = 0; i < values.size(); ++i) sum[i] += values[i];
  covered_ += static_cast<int64_t>(values.size()) * tokens;
  if (covered_ > static_cast<int64_t>(sum_->size()) * step_tokens_) {
    throw Error(fmt::format("a gradient received more target tokens than its step has ({})", step_tokens_));
  }
}

void GradientSum::set(int64_t begin, std::span<const float> values) { add_now(begin, values, step_tokens_); }

void GradientSum::add(int64_t begin, std::span<const float> values, int64_t tokens, int64_t place) {
  if (order_ == AddingOrder::arrival) {
    add_now(begin, values, tokens);
    return;
  }
  if (place < next_place_) {
    throw Error(fmt::format("unit {} of a step was added to a gradient before, and came again", place));
  }
  if (place != next_place_) {
    early_.emplace(place, Early{.begin = begin, .values = {values.begin(), values.end()}, .tokens = tokens});
    return;
  }
  add_now(begin, values, tokens);
  place_filled_ += static_cast<int64_t>(values.size());
  // A unit's gradient may come in several pushes; its successor's turn comes when the part is filled.
  while (place_filled_ == static_cast<int64_t>(sum_->size())) {
    ++next_place_;
    place_filled_ = 0;
    for (auto [first, last] = early_.equal_range(next_place_); first != last; first = early_.erase(first)) {
      add_now(first->second.begin, first->second.values, first->second.tokens);
      place_filled_ += static_cast<int64_t>(first->second.values.size());
    }
  }
}

}  // namespace hat
