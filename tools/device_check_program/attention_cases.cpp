#include <numeric>

#include "gpu.hpp"

namespace hat::check_device {

namespace {

/// A packed batch as the model has it: q, k and v side by side in rows (H + 2 K) D wide.
template <class E>
struct Batch {
  int64_t T;
  int64_t heads;
  int64_t kv_heads;
  int64_t D;
  int64_t stride;
  std::vector<int32_t> bounds;  // of documents
  Shared<int32_t> offsets;
  Shared<E> qkv;
  Shared<float> d_out;
  Shared<E> out;
  Shared<float> log_sum_exp;
  Shared<float> d_qkv;

  Batch(Gpu& gpu, const Sizes& sizes)
      : T(sizes.T),
        heads(sizes.heads),
        kv_heads(sizes.kv_heads),
        D(sizes.D),
        stride((heads + 2 * kv_heads) * D),
        bounds{0},
        qkv(random_array<E>(gpu, T * stride)),
        out(poisoned_array<E>(gpu, T * heads * D)),
        log_sum_exp(poisoned_array(gpu, T * heads)),
        d_qkv(poisoned_array(gpu, T * stride)) {
    for (const int32_t length : sizes.documents) bounds.push_back(bounds.back() + length);
    offsets = integers(gpu, bounds);
    // Products in bf16 round d_out: from the start it is what bf16 can hold.
    std::vector<float> values(static_cast<size_t>(T * heads * D));
    const uint64_t stream = gpu.next_stream();
    for (size_t i = 0; i < values.size(); ++i) {
      values[i] = to_float(to_bfloat16(static_cast<float>(2.0 * random_uniform(gpu.seed(), stream, i) - 1.0)));
    }
    d_out = std::make_shared<Array<float>>(gpu, std::move(values));
  }

  /// Of rows [begin, end), as one document or as they are.
  AttentionShape shape(int64_t tokens, int64_t documents, const int32_t* device_offsets) const {
    return {.tokens = tokens,
            .documents = documents,
            .offsets = device_offsets,
            .heads = heads,
            .kv_heads = kv_heads,
            .head_size = D,
            .q_stride = stride,
            .kv_stride = stride};
  }
  AttentionShape shape() const { return shape(T, std::ssize(bounds) - 1, offsets->data()); }
  int64_t k_column() const { return heads * D; }
  int64_t v_column() const { return (heads + kv_heads) * D; }
};

/// The definition, in double.
struct Reference {
  std::vector<double> out;
  std::vector<double> log_sum_exp;
  std::vector<double> d_qkv;

  template <class E>
  explicit Reference(const Batch<E>& batch)
      : out(static_cast<size_t>(batch.T * batch.heads * batch.D)),
        log_sum_exp(static_cast<size_t>(batch.T * batch.heads)),
        d_qkv(static_cast<size_t>(batch.T * batch.stride)) {
    for (size_t document = 0; document + 1 < batch.bounds.size(); ++document) {
      for (int64_t h = 0; h < batch.heads; ++h) {
        for (int64_t i = batch.bounds[document]; i < batch.bounds[document + 1]; ++i) {
          add_row(batch, batch.bounds[document], h, i);
        }
      }
    }
  }

