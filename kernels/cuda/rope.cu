#include "cuda_kernels.hpp"
#include "cuda_support.cuh"

namespace hat::cuda {

namespace {

constexpr int kThreads = 256;

__global__ void angles(int64_t length, int64_t half, double base, float* cosine, float* sine) {
  const int64_t i = block_number() * kThreads + threadIdx.x;
  if (i >= length * half) return;
  // In half turns: sine and cosine of large numbers of radians need memory of their own in every thread.
  constexpr double kHalfTurns = 0.318309886183790671538;
  const double frequency = pow(base, -static_cast<double>(i % half) / static_cast<double>(half));
  double s = 0;
  double c = 0;
  sincospi(static_cast<double>(i / half) * frequency * kHalfTurns, &s, &c);
  cosine[i] = static_cast<float>(c);
  sine[i] = static_cast<float>(s);
}

/// A thread for each pair of a rotated head, and for each other column, of a row.
template <class E>
__global__ void rotate(int64_t T, int64_t N, int64_t rotated, int64_t half, float sign, const int32_t* positions,
                       const float* cosine, const float* sine, const float* bias, const float* x, E* y) {
  const int64_t a_row = N - rotated / 2;
  const int64_t i = block_number() * kThreads + threadIdx.x;
  if (i >= T * a_row) return;
  const int64_t t = i / a_row;
  const int64_t place = i % a_row;
  const auto value = [&](int64_t c) { return x[t * N + c] + (bias == nullptr ? 0.0F : bias[c]); };
  if (place >= rotated / 2) {
    const int64_t c = rotated + place - rotated / 2;
    write_value(y + t * N + c, value(c));
    return;
  }
  const int64_t pair = place % half;
  const int64_t low_column = place / half * 2 * half + pair;
  const float low = value(low_column);
  const float high = value(low_column + half);
  const int64_t angle = positions[t] * half + pair;
  const float c = cosine[angle];
  const float s = sign * sine[angle];
  write_value(y + t * N + low_column, low * c - high * s);
  write_value(y + t * N + low_column + half, high * c + low * s);
}

}  // namespace

void rope_table(const Stream& stream, int64_t length, int64_t D, double base, float* cosine, float* sine) {
  const int64_t half = D / 2;
  if (length * half == 0) return;
  launch(stream, angles, blocks_for(length * half, kThreads), kThreads, 0, length, half, base, cosine, sine);
}

void rope_forward(const Stream& stream, int64_t T, int64_t N, int64_t heads, int64_t D, const int32_t* positions,
                  const float* cosine, const float* sine, const float* bias, const float* x, Values y) {
  if (T * N == 0) return;
  const int64_t rotated = cosine == nullptr ? 0 : heads * D;
  const int64_t half = rotated == 0 ? 1 : D / 2;
  with_element(y, [&]<class E>(E* out) {
    launch(stream, rotate<E>, blocks_for(T * (N - rotated / 2), kThreads), kThreads, 0, T, N, rotated, half, 1.0F,
           positions, cosine, sine, bias, x, out);
  });
}

void rope_backward(const Stream& stream, int64_t T, int64_t N, int64_t heads, int64_t D, const int32_t* positions,
                   const float* cosine, const float* sine, float* dx) {
  const int64_t rotated = heads * D;
  if (T * rotated == 0) return;
  launch(stream, rotate<float>, blocks_for(T * (N - rotated / 2), kThreads), kThreads, 0, T, N, rotated, D / 2, -1.0F,
         positions, cosine, sine, static_cast<const float*>(nullptr), dx, dx);
}

}  // namespace hat::cuda
