#include "gpu.hpp"

namespace hat::check_device {

namespace {

double rounded(double value) { return static_cast<double>(to_float(to_bfloat16(static_cast<float>(value)))); }

}  // namespace

// With what is kept in bf16, as in training; the definition begins with what was kept.
std::vector<Case> activation_cases(Gpu& gpu, const Sizes& sizes) {
  const int64_t T = sizes.T;
  const int64_t F = sizes.F;
  const auto values = static_cast<double>(T * F);
  auto x = random_array(gpu, T * 2 * F, 4.0);
  auto dy = random_array(gpu, T * F);
  auto kept = poisoned_array<bfloat16>(gpu, T * 2 * F);
  auto y = poisoned_array(gpu, T * F);
  auto again = poisoned_array(gpu, T * F);
  auto gradient = poisoned_array(gpu, T * 2 * F);
  const auto swiglu = [=, &gpu] {
    gpu.operations().swiglu_forward(gpu.stream(), T, F, x->data(), Values(kept->data()), y->data());
  };
  const auto each_swiglu = [=](const auto& work) {
    for (int64_t t = 0; t < T; ++t) {
      for (int64_t f = 0; f < F; ++f) {
        const double gate = rounded(x->start(t * 2 * F + f));
        const double up = rounded(x->start(t * 2 * F + F + f));
        work(t, f, gate, up, 1.0 / (1.0 + std::exp(-gate)));
      }
    }
  };
  auto u = random_array(gpu, T * F, 3.0);
  auto bias = random_array(gpu, F);
  auto kept_up = poisoned_array<bfloat16>(gpu, T * F);
  auto d_up = poisoned_array(gpu, T * F);
  const auto gelu = [=, &gpu] {
    gpu.operations().gelu_forward(gpu.stream(), T, F, u->data(), bias->data(), Values(kept_up->data()), y->data());
  };
  const auto gelu_of = [=](int64_t i, double& value, double& slope) {
    // The sum is rounded twice, as the kernel does it.
    const double v =
        rounded(static_cast<double>(static_cast<float>(u->start(i)) + static_cast<float>(bias->start(i % F))));
    const double root = std::sqrt(2.0 / std::acos(-1.0));
    const double tanh = std::tanh(root * (v + 0.044715 * v * v * v));
    value = 0.5 * v * (1.0 + tanh);
    slope = 0.5 * (1.0 + tanh) + 0.5 * v * (1.0 - tanh * tanh) * root * (1.0 + 3.0 * 0.044715 * v * v);
  };
  return {{.name = "swiglu_forward",
           .bytes = 16 * values,
           .reset = [=] { kept->reset(), y->reset(); },
           .run = swiglu,
           .error =
               [=] {
                 std::vector<double> right(static_cast<size_t>(T * F));
                 each_swiglu([&](int64_t t, int64_t f, double gate, double up, double s) {
                   right[static_cast<size_t>(t * F + f)] = gate * s * up;
                 });
                 return distance(y->read(), right) / kFp32;
               }},
          {.name = "swiglu_backward",
           .bytes = 20 * values,
           .reset =
               [=] {
                 gradient->reset(), again->reset(), kept->reset();
                 swiglu();
               },
           .run =
               [=, &gpu] {
                 gpu.operations().swiglu_backward(gpu.stream(), T, F, ConstValues(kept->data()), dy->data(),
                                                  gradient->data(), again->data());
               },
           .error =
               [=] {
                 std::vector<double> right(static_cast<size_t>(2 * T * F));
                 std::vector<double> once_more(static_cast<size_t>(T * F));
                 each_swiglu([&](int64_t t, int64_t f, double gate, double up, double s) {
                   const auto at = static_cast<size_t>(t * 2 * F + f);
                   const double d = dy->start(t * F + f);
                   right[at] = d * up * (s + gate * s * (1.0 - s));
                   right[at + static_cast<size_t>(F)] = d * gate * s;
                   once_more[static_cast<size_t>(t * F + f)] = gate * s * up;
                 });
                 return std::max(distance(gradient->read(), right), distance(again->read(), once_more)) / kFp32;
               }},
          {.name = "gelu_forward",
           .bytes = 10 * values,
           .reset = [=] { kept_up->reset(), y->reset(); },
           .run = gelu,
           .error =
               [=] {
                 std::vector<double> right(static_cast<size_t>(T * F));
                 double slope = 0;
                 for (int64_t i = 0; i < T * F; ++i) gelu_of(i, right[static_cast<size_t>(i)], slope);
                 return distance(y->read(), right) / kFp32;
               }},
          {.name = "gelu_backward",
           .bytes = 14 * values,
           .reset =
               [=] {
                 d_up->reset(), again->reset(), kept_up->reset();
                 gelu();
               },
           .run =
               [=, &gpu] {
                 gpu.operations().gelu_backward(gpu.stream(), T, F, ConstValues(kept_up->data()), dy->data(),
                                                d_up->data(), again->data());
               },
           .error =
               [=] {
                 std::vector<double> right(static_cast<size_t>(T * F));
                 std::vector<double> once_more(right.size());
                 for (int64_t i = 0; i < T * F; ++i) {
                   double slope = 0;
                   gelu_of(i, once_more[static_cast<size_t>(i)], slope);
                   right[static_cast<size_t>(i)] = dy->start(i) * slope;
                 }
                 return std::max(distance(d_up->read(), right), distance(again->read(), once_more)) / kFp32;
               }}};
}

}  // namespace hat::check_device
