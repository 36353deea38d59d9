#include <algorithm>

#include "hat/core/error.hpp"
#include "hat/gradient/node_slots.hpp"
#include "mpi_test_main.hpp"

// Three workers of one node, which share.

namespace hat {
namespace {

constexpr int64_t kBlock = 1;

RunPlan sharing_plan() {
  Deck deck;
  deck.model = {.width = 8, .layers = 1, .heads = 2, .mlp_width = 12, .max_length = 16, .vocabulary = 20};
  deck.staleness = 1;
  deck.barriers = {"none"};
  deck.delay.predict = true;
  return make_run_plan(deck, plan_roles({0, 0, 0, 0}, 1, Placement::packed));
}

class NodeSlotsTest : public ::testing::Test {
 protected:
  /// Only rank `rank` does it; the others wait until it is done.
  template <class Action>
  void on(int rank, Action action) {
    world_.barrier();
    if (world_.rank() == rank) action();
    world_.barrier();
  }
  int64_t size() const { return plan_.layout.blocks[kBlock].size; }
  void fetch(int64_t version, bool predicted = false) {
    slots_.arriving(kBlock, predicted, version, 0.25 * static_cast<double>(version));
    std::fill_n(slots_.values(kBlock, predicted, version), size(), static_cast<float>(version));
    slots_.publish(kBlock, predicted, version);
  }
  bool has_values(int64_t version, bool predicted = false) const {
    const float* values = slots_.values(kBlock, predicted, version);
    return std::all_of(values, values + size(), [&](float v) { return v == static_cast<float>(version); });
  }

  RunPlan plan_ = sharing_plan();
  Communicator world_ = Communicator::world();
  NodeSlots slots_{plan_, world_};
};

TEST_F(NodeSlotsTest, OneWorkerWinsAClaim) {
  for (int64_t version = 0; version < 300; ++version) {
    world_.barrier();
    const bool won = slots_.claim(kBlock, false, version);
    if (won) fetch(version);
    EXPECT_EQ(world_.all_reduce_sum(won ? 1 : 0), 1) << "version " << version;
    EXPECT_TRUE(slots_.holds(kBlock, false, version));
    EXPECT_FALSE(slots_.is_arriving(kBlock, false, version));
    EXPECT_TRUE(has_values(version)) << "version " << version;
    EXPECT_NEAR(slots_.push_travel_s(kBlock, false, version), 0.25 * static_cast<double>(version), 1e-6);
    EXPECT_FALSE(slots_.claim(kBlock, false, version)) << "it is there";
    world_.barrier();
  }
}

TEST_F(NodeSlotsTest, WhatIsReleasedAnotherFetches) {
  on(0, [&] {
    EXPECT_TRUE(slots_.claim(kBlock, false, 5));
    EXPECT_FALSE(slots_.is_arriving(kBlock, false, 5)) << "only claimed";
    slots_.arriving(kBlock, false, 5, 0.5);
  });
  EXPECT_TRUE(slots_.is_arriving(kBlock, false, 5));
  EXPECT_FALSE(slots_.holds(kBlock, false, 5));
  EXPECT_NEAR(slots_.push_travel_s(kBlock, false, 5), 0.5, 1e-6);
  EXPECT_FALSE(slots_.claim(kBlock, false, 5));
  EXPECT_FALSE(slots_.claim(kBlock, false, 5 + plan_.slot_count)) << "the one before is still being written";
  on(0, [&] { slots_.release(kBlock, false, 5); });
  EXPECT_FALSE(slots_.is_arriving(kBlock, false, 5));
  EXPECT_FALSE(slots_.holds(kBlock, false, 5));
  on(1, [&] {
    EXPECT_TRUE(slots_.claim(kBlock, false, 5));
    fetch(5);
  });
  EXPECT_TRUE(slots_.holds(kBlock, false, 5) && has_values(5));
  EXPECT_NEAR(slots_.push_travel_s(kBlock, false, 5), 1.25, 1e-6);
}

TEST_F(NodeSlotsTest, AReleaseThatComesLateChangesNothing) {
  const int64_t later = plan_.slot_count;
  on(0, [&] {
    EXPECT_TRUE(slots_.claim(kBlock, false, 0));
    fetch(0);
  });
  on(1, [&] {
    EXPECT_TRUE(slots_.claim(kBlock, false, later));
    slots_.arriving(kBlock, false, later, 1.5);
  });
  on(0, [&] { slots_.release(kBlock, false, 0); });
  EXPECT_TRUE(slots_.is_arriving(kBlock, false, later));
  EXPECT_FALSE(slots_.claim(kBlock, false, later)) << "it is rank 1's";
  EXPECT_NEAR(slots_.push_travel_s(kBlock, false, later), 1.5, 1e-6);
  on(1, [&] { slots_.publish(kBlock, false, later); });
  EXPECT_TRUE(slots_.holds(kBlock, false, later));
}

TEST_F(NodeSlotsTest, AnOvertakenVersionIsAnError) {
  const int64_t later = 2 + plan_.slot_count;
  on(2, [&] {
    EXPECT_TRUE(slots_.claim(kBlock, false, later));
    fetch(later);
  });
  EXPECT_FALSE(slots_.holds(kBlock, false, 2));
  EXPECT_THROW(slots_.claim(kBlock, false, 2), Error);
  EXPECT_TRUE(slots_.holds(kBlock, false, later));
}

TEST_F(NodeSlotsTest, PredictedValuesHaveSlotsOfTheirOwn) {
  on(1, [&] {
    EXPECT_TRUE(slots_.claim(kBlock, true, 4));
    fetch(4, /*predicted=*/true);
  });
  EXPECT_TRUE(slots_.holds(kBlock, true, 4) && has_values(4, true));
  EXPECT_FALSE(slots_.holds(kBlock, false, 4) || slots_.is_arriving(kBlock, false, 4));
  on(2, [&] {
    EXPECT_TRUE(slots_.claim(kBlock, false, 4 + plan_.slot_count));
    fetch(4 + plan_.slot_count);
  });
  EXPECT_TRUE(slots_.holds(kBlock, true, 4) && has_values(4, true));
}

}  // namespace
}  // namespace hat

int main(int argc, char** argv) { return hat::test::run_mpi_tests(argc, argv); }
