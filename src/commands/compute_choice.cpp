#include "commands/compute_choice.hpp"

#include "commands/all_ranks.hpp"

namespace hat {

std::vector<Recompute> levels_of(Recompute wanted) {
  if (wanted != Recompute::automatic) return {wanted};
  return {Recompute::none, Recompute::inner, Recompute::full};
}

std::optional<Recompute> first_that_fits(Recompute wanted, const std::function<int64_t(Recompute)>& bytes,
                                         int64_t limit) {
  for (const Recompute level : levels_of(wanted)) {
    if (bytes(level) <= limit) return level;
  }
  return std::nullopt;
}

ExitCode measure_slowest(const Communicator& world, bool measuring, const ModelConfig& model,
                         const ComputeOptions& options, ProductTimes& slowest, int device_index) {
  ProductTimes times;
  const ExitCode code = on_all_ranks(world, [&] {
    if (measuring) times = measure_products(model, options, device_index);
  });
  if (code != ExitCode::success) return code;
  const auto of_all = [&](double seconds) {
    constexpr double kNanoseconds = 1e9;
    return static_cast<double>(world.all_reduce_max(static_cast<int64_t>(seconds * kNanoseconds))) / kNanoseconds;
  };
  slowest = {.fp32_s = of_all(times.fp32_s), .bf16_s = of_all(times.bf16_s)};
  return ExitCode::success;
}

Element faster_of(const ProductTimes& times) { return times.bf16_s < times.fp32_s ? Element::bf16 : Element::fp32; }

const char* name_of(PullFormat format) { return format == PullFormat::fp32 ? "fp32" : "bf16"; }

}  // namespace hat
