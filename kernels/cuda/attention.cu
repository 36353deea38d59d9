#include <cmath>
#include <type_traits>

#include "attention_work.cuh"
#include "cuda_kernels.hpp"

// What surrounds the kernels of attention: their workspace, what is prepared in it, and the entries of `Operations`.
namespace hat::cuda {

namespace attention {

namespace {

using Bf16 = __nv_bfloat16;
constexpr int kThreads = 256;

/// One warp for each tile of a document finds its place: after all that have more work, and after those of earlier
/// documents with the same.
__global__ void number_tiles_kernel(Rows rows, int tile_rows, MostWork most_work, TileTable table) {
  const int64_t document = block_number();
  if (document >= rows.documents) return;
  const int lane = static_cast<int>(threadIdx.x) % kWarpThreads;
  const auto tiles_of = [&](int64_t d) { return (rows.length_of(d) + tile_rows - 1) / tile_rows; };
  const int tiles = tiles_of(document);
  // `work`: a tile of a causal document has more work than so many others.
  for (int work = static_cast<int>(threadIdx.x) / kWarpThreads; work < tiles; work += kThreads / kWarpThreads) {
    int before = 0;
    for (int64_t d = lane; d < rows.documents; d += kWarpThreads) {
      before += max(0, tiles_of(d) - 1 - work) + (d < document && tiles_of(d) > work ? 1 : 0);
    }
    before = warp_sum(before);
    const int tile = most_work == MostWork::last_tile ? work : tiles - 1 - work;
    if (lane == 0) table.tiles[before] = {rows.begin(document), rows.length_of(document), tile};
  }
  if (document == 0 && threadIdx.x < kWarpThreads) {
    int count = 0;
    for (int64_t d = lane; d < rows.documents; d += kWarpThreads) count += tiles_of(d);
    count = warp_sum(count);
    if (lane == 0) *table.count = count;
  }
}

}  // namespace

void number_tiles(const Stream& stream, const Rows& rows, int tile_rows, MostWork most_work, const TileTable& table) {
  launch(stream, number_tiles_kernel, blocks_for(rows.documents, 1), kThreads, 0, rows, tile_rows, most_work, table);
}

namespace {

/// bf16 is read 16 bytes at a time: heads are rounded up to them.
constexpr int64_t kCopied = 8;
int64_t copied_columns(int64_t head_size) { return divide_up(head_size, kCopied) * kCopied; }

/// Whether q, k and v can be read so from where they are; otherwise they are copied first. Arrays are aligned to 16
/// bytes if their strides and head sizes are multiples of that.
bool is_aligned(const AttentionShape& shape) {
  return shape.head_size % kCopied == 0 && shape.q_stride % kCopied == 0 && shape.kv_stride % kCopied == 0;
}

/// to (rows, heads columns), heads of `columns`, = from, whose rows are `stride` apart and heads D, and zeros.
__global__ void copy_heads(int64_t rows, int64_t heads, int64_t D, int64_t columns, const Bf16* from, int64_t stride,
                           Bf16* to) {
  const int64_t i = block_number() * kThreads + threadIdx.x;
  if (i >= rows * heads * columns) return;
  const int64_t row = i / (heads * columns);
  const int64_t head = i / columns % heads;
  const int64_t column = i % columns;
  to[i] = column < D ? from[row * stride + head * D + column] : __float2bfloat16_rn(0);
}

// As the products see it, so that the rows of dS still sum to zero.
__device__ float as_seen(float value, const float*) { return value; }
__device__ float as_seen(float value, const Bf16*) { return __bfloat162float(__float2bfloat16_rn(value)); }

/// What the backward pass knows of each query and head, one warp for each; with bf16 d_out is rounded into `rounded`
/// (T, H columns).
template <class T>
__global__ void prepare_rows(Heads heads, int columns, const T* out, const float* d_out, const float* log_sum_exp,
                             Bf16* rounded, float2* rows) {
  const int64_t i = block_number() * (kThreads / kWarpThreads) + threadIdx.x / kWarpThreads;  // of (T, H)
  if (i >= heads.tokens * heads.heads) return;
  const int64_t token = i / heads.heads;
  const int64_t head = i % heads.heads;
  const int lane = static_cast<int>(threadIdx.x) % kWarpThreads;
  float delta = 0;
  for (int c = lane; c < columns; c += kWarpThreads) {
    const bool is_inside = c < heads.head_size;
    const float gradient = is_inside ? d_out[i * heads.head_size + c] : 0;
    if (is_inside) delta += as_seen(gradient, out) * read_value(out + i * heads.head_size + c);
    if constexpr (std::is_same_v<T, Bf16>) rounded[i * columns + c] = __float2bfloat16_rn(gradient);
  }
  delta = warp_sum(delta);
  if (lane == 0) {
    const int64_t in_head = head * heads.tokens + token;
    rows[in_head] = make_float2(log_sum_exp[in_head] * kLog2E, delta);
  }
}

template <class T>
__global__ void finish_kernel(Heads heads, AttentionState state, T* out, float* log_sum_exp) {
  const int64_t i = block_number() * (kThreads / kWarpThreads) + threadIdx.x / kWarpThreads;  // of (T, H)
  if (i >= heads.tokens * heads.heads) return;
  const int64_t in_head = i % heads.heads * heads.tokens + i / heads.heads;
  const int lane = static_cast<int>(threadIdx.x) % kWarpThreads;
  const float divisor = state.divisors[in_head];
  const float inverse = 1.0F / divisor;
  for (int c = lane; c < heads.head_size; c += kWarpThreads) {
    write_value(out + i * heads.head_size + c, state.sums[i * heads.head_size + c] * inverse);
  }
  if (lane == 0) log_sum_exp[in_head] = log_sum_of(state.maxima[in_head], divisor, heads.scale);
}

/// The workspace of a batch, or of a range with segments of up to `keys` rows; of any element type and direction.
struct Workspace {
  Workspace(const AttentionShape& shape, int64_t keys, float* memory) : begin_(memory) {
    constexpr int64_t kAlignment = 16 / sizeof(float);
    const auto misaligned = static_cast<int64_t>(reinterpret_cast<uintptr_t>(memory) / sizeof(float)) % kAlignment;
    used_ = misaligned == 0 ? 0 : kAlignment - misaligned;
    const int64_t columns = copied_columns(shape.head_size);
    const auto take_table = [&](int64_t rows) {
      const int64_t tiles = most_tiles(rows, shape.documents, kLeastTileRows);
      return TileTable{take<int32_t>(1), take<DocumentTile>(tiles)};
    };
    queries = take_table(shape.tokens);
    key_tiles = take_table(keys);
    rows = take<float2>(shape.heads * shape.tokens);
    d_out = take<Bf16>(shape.tokens * shape.heads * columns);
    if (is_aligned(shape)) return;
    q = take<Bf16>(shape.tokens * shape.heads * columns);
    k = take<Bf16>(keys * shape.kv_heads * columns);
    v = take<Bf16>(keys * shape.kv_heads * columns);
  }
  static int64_t floats(const AttentionShape& shape, int64_t keys) {
    constexpr int64_t kMostMisaligned = 3;
    return Workspace(shape, keys, nullptr).used_ + kMostMisaligned;
  }

