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

int64_t most_tiles(const AttentionShape& shape, int64_t rows) { return rows / kTile + shape.documents; }

/// The workspace for a batch, or for a range with segments of up to `keys` rows: what the threads share, then each
/// one's own.
class Workspace {
 public:
  Workspace(const AttentionShape& shape, int64_t keys, float* workspace)
      : carver_(workspace),
        tasks(carver_, shape),
        first_tile(carver_.take_as<int64_t>(shape.documents + 1)),
        dq_turns(carver_.take_as<int32_t>(most_tiles(shape, shape.tokens) * shape.heads)),
        dk_dv_turns(carver_.take_as<int32_t>(most_tiles(shape, keys) * shape.kv_heads)),
        thread_floats_(thread_floats(shape.head_size)),
        threads_(carver_.take(0)) {}

 private:
  Carver carver_;

 public:
  TaskList tasks;
  int64_t* first_tile;   // (documents + 1) tiles before each document
  int32_t* dq_turns;     // (query tiles, H)
  int32_t* dk_dv_turns;  // (key tiles, K)

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

int64_t workspace_floats(const Stream& stream, const AttentionShape& shape, int64_t keys) {
  return Workspace(shape, keys, nullptr).floats(stream.threads()) +
         kCacheLineBytes / static_cast<int64_t>(sizeof(float));
}

/// The documents of a batch, each with its own keys, or a range with those of a segment.
class Encounters {
 public:
  explicit Encounters(const AttentionShape& shape) : shape_(shape) {}
  Encounters(const AttentionShape& shape, const AttentionSegment& segment) : shape_(shape), segment_(&segment) {}

  Encounter operator[](int64_t document) const {
    return segment_ == nullptr ? whole_document(shape_, document) : with_segment(shape_, *segment_);
  }
  /// Rows of the keys of all of them.
  int64_t keys() const { return segment_ == nullptr ? shape_.tokens : segment_->keys; }

 private:
  const AttentionShape& shape_;
  const AttentionSegment* segment_ = nullptr;
};

template <typename Products, typename E, typename Rows>
void forward(const Stream& stream, const AttentionShape& shape, const Encounters& encounters,
             const ForwardArrays<E>& arrays, const Rows& rows, float* workspace) {
  Workspace work(shape, encounters.keys(), aligned(workspace));
  work.tasks.number([&](int64_t document) { return forward_tasks(shape, encounters[document].queries); });
  work.tasks.run(stream.threads(), [&](int64_t document, int64_t task) {
    Carver own = work.own();
    forward_task<Products>(shape, encounters[document], task, arrays, rows,
                           ForwardBuffers(own, PackedSizes<Products>(shape.head_size)));
  });
}

template <typename Products, typename E>
void backward(const Stream& stream, const AttentionShape& shape, const Encounters& encounters,
              const BackwardArrays<E>& arrays, float* workspace) {
  Workspace work(shape, encounters.keys(), aligned(workspace));
  work.first_tile[0] = 0;
  for (int64_t i = 0; i < shape.documents; ++i) {
    work.first_tile[i + 1] = work.first_tile[i] + tiles_of(work.tasks.length(i));
  }
  const Turns dq_turns(work.dq_turns, most_tiles(shape, shape.tokens) * shape.heads);
  const Turns dk_dv_turns(work.dk_dv_turns, most_tiles(shape, encounters.keys()) * shape.kv_heads);
  const int64_t widest = widest_stripe(shape.head_size);
  work.tasks.number([&](int64_t document) { return backward_tasks(shape, encounters[document].keys); });
  work.tasks.run(stream.threads(), [&](int64_t document, int64_t task) {
    Carver own = work.own();
    backward_task<Products>(shape, encounters[document], task, arrays,
                            BackwardBuffers(own, PackedSizes<Products>(shape.head_size), widest),
                            {dq_turns, dk_dv_turns, work.first_tile[document]});
  });
}

void backward(const Stream& stream, const AttentionShape& shape, const Encounters& encounters, ConstValues q,
              ConstValues k, ConstValues v, ConstValues out, const float* log_sum_exp, const float* d_out, float* dq,
              float* dk, float* dv, float* workspace) {
  if (q.element() == Element::bf16) {
    backward<Bf16Products, bfloat16>(stream, shape, encounters,
                                     {q.bf16(), k.bf16(), v.bf16(), out.bf16(), log_sum_exp, d_out, dq, dk, dv},
                                     workspace);
  } else {
    backward<Fp32Products, float>(stream, shape, encounters,
                                  {q.fp32(), k.fp32(), v.fp32(), out.fp32(), log_sum_exp, d_out, dq, dk, dv},
                                  workspace);
  }
}

template <typename E>
void finish(const Stream& stream, const AttentionShape& shape, const AttentionState& state, E* out,
            float* log_sum_exp) {
  const KeptRows kept(shape, state, /*first=*/false);
  const FinishedRows<E> finished(shape, out, log_sum_exp);
  const int64_t tiles = tiles_of(shape.tokens);
#pragma omp parallel for num_threads(stream.threads()) schedule(static)
  for (int64_t i = 0; i < tiles * shape.heads; ++i) {
    const int64_t row = i / shape.heads * kTile;
    const QueryRows rows{row, std::min(kTile, shape.tokens - row), i % shape.heads};
    finished.write(kept.in_place(rows), kept.width(), rows);
  }
}

}  // namespace

