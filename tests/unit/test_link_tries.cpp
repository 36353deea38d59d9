#include <gtest/gtest.h>

#include <algorithm>

#include "hat/comm/link_speed.hpp"
#include "hat/core/random.hpp"

// What is made of the seconds that messages take on a link, when other programs hold up some of them.

namespace hat {
namespace {

struct Link {
  double bytes_per_s;
  double latency_s;
  double gap_share = 0;  // of tries are held up
  double gap_s = 0;      // by up to so long
  uint64_t seed = 1;
};

struct Seen {
  LinkSpeed speed;
  double seconds = 0;  // that measuring took
};

Seen measure(const Link& link) {
  Seen seen;
  uint64_t tries = 0;
  seen.speed = link_from_tries([&](int64_t bytes) {
    double seconds = link.latency_s + static_cast<double>(bytes) / link.bytes_per_s;
    seconds *= 1 + 0.1 * random_uniform(link.seed, 1, tries);
    if (random_uniform(link.seed, 2, tries) < link.gap_share) {
      seconds += link.gap_s * random_uniform(link.seed, 3, tries);
    }
    ++tries;
    seen.seconds += 2 * seconds;
    return seconds;
  });
  return seen;
}

TEST(LinkTries, FastAndSlowLinks) {
  for (const double bytes_per_s : {1e5, 2e6, 125e6, 1e9, 10e9}) {
    for (const double latency_s : {1e-6, 50e-6, 2e-3}) {
      const Link link{.bytes_per_s = bytes_per_s, .latency_s = latency_s};
      const Seen seen = measure(link);
      const bool is_told = 4 * (1 << 20) / bytes_per_s > latency_s;  // by the largest message
      EXPECT_GT(seen.speed.bytes_per_s, (is_told ? 0.7 : 0.05) * bytes_per_s) << latency_s;
      EXPECT_LT(seen.speed.bytes_per_s, 2 * bytes_per_s) << latency_s;
      EXPECT_NEAR(seen.speed.latency_s, latency_s + 4 / bytes_per_s, 0.2 * (latency_s + 4 / bytes_per_s));
      EXPECT_LT(seen.seconds, 1.5) << bytes_per_s;
    }
  }
}

// Scheduling gaps of a busy node neither end the search at small messages nor make a link of TB/s of one.
TEST(LinkTries, GapsOfABusyNode) {
  for (const double share : {0.1, 0.3, 0.5}) {
    for (const double gap_s : {2e-3, 8e-3, 40e-3}) {
      int64_t slow = 0;
      for (uint64_t seed = 1; seed <= 500; ++seed) {
        const Link link{.bytes_per_s = 5e9, .latency_s = 5e-6, .gap_share = share, .gap_s = gap_s, .seed = seed};
        const LinkSpeed speed = measure(link).speed;
        if (speed.bytes_per_s < 5e8) ++slow;
        EXPECT_LT(speed.bytes_per_s, 2 * 5e9) << share << ' ' << gap_s << ' ' << seed;
      }
      EXPECT_LE(slow, share < 0.5 ? 1 : 5) << "of 500; " << share << ' ' << gap_s;  // all tries were held up
    }
  }
}

// Every small message was held up, no large one: it is not known what the difference means.
TEST(LinkTries, LargeMessagesThatAreFasterThanSmallOnes) {
  const LinkSpeed speed = link_from_tries([](int64_t bytes) { return bytes == 4 ? 2e-3 : 1e-3; });
  EXPECT_LE(speed.bytes_per_s, 2 * (4 << 20) / 1e-3);
  EXPECT_GE(speed.bytes_per_s, (4 << 20) / 1e-3);
}

}  // namespace
}  // namespace hat
