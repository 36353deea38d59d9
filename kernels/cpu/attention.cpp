#include <omp.h>

#include <algorithm>
#include <cmath>

#include "cpu_kernels.hpp"
#include "vector_math.hpp"

namespace hat::cpu {

namespace {

// A tile of scores is kQueryTile x kKeyTile. The wide key side keeps the matrix products large; only the last
// kQueryTile columns before the diagonal are computed in vain. kKeyTile is a multiple of kQueryTile, so every row of a
// tile has at least one visible key.
constexpr int64_t kQueryTile = 64;
constexpr int64_t kKeyTile = 256;
constexpr int64_t kScoreStride = kKeyTile + 16;  // off the powers of two, which would meet in one cache set
constexpr int64_t kTileSize = kQueryTile * kScoreStride;
static_assert(kKeyTile % kQueryTile == 0);

/// One head of one document: pointers to its first row.
struct HeadView {
  int64_t length = 0;
  int64_t head_size = 0;
  int64_t stride = 0;      ///< of q, k, v
  int64_t out_stride = 0;  ///< of the output
  float scale = 0.0f;      ///< 1 / sqrt(D)
  const float* q = nullptr;
  const float* k = nullptr;
  const float* v = nullptr;
};

/// A tile of the score matrix: query rows [query, query + rows), keys [key, key + columns).
struct Tile {
  int64_t query = 0;
  int64_t rows = 0;
  int64_t key = 0;
  int64_t columns = 0;
  int64_t visible(int64_t row) const { return std::min(columns, query + row - key + 1); }
};

/// Calls `visit` for every tile on or below the diagonal with the queries [query, query + rows), keys ascending.
template <typename Visit>
void for_each_key_tile(int64_t query, int64_t rows, const Visit& visit) {
  for (int64_t key = 0; key < query + rows; key += kKeyTile) {
    visit(Tile{query, rows, key, std::min(kKeyTile, query + rows - key)});
  }
}

HeadView view_head(const AttentionShape& shape, int64_t document, int64_t head, const float* q, const float* k,
                   const float* v) {
  const int64_t begin = shape.offsets[document];
  const int64_t kv_head = head / (shape.heads / shape.kv_heads);
  HeadView view;
  view.length = shape.offsets[document + 1] - begin;
  view.head_size = shape.head_size;
  view.stride = shape.qkv_stride;
  view.out_stride = shape.heads * shape.head_size;
  view.scale = 1.0f / std::sqrt(static_cast<float>(shape.head_size));
  view.q = q + begin * shape.qkv_stride + head * shape.head_size;
  view.k = k + begin * shape.qkv_stride + kv_head * shape.head_size;
  view.v = v + begin * shape.qkv_stride + kv_head * shape.head_size;
  return view;
}

/// scores (rows, columns) = scale q k^T of a tile.
void compute_scores(const Stream& serial, const HeadView& head, const Tile& tile, float* scores) {
  gemm(serial, Element::fp32, Transpose::no, Transpose::yes, tile.rows, tile.columns, head.head_size, head.scale,
       head.q + tile.query * head.stride, head.stride, head.k + tile.key * head.stride, head.stride, 0.0f, scores,
       kScoreStride);
}

/// Running softmax: turns scores into exp(score - maximum) with the rows' new maxima, zeroes what is hidden, and brings
/// the sums and the output rows from earlier key tiles to the new maxima.
void absorb_scores(const HeadView& head, const Tile& tile, float* scores, float* maxima, float* sums, float* out) {
  for (int64_t r = 0; r < tile.rows; ++r) {
    float* row = scores + r * kScoreStride;
    const int64_t visible = tile.visible(r);
    float maximum = row[0];
#pragma omp simd reduction(max : maximum)
    for (int64_t i = 0; i < visible; ++i) maximum = row[i] > maximum ? row[i] : maximum;
    if (tile.key > 0) maximum = std::max(maximum, maxima[r]);
    float sum = 0.0f;
#pragma omp simd reduction(+ : sum)
    for (int64_t i = 0; i < visible; ++i) {
      row[i] = vector_exp(row[i] - maximum);
      sum += row[i];
    }
    std::fill(row + visible, row + tile.columns, 0.0f);
    if (tile.key > 0) {
      const float correction = vector_exp(maxima[r] - maximum);
      sum += sums[r] * correction;
      float* out_row = out + r * head.out_stride;
#pragma omp simd
      for (int64_t i = 0; i < head.head_size; ++i) out_row[i] *= correction;
    }
    maxima[r] = maximum;
    sums[r] = sum;
  }
}

void forward_head(const Stream& serial, const HeadView& head, float* out, float* log_sum_exp, float* scores) {
  float maxima[kQueryTile];
  float sums[kQueryTile];
  for (int64_t query = 0; query < head.length; query += kQueryTile) {
    const int64_t rows = std::min(kQueryTile, head.length - query);
    float* out_rows = out + query * head.out_stride;
    for_each_key_tile(query, rows, [&](const Tile& tile) {
      compute_scores(serial, head, tile, scores);
      absorb_scores(head, tile, scores, maxima, sums, out_rows);
      gemm(serial, Element::fp32, Transpose::no, Transpose::no, rows, head.head_size, tile.columns, 1.0f, scores,
           kScoreStride, head.v + tile.key * head.stride, head.stride, tile.key == 0 ? 0.0f : 1.0f, out_rows,
           head.out_stride);
    });
    for (int64_t r = 0; r < rows; ++r) {
      float* out_row = out_rows + r * head.out_stride;
      const float inverse = 1.0f / sums[r];
#pragma omp simd
      for (int64_t i = 0; i < head.head_size; ++i) out_row[i] *= inverse;
      log_sum_exp[query + r] = maxima[r] + std::log(sums[r]);
    }
  }
}

/// For the rows of a tile: scores become probabilities P, d_probabilities become dS = scale P (dP - delta).
void score_gradient(const HeadView& head, const Tile& tile, const float* log_sum_exp, const float* delta, float* scores,
                    float* d_probabilities) {
  for (int64_t r = 0; r < tile.rows; ++r) {
    float* row = scores + r * kScoreStride;
    float* d_row = d_probabilities + r * kScoreStride;
    const int64_t visible = tile.visible(r);
    const float shift = log_sum_exp[tile.query + r];
    const float mean = delta[r];
    const float scale = head.scale;
#pragma omp simd
    for (int64_t i = 0; i < visible; ++i) {
      const float probability = vector_exp(row[i] - shift);
      row[i] = probability;
      d_row[i] = probability * (d_row[i] - mean) * scale;
    }
    std::fill(row + visible, row + tile.columns, 0.0f);
    std::fill(d_row + visible, d_row + tile.columns, 0.0f);
  }
}

/// dq = and dk, dv += of one query head (Dao et al. 2022, algorithm 4).
void backward_head(const Stream& serial, const HeadView& head, const float* out, const float* log_sum_exp,
                   const float* d_out, float* dq, float* dk, float* dv, float* scores, float* d_probabilities) {
  const int64_t D = head.head_size;
  float delta[kQueryTile];  // rowsum(dP P), which equals d_out . out
  for (int64_t query = 0; query < head.length; query += kQueryTile) {
    const int64_t rows = std::min(kQueryTile, head.length - query);
    const float* d_out_rows = d_out + query * head.out_stride;
    for (int64_t r = 0; r < rows; ++r) {
      const float* a = d_out_rows + r * head.out_stride;
      const float* b = out + (query + r) * head.out_stride;
      float dot = 0.0f;
#pragma omp simd reduction(+ : dot)
      for (int64_t i = 0; i < D; ++i) dot += a[i] * b[i];
      delta[r] = dot;
    }
    for_each_key_tile(query, rows, [&](const Tile& tile) {
      const int64_t keys = tile.columns;
      const int64_t first = tile.key * head.stride;
      compute_scores(serial, head, tile, scores);
      gemm(serial, Element::fp32, Transpose::no, Transpose::yes, rows, keys, D, 1.0f, d_out_rows, head.out_stride,
           head.v + first, head.stride, 0.0f, d_probabilities, kScoreStride);
      score_gradient(head, tile, log_sum_exp, delta, scores, d_probabilities);
      gemm(serial, Element::fp32, Transpose::yes, Transpose::no, keys, D, rows, 1.0f, scores, kScoreStride, d_out_rows,
           head.out_stride, 1.0f, dv + first, head.stride);
      gemm(serial, Element::fp32, Transpose::no, Transpose::no, rows, D, keys, 1.0f, d_probabilities, kScoreStride,
           head.k + first, head.stride, tile.key == 0 ? 0.0f : 1.0f, dq + query * head.stride, head.stride);
      gemm(serial, Element::fp32, Transpose::yes, Transpose::no, keys, D, rows, 1.0f, d_probabilities, kScoreStride,
           head.q + query * head.stride, head.stride, 1.0f, dk + first, head.stride);
    });
  }
}

/// The two tiles of the calling thread.
float* workspace_of_thread(float* workspace) { return workspace + int64_t{2} * kTileSize * omp_get_thread_num(); }

Stream serial_stream(const Stream& stream) {
  Device device = stream.device();
  device.threads = 1;
  return Stream(device);
}

}  // namespace

int64_t attention_workspace(const Stream& stream, const AttentionShape&) {
  return int64_t{2} * kTileSize * stream.threads();
}

void attention_forward(const Stream& stream, const AttentionShape& shape, ConstValues q_, ConstValues k_,
                       ConstValues v_, Values out_, float* log_sum_exp, float* workspace) {
  const float* q = q_.fp32();
  const float* k = k_.fp32();
  const float* v = v_.fp32();
  float* out = out_.fp32();
  const Stream serial = serial_stream(stream);
  const int64_t tasks = shape.documents * shape.heads;
#pragma omp parallel for num_threads(stream.threads()) schedule(dynamic)
  for (int64_t task = 0; task < tasks; ++task) {
    const int64_t document = task / shape.heads;
    const int64_t head = task % shape.heads;
    const int64_t begin = shape.offsets[document];
    const HeadView view = view_head(shape, document, head, q, k, v);
    forward_head(serial, view, out + begin * view.out_stride + head * shape.head_size,
                 log_sum_exp + head * shape.tokens + begin, workspace_of_thread(workspace));
  }
}

void attention_backward(const Stream& stream, const AttentionShape& shape, ConstValues q_, ConstValues k_,
                        ConstValues v_, ConstValues out_, const float* log_sum_exp, const float* d_out, float* dq,
                        float* dk, float* dv, float* workspace) {
  const float* q = q_.fp32();
  const float* k = k_.fp32();
  const float* v = v_.fp32();
  const float* out = out_.fp32();
  const Stream serial = serial_stream(stream);
  const int64_t D = shape.head_size;
  const int64_t group = shape.heads / shape.kv_heads;
  // The query heads that share a key/value head stay on one thread: their gradients are added in the same place.
  const int64_t tasks = shape.documents * shape.kv_heads;
#pragma omp parallel for num_threads(stream.threads()) schedule(dynamic)
  for (int64_t task = 0; task < tasks; ++task) {
    const int64_t document = task / shape.kv_heads;
    const int64_t kv_head = task % shape.kv_heads;
    const int64_t begin = shape.offsets[document];
    const int64_t end = shape.offsets[document + 1];
    float* scores = workspace_of_thread(workspace);
    float* dk_rows = dk + begin * shape.qkv_stride + kv_head * D;
    float* dv_rows = dv + begin * shape.qkv_stride + kv_head * D;
    for (int64_t t = 0; t < end - begin; ++t) {
      std::fill_n(dk_rows + t * shape.qkv_stride, D, 0.0f);
      std::fill_n(dv_rows + t * shape.qkv_stride, D, 0.0f);
    }
    for (int64_t head = kv_head * group; head < (kv_head + 1) * group; ++head) {
      const HeadView view = view_head(shape, document, head, q, k, v);
      const int64_t out_first = begin * view.out_stride + head * D;
      backward_head(serial, view, out + out_first, log_sum_exp + head * shape.tokens + begin, d_out + out_first,
                    dq + begin * shape.qkv_stride + head * D, dk_rows, dv_rows, scores, scores + kTileSize);
    }
  }
}

}  // namespace hat::cpu