int64_t attention_workspace(const Stream& stream, const AttentionShape& shape) {
  return workspace_floats(stream, shape, shape.tokens);
}

void attention_forward(const Stream& stream, const AttentionShape& shape, ConstValues q, ConstValues k, ConstValues v,
                       Values out, float* log_sum_exp, float* workspace) {
  const Encounters documents(shape);
  if (q.element() == Element::bf16) {
    forward<Bf16Products, bfloat16>(stream, shape, documents, {q.bf16(), k.bf16(), v.bf16()},
                                    FinishedRows(shape, out.bf16(), log_sum_exp), workspace);
  } else {
    forward<Fp32Products, float>(stream, shape, documents, {q.fp32(), k.fp32(), v.fp32()},
                                 FinishedRows(shape, out.fp32(), log_sum_exp), workspace);
  }
}

void attention_backward(const Stream& stream, const AttentionShape& shape, ConstValues q, ConstValues k, ConstValues v,
                        ConstValues out, const float* log_sum_exp, const float* d_out, float* dq, float* dk, float* dv,
                        float* workspace) {
  backward(stream, shape, Encounters(shape), q, k, v, out, log_sum_exp, d_out, dq, dk, dv, workspace);
}

int64_t attention_segment_workspace(const Stream& stream, const AttentionShape& shape, int64_t keys) {
  return workspace_floats(stream, shape, keys);
}

void attention_segment_forward(const Stream& stream, const AttentionShape& shape, const AttentionSegment& segment,
                               ConstValues q, ConstValues k, ConstValues v, const AttentionState& state,
                               float* workspace) {
  const Encounters range(shape, segment);
  const KeptRows rows(shape, state, segment.first);
  if (q.element() == Element::bf16) {
    forward<Bf16Products, bfloat16>(stream, shape, range, {q.bf16(), k.bf16(), v.bf16()}, rows, workspace);
  } else {
    forward<Fp32Products, float>(stream, shape, range, {q.fp32(), k.fp32(), v.fp32()}, rows, workspace);
  }
}

void attention_segment_finish(const Stream& stream, const AttentionShape& shape, const AttentionState& state,
                              Values out, float* log_sum_exp) {
  if (out.element() == Element::bf16) {
    finish(stream, shape, state, out.bf16(), log_sum_exp);
  } else {
    finish(stream, shape, state, out.fp32(), log_sum_exp);
  }
}

void attention_segment_backward(const Stream& stream, const AttentionShape& shape, const AttentionSegment& segment,
                                ConstValues q, ConstValues k, ConstValues v, ConstValues out, const float* log_sum_exp,
                                const float* d_out, float* dq, float* dk, float* dv, float* workspace) {
  backward(stream, shape, Encounters(shape, segment), q, k, v, out, log_sum_exp, d_out, dq, dk, dv, workspace);
}

}  // namespace hat::cpu
