#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "hat/comm/emulated_network.hpp"

namespace hat {
namespace {

constexpr int64_t kSecond = 1'000'000'000;
constexpr int64_t kNow = 5 * kSecond;

/// Four ranks, the first a server. 1 MB takes a second.
struct Links {
  std::vector<EmulatedLinks::Link> words{4};
  EmulatedNetworkConfig config{.bandwidth = 1e6};
  double bytes_per_byte = 1;
  EmulatedLinks make(uint64_t stream = 0) { return {words, config, {0}, bytes_per_byte, 7, stream}; }
};

/// The first moment at which the transfer is through, looked for in steps of a millisecond from kNow on.
int64_t through_after(EmulatedLinks::Transfer& transfer) {
  for (int64_t after = 0; after < 1000 * kSecond; after += kSecond / 1000) {
    if (transfer.is_through(kNow + after)) return after;
  }
  return -1;
}

constexpr int64_t kMegabyte = 1'000'000;

TEST(EmulatedLinks, OneTransferTakesItsBytesAtTheBandwidthAndTheLatency) {
  Links all;
  all.config.latency_s = 0.25;
  EmulatedLinks links = all.make();
  auto transfer = links.start(1, 2, kMegabyte, kNow);
  EXPECT_EQ(through_after(transfer), kSecond + kSecond / 4);
  // The link was free again before the latency had passed.
  auto next = links.start(1, 2, kMegabyte, kNow + kSecond);
  EXPECT_EQ(through_after(next), 2 * kSecond + kSecond / 4);
}

TEST(EmulatedLinks, TransfersOnOneLinkQueueOnTwoTheyOverlap) {
  Links all;
  EmulatedLinks links = all.make();
  auto first = links.start(1, 2, kMegabyte, kNow);
  auto same_sender = links.start(1, 3, 2 * kMegabyte, kNow);
  auto same_receiver = links.start(0, 2, kMegabyte, kNow);
  auto elsewhere = links.start(2, 1, kMegabyte, kNow);  // the other direction of both
  EXPECT_EQ(through_after(first), kSecond);
  EXPECT_EQ(through_after(same_sender), 3 * kSecond);
  EXPECT_EQ(through_after(same_receiver), 2 * kSecond);
  EXPECT_EQ(through_after(elsewhere), kSecond);
}

// A place at the receiver is taken when it is the transfer's turn at the sender, not while it queues there.
TEST(EmulatedLinks, WhatQueuesAtItsSenderKeepsNoReceiverBusy) {
  Links all;
  EmulatedLinks links = all.make();
  auto ahead = links.start(1, 3, 10 * kMegabyte, kNow);
  auto queued = links.start(1, 2, kMegabyte, kNow);
  auto other = links.start(0, 2, kMegabyte, kNow);
  EXPECT_EQ(through_after(other), kSecond);
  EXPECT_EQ(through_after(ahead), 10 * kSecond);
  EXPECT_EQ(through_after(queued), 11 * kSecond);
}

TEST(EmulatedLinks, ServersMayHaveWiderLinks) {
  Links all;
  all.config.server_bandwidth = 4e6;
  EmulatedLinks links = all.make();
  std::vector<EmulatedLinks::Transfer> pulls;
  for (const int worker : {1, 2, 3}) pulls.push_back(links.start(0, worker, kMegabyte, kNow));
  // They leave a quarter of a second after each other, and take a second each at their receivers.
  for (int i = 0; i < 3; ++i) EXPECT_EQ(through_after(pulls[static_cast<size_t>(i)]), kSecond + i * kSecond / 4) << i;
}

TEST(EmulatedLinks, InsideANodeNothingIsCharged) {
  Links all;
  all.config.ranks_per_node = 2;
  all.config.latency_s = 1;
  EmulatedLinks links = all.make();
  auto inside = links.start(2, 3, 100 * kMegabyte, kNow);
  auto across = links.start(1, 2, kMegabyte, kNow);
  EXPECT_EQ(through_after(inside), 0);
  EXPECT_EQ(through_after(across), 2 * kSecond);
}

TEST(EmulatedLinks, BytesAreChargedAsThoseOfTheModelThatCostsAreOf) {
  Links all;
  all.bytes_per_byte = 3;
  EmulatedLinks links = all.make();
  auto transfer = links.start(1, 2, kMegabyte, kNow);
  EXPECT_EQ(through_after(transfer), 3 * kSecond);
}

TEST(EmulatedLinks, JitterHasTheMeanAndDeviationThatTheDeckNames) {
  Links all;
  all.config.jitter = 0.3;
  EmulatedLinks links = all.make();
  constexpr int kTransfers = 4000;
  double sum = 0;
  double squares = 0;
  int64_t now = kNow;
  for (int i = 0; i < kTransfers; ++i) {
    all.words[1].out_ns = 0;
    all.words[2].in_ns = 0;
    links.start(1, 2, kMegabyte, now);
    const double seconds = static_cast<double>(all.words[1].out_ns - now) / kSecond;
    sum += seconds;
    squares += seconds * seconds;
  }
  const double mean = sum / kTransfers;
  EXPECT_NEAR(mean, 1.0, 0.02);  // 4 standard errors
  EXPECT_NEAR(std::sqrt(squares / kTransfers - mean * mean), 0.3, 0.03);
}

}  // namespace
}  // namespace hat
