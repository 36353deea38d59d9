// Attention of a document cut into ranges, each of which meets the keys and values of the others segment by segment,
// against the definition: any cut, any order of the segments, and nothing read that was not written.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <limits>
#include <numeric>
#include <span>
#include <vector>

#include "attention_support.hpp"
#include "hat/core/random.hpp"

namespace hat::test {
namespace {

constexpr auto kNan = std::numeric_limits<float>::quiet_NaN();

/// Floats as the model stores them.
class Stored {
 public:
  Stored(Element element, size_t count, float value)
      : element_(element), floats_(count, value), narrow_(count, to_bfloat16(value)) {}
  Stored(Element element, const Floats& floats) : element_(element), floats_(floats), narrow_(floats.size()) {
    to_bfloat16(floats_, narrow_);
  }
  Values values() { return element_ == Element::bf16 ? Values(narrow_.data()) : Values(floats_.data()); }
  const Floats& floats() {
    if (element_ == Element::bf16) to_float(narrow_, floats_);
    return floats_;
  }

 private:
  Element element_;
  Floats floats_;
  std::vector<bfloat16> narrow_;
};

/// The order in which range `range` meets the segments 0 ... range.
using Order = std::function<std::vector<int64_t>(int64_t range)>;

std::vector<int64_t> own_first(int64_t range) {
  std::vector<int64_t> order(static_cast<size_t>(range) + 1);
  for (size_t i = 0; i < order.size(); ++i) order[i] = range - static_cast<int64_t>(i);
  return order;
}

std::vector<int64_t> own_last(int64_t range) {
  std::vector<int64_t> order(static_cast<size_t>(range) + 1);
  std::iota(order.begin(), order.end(), 0);
  return order;
}

std::vector<int64_t> shuffled(int64_t range) {
  std::vector<int64_t> order = own_last(range);
  for (size_t i = order.size(); i > 1; --i) {
    std::swap(order[i - 1], order[random_below(5, static_cast<uint64_t>(range), i, i)]);
  }
  return order;
}

/// Fills in the results of `batch`, one document, range by range.
class Ranges {
 public:
  Ranges(Batch& batch, std::span<const int64_t> bounds, const KernelTarget& target)
      : batch_(batch), bounds_(bounds), stream_(target.stream()), ops_(*target.operations) {}

  void run(const Order& order) {
    batch_.out.assign(batch_.d_out.size(), kNan);
    batch_.log_sum_exp.assign(static_cast<size_t>(batch_.T() * batch_.shape().heads), kNan);
    batch_.d_qkv.assign(batch_.qkv.size(), 0.0f);
    for (int64_t range = 0; range < std::ssize(bounds_) - 1; ++range) run(range, order(range));
  }

 private:
  int64_t length(int64_t range) const { return bound(range + 1) - bound(range); }
  int64_t bound(int64_t i) const { return bounds_[static_cast<size_t>(i)]; }

  /// Columns [begin, end) of the rows of a range.
  Floats cut(const Floats& x, int64_t stride, int64_t range, int64_t begin, int64_t end) const {
    Floats some;
    for (int64_t t = bound(range); t < bound(range + 1); ++t) {
      some.insert(some.end(), x.begin() + t * stride + begin, x.begin() + t * stride + end);
    }
    return some;
  }
  /// y (rows of a range, its columns from `begin` on) += x.
  void add(const Floats& x, int64_t range, int64_t begin, Floats& y) const {
    const int64_t columns = std::ssize(x) / length(range);
    for (int64_t i = 0; i < std::ssize(x); ++i) {
      const int64_t row = bound(range) + i / columns;
      y[static_cast<size_t>(row * batch_.stride() + begin + i % columns)] += x[static_cast<size_t>(i)];
    }
  }

