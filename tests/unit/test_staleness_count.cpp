#include <gtest/gtest.h>

#include "server/staleness_count.hpp"

namespace hat {
namespace {

TEST(StalenessCount, PushesByBlockAndHowLate) {
  StalenessCount count;
  count.add(2, 1, 6);
  count.add(2, 1, 6);
  count.add(2, 0, 7);
  count.add(0, 3, 4);
  count.add_over_limit(2);
  count.add_over_limit(2);
  const StepComplete message = count.message(4, 9);
  EXPECT_EQ(message.server, 4);
  EXPECT_EQ(message.step, 9);
  EXPECT_EQ(message.pushes_over_limit, (std::vector<int64_t>{0, 0, 2}));
  const std::vector<BlockStaleness>& staleness = message.block_staleness;
  ASSERT_EQ(staleness.size(), 3U);
  EXPECT_EQ(staleness[0].block, 0);
  EXPECT_EQ(staleness[0].late, 3);
  EXPECT_EQ(staleness[0].pushes, 1);
  EXPECT_EQ(staleness[1].block, 2);
  EXPECT_EQ(staleness[1].late, 0);
  EXPECT_EQ(staleness[2].pushes, 2);
  const std::vector<BaseVersions>& versions = message.base_versions;
  ASSERT_EQ(versions.size(), 2U);
  EXPECT_EQ(versions[0].oldest, 4);
  EXPECT_EQ(versions[0].newest, 4);
  EXPECT_EQ(versions[1].block, 2);
  EXPECT_EQ(versions[1].oldest, 6);
  EXPECT_EQ(versions[1].newest, 7);
}

TEST(StalenessCount, NothingPushed) {
  const StepComplete message = StalenessCount().message(0, 1);
  EXPECT_TRUE(message.block_staleness.empty());
  EXPECT_TRUE(message.base_versions.empty());
  EXPECT_TRUE(message.pushes_over_limit.empty());
}

}  // namespace
}  // namespace hat
