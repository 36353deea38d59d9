#include <cmath>

#include "hat/core/error.hpp"
#include "hat/gradient/run_plan.hpp"
#include "hat/optimizer/optimizer.hpp"
#include "mpi_test_main.hpp"
#include "server/delay_remedies.hpp"
#include "worker/parameter_cache.hpp"

// One rank, server and worker at once.

namespace hat {
namespace {

constexpr int64_t kBlock = 1;
constexpr int64_t kUpdates = 6;

RunPlan plan_of(PullFormat format, int64_t staleness) {
  Deck deck;
  deck.model = {.width = 8, .layers = 1, .heads = 2, .mlp_width = 12, .max_length = 16, .vocabulary = 20};
  deck.staleness = staleness;
  deck.barriers = {"none"};
  deck.pull_format = format;
  deck.delay.predict = true;
  return make_run_plan(deck, plan_roles({0}, 1, Placement::packed));
}

/// A part that is updated as a server updates it, and everything it held.
struct UpdatedPart {
  UpdatedPart(const RunPlan& plan, const Window& window)
      : index(static_cast<size_t>(plan.shards.parts_of_block[kBlock].front())),
        slots(window, plan.slots.parts[index]),
        prediction(window, plan.predicted_slots[index], plan.deck.staleness),
        optimizer(plan.deck.optimizer, plan.layout, plan.shards.parts[index]) {
    initialize(plan.layout, kBlock, 0, slots.begin(0).data(), plan.shards.parts[index].count, 1);
    slots.publish(0);
    prediction.publish_as_is(0, slots.values());
    remember();
  }

  void update() {
    const int64_t version = slots.latest();
    std::vector<float> gradient(held.back().size());
    for (size_t i = 0; i < gradient.size(); ++i) gradient[i] = std::sin(static_cast<float>(i + 7 * held.size()));
    const float* old_values = slots.values().data();
    for (int64_t piece = 0; piece < optimizer.pieces(); ++piece) {
      float* new_values = slots.begin(version + 1).data();
      prediction.before_update(version + 1, optimizer.piece(piece), old_values);
      optimizer.update(piece, version, {.base = 0.01, .muon = 0.01}, 1.0, gradient.data(), old_values, new_values);
      prediction.after_update(version + 1, optimizer.piece(piece), new_values);
    }
    prediction.publish(version + 1, 0);
    slots.publish(version + 1);
    remember();
  }
  void remember() { held.emplace_back(slots.values().begin(), slots.values().end()); }

  size_t index;
  SlotPublisher slots;
  Prediction prediction;
  Optimizer optimizer;
  std::vector<std::vector<float>> held;  // by version
};

float rounded(float value, PullFormat format) {
  if (format == PullFormat::fp32) return value;
  bfloat16 narrow;
  to_bfloat16(std::span(&value, 1), std::span(&narrow, 1));
  return to_float(narrow);
}

void expect_published(PullFormat format, int64_t staleness) {
  const RunPlan plan = plan_of(format, staleness);
  const Communicator world = Communicator::world();
  const Window window(world, plan.slots.window_bytes.front());
  Account account;
  Waiting waiting("worker 0", 10, account, [] {});
  UpdatedPart part(plan, window);
  ParameterCache cache(plan, world.rank(), Device{}, window, nullptr, waiting);
  const auto rule = SlotPull::Rule::exact;
  std::vector<float> read(part.held.front().size());
  for (int64_t version = 0; version <= kUpdates; ++version) {
    if (version > 0) part.update();
    const std::vector<float>& now = part.held[static_cast<size_t>(version)];
    const std::vector<float>& before = part.held[static_cast<size_t>(std::max<int64_t>(version - 1, 0))];
    std::vector<float> expected(now.size());
    for (size_t i = 0; i < now.size(); ++i) {
      expected[i] = rounded(now[i] + static_cast<float>(staleness) * (now[i] - before[i]), format);
    }
    // What workers get in turn: predicted and plain values of one version are told apart.
    const float* values = cache.acquire(kBlock, {.version = version, .rule = rule, .predicted = true});
    EXPECT_EQ(std::vector<float>(values, values + now.size()), expected) << "version " << version;
    EXPECT_EQ(cache.version(kBlock), version);
    values = cache.acquire(kBlock, {.version = version, .rule = rule});
    for (size_t i = 0; i < now.size(); ++i) ASSERT_EQ(values[i], rounded(now[i], format)) << "version " << version;
    EXPECT_EQ(cache.version(kBlock), version);
    // What compensation starts from: the same, and of any version that a late step may still use.
    part.prediction.read(version, 0, read);
    EXPECT_EQ(read, expected);
    part.slots.read(std::max<int64_t>(version - staleness, 0), 0, read);
    const std::vector<float>& old = part.held[static_cast<size_t>(std::max<int64_t>(version - staleness, 0))];
    for (size_t i = 0; i < old.size(); ++i) ASSERT_EQ(read[i], rounded(old[i], format));
    cache.prefetch(kBlock, {.version = version, .rule = rule, .predicted = true});
  }
  EXPECT_THROW(part.slots.read(0, 0, read), Error) << "its slot has been used again";
}

TEST(Prediction, IsThePublishedVersionPlusSTimesItsUpdate) {
  for (const int64_t staleness : {1, 2}) expect_published(PullFormat::fp32, staleness);
}

TEST(Prediction, IsRoundedWherePullsAre) {
  for (const int64_t staleness : {1, 2}) expect_published(PullFormat::bf16, staleness);
}

TEST(Prediction, OfTheFirstVersionIsTheVersion) {
  const RunPlan plan = plan_of(PullFormat::fp32, 1);
  const Window window(Communicator::world(), plan.slots.window_bytes.front());
  UpdatedPart part(plan, window);
  std::vector<float> read(part.held.front().size());
  part.prediction.read(0, 0, read);
  EXPECT_EQ(read, part.held.front());
  part.update();
  part.prediction.read(1, 0, read);
  EXPECT_NE(read, part.held.back());
}

}  // namespace
}  // namespace hat

int main(int argc, char** argv) { return hat::test::run_mpi_tests(argc, argv); }
