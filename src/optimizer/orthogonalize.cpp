#include <cmath>

#include "hat/kernels/operations.hpp"
#include "hat/optimizer/optimizer.hpp"

namespace hat {

namespace {

std::vector<float> transposed(int64_t rows, int64_t columns, const std::vector<float>& matrix) {
  std::vector<float> result(matrix.size());
  for (int64_t i = 0; i < rows; ++i) {
    for (int64_t j = 0; j < columns; ++j) {
      result[static_cast<size_t>(j * rows + i)] = matrix[static_cast<size_t>(i * columns + j)];
    }
  }
  return result;
}

}  // namespace

void orthogonalize(int64_t rows, int64_t columns, std::vector<float>& matrix) {
  if (rows > columns) {  // the products below are cheapest with the short side first
    std::vector<float> wide = transposed(rows, columns, matrix);
    orthogonalize(columns, rows, wide);
    matrix = transposed(columns, rows, wide);
    return;
  }
  const Stream stream{Device{}};
  const Operations& ops = operations(DeviceKind::cpu);
  const int64_t m = rows;
  const int64_t n = columns;
  double sum = 0;
  ops.sum_of_squares(stream, m * n, matrix.data(), &sum);
  ops.scale(stream, m * n, static_cast<float>(1.0 / (std::sqrt(sum) + 1e-7)), matrix.data());

  std::vector<float> gram(static_cast<size_t>(m * m));        // A = X X^T  (m, m)
  std::vector<float> polynomial(static_cast<size_t>(m * m));  // b A + c A A  (m, m)
  std::vector<float> next(matrix.size());                     // (m, n)
  for (int iteration = 0; iteration < 5; ++iteration) {
    ops.gemm(stream, Element::fp32, Transpose::no, Transpose::yes, m, m, n, 1.0F, matrix.data(), n, matrix.data(), n,
             0.0F, gram.data(), m);
    polynomial = gram;
    ops.gemm(stream, Element::fp32, Transpose::no, Transpose::no, m, m, m, 2.0315F, gram.data(), m, gram.data(), m,
             -4.7750F, polynomial.data(), m);
    next = matrix;
    ops.gemm(stream, Element::fp32, Transpose::no, Transpose::no, m, n, m, 1.0F, polynomial.data(), m, matrix.data(), n,
             3.4445F, next.data(), n);
    matrix.swap(next);
  }
}

}  // namespace hat
