#include <algorithm>
#include <functional>
#include <thread>

#include "hat/comm/emulated_network.hpp"
#include "hat/core/error.hpp"
#include "mpi_test_main.hpp"
#include "worker/parameter_cache.hpp"

// ParameterCache across ranks: rank 0 is a server that publishes when it is told to, ranks 1 and 2 are workers.
// Emulated links and slots of a node are in shared memory (ParametersOfANode).

namespace hat {
namespace {

using Rule = SlotPull::Rule;
using Need = ParameterCache::Need;

constexpr int64_t kBlock = 1;

Deck deck_of(int64_t staleness, int64_t depth) {
  Deck deck;
  deck.model = {.width = 8, .layers = 1, .heads = 2, .mlp_width = 12, .max_length = 16, .vocabulary = 20};
  deck.staleness = staleness;
  deck.prefetch_depth = depth;
  deck.barriers = {"none"};
  return deck;
}

Need exactly(int64_t version) { return {.version = version, .rule = Rule::exact}; }
Need at_least(int64_t version) { return {.version = version, .rule = Rule::freshest}; }

struct Options {
  double pull_s = 0;  ///< that the body of kBlock takes on an emulated link
  bool shares = false;
  double timeout_s = 20;
};

struct Rank {
  explicit Rank(const Deck& deck, Options options = {})
      : plan(make_run_plan(deck, plan_roles({0, 0, 0}, 1, Placement::packed))),
        waiting("worker", options.timeout_s, account, [this] {
          ++polls;
          cache->progress();
        }) {
    if (options.pull_s > 0) {
      const double bandwidth = static_cast<double>(4 * plan.layout.blocks[kBlock].size) / options.pull_s;
      network.emplace(EmulatedNetworkConfig{.bandwidth = bandwidth}, world, plan.roles.rank_of_server, 1.0, 1);
      world.charge_transfers_to(*network);
    }
    window.emplace(world, is_worker() ? 0 : plan.slots.window_bytes.front());
    if (is_worker()) {
      if (options.shares) node.emplace(plan, workers);
      cache.emplace(plan, world.rank(), Device{}, *window, node ? &*node : nullptr, waiting);
    } else {
      for (const PartSlots& part : plan.slots.parts) publishers.emplace_back(*window, part);
    }
    publish(0);
  }

  bool is_worker() const { return world.rank() > 0; }
  /// Collective. Every value of every block is `version`.
  void publish(int64_t version) {
    world.barrier();
    for (SlotPublisher& part : publishers) {
      std::ranges::fill(part.begin(version), static_cast<float>(version));
      part.publish(version);
    }
    world.barrier();
  }
  template <class Action>
  void on_workers(Action action) {
    if (is_worker()) action(*cache);
  }
  void take(Need need, int64_t version) {
    const float* values = cache->acquire(kBlock, need);
    const int64_t size = plan.layout.blocks[kBlock].size;
    ASSERT_TRUE(std::all_of(values, values + size, [&](float v) { return v == static_cast<float>(version); }))
        << values[0] << " instead of " << version;
    EXPECT_EQ(cache->version(kBlock), version);
  }
  /// Pulls go on, as in a pass.
  void progress_until(const std::function<bool()>& done) {
    const double start_s = now_s();
    while (!done()) {
      ASSERT_LT(now_s() - start_s, 20) << "nothing comes";
      cache->progress();
      std::this_thread::yield();
    }
  }
  void progress_for(double seconds) {
    const double start_s = now_s();
    progress_until([&] { return now_s() - start_s > seconds; });
  }
  const PullCounters& counters() const { return cache->counters(); }

