// What workers on CUDA devices need, there and of their hosts, what they may have, and what is chosen from it.
#include <gtest/gtest.h>

#include <string>

#include "commands/memory_plan.hpp"
#include "hat/core/error.hpp"

namespace hat::test {
namespace {

constexpr int64_t kPlenty = int64_t{1} << 50;
constexpr int64_t kFloat = sizeof(float);

RunPlan plan_of(SplitPolicy policy = SplitPolicy::never) {
  Deck deck;
  deck.mode = Mode::sync;
  deck.staleness = 0;
  deck.barriers = {"none"};
  deck.model.vocabulary = 257;
  deck.model.kv_heads = 1;
  deck.unit_tokens = 256;
  deck.gang.policy = policy;
  RunPlan plan = make_run_plan(deck, plan_roles({0, 0, 0, 0, 0}, 1, Placement::spread));
  plan.compute.device = DeviceKind::cuda;
  return plan;
}

constexpr UnitSizes kUnits{.tokens = 8192, .longest = 8192};

std::string refusal(const RunPlan& plan, int64_t host, int64_t device) {
  try {
    choose_by_memory(plan, kUnits, host, device);
  } catch (const InputError& error) {
    return error.what();
  }
  return "nothing was refused";
}

TEST(CudaMemoryPlan, CountsBothSides) {
  RunPlan plan = plan_of();
  const int64_t parameters = plan.layout.size() * kFloat;
  const WorkerMemory memory = worker_memory(plan, kUnits, Recompute::none);
  EXPECT_EQ(memory.parameters, 2 * parameters) << "one copy is computed with, another comes";
  EXPECT_EQ(memory.gradients, parameters);
  EXPECT_GE(memory.libraries, int64_t{32} << 20) << "the workspace of matrix products";
  EXPECT_EQ(memory.total(), memory.parameters + memory.gradients + memory.activations + memory.libraries);
  // Pulled ahead, and on its way out; losses besides.
  EXPECT_EQ(memory.on_host(), (plan.deck.prefetch_depth + 2) * parameters + kUnits.tokens * int64_t{sizeof(double)});
  plan.nccl_bytes = 12345;
  EXPECT_EQ(worker_memory(plan, kUnits, Recompute::none).libraries, memory.libraries + 12345);
  plan.deck.sensitivity.record = true;
  EXPECT_GT(worker_memory(plan, kUnits, Recompute::none).gradients, memory.gradients);
  EXPECT_LT(worker_memory(plan, kUnits, Recompute::full).activations, memory.activations);
  EXPECT_EQ(worker_memory(plan, kUnits, Recompute::full).on_host(), memory.on_host());
  plan.compute.device = DeviceKind::cpu;
  EXPECT_EQ(worker_memory(plan, kUnits, Recompute::none).on_host(),
            worker_memory(plan, kUnits, Recompute::none).total());
}

TEST(CudaMemoryPlan, EachSideHasItsLimit) {
  const RunPlan plan = plan_of();
  const WorkerMemory none = worker_memory(plan, kUnits, Recompute::none);
  const WorkerMemory full = worker_memory(plan, kUnits, Recompute::full);
  EXPECT_EQ(choose_by_memory(plan, kUnits, none.on_host(), none.total()).recompute, Recompute::none);
  EXPECT_EQ(choose_by_memory(plan, kUnits, none.on_host(), none.total() - 1).recompute, Recompute::inner);
  EXPECT_EQ(choose_by_memory(plan, kUnits, none.on_host(), full.total()).recompute, Recompute::full);
  const std::string device = refusal(plan, kPlenty, full.total() - 1);
  EXPECT_NE(device.find("of its CUDA device"), std::string::npos) << device;
  EXPECT_NE(device.find("its share of what is free there"), std::string::npos) << device;
  EXPECT_EQ(device.find('\n'), std::string::npos) << device;
  const std::string host = refusal(plan, none.on_host() - 1, kPlenty);
  EXPECT_NE(host.find("of memory of its host"), std::string::npos) << host;
  EXPECT_EQ(host.find('\n'), std::string::npos) << host;
}

TEST(CudaMemoryPlan, AGivenLimitIsOfTheDevice) {
  RunPlan plan = plan_of();
  const WorkerMemory full = worker_memory(plan, kUnits, Recompute::full);
  ASSERT_LT(full.on_host(), full.total());
  plan.deck.worker.memory_gib = static_cast<double>(full.total()) / (1 << 30);
  EXPECT_EQ(choose_by_memory(plan, kUnits, kPlenty, kPlenty).recompute, Recompute::full);
  plan.deck.worker.memory_gib *= 0.99;
  const std::string text = refusal(plan, kPlenty, kPlenty);
  EXPECT_NE(text.find("worker.memory_gib"), std::string::npos) << text;
}

TEST(CudaMemoryPlan, SeveralWorkersHoldWhatOneDeviceCannot) {
  RunPlan plan = plan_of(SplitPolicy::never);
  plan.nccl_bytes = 0;
  const WorkerMemory alone = worker_memory(plan, kUnits, Recompute::full);
  const int64_t limit = alone.total() - alone.activations / 4;
  EXPECT_THROW(choose_by_memory(plan, kUnits, kPlenty, limit), InputError);
  plan.deck.gang.policy = SplitPolicy::automatic;
  const MemoryChoice choice = choose_by_memory(plan, kUnits, kPlenty, limit);
  EXPECT_GT(choice.units.least_gang, 1);
  EXPECT_LT(choice.units.tokens, kUnits.tokens);
  EXPECT_LE(worker_memory(plan, choice.units, choice.recompute).total(), limit);
  // What is reserved then: a unit of one, and ranges.
  const std::vector<BatchSize> batches = largest_batches(plan, choice.units);
  ASSERT_GT(batches.size(), 1U);
  EXPECT_EQ(batches.front().tokens, choice.units.tokens);
  for (size_t i = 1; i < batches.size(); ++i) EXPECT_TRUE(batches[i].range.has_value());
}

}  // namespace
}  // namespace hat::test