  TileTable queries;
  TileTable key_tiles;
  float2* rows = nullptr;
  Bf16* d_out = nullptr;
  Bf16* q = nullptr;  // copies with aligned rows, where they are needed
  Bf16* k = nullptr;
  Bf16* v = nullptr;

 private:
  template <class T>
  T* take(int64_t count) {
    constexpr int64_t kAlignment = 16;
    float* taken = begin_ == nullptr ? nullptr : begin_ + used_;
    used_ += divide_up(count * static_cast<int64_t>(sizeof(T)), kAlignment) * (kAlignment / sizeof(float));
    return reinterpret_cast<T*>(taken);
  }
  float* begin_;
  int64_t used_ = 0;
};

/// A batch, or a range with one segment.
struct Encounter {
  const AttentionShape& shape;
  const AttentionSegment* segment = nullptr;

  int64_t keys() const { return segment == nullptr ? shape.tokens : segment->keys; }
  bool first() const { return segment == nullptr || segment->first; }
  Heads heads() const {
    return {.tokens = shape.tokens,
            .heads = static_cast<int>(shape.heads),
            .kv_heads = static_cast<int>(shape.kv_heads),
            .head_size = static_cast<int>(shape.head_size),
            .scale = static_cast<float>(1.0 / std::sqrt(static_cast<double>(shape.head_size)))};
  }
  Rows rows(int64_t segment_rows) const {
    if (segment == nullptr) return {.offsets = shape.offsets, .documents = shape.documents, .length = 0};
    return {.offsets = nullptr, .documents = 1, .length = static_cast<int32_t>(segment_rows)};
  }
  OtherRows others(int64_t segment_rows) const {
    if (segment == nullptr) return {};
    return {.length = static_cast<int32_t>(segment_rows), .causal = segment->causal};
  }
  int64_t tiles(int64_t rows, int tile_rows) const { return most_tiles(rows, shape.documents, tile_rows); }
};

template <class T>
Inputs<T> inputs(const Stream& stream, const Encounter& of, ConstValues q, ConstValues k, ConstValues v,
                 const Workspace& work) {
  const AttentionShape& shape = of.shape;
  const auto* of_q = static_cast<const T*>(q.data());
  const auto* of_k = static_cast<const T*>(k.data());
  const auto* of_v = static_cast<const T*>(v.data());
  if constexpr (std::is_same_v<T, Bf16>) {
    if (!is_aligned(shape)) {
      const int64_t columns = copied_columns(shape.head_size);
      const auto copy = [&](int64_t rows, int64_t heads, const Bf16* from, int64_t stride, Bf16* to) {
        if (rows == 0) return;
        launch(stream, copy_heads, blocks_for(rows * heads * columns, kThreads), kThreads, 0, rows, heads,
               shape.head_size, columns, from, stride, to);
      };
      copy(shape.tokens, shape.heads, of_q, shape.q_stride, work.q);
      copy(of.keys(), shape.kv_heads, of_k, shape.kv_stride, work.k);
      copy(of.keys(), shape.kv_heads, of_v, shape.kv_stride, work.v);
      return {work.q, work.k, work.v, shape.heads * columns, shape.kv_heads * columns, static_cast<int>(columns)};
    }
  }
  return {of_q, of_k, of_v, shape.q_stride, shape.kv_stride, static_cast<int>(shape.head_size)};
}

template <class T>
void forward(const Stream& stream, const Encounter& of, ConstValues q, ConstValues k, ConstValues v, Values out,
             float* log_sum_exp, const AttentionState& state, float* workspace) {
  const AttentionShape& shape = of.shape;
  if (shape.tokens == 0) return;
  const Workspace work(shape, of.keys(), workspace);
  const int tile_rows =
      std::is_same_v<T, Bf16> ? forward_tile_rows_bf16(shape.head_size) : forward_tile_rows_fp32(shape.head_size);
  number_tiles(stream, of.rows(shape.tokens), tile_rows, MostWork::last_tile, work.queries);
  start_forward(stream, of.tiles(shape.tokens, tile_rows) * shape.heads,
                ForwardArguments<T>{.heads = of.heads(),
                                    .inputs = inputs<T>(stream, of, q, k, v, work),
                                    .queries = work.queries,
                                    .keys = of.others(of.keys()),
                                    .out = static_cast<T*>(out.data()),
                                    .log_sum_exp = log_sum_exp,
                                    .state = state,
                                    .first = of.first()});
}

void forward(const Stream& stream, const Encounter& of, ConstValues q, ConstValues k, ConstValues v, Values out,
             float* log_sum_exp, const AttentionState& state, float* workspace) {
  if (q.element() == Element::bf16) {
    forward<Bf16>(stream, of, q, k, v, out, log_sum_exp, state, workspace);
  } else {
    forward<float>(stream, of, q, k, v, out, log_sum_exp, state, workspace);
  }
}

template <class T>
void backward(const Stream& stream, const Encounter& of, ConstValues q, ConstValues k, ConstValues v, ConstValues out,
              const float* log_sum_exp, const float* d_out, float* dq, float* dk, float* dv, float* workspace) {
  constexpr bool kBf16 = std::is_same_v<T, Bf16>;
  const AttentionShape& shape = of.shape;
  const Workspace work(shape, of.keys(), workspace);
  const int query_rows = kBf16 ? query_tile_rows_bf16(shape.head_size) : query_tile_rows_fp32(shape.head_size);
  const int key_rows = kBf16 ? key_tile_rows_bf16(shape.head_size) : key_tile_rows_fp32(shape.head_size);
  BackwardArguments<T> arguments{.heads = of.heads(),
                                 .inputs = inputs<T>(stream, of, q, k, v, work),
                                 .d_out = nullptr,
                                 .rows = work.rows,
                                 .queries = work.queries,
                                 .key_tiles = work.key_tiles,
                                 .keys_of_queries = of.others(of.keys()),
                                 .queries_of_keys = of.others(shape.tokens),
                                 .dq = dq,
                                 .dk = dk,
                                 .dv = dv,
                                 .q_stride = shape.q_stride,
                                 .kv_stride = shape.kv_stride,
                                 .first = of.first()};
  if constexpr (kBf16) {
    arguments.d_out = work.d_out;
  } else {
    arguments.d_out = d_out;
  }
  if (shape.tokens > 0) {
    launch(stream, prepare_rows<T>, blocks_for(shape.tokens * shape.heads, kThreads / kWarpThreads), kThreads, 0,
           arguments.heads, arguments.inputs.columns, static_cast<const T*>(out.data()), d_out, log_sum_exp, work.d_out,
           work.rows);
    number_tiles(stream, of.rows(shape.tokens), query_rows, MostWork::last_tile, work.queries);
    start_backward_queries(stream, of.tiles(shape.tokens, query_rows) * shape.heads, arguments);
  }
  if (of.keys() > 0) {
    number_tiles(stream, of.rows(of.keys()), key_rows, MostWork::first_tile, work.key_tiles);
    start_backward_keys(stream, of.tiles(of.keys(), key_rows) * shape.kv_heads, arguments);
  }
}

void backward(const Stream& stream, const Encounter& of, ConstValues q, ConstValues k, ConstValues v, ConstValues out,
              const float* log_sum_exp, const float* d_out, float* dq, float* dk, float* dv, float* workspace) {
  if (q.element() == Element::bf16) {
    backward<Bf16>(stream, of, q, k, v, out, log_sum_exp, d_out, dq, dk, dv, workspace);
  } else {
    backward<float>(stream, of, q, k, v, out, log_sum_exp, d_out, dq, dk, dv, workspace);
  }
}

}  // namespace
}  // namespace attention

int64_t attention_workspace(const Stream&, const AttentionShape& shape) {
  return attention::Workspace::floats(shape, shape.tokens);
}

void attention_forward(const Stream& stream, const AttentionShape& shape, ConstValues q, ConstValues k, ConstValues v,
                       Values out, float* log_sum_exp, float* workspace) {
  attention::forward(stream, {shape}, q, k, v, out, log_sum_exp, {}, workspace);
}

void attention_backward(const Stream& stream, const AttentionShape& shape, ConstValues q, ConstValues k, ConstValues v,
                        ConstValues out, const float* log_sum_exp, const float* d_out, float* dq, float* dk, float* dv,
                        float* workspace) {
  attention::backward(stream, {shape}, q, k, v, out, log_sum_exp, d_out, dq, dk, dv, workspace);
}

int64_t attention_segment_workspace(const Stream&, const AttentionShape& shape, int64_t keys) {
  return attention::Workspace::floats(shape, keys);
}

void attention_segment_forward(const Stream& stream, const AttentionShape& shape, const AttentionSegment& segment,
                               ConstValues q, ConstValues k, ConstValues v, const AttentionState& state,
                               float* workspace) {
  attention::forward(stream, {shape, &segment}, q, k, v, {}, nullptr, state, workspace);
}

void attention_segment_finish(const Stream& stream, const AttentionShape& shape, const AttentionState& state,
                              Values out, float* log_sum_exp) {
  if (shape.tokens == 0) return;
  with_element(out, [&](auto* typed) {
    using T = std::remove_pointer_t<decltype(typed)>;
    launch(stream, attention::finish_kernel<T>,
           blocks_for(shape.tokens * shape.heads, attention::kThreads / kWarpThreads), attention::kThreads, 0,
           attention::Encounter{shape}.heads(), state, typed, log_sum_exp);
  });
}

void attention_segment_backward(const Stream& stream, const AttentionShape& shape, const AttentionSegment& segment,
                                ConstValues q, ConstValues k, ConstValues v, ConstValues out, const float* log_sum_exp,
                                const float* d_out, float* dq, float* dk, float* dv, float* workspace) {
  attention::backward(stream, {shape, &segment}, q, k, v, out, log_sum_exp, d_out, dq, dk, dv, workspace);
}

}  // namespace hat::cuda
