#include "gpu.hpp"

namespace hat::check_device {

namespace {

constexpr float kEpsilon = 1e-5F;

/// Both norms by their definition, and their gradients by the chain rule through mean and variance.
struct NormReference {
  std::vector<double> y;
  std::vector<double> dx;
  std::vector<double> d_weight;
  std::vector<double> d_bias;

  NormReference(bool centered, int64_t T, int64_t C, const Array<float>& x, const Array<float>& weight,
                const Array<float>& bias, const Array<float>& dy, const Array<float>& dx_before)
      : y(static_cast<size_t>(T * C)),
        dx(static_cast<size_t>(T * C)),
        d_weight(static_cast<size_t>(C)),
        d_bias(static_cast<size_t>(C)) {
    const auto columns = static_cast<double>(C);
    for (int64_t t = 0; t < T; ++t) {
      const int64_t row = t * C;
      double mean = 0;
      for (int64_t c = 0; centered && c < C; ++c) mean += x.start(row + c) / columns;
      double variance = 0;
      for (int64_t c = 0; c < C; ++c) variance += std::pow(x.start(row + c) - mean, 2) / columns;
      const double s = std::sqrt(variance + static_cast<double>(kEpsilon));
      double mean_g = 0;
      double mean_gn = 0;
      for (int64_t c = 0; c < C; ++c) {
        const double n = (x.start(row + c) - mean) / s;
        const double g = weight.start(c) * dy.start(row + c);
        mean_g += centered ? g / columns : 0.0;
        mean_gn += g * n / columns;
        y[static_cast<size_t>(row + c)] = n * weight.start(c) + (centered ? bias.start(c) : 0.0);
        d_weight[static_cast<size_t>(c)] += dy.start(row + c) * n;
        d_bias[static_cast<size_t>(c)] += dy.start(row + c);
      }
      for (int64_t c = 0; c < C; ++c) {
        const double n = (x.start(row + c) - mean) / s;
        const double g = weight.start(c) * dy.start(row + c);
        dx[static_cast<size_t>(row + c)] = dx_before.start(row + c) + (g - mean_g - n * mean_gn) / s;
      }
    }
  }
};

std::vector<Case> cases_of(Gpu& gpu, const Sizes& sizes, bool centered) {
  const int64_t T = sizes.T;
  const int64_t C = sizes.C;
  auto x = random_array(gpu, T * C, 3.0);
  auto weight = random_array(gpu, C);
  auto bias = random_array(gpu, C);
  auto dy = random_array(gpu, T * C);
  auto y = poisoned_array(gpu, T * C);
  auto mean = poisoned_array(gpu, T);
  auto inverse = poisoned_array(gpu, T);
  auto dx = random_array(gpu, T * C);
  auto d_weight = std::make_shared<Array<float>>(gpu, std::vector<float>(static_cast<size_t>(C)));
  auto d_bias = std::make_shared<Array<float>>(gpu, std::vector<float>(static_cast<size_t>(C)));
  const auto expected = [=] { return NormReference(centered, T, C, *x, *weight, *bias, *dy, *dx); };
  const auto forward = [=, &gpu] {
    const Operations& ops = gpu.operations();
    if (centered) {
      ops.layernorm_forward(gpu.stream(), T, C, kEpsilon, x->data(), weight->data(), bias->data(), y->data(),
                            mean->data(), inverse->data());
    } else {
      ops.rmsnorm_forward(gpu.stream(), T, C, kEpsilon, x->data(), weight->data(), y->data(), inverse->data());
    }
  };
  const auto backward = [=, &gpu] {
    const Operations& ops = gpu.operations();
    if (centered) {
      ops.layernorm_backward(gpu.stream(), T, C, x->data(), weight->data(), mean->data(), inverse->data(), dy->data(),
                             dx->data(), d_weight->data(), d_bias->data());
    } else {
      ops.rmsnorm_backward(gpu.stream(), T, C, x->data(), weight->data(), inverse->data(), dy->data(), dx->data(),
                           d_weight->data());
    }
  };
  const std::string name = centered ? "layernorm" : "rmsnorm";
  const auto values = static_cast<double>(T * C);
  return {{.name = name + "_forward",
           .bytes = 8 * values,
           .reset = [=] { y->reset(), mean->reset(), inverse->reset(); },
           .run = forward,
           .error = [=] { return distance(y->read(), expected().y) / kFp32; }},
          {.name = name + "_backward",
           .bytes = 16 * values,
           .reset =
               [=] {
                 dx->reset(), d_weight->reset(), d_bias->reset(), mean->reset(), inverse->reset();
                 forward();
               },
           .run = backward,
           .error =
               [=] {
                 const NormReference right = expected();
                 double error = std::max(distance(dx->read(), right.dx), distance(d_weight->read(), right.d_weight));
                 if (centered) error = std::max(error, distance(d_bias->read(), right.d_bias));
                 return error / kFp32;
               }}};
}

}  // namespace

std::vector<Case> norm_cases(Gpu& gpu, const Sizes& sizes) {
  std::vector<Case> cases = cases_of(gpu, sizes, /*centered=*/false);
  for (Case& layernorm : cases_of(gpu, sizes, /*centered=*/true)) cases.push_back(std::move(layernorm));
  return cases;
}

}  // namespace hat::check_device