  void run(int64_t range, const std::vector<int64_t>& order) {
    const AttentionShape& whole = batch_.shape();
    const int64_t T = length(range);
    const int64_t H = whole.heads;
    const int64_t width = batch_.width();
    const int64_t kv_width = batch_.kv_width();
    const auto offsets = std::vector<int32_t>{0, static_cast<int32_t>(T)};
    AttentionShape shape = whole;
    shape.tokens = T;
    shape.offsets = offsets.data();
    shape.q_stride = width;
    shape.kv_stride = 2 * kv_width;
    const Element element = batch_.bf16() ? Element::bf16 : Element::fp32;
    Stored q(element, cut(batch_.qkv, batch_.stride(), range, 0, width));
    Stored out(element, static_cast<size_t>(T * width), kNan);
    Floats sums(static_cast<size_t>(T * width), kNan);
    Floats maxima(static_cast<size_t>(H * T), kNan);
    Floats divisors(static_cast<size_t>(H * T), kNan);
    Floats log_sum_exp(static_cast<size_t>(H * T), kNan);
    Floats dq(static_cast<size_t>(T * width), kNan);
    const Floats d_out = cut(batch_.d_out, width, range, 0, width);
    const AttentionState state{.sums = sums.data(), .maxima = maxima.data(), .divisors = divisors.data()};

    for (const int64_t from : order) {
      const AttentionSegment segment{.keys = length(from), .causal = from == range, .first = from == order.front()};
      Stored kv(element, cut(batch_.qkv, batch_.stride(), from, width, batch_.stride()));
      ops_.attention_segment_forward(stream_, shape, segment, q.values(), kv.values(), kv.values() + kv_width, state,
                                     workspace(shape, segment.keys));
    }
    ops_.attention_segment_finish(stream_, shape, state, out.values(), log_sum_exp.data());
    for (const int64_t from : order) {
      const AttentionSegment segment{.keys = length(from), .causal = from == range, .first = from == order.front()};
      Stored kv(element, cut(batch_.qkv, batch_.stride(), from, width, batch_.stride()));
      Floats d_kv(static_cast<size_t>(segment.keys * 2 * kv_width), kNan);
      ops_.attention_segment_backward(stream_, shape, segment, q.values(), kv.values(), kv.values() + kv_width,
                                      out.values(), log_sum_exp.data(), d_out.data(), dq.data(), d_kv.data(),
                                      d_kv.data() + kv_width, workspace(shape, segment.keys));
      add(d_kv, from, width, batch_.d_qkv);
    }
    add(dq, range, 0, batch_.d_qkv);
    std::copy(out.floats().begin(), out.floats().end(), batch_.out.begin() + bound(range) * width);
    for (int64_t h = 0; h < H; ++h) {
      std::copy_n(log_sum_exp.begin() + h * T, T, batch_.log_sum_exp.begin() + h * batch_.T() + bound(range));
    }
  }

  float* workspace(const AttentionShape& shape, int64_t keys) {
    workspace_ = Floats(static_cast<size_t>(ops_.attention_segment_workspace(stream_, shape, keys)), kNan);
    return workspace_.data();
  }

