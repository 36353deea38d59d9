#pragma once
#include <cstdint>
#include <span>
#include <vector>

#include "hat/comm/versioned_slots.hpp"
#include "hat/model/shard_plan.hpp"

namespace hat {

/// How late the pushes of one update were.
struct MeanStaleness {
  int64_t versions = 0;  // sum over the pushes
  int64_t pushes = 0;

  void add(int64_t late) { versions += late, ++pushes; }
  double mean() const { return pushes > 0 ? static_cast<double>(versions) / static_cast<double>(pushes) : 0.0; }
};

/// staleness.predict: publishes a part as it is likely to be S updates later, w + S (w - the version before w), in
/// slots beside those of w and under the same version. A gradient taken there is applied to about the weights it was
/// taken at.
class Prediction {
 public:
  Prediction(const Window& window, const PartSlots& slots, int64_t staleness)
      : slots_(window, slots), factor_(static_cast<float>(staleness)) {}

  /// Without an update before it (the start, a checkpoint) a version is its own prediction.
  void publish_as_is(int64_t version, std::span<const float> values);

  /// Piece by piece, around the update that makes `version`: `old_values` are still those before it, `new_values` those
  /// after it (they may be one array), both from the part's first element on.
  void before_update(int64_t version, const TensorPiece& piece, const float* old_values);
  void after_update(int64_t version, const TensorPiece& piece, const float* new_values);
  /// All pieces of `version` are predicted.
  void publish(int64_t version, double push_travel_s) { slots_.publish(version, push_travel_s); }
  /// SlotPublisher::read of the prediction.
  void read(int64_t version, int64_t first, std::span<float> values) const { slots_.read(version, first, values); }

 private:
  std::span<float> piece_of(int64_t version, const TensorPiece& piece);

  SlotPublisher slots_;
  float factor_;
};

/// The prediction itself: `predicted` holds the values before the update that made `after`.
void predict(float staleness, std::span<const float> after, std::span<float> predicted);

/// staleness.compensation (Zheng et al. 2017, DC-ASGD): g + lambda g g / rms(g) (w - w_base), where g g stands for the
/// diagonal of the second derivative, divided by the root mean square of g so that lambda has no unit and the sum of a
/// step may stand for its clipped mean. All of one piece; `compensated` gets as many values.
void compensate(double lambda, std::span<const float> gradient, std::span<const float> values,
                std::span<const float> base_values, std::span<float> compensated);

}  // namespace hat
