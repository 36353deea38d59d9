#include <gtest/gtest.h>

#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "hat/core/text.hpp"

namespace hat {
namespace {

TEST(ClosestMatch, FindsWhatWasMeant) {
  const std::vector<std::string> keys{"model.width", "model.layers", "seed", "staleness", "staleness.rule"};
  EXPECT_EQ(closest_match("model.widht", keys), "model.width");  // neighbours swapped: distance 1
  EXPECT_EQ(closest_match("model.layer", keys), "model.layers");
  EXPECT_EQ(closest_match("sed", keys), "seed");
  EXPECT_EQ(closest_match("stalenes", keys), "staleness");
  EXPECT_EQ(closest_match("seed", keys), "seed");
}

TEST(ClosestMatch, IsSilentWhenNothingIsNear) {
  EXPECT_EQ(closest_match("completely_different", {"seed", "mode"}), "");
  EXPECT_EQ(closest_match("abc", {"xyz"}), "");
  EXPECT_EQ(closest_match("abc", {}), "");
}

TEST(ClosestMatch, PrefersTheNearerCandidate) {
  EXPECT_EQ(closest_match("beta", {"beta12", "beta1"}), "beta1");
  EXPECT_EQ(closest_match("beta", {"beta1", "beta2"}), "beta1");  // a tie goes to the first
}

TEST(Counted, IsSingularOfOne) {
  EXPECT_EQ(counted(0, "worker"), "0 workers");
  EXPECT_EQ(counted(1, "worker"), "1 worker");
  EXPECT_EQ(counted(2000, "worker"), "2,000 workers");
}

TEST(HumanBytes, UsesPowersOfAThousand) {
  EXPECT_EQ(human_bytes(0), "0 B");
  EXPECT_EQ(human_bytes(999), "999 B");
  EXPECT_EQ(human_bytes(1000), "1.0 kB");
  EXPECT_EQ(human_bytes(3'449'000), "3.4 MB");
  EXPECT_EQ(human_bytes(2'000'000'000'000), "2.0 TB");
}

TEST(WithCommas, GroupsDigits) {
  EXPECT_EQ(with_commas(0), "0");
  EXPECT_EQ(with_commas(999), "999");
  EXPECT_EQ(with_commas(1000), "1,000");
  EXPECT_EQ(with_commas(12345678), "12,345,678");
  EXPECT_EQ(with_commas(-1234), "-1,234");
  EXPECT_EQ(with_commas(std::numeric_limits<int64_t>::max()), "9,223,372,036,854,775,807");
  EXPECT_EQ(with_commas(std::numeric_limits<int64_t>::min()), "-9,223,372,036,854,775,808");
}

TEST(GlobMatch, FollowsStarsAndQuestionMarks) {
  EXPECT_TRUE(glob_match("layers.*.attention", "layers.3.attention"));
  EXPECT_TRUE(glob_match("layers.*.attention", "layers.12.attention"));
  EXPECT_FALSE(glob_match("layers.*.attention", "layers.3.mlp"));
  EXPECT_TRUE(glob_match("layers.?.mlp", "layers.3.mlp"));
  EXPECT_FALSE(glob_match("layers.?.mlp", "layers.12.mlp"));
  EXPECT_TRUE(glob_match("*", ""));
  EXPECT_TRUE(glob_match("", ""));
  EXPECT_FALSE(glob_match("", "a"));
  EXPECT_TRUE(glob_match("*a*b", "xaxbxab"));
  EXPECT_FALSE(glob_match("*a*b", "xaxbxabc"));
  EXPECT_TRUE(glob_match("**", "anything"));
}

}  // namespace
}  // namespace hat
