#include <gtest/gtest.h>

#include "hat/gradient/nccl_buckets.hpp"

namespace hat {
namespace {

RunPlan plan_of(const std::vector<std::string>& barriers, double bucket_mib) {
  Deck deck;
  deck.model = {.width = 8, .layers = 3, .heads = 2, .mlp_width = 12, .max_length = 16, .vocabulary = 20};
  deck.barriers = barriers;
  deck.nccl.bucket_mib = bucket_mib;
  return make_run_plan(deck, plan_roles({0, 0, 0}, 1, Placement::packed));
}

/// Elements of each bucket, as they come.
std::vector<int64_t> buckets_of(const RunPlan& plan) {
  const BarrierSchedule barriers(plan);
  std::vector<int64_t> buckets;
  int64_t filled = 0;
  for (auto block = static_cast<int64_t>(plan.layout.blocks.size()) - 1; block >= 0; --block) {
    if (!barriers.uses_ring(block, 0)) continue;
    filled += plan.layout.blocks[static_cast<size_t>(block)].size;
    if (ends_bucket(plan, barriers, block, 0)) buckets.push_back(std::exchange(filled, 0));
  }
  EXPECT_EQ(filled, 0) << "the last one ends, too";
  return buckets;
}

TEST(NcclBuckets, TakeAsManyBlocksAsFit) {
  const auto sizes = [](const RunPlan& plan) {
    std::vector<int64_t> all;
    for (const BlockSpec& block : plan.layout.blocks) all.insert(all.begin(), block.size);
    return all;
  };
  const RunPlan alone = plan_of({"all"}, 0);
  EXPECT_EQ(buckets_of(alone), sizes(alone)) << "every block by itself";
  EXPECT_EQ(buckets_of(plan_of({"all"}, 32)), std::vector<int64_t>{alone.layout.size()}) << "all together";

  // Of twice the largest block's size: any two fit, and all together do not.
  const std::vector<int64_t> each = sizes(alone);
  const int64_t largest = *std::max_element(each.begin(), each.end());
  const auto mib = static_cast<double>(8 * largest) / (1 << 20);
  const std::vector<int64_t> some = buckets_of(plan_of({"all"}, mib));
  EXPECT_GT(some.size(), 1U);
  EXPECT_LT(some.size(), each.size());
  for (const int64_t bucket : some) EXPECT_LE(bucket, 2 * largest);

  // Blocks that use no ring are no part of it.
  const RunPlan attention = plan_of({"attention"}, 32);
  int64_t expected = 0;
  for (size_t block = 0; block < attention.layout.blocks.size(); ++block) {
    if (attention.is_barrier[block]) expected += attention.layout.blocks[block].size;
  }
  EXPECT_GT(expected, 0);
  EXPECT_LT(expected, attention.layout.size());
  EXPECT_EQ(buckets_of(attention), std::vector<int64_t>{expected});
}

}  // namespace
}  // namespace hat
