#pragma once
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "hat/core/error.hpp"
#include "hat/model/transformer.hpp"
#include "hat/server/recomputation.hpp"
#include "server/pushed_gradients.hpp"

namespace hat {

inline constexpr int64_t kWholeStep = -1;  // instead of a unit
inline constexpr int64_t kRing = -1;       // instead of a worker

/// The gradient of a block that leaves a worker, or a ring.
struct GradientKey {
  int64_t worker = 0;
  int64_t block = 0;
  int64_t step = 0;
  int64_t unit = kWholeStep;
  bool operator<(const GradientKey& other) const {
    return std::tie(worker, block, step, unit) < std::tie(other.worker, other.block, other.step, other.unit);
  }
};
struct ComputedGradient {
  std::vector<float> values;
  int64_t taken = 0;  // elements that pushes have taken
};

/// A block as workers got it.
struct VersionKey {
  int64_t block = 0;
  int64_t version = 0;
  bool predicted = false;
  bool operator<(const VersionKey& other) const {
    return std::tie(block, version, predicted) < std::tie(other.block, other.version, other.predicted);
  }
};
struct UsedVersion {
  std::vector<float> values;
  int64_t filled = 0;  // elements
  int64_t uses = 0;    // to come
};

struct ComputingWorker {
  std::deque<GradientLogReader::Computation> ahead;  // in the order of computing
  std::map<int64_t, int64_t> left;                   // of those, by step
  std::vector<std::vector<float>> gradients;         // by block; empty: nothing was added yet
};

struct AppliedPart {
  int server = 0;
  std::deque<LoggedUpdate> ahead;             // in the order of applying
  std::map<int64_t, LoggedVersion> versions;  // as published, by version
};

/// Units are computed in recomputation_units.cpp; recomputation.cpp has the rest.
struct Recomputation::Impl {
  using Computation = GradientLogReader::Computation;

  Impl(const RunPlan& run_plan, const GradientLogReader::Attempt& of_attempt, const Dataset& text,
       std::vector<ShardReplay>& of_servers, int64_t from)
      : plan(run_plan),
        header(of_attempt.header),
        dataset(text),
        shards(of_servers),
        first_step(from),
        workers(static_cast<size_t>(header.workers)),
        parts(plan.shards.parts.size()) {}

  void load(GradientLogReader& log, const GradientLogReader::Attempt& attempt);
  void add_use(const VersionKey& key) { ++versions[key].uses; }
  void keep(const ShardReplay::Published& published);
  VersionKey used_by(const Computation& computation, int64_t block) const;
  std::optional<VersionKey> compensated_by(size_t part, const LoggedUpdate& update) const;
  bool is_here(const VersionKey& key) const;
  void end_use(const VersionKey& key);

  bool is_ring(int64_t block, int64_t step) const { return rings.contains({block, step}); }
  GradientKey key_of(const PushedGradients::Push& push) const;
  bool is_computed(const PushedGradients::Push& push);
  bool add_ring_up(int64_t block, int64_t step);
  void read(const PushedGradients::Push& push, std::vector<float>& values);

  bool compute_next(int64_t worker, int64_t to);
  std::vector<int64_t> gang_of(const Computation& computation) const;
  bool has_parameters(const Computation& computation) const;
  void compute(int64_t worker, Transformer& model, RangeExchange* exchange);
  void leave(int64_t worker);
  Transformer& model_of(size_t member);
  bool apply_next(size_t part, int64_t to);
  void check_order(size_t part, int64_t to) const;
  [[noreturn]] void explain(int64_t to) const;
  InputError error(const std::string& reason) const {
    return {fmt::format("log of attempt {}", header.number), "", reason};
  }
  const std::string& name_of_block(int64_t block) const { return plan.layout.blocks[static_cast<size_t>(block)].name; }

  const RunPlan& plan;
  const LogAttempt& header;
  const Dataset& dataset;
  std::vector<ShardReplay>& shards;
  int64_t first_step;
  std::vector<ComputingWorker> workers;
  std::vector<AppliedPart> parts;                     // as in the plan
  std::vector<PushedGradients> pushes;                // by server
  std::set<std::pair<int64_t, int64_t>> rings;        // (block, step)
  std::map<GradientKey, ComputedGradient> gradients;  // computed, not taken by all pushes
  std::map<VersionKey, UsedVersion> versions;         // that something still needs
  std::vector<std::unique_ptr<Transformer>> models;   // by member of a gang
};

}  // namespace hat
