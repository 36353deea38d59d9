#include "hat/gradient/planted_noise.hpp"

#include <cmath>

#include "hat/core/random.hpp"

namespace hat {

void plant_noise(const RunPlan& plan, int64_t block, int64_t step, int64_t unit, std::span<float> gradient) {
  const SensitivityConfig& noise = plan.deck.sensitivity;
  if (block != plan.noise_block || step < noise.noise_from || step >= noise.noise_to) return;
  constexpr uint64_t kStream = 0x9015e;
  double squares = 0;
  for (const float value : gradient) squares += static_cast<double>(value) * static_cast<double>(value);
  const double deviation = noise.noise_scale * std::sqrt(squares / static_cast<double>(gradient.size()));
  const uint64_t stream = mix_bits(kStream ^ static_cast<uint64_t>(unit));
  for (size_t i = 0; i < gradient.size(); ++i) {
    gradient[i] += static_cast<float>(deviation * random_normal(plan.deck.seed, stream, i));
  }
}

}  // namespace hat
