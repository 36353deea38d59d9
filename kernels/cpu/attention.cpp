#include <omp.h>

#include <algorithm>
#include <cstdint>

#include "attention_backward.hpp"
#include "attention_forward.hpp"
#include "attention_tasks.hpp"
#include "cpu_kernels.hpp"

namespace hat::cpu {

namespace {

template <typename Products>
int64_t thread_floats(int64_t head_size) {
  const PackedSizes<Products> sizes(head_size);
  Carver forward(nullptr);
  Carver backward(nullptr);
  ForwardBuffers(forward, sizes);
  BackwardBuffers(backward, sizes, widest_stripe(head_size));
  return std::max(forward.used(), backward.used());
}

int64_t thread_floats(int64_t head_size) {
  return std::max(thread_floats<Fp32Products>(head_size), thread_floats<Bf16Products>(head_size));
}

int64_t most_tiles(const AttentionShape& shape) { return shape.tokens / kTile + shape.documents; }

/// The workspace: what the threads share, then each one's own.
class Workspace {
 public:
  Workspace(const AttentionShape& shape, float* workspace)
      : carver_(workspace),
        tasks(carver_, shape),
        first_tile(carver_.take_as<int64_t>(shape.documents + 1)),
        dq_turns(carver_.take_as<int32_t>(most_tiles(shape) * shape.heads)),
        dk_dv_turns(carver_.take_as<int32_t>(most_tiles(shape) * shape.kv_heads)),
        thread_floats_(thread_floats(shape.head_size)),
        threads_(carver_.take(0)) {}

 private:
  Carver carver_;

 public:
  TaskList tasks;
  int64_t* first_tile;   // (documents + 1) tiles before each document
  int32_t* dq_turns;     // (tiles, H)
  int32_t* dk_dv_turns;  // (tiles, K)

  int64_t floats(int threads) const { return carver_.used() + threads * thread_floats_; }
  /// The calling thread's.
  Carver own() const { return Carver(threads_ + omp_get_thread_num() * thread_floats_); }

 private:
  int64_t thread_floats_;
  float* threads_;
};

constexpr int64_t kCacheLineBytes = 64;

float* aligned(float* workspace) {
  const auto beyond = static_cast<int64_t>(reinterpret_cast<uintptr_t>(workspace) % kCacheLineBytes);
  return workspace + (beyond == 0 ? 0 : (kCacheLineBytes - beyond) / static_cast<int64_t>(sizeof(float)));
}

template <typename Products, typename E>
void forward(const Stream& stream, const AttentionShape& shape, const ForwardArrays<E>& arrays, float* workspace) {
  Workspace work(shape, aligned(workspace));
  const int64_t group = shape.heads / shape.kv_heads;
  work.tasks.number(
      [&](int64_t length) { return (tiles_of(length) * group + kQueryTiles - 1) / kQueryTiles * shape.kv_heads; });
  work.tasks.run(stream.threads(), [&](int64_t document, int64_t task) {
    Carver own = work.own();
    forward_task<Products>(shape, document, task, arrays, ForwardBuffers(own, PackedSizes<Products>(shape.head_size)));
  });
}

template <typename Products, typename E>
void backward(const Stream& stream, const AttentionShape& shape, const BackwardArrays<E>& arrays, float* workspace) {
  Workspace work(shape, aligned(workspace));
  work.first_tile[0] = 0;
  for (int64_t i = 0; i < shape.documents; ++i) {
    work.first_tile[i + 1] = work.first_tile[i] + tiles_of(work.tasks.length(i));
  }
  const int64_t tiles = work.first_tile[shape.documents];
  const Turns dq_turns(work.dq_turns, tiles * shape.heads);
  const Turns dk_dv_turns(work.dk_dv_turns, tiles * shape.kv_heads);
  const int64_t widest = widest_stripe(shape.head_size);
  work.tasks.number([&](int64_t length) {
    const int64_t stripe = stripe_tiles(length, shape.head_size);
    return (tiles_of(length) + stripe - 1) / stripe * shape.kv_heads * head_tasks(shape);
  });
  work.tasks.run(stream.threads(), [&](int64_t document, int64_t task) {
    Carver own = work.own();
    backward_task<Products>(shape, document, task, arrays,
                            BackwardBuffers(own, PackedSizes<Products>(shape.head_size), widest),
                            {dq_turns, dk_dv_turns, work.first_tile[document]});
  });
}

}  // namespace

int64_t attention_workspace(const Stream& stream, const AttentionShape& shape) {
  return Workspace(shape, nullptr).floats(stream.threads()) + kCacheLineBytes / static_cast<int64_t>(sizeof(float));
}

void attention_forward(const Stream& stream, const AttentionShape& shape, ConstValues q, ConstValues k, ConstValues v,
                       Values out, float* log_sum_exp, float* workspace) {
  if (q.element() == Element::bf16) {
    forward<Bf16Products, bfloat16>(stream, shape, {q.bf16(), k.bf16(), v.bf16(), out.bf16(), log_sum_exp}, workspace);
  } else {
    forward<Fp32Products, float>(stream, shape, {q.fp32(), k.fp32(), v.fp32(), out.fp32(), log_sum_exp}, workspace);
  }
}

void attention_backward(const Stream& stream, const AttentionShape& shape, ConstValues q, ConstValues k, ConstValues v,
                        ConstValues out, const float* log_sum_exp, const float* d_out, float* dq, float* dk, float* dv,
                        float* workspace) {
  if (q.element() == Element::bf16) {
    backward<Bf16Products, bfloat16>(
        stream, shape, {q.bf16(), k.bf16(), v.bf16(), out.bf16(), log_sum_exp, d_out, dq, dk, dv}, workspace);
  } else {
    backward<Fp32Products, float>(
        stream, shape, {q.fp32(), k.fp32(), v.fp32(), out.fp32(), log_sum_exp, d_out, dq, dk, dv}, workspace);
  }
}

}  // namespace hat::cpu