  template <class E>
  void add_row(const Batch<E>& batch, int64_t begin, int64_t h, int64_t i) {
    const int64_t D = batch.D;
    const int64_t g = h / (batch.heads / batch.kv_heads);
    const int64_t q_at = i * batch.stride + h * D;
    const int64_t o_at = (i * batch.heads + h) * D;
    const double scale = 1.0 / std::sqrt(static_cast<double>(D));
    std::vector<double> p;
    std::vector<double> dp;
    for (int64_t j = begin; j <= i; ++j) {
      const int64_t k_at = j * batch.stride + batch.k_column() + g * D;
      const int64_t v_at = j * batch.stride + batch.v_column() + g * D;
      double score = 0;
      double product = 0;
      for (int64_t e = 0; e < D; ++e) {
        score += batch.qkv->start(q_at + e) * batch.qkv->start(k_at + e);
        product += batch.d_out->start(o_at + e) * batch.qkv->start(v_at + e);
      }
      p.push_back(scale * score);
      dp.push_back(product);
    }
    const double maximum = *std::max_element(p.begin(), p.end());
    double sum = 0;
    for (double& value : p) sum += value = std::exp(value - maximum);
    for (double& value : p) value /= sum;
    log_sum_exp[static_cast<size_t>(h * batch.T + i)] = maximum + std::log(sum);
    const double mean = std::inner_product(p.begin(), p.end(), dp.begin(), 0.0);
    for (int64_t j = begin; j <= i; ++j) {
      const auto at = static_cast<size_t>(j - begin);
      const double ds = p[at] * (dp[at] - mean) * scale;
      const int64_t k_at = j * batch.stride + batch.k_column() + g * D;
      const int64_t v_at = j * batch.stride + batch.v_column() + g * D;
      for (int64_t e = 0; e < D; ++e) {
        out[static_cast<size_t>(o_at + e)] += p[at] * batch.qkv->start(v_at + e);
        d_qkv[static_cast<size_t>(v_at + e)] += p[at] * batch.d_out->start(o_at + e);
        d_qkv[static_cast<size_t>(q_at + e)] += ds * batch.qkv->start(k_at + e);
        d_qkv[static_cast<size_t>(k_at + e)] += ds * batch.qkv->start(q_at + e);
      }
    }
  }
};

template <class E>
constexpr bool kIsBf16 = std::is_same_v<E, bfloat16>;

// tests/unit/attention_support.hpp has where these bounds come from.
template <class E>
double error_of_forward(const Batch<E>& batch, const Reference& right) {
  return std::max(distance(batch.out->read(), right.out) / (kIsBf16<E> ? 2 * kUnit : kFp32),
                  distance(batch.log_sum_exp->read(), right.log_sum_exp) / kFp32);
}
template <class E>
double error_of_backward(const Batch<E>& batch, const Reference& right) {
  return distance(batch.d_qkv->read(), right.d_qkv) / (kIsBf16<E> ? 3 * kUnit : 5e-6);
}

/// Multiplications and additions of the products that the causal area needs; backward there are five for two.
double flops_of(const Sizes& sizes) {
  double area = 0;
  for (const int32_t length : sizes.documents) area += 0.5 * static_cast<double>(length) * static_cast<double>(length);
  return 4.0 * area * static_cast<double>(sizes.heads * sizes.D);
}

template <class E>
std::vector<Case> whole_cases(Gpu& gpu, const Sizes& sizes) {
  auto batch = std::make_shared<Batch<E>>(gpu, sizes);
  auto workspace = poisoned_array(gpu, gpu.operations().attention_workspace(gpu.stream(), batch->shape()));
  const auto forward = [=, &gpu] {
    E* q = batch->qkv->data();
    gpu.operations().attention_forward(gpu.stream(), batch->shape(), ConstValues(q), ConstValues(q + batch->k_column()),
                                       ConstValues(q + batch->v_column()), Values(batch->out->data()),
                                       batch->log_sum_exp->data(), workspace->data());
  };
  const std::string suffix = fmt::format(" {} D {}", kIsBf16<E> ? "bf16" : "fp32", sizes.D);
  return {{.name = "attention_forward" + suffix,
           .flops = flops_of(sizes),
           .reset = [=] { batch->out->reset(), batch->log_sum_exp->reset(), workspace->reset(); },
           .run = forward,
           .error = [=] { return error_of_forward(*batch, Reference(*batch)); }},
          {.name = "attention_backward" + suffix,
           .flops = 2.5 * flops_of(sizes),
           .reset =
               [=] {
                 batch->out->reset(), batch->log_sum_exp->reset(), batch->d_qkv->reset(), workspace->reset();
                 forward();
                 workspace->reset();
               },
           .run =
               [=, &gpu] {
                 E* q = batch->qkv->data();
                 float* dq = batch->d_qkv->data();
                 gpu.operations().attention_backward(
                     gpu.stream(), batch->shape(), ConstValues(q), ConstValues(q + batch->k_column()),
                     ConstValues(q + batch->v_column()), ConstValues(batch->out->data()), batch->log_sum_exp->data(),
                     batch->d_out->data(), dq, dq + batch->k_column(), dq + batch->v_column(), workspace->data());
               },
           .error = [=] { return error_of_backward(*batch, Reference(*batch)); }}};
}

/// The second part of a document, whose queries meet the keys of the first part and then their own: as a gang of two
/// computes it. Compared: what the rows of that range are in the whole document.
template <class E>
std::vector<Case> segment_cases(Gpu& gpu, const Sizes& sizes) {
  Sizes one = sizes;
  one.documents = {static_cast<int32_t>(sizes.T)};
  auto batch = std::make_shared<Batch<E>>(gpu, one);
  const int64_t begin = sizes.T / 2 + 3;
  const int64_t rows = sizes.T - begin;
  const int64_t width = batch->heads * batch->D;
  auto offsets = integers(gpu, {0, static_cast<int32_t>(rows)});
  auto sums = poisoned_array(gpu, rows * width);
  auto maxima = poisoned_array(gpu, rows * batch->heads);
  auto divisors = poisoned_array(gpu, rows * batch->heads);
  auto out = poisoned_array<E>(gpu, rows * width);
  auto log_sum_exp = poisoned_array(gpu, rows * batch->heads);
  auto d_q = poisoned_array(gpu, rows * batch->stride);
  const AttentionShape shape = batch->shape(rows, 1, offsets->data());
  const int64_t most_keys = std::max(begin, rows);
  auto workspace = poisoned_array(gpu, gpu.operations().attention_segment_workspace(gpu.stream(), shape, most_keys));
  const AttentionSegment before{.keys = begin, .causal = false, .first = true};
  const AttentionSegment own{.keys = rows, .causal = true, .first = false};
  const auto forward = [=, &gpu] {
    const Operations& ops = gpu.operations();
    const AttentionState state{.sums = sums->data(), .maxima = maxima->data(), .divisors = divisors->data()};
    E* all = batch->qkv->data();
    E* range = all + begin * batch->stride;
    for (const AttentionSegment& segment : {before, own}) {
      E* from = segment.causal ? range : all;
      ops.attention_segment_forward(gpu.stream(), shape, segment, ConstValues(range),
                                    ConstValues(from + batch->k_column()), ConstValues(from + batch->v_column()), state,
                                    workspace->data());
    }
    ops.attention_segment_finish(gpu.stream(), shape, state, Values(out->data()), log_sum_exp->data());
  };
  const auto backward = [=, &gpu] {
    E* all = batch->qkv->data();
    E* range = all + begin * batch->stride;
    float* d_all = batch->d_qkv->data();  // gradients of keys and values: of the first part, and of the range
    for (const AttentionSegment& segment : {before, own}) {
      E* from = segment.causal ? range : all;
      float* to = segment.causal ? d_all + begin * batch->stride : d_all;
      gpu.operations().attention_segment_backward(
          gpu.stream(), shape, segment, ConstValues(range), ConstValues(from + batch->k_column()),
          ConstValues(from + batch->v_column()), ConstValues(out->data()), log_sum_exp->data(),
          batch->d_out->data() + begin * width, d_q->data(), to + batch->k_column(), to + batch->v_column(),
          workspace->data());
    }
  };
  const auto reset = [=] {
    sums->reset(), maxima->reset(), divisors->reset(), out->reset(), log_sum_exp->reset(), d_q->reset();
    batch->d_qkv->reset(), workspace->reset();
  };
  const std::string suffix = fmt::format(" {} D {}", kIsBf16<E> ? "bf16" : "fp32", sizes.D);
  return {{.name = "attention_segments_forward" + suffix,
           .reset = reset,
           .run = forward,
           .error =
               [=] {
                 const std::vector<double> right = Reference(*batch).out;
                 return distance(out->read(), {right.begin() + begin * width, right.end()}) /
                        (kIsBf16<E> ? 2 * kUnit : kFp32);
               }},
          {.name = "attention_segments_backward" + suffix,
           .reset =
               [=] {
                 reset();
                 forward();
                 workspace->reset();
               },
           .run = backward,
           .error =
               [=, &gpu] {
                 // The gradient of a loss of the range's rows alone: d_out of the others counts for nothing in the
                 // reference.
                 Batch<E> of_range = *batch;
                 std::vector<float> d_out = batch->d_out->start();
                 std::fill(d_out.begin(), d_out.begin() + begin * width, 0.0F);
                 of_range.d_out = std::make_shared<Array<float>>(gpu, std::move(d_out));
                 const std::vector<double> right = Reference(of_range).d_qkv;
                 std::vector<double> actual = batch->d_qkv->read();
                 const std::vector<double> queries = d_q->read();
                 for (int64_t row = 0; row < sizes.T; ++row) {
                   for (int64_t c = 0; c < width; ++c) {
                     actual[static_cast<size_t>(row * batch->stride + c)] =
                         row < begin ? 0.0 : queries[static_cast<size_t>((row - begin) * batch->stride + c)];
                   }
                 }
                 return distance(actual, right) / (kIsBf16<E> ? 3 * kUnit : 5e-6);
               }}};
}

}  // namespace

std::vector<Case> attention_cases(Gpu& gpu, const Sizes& sizes) {
  std::vector<Case> cases;
  const auto add = [&cases](std::vector<Case> more) {
    for (Case& one : more) cases.push_back(std::move(one));
  };
  add(whole_cases<bfloat16>(gpu, sizes));
  if (!sizes.compared) return cases;  // fp32 and segments are there for exactness
  add(whole_cases<float>(gpu, sizes));
  add(segment_cases<bfloat16>(gpu, sizes));
  add(segment_cases<float>(gpu, sizes));
  return cases;
}

}  // namespace hat::check_device
