#include "../../kernels/sketch_hash.hpp"
#include "gpu.hpp"

namespace hat::check_device {

namespace {

double sum_of_squares_of(const Array<float>& x) {
  double sum = 0;
  for (int64_t i = 0; i < x.size(); ++i) sum += x.start(i) * x.start(i);
  return sum;
}

}  // namespace

std::vector<Case> elementwise_cases(Gpu& gpu, const Sizes& sizes) {
  const int64_t T = sizes.T;
  const int64_t N = sizes.C;
  const int64_t n = T * N;
  const auto values = static_cast<double>(n);
  auto x = random_array(gpu, n);
  auto y = random_array(gpu, n);
  auto target = poisoned_array(gpu, n);
  auto bias = random_array(gpu, N);
  auto d_bias = random_array(gpu, N);
  auto sum = poisoned_array<double>(gpu, 1);
  auto sketch = poisoned_array(gpu, kSketchBuckets);
  constexpr double kOfSum = 1e-12;
  const auto error_of_sum = [=] {
    const double right = sum_of_squares_of(*x);
    return std::abs(sum->read()[0] - right) / right / kOfSum;
  };
  return {
      {.name = "fill",
       .bytes = 4 * values,
       .reset = [=] { target->reset(); },
       .run = [=, &gpu] { gpu.operations().fill(gpu.stream(), n, 2.5F, target->data()); },
       .error = [=] { return distance(target->read(), std::vector<double>(static_cast<size_t>(n), 2.5)) / kFp32; }},
      {.name = "scale",
       .bytes = 8 * values,
       .reset = [=] { y->reset(); },
       .run = [=, &gpu] { gpu.operations().scale(gpu.stream(), n, 0.25F, y->data()); },
       .error =
           [=] {
             std::vector<double> right;
             for (int64_t i = 0; i < n; ++i) right.push_back(0.25 * y->start(i));
             return distance(y->read(), right) / kFp32;
           }},
      {.name = "residual_forward",
       .bytes = 12 * values,
       .reset = [=] { y->reset(); },
       .run = [=, &gpu] { gpu.operations().residual_forward(gpu.stream(), T, N, x->data(), bias->data(), y->data()); },
       .error =
           [=] {
             std::vector<double> right;
             for (int64_t i = 0; i < n; ++i) right.push_back(y->start(i) + x->start(i) + bias->start(i % N));
             return distance(y->read(), right) / kFp32;
           }},
      {.name = "bias_backward",
       .bytes = 4 * values,
       .reset = [=] { d_bias->reset(); },
       .run = [=, &gpu] { gpu.operations().bias_backward(gpu.stream(), T, N, x->data(), d_bias->data()); },
       .error =
           [=] {
             std::vector<double> right;
             for (int64_t c = 0; c < N; ++c) right.push_back(d_bias->start(c));
             for (int64_t i = 0; i < n; ++i) right[static_cast<size_t>(i % N)] += x->start(i);
             return distance(d_bias->read(), right) / kFp32;
           }},
      {.name = "sum_of_squares",
       .bytes = 4 * values,
       .reset = [=] { sum->reset(); },
       .run = [=, &gpu] { gpu.operations().sum_of_squares(gpu.stream(), n, x->data(), sum->data()); },
       .error = error_of_sum},
      {.name = "count_sketch",
       .bytes = 4 * values,
       .reset = [=] { sketch->reset(), sum->reset(); },
       .run = [=, &gpu] { gpu.operations().count_sketch(gpu.stream(), n, x->data(), sketch->data(), sum->data()); },
       .error =
           [=] {
             std::vector<double> right(static_cast<size_t>(kSketchBuckets));
             for (int64_t i = 0; i < n; ++i) {
               const bool minus = (sketch_signs(i / kSketchWord) >> (i % kSketchWord) & 1U) != 0;
               const int64_t bucket = (i + sketch_rotation(i / kSketchBuckets)) % kSketchBuckets;
               right[static_cast<size_t>(bucket)] += minus ? -x->start(i) : x->start(i);
             }
             return std::max(distance(sketch->read(), right) / kFp32, error_of_sum());
           }},
  };
}

}  // namespace hat::check_device
