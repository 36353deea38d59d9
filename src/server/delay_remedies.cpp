#include "server/delay_remedies.hpp"

#include <algorithm>
#include <cmath>

#include "hat/kernels/operations.hpp"

namespace hat {

std::span<float> Prediction::piece_of(int64_t version, const TensorPiece& piece) {
  return slots_.begin(version).subspan(static_cast<size_t>(piece.part_offset), static_cast<size_t>(piece.size()));
}

void Prediction::publish_as_is(int64_t version, std::span<const float> values) {
  std::ranges::copy(values, slots_.begin(version).begin());
  slots_.publish(version);
}

// The slot of the prediction keeps the old values meanwhile: with pulls in bf16 the update overwrites its own.
void Prediction::before_update(int64_t version, const TensorPiece& piece, const float* old_values) {
  std::copy_n(old_values + piece.part_offset, piece.size(), piece_of(version, piece).begin());
}

void Prediction::after_update(int64_t version, const TensorPiece& piece, const float* new_values) {
  const float* after = new_values + piece.part_offset;
  const std::span<float> predicted = piece_of(version, piece);
  predict(factor_, {after, predicted.size()}, predicted);
}

void predict(float staleness, std::span<const float> after, std::span<float> predicted) {
  for (size_t i = 0; i < predicted.size(); ++i) predicted[i] = after[i] + staleness * (after[i] - predicted[i]);
}

void compensate(double lambda, std::span<const float> gradient, std::span<const float> values,
                std::span<const float> base_values, std::span<float> compensated) {
  const auto count = static_cast<int64_t>(gradient.size());
  double sum = 0;
  operations(DeviceKind::cpu).sum_of_squares(Stream{Device{}}, count, gradient.data(), &sum);
  const double rms = std::sqrt(sum / static_cast<double>(count));
  const auto factor = rms > 0 ? static_cast<float>(lambda / rms) : 0.0F;
  for (size_t i = 0; i < gradient.size(); ++i) {
    compensated[i] = gradient[i] + factor * gradient[i] * gradient[i] * (values[i] - base_values[i]);
  }
}

}  // namespace hat
