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
  const std::vector<BlockStaleness> staleness = count.staleness();
  ASSERT_EQ(staleness.size(), 3U);
  EXPECT_EQ(staleness[0].block, 0);
  EXPECT_EQ(staleness[0].late, 3);
  EXPECT_EQ(staleness[0].pushes, 1);
  EXPECT_EQ(staleness[1].block, 2);
  EXPECT_EQ(staleness[1].late, 0);
  EXPECT_EQ(staleness[2].pushes, 2);
  const std::vector<BaseVersions> versions = count.versions();
  ASSERT_EQ(versions.size(), 2U);
  EXPECT_EQ(versions[0].oldest, 4);
  EXPECT_EQ(versions[0].newest, 4);
  EXPECT_EQ(versions[1].block, 2);
  EXPECT_EQ(versions[1].oldest, 6);
  EXPECT_EQ(versions[1].newest, 7);
}

TEST(StalenessCount, NothingPushed) {
  EXPECT_TRUE(StalenessCount().staleness().empty());
  EXPECT_TRUE(StalenessCount().versions().empty());
}

}  // namespace
}  // namespace hat