  RunPlan plan;
  Communicator world = Communicator::world();
  Communicator workers = world.split(is_worker() ? 0 : -1);
  std::optional<EmulatedNetwork> network;
  std::optional<Window> window;
  std::optional<NodeSlots> node;
  Account account;
  int64_t polls = 0;
  Waiting waiting;
  std::vector<SlotPublisher> publishers;
  std::optional<ParameterCache> cache;
};

TEST(PulledParameters, WhatWasExpectedIsTakenOver) {
  Rank rank(deck_of(1, 1));
  rank.on_workers([&](ParameterCache& cache) {
    rank.take(exactly(0), 0);
    cache.expect(kBlock, exactly(1));
    cache.expect(kBlock, exactly(1));  // once is enough
  });
  rank.publish(1);
  rank.on_workers([&](ParameterCache& cache) {
    rank.progress_until([&] { return rank.counters().accepted == 2; });
    cache.prefetch(kBlock, exactly(1));
    rank.take(exactly(1), 1);
    EXPECT_EQ(rank.counters().accepted, 2) << "not pulled again";
    EXPECT_EQ(rank.counters().guesses, 1);
    EXPECT_EQ(rank.counters().wrong_guesses, 0);
  });
}

// Nobody who expects a version keeps servers from overwriting it.
TEST(PulledParameters, WhatIsExpectedForTooLongIsAnError) {
  Rank rank(deck_of(0, 1));
  rank.on_workers([&](ParameterCache& cache) {
    rank.take(exactly(0), 0);
    cache.expect(kBlock, exactly(1));
    cache.progress();
  });
  rank.publish(1);
  rank.publish(2);
  rank.publish(3);  // into the slot of version 1
  rank.on_workers([&](ParameterCache&) { EXPECT_THROW(rank.progress_for(1), Error); });
}

TEST(PulledParameters, AUnitOfALaterStepDropsWhatWasExpected) {
  Rank rank(deck_of(0, 1));
  rank.on_workers([&](ParameterCache& cache) {
    rank.take(exactly(0), 0);
    cache.expect(kBlock, exactly(1));
    cache.progress();
    cache.prefetch(kBlock, exactly(2));
    EXPECT_EQ(rank.counters().guesses, 2);
    EXPECT_EQ(rank.counters().wrong_guesses, 1);
  });
  rank.publish(1);
  rank.publish(2);
  rank.publish(3);
  rank.on_workers([&](ParameterCache&) {
    rank.progress_for(0.05);
    rank.take(exactly(2), 2);
  });
}

void expect_nothing_without_a_unit(Options options) {
  Rank rank(deck_of(0, 1), options);
  rank.on_workers([&](ParameterCache& cache) {
    rank.take(exactly(0), 0);
    cache.expect(kBlock, exactly(1));
    cache.progress();
    cache.stop_expecting();
    EXPECT_EQ(rank.counters().wrong_guesses, 1);
  });
  for (const int64_t version : {1, 2, 3}) rank.publish(version);
  rank.on_workers([&](ParameterCache& cache) {
    rank.progress_for(0.05);
    rank.take(exactly(3), 3);
    cache.finish();
  });
}

TEST(PulledParameters, AWorkerWithoutAUnitExpectsNothing) { expect_nothing_without_a_unit({}); }
TEST(ParametersOfANode, AWorkerWithoutAUnitExpectsNothing) { expect_nothing_without_a_unit({.shares = true}); }

TEST(PulledParameters, TwoUnitsAhead) {
  Rank rank(deck_of(2, 2));
  rank.on_workers([&](ParameterCache& cache) {
    rank.take(exactly(0), 0);
    for (const int64_t version : {1, 2, 3}) cache.prefetch(kBlock, exactly(version));
    EXPECT_EQ(rank.counters().guesses, 2) << "there are two copies beside the current one";
  });
  rank.publish(1);
  rank.on_workers([&](ParameterCache&) { rank.progress_until([&] { return rank.counters().accepted == 2; }); });
  rank.publish(2);
  rank.on_workers([&](ParameterCache& cache) {
    rank.progress_until([&] { return rank.counters().accepted == 3; });
    EXPECT_EQ(cache.version(kBlock), 0) << "what is current stays";
    rank.take(exactly(1), 1);
    cache.prefetch(kBlock, exactly(3));
    rank.take(exactly(2), 2);
  });
  rank.publish(3);
  rank.on_workers([&](ParameterCache&) {
    rank.take(exactly(3), 3);
    EXPECT_EQ(rank.counters().accepted, 4);
    EXPECT_EQ(rank.counters().wrong_guesses, 0);
  });
}

// Two units of one step need the same version; it comes once.
TEST(PulledParameters, TheSameVersionTwiceAhead) {
  Rank rank(deck_of(1, 2));
  rank.on_workers([&](ParameterCache& cache) {
    rank.take(exactly(0), 0);
    cache.prefetch(kBlock, exactly(1));
    cache.prefetch(kBlock, exactly(1));
  });
  rank.publish(1);
  rank.on_workers([&](ParameterCache&) {
    rank.take(exactly(1), 1);
    rank.take(exactly(1), 1);
    EXPECT_EQ(rank.counters().accepted, 2);
    EXPECT_EQ(rank.counters().skipped, 1);
  });
}

// A pull found nothing newer than the copy that was current when it began; the pull before it brought a newer one.
TEST(PulledParameters, NothingNewerKeepsTheNewestCopy) {
  Rank rank(deck_of(kUnbounded, 2));
  rank.on_workers([&](ParameterCache& cache) {
    rank.take(at_least(0), 0);
    cache.prefetch(kBlock, at_least(1));
    cache.prefetch(kBlock, at_least(0));
    rank.progress_for(0.05);
  });
  rank.publish(1);
  rank.on_workers([&](ParameterCache&) {
    rank.take(at_least(1), 1);
    rank.take(at_least(0), 1);
    EXPECT_EQ(rank.counters().accepted, 2);
    EXPECT_EQ(rank.counters().skipped, 1);
  });
}

TEST(PulledParameters, TheOnlyCopyIsNotPulledAgain) {
  Rank rank(deck_of(kUnbounded, 0));
  rank.on_workers([&](ParameterCache& cache) {
    rank.take(at_least(0), 0);
    cache.prefetch(kBlock, at_least(0));  // nothing: there is no copy for it
    rank.take(at_least(0), 0);
    EXPECT_EQ(rank.counters().accepted, 1);
    EXPECT_EQ(rank.counters().skipped, 1);
    EXPECT_EQ(rank.counters().guesses, 0);
  });
  rank.publish(1);
  rank.on_workers([&](ParameterCache&) { rank.take(at_least(0), 1); });
}

TEST(PulledParameters, AWrongGuessIsDropped) {
  Rank rank(deck_of(2, 1));
  rank.publish(1);
  rank.publish(2);
  rank.on_workers([&](ParameterCache& cache) {
    cache.prefetch(kBlock, exactly(1));
    rank.progress_until([&] { return rank.counters().accepted == 1; });
    rank.take(exactly(2), 2);
    EXPECT_EQ(rank.counters().guesses, 1);
    EXPECT_EQ(rank.counters().wrong_guesses, 1);
  });
}

// Its gets write to the only other copy: that is waited for, in the account and not for ever.
TEST(ParametersOfANode, AWrongGuessOnItsWayIsWaitedFor) {
  Rank rank(deck_of(2, 1), {.pull_s = 0.2});
  rank.publish(1);
  rank.publish(2);
  rank.on_workers([&](ParameterCache& cache) {
    cache.prefetch(kBlock, exactly(1));
    rank.progress_until([&] { return rank.counters().bytes > 0; });
    rank.polls = 0;
    rank.take(exactly(2), 2);
    EXPECT_GT(rank.polls, 2) << "everything else goes on";
    EXPECT_GT(rank.account.seconds()[static_cast<size_t>(Activity::wait_pull)], 0.2);
    EXPECT_EQ(rank.counters().accepted, 1) << "what was given up counts as nothing";
    cache.finish();
  });
  rank.world.barrier();
}

TEST(ParametersOfANode, WaitingForAWrongGuessHasATimeOut) {
  Rank rank(deck_of(2, 1), {.pull_s = 1.0, .timeout_s = 0.1});
  rank.publish(1);
  rank.publish(2);
  rank.on_workers([&](ParameterCache& cache) {
    cache.prefetch(kBlock, exactly(1));
    rank.progress_until([&] { return rank.counters().bytes > 0; });
    EXPECT_THROW(cache.acquire(kBlock, exactly(2)), Error);
  });
  rank.world.barrier();
}

TEST(ParametersOfANode, AVersionComesToTheNodeOnce) {
  Rank rank(deck_of(1, 1), {.shares = true});
  for (int64_t version = 0; version < 6; ++version) {
    if (version > 0) rank.publish(version);
    rank.on_workers([&](ParameterCache& cache) {
      cache.prefetch(kBlock, exactly(version));
      rank.take(exactly(version), version);
      EXPECT_EQ(rank.workers.all_reduce_sum(static_cast<double>(rank.counters().accepted)), version + 1);
      EXPECT_EQ(rank.workers.all_reduce_sum(static_cast<double>(rank.counters().skipped)), version + 1);
    });
  }
}

// Worker 1 has claimed the version and gives it up while it is on its way; worker 2 fetches it once that has ended.
TEST(ParametersOfANode, WhatOneWorkerGivesUpAnotherFetches) {
  Rank rank(deck_of(1, 1), {.pull_s = 0.2, .shares = true});
  rank.publish(1);
  if (rank.world.rank() == 1) {
    rank.cache->expect(kBlock, exactly(1));
    rank.progress_until([&] { return rank.counters().bytes > 0; });
  }
  rank.world.barrier();
  if (rank.world.rank() == 1) {
    rank.cache->stop_expecting();
    EXPECT_TRUE(rank.node->is_arriving(kBlock, false, 1)) << "not released while something is written there";
    rank.cache->finish();
    EXPECT_EQ(rank.counters().accepted, 0);
  }
  if (rank.world.rank() == 2) {
    rank.take(exactly(1), 1);
    EXPECT_EQ(rank.counters().accepted, 1);
  }
  rank.world.barrier();
}

}  // namespace
}  // namespace hat

int main(int argc, char** argv) { return hat::test::run_mpi_tests(argc, argv); }
