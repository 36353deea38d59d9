#include "gpu.hpp"

namespace hat::check_device {

namespace {

Case product_case(Gpu& gpu, Element arithmetic, int64_t m, int64_t n, int64_t k, bool compared) {
  auto a = random_array<bfloat16>(gpu, m * k);
  auto b = random_array<bfloat16>(gpu, k * n);
  auto wide_a = arithmetic == Element::fp32 ? random_array(gpu, m * k) : nullptr;
  auto wide_b = arithmetic == Element::fp32 ? random_array(gpu, k * n) : nullptr;
  auto c = poisoned_array(gpu, m * n);
  Case product{.name = fmt::format("gemm {}", arithmetic == Element::fp32 ? "fp32" : "bf16"),
               .flops = 2.0 * static_cast<double>(m) * static_cast<double>(n) * static_cast<double>(k),
               .reset = [=] { c->reset(); },
               .run =
                   [=, &gpu] {
                     const auto values_a = wide_a ? ConstValues(wide_a->data()) : ConstValues(a->data());
                     const auto values_b = wide_b ? ConstValues(wide_b->data()) : ConstValues(b->data());
                     gpu.operations().gemm(gpu.stream(), arithmetic, Transpose::no, Transpose::no, m, n, k, 1.0F,
                                           values_a, k, values_b, n, 0.0F, c->data(), n);
                   },
               .error = {}};
  if (!compared) return product;
  product.error = [=] {
    std::vector<double> right(static_cast<size_t>(m * n));
    for (int64_t i = 0; i < m; ++i) {
      for (int64_t l = 0; l < k; ++l) {
        const double left = wide_a ? wide_a->start(i * k + l) : a->start(i * k + l);
        for (int64_t j = 0; j < n; ++j) {
          right[static_cast<size_t>(i * n + j)] += left * (wide_b ? wide_b->start(l * n + j) : b->start(l * n + j));
        }
      }
    }
    return distance(c->read(), right) / kFp32;
  };
  return product;
}

}  // namespace

std::vector<Case> product_cases(Gpu& gpu, const Sizes& sizes) {
  if (gpu.operations().gemm == nullptr) return {};
  std::vector<Case> cases;
  cases.push_back(product_case(gpu, Element::bf16, sizes.T, sizes.F, sizes.C, sizes.compared));
  if (sizes.compared) cases.push_back(product_case(gpu, Element::fp32, sizes.T, sizes.F, sizes.C, true));
  return cases;
}

}  // namespace hat::check_device
