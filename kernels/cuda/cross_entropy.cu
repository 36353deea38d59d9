#include "cuda_kernels.hpp"
#include "cuda_support.cuh"

namespace hat::cuda {

namespace {

constexpr int kThreads = 512;  // a block for each row: vocabularies are tens of thousands
constexpr size_t kSharedBytes = kThreads / kWarpThreads * (sizeof(float) + sizeof(double));

template <bool kGradient>
__global__ void rows(int64_t T, int64_t V, int64_t stride, const int32_t* targets, float* logits, double* row_nats) {
  constexpr int kWarps = kThreads / kWarpThreads;
  auto* sums = dynamic_shared<double>();
  auto* maxima = reinterpret_cast<float*>(sums + kWarps);
  const int64_t t = block_number();
  if (t >= T) return;
  float* row = logits + t * stride;
  const int64_t target = targets[t];
  if (target < 0) {
    if (threadIdx.x == 0) row_nats[t] = 0;
    if constexpr (kGradient) {
      for (int64_t i = threadIdx.x; i < V; i += kThreads) row[i] = 0;
    }
    return;
  }
  float maximum = -INFINITY;
  for (int64_t i = threadIdx.x; i < V; i += kThreads) maximum = fmaxf(maximum, row[i]);
  maximum = warp_maximum(maximum);
  if (threadIdx.x % kWarpThreads == 0) maxima[threadIdx.x / kWarpThreads] = maximum;
  __syncthreads();
  for (int warp = 0; warp < kWarps; ++warp) maximum = fmaxf(maximum, maxima[warp]);
  double sum = 0;
  for (int64_t i = threadIdx.x; i < V; i += kThreads) sum += static_cast<double>(expf(row[i] - maximum));
  sum = block_sum<kThreads>(sum, sums);  // after its barrier everybody has read the row
  if (threadIdx.x == 0) {
    row_nats[t] = log(sum) + static_cast<double>(maximum) - static_cast<double>(row[target]);
  }
  if constexpr (kGradient) {
    const auto inverse = static_cast<float>(1.0 / sum);
    __syncthreads();  // the target's logit has been read
    for (int64_t i = threadIdx.x; i < V; i += kThreads) {
      row[i] = expf(row[i] - maximum) * inverse - (i == target ? 1.0F : 0.0F);
    }
  }
}

}  // namespace

void cross_entropy(const Stream& stream, CrossEntropyOutput output, int64_t T, int64_t V, int64_t stride,
                   const int32_t* targets, float* logits, double* row_nats) {
  if (T == 0) return;
  const auto kernel = output == CrossEntropyOutput::loss ? rows<false> : rows<true>;
  launch(stream, kernel, blocks_for(T, 1), kThreads, kSharedBytes, T, V, stride, targets, logits, row_nats);
}

}  // namespace hat::cuda