  Batch& batch_;
  std::span<const int64_t> bounds_;
  const Stream& stream_;
  const Operations& ops_;
  Floats workspace_;
};

/// Right in any order of the segments, and with the same bits on all targets.
void check(const AttentionCase& test, const std::vector<int64_t>& bounds) {
  Batch batch(test);
  const Reference expected(batch);
  static bool own_comes_first = false;  // turn by turn where one order is all that there is time for
  own_comes_first = !own_comes_first;
  if (!is_emulated() || own_comes_first) {
    Ranges(batch, bounds, kernel_targets().front()).run(own_first);
    expect_right(test, batch, expected);
    if (is_emulated()) return;
  }
  Ranges(batch, bounds, kernel_targets().front()).run(shuffled);
  expect_right(test, batch, expected);
  for (const KernelTarget& other : other_targets()) {
    Batch again(test);
    Ranges(again, bounds, other).run(shuffled);
    EXPECT_TRUE(again.same_results(batch)) << other.name << ", " << describe(test);
  }
}

TEST(AttentionSegments, RightAtEveryHeadSizeAndBorder) {
  for (const Element element : kElements) {
    if (is_emulated()) {
      for (const int64_t D : {2, 10, 34, 64, 80, 96, 128, 160, 256}) {
        check({{7}, 2, 1, D, element}, {0, 1, 3, 7});
        check({{98}, 2, 1, D, element}, {0, 31, 96, 98});
      }
      check({{260}, 1, 1, 64, element}, {0, 129, 260});
      continue;
    }
    for (const int64_t D : {2, 6, 32, 64, 80, 128, 256}) {
      check({{7}, 2, 1, D, element}, {0, 1, 2, 7});
      check({{50}, 2, 2, D, element}, {0, 13, 30, 33, 50});
      check({{290}, 2, 1, D, element}, {0, 95, 191, 288, 290});
      check({{288}, 4, 1, D, element}, {0, 96, 192, 288});
    }
  }
}

TEST(AttentionSegments, RightWithGroupsOfHeadsAndLongSegments) {
  for (const Element element : kElements) {
    if (is_emulated()) {
      check({{140}, 4, 1, 64, element}, {0, 5, 130, 140});
      check({{97}, 6, 2, 10, element}, {0, 64, 97});
      check({{70}, 3, 3, 40, element}, {0, 65, 70});
      continue;
    }
    check({{900}, 1, 1, 16, element}, {0, 700, 900});
    check({{520}, 8, 1, 64, element}, {0, 5, 390, 520});
    check({{397}, 8, 8, 32, element}, {0, 300, 397});
    check({{673}, 16, 2, 10, element}, {0, 383, 672, 673});
    check({{577}, 3, 1, 96, element}, {0, 288, 577});
  }
}

TEST(AttentionSegments, RightAtRandomCuts) {
  for (uint64_t i = 0; i < (is_emulated() ? 4 : 12); ++i) {
    const auto pick = [&](uint64_t what, uint64_t below) {
      return static_cast<int64_t>(random_below(9, i, what, below));
    };
    const int64_t length = 2 + pick(0, is_emulated() ? 100 : 400);
    const int64_t kv_heads = 1 + pick(1, 3);
    std::vector<int64_t> bounds{0, length};
    for (int64_t cut = 0; cut < 1 + pick(2, 6); ++cut)
      bounds.push_back(1 + pick(10 + static_cast<uint64_t>(cut), static_cast<uint64_t>(length - 1)));
    std::sort(bounds.begin(), bounds.end());
    bounds.erase(std::unique(bounds.begin(), bounds.end()), bounds.end());
    check({{static_cast<int32_t>(length)},
           kv_heads * (1 + pick(3, 4)),
           kv_heads,
           2 * (1 + pick(4, 40)),
           kElements[i % 2]},
          bounds);
  }
}

// The running maximum moves from segment to segment, and few keys matter.
TEST(AttentionSegments, RightWhenProbabilitiesAreFarFromUniform) {
  for (const int64_t D : {2, 32, 128}) {
    if (is_emulated()) {
      check({{130}, 1, 1, D, Element::fp32, 3.0}, {0, 64, 65, 130});
    } else {
      check({{320}, 2, 1, D, Element::fp32, 3.0}, {0, 64, 65, 200, 320});
    }
  }
}

// Sums that all have the largest exponential in one segment, hundreds of powers of two above the others'.
TEST(AttentionSegments, LargeScoresInOneSegmentDoNotOverflow) {
  for (const Element element : kElements) {
    for (const int64_t loud : {10, 70, 150}) {
      if (is_emulated() && loud != 70) continue;
      Batch batch({{200}, 2, 1, 64, element});
      for (int64_t t = 0; t < batch.T(); ++t) {
        for (int64_t c = 0; c < batch.width() + batch.kv_width(); ++c) {
          float& x = batch.qkv[static_cast<size_t>(t * batch.stride() + c)];
          x = (c < batch.width() || t == loud ? 16.0f : 1.0f) * std::round(3.0f * x);
        }
      }
      const Reference expected(batch);
      const std::vector<int64_t> bounds{0, 40, 100, 200};
      for (const Order& order : {Order(own_first), Order(own_last)}) {
        Ranges(batch, bounds, kernel_targets().back()).run(order);
        EXPECT_LE(distance(batch.out, expected.out), element == Element::bf16 ? 2.0 * kUnit : kTolerance);
        EXPECT_LE(distance(batch.log_sum_exp, expected.log_sum_exp), kTolerance);
        EXPECT_TRUE(std::all_of(batch.d_qkv.begin(), batch.d_qkv.end(), [](float x) { return std::isfinite(x); }));
      }
    }
  }
}

// The same tiles in the same order: all that a range adds is where its running softmax is kept between segments.
TEST(AttentionSegments, OneRangeHasTheBitsOfTheWhole) {
  for (const Element element : kElements) {
    const int32_t length = is_emulated() ? 150 : 391;
    const AttentionCase test{{length}, 4, 2, 48, element};
    Batch whole(test);
    whole.run(kernel_targets().front());
    Batch one(test);
    const std::vector<int64_t> bounds{0, length};
    Ranges(one, bounds, kernel_targets().front()).run(own_first);
    EXPECT_EQ(one.out, whole.out);
    EXPECT_EQ(one.log_sum_exp, whole.log_sum_exp);
    EXPECT_EQ(one.d_qkv, whole.d_qkv);
  }
}

}  // namespace
}  // namespace hat::test
