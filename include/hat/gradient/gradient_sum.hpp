#pragma once
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <vector>

namespace hat {

/// In which order pushes enter a sum.
enum class AddingOrder {
  arrival,  ///< as they come: the sum depends on timing in its last bits
  by_unit,  ///< by their place in the step; a push that comes early waits
};

/// The gradient of one part and one step while its pushes come in. Complete once every element has received the target
/// tokens of the whole step.
class GradientSum {
 public:
  /// `step_tokens`: target tokens of the step.
  GradientSum(int64_t count, int64_t step_tokens, AddingOrder order);

  /// Adds `values` to elements [begin, begin + values.size()). `tokens` is what went into them, `place` their unit's
  /// place in the step (by_unit).
  void add(int64_t begin, std::span<const float> values, int64_t tokens, int64_t place);
  /// The whole step's sum of these elements (of a barrier block): nothing else will come for them.
  void set(int64_t begin, std::span<const float> values);

  bool complete() const { return covered_ == static_cast<int64_t>(sum_->size()) * step_tokens_; }
  const float* sum() const { return sum_->data(); }
  /// Once complete: the values, which whoever needs them longer keeps.
  std::shared_ptr<const std::vector<float>> values() const { return sum_; }
  int64_t step_tokens() const { return step_tokens_; }

 private:
  struct Early {
    int64_t begin;
    std::vector<float> values;
    int64_t tokens;
  };
  void add_now(int64_t begin, std::span<const float> values, int64_t tokens);

  std::shared_ptr<std::vector<float>> sum_;
  int64_t step_tokens_;
  AddingOrder order_;
  int64_t covered_ = 0;                  // elements times tokens
  int64_t next_place_ = 0;               // by_unit: the unit whose turn it is
  int64_t place_filled_ = 0;             // by_unit: elements of it that have come
  std::multimap<int64_t, Early> early_;  // by place
};

}  // namespace hat
