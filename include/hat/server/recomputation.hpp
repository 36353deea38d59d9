#pragma once
#include <cstdint>
#include <memory>
#include <vector>

#include "hat/checkpoint/gradient_log_reader.hpp"
#include "hat/dataset/dataset.hpp"
#include "hat/gradient/run_plan.hpp"
#include "hat/server/replay.hpp"

namespace hat {

/// Trains the steps of one attempt again from a log without gradients (log.payload = metadata): every unit on the
/// versions that its worker had, gradients added up in the recorded order. The same arithmetic as in the run, so on the
/// same kind of processor the same bits; every gradient and version is held against its checksum.
///
/// Takes the time that all workers of the run computed together. In memory are, beside the shards, the versions and
/// gradients that something still needs.
class Recomputation {
 public:
  /// `shards`: by server, as they are after `from` steps. The plan is that of the attempt; all must outlive this
  /// object. Throws InputError when the dataset is another one than the run's.
  Recomputation(const RunPlan& plan, GradientLogReader& log, const GradientLogReader::Attempt& attempt,
                const Dataset& dataset, std::vector<ShardReplay>& shards, int64_t from);
  ~Recomputation();

  /// Computes and applies the steps before `to` that are left. Throws InputError where that cannot be done: what was
  /// computed on is older than the first step, records are missing, the bits are others.
  void advance(int64_t to);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace hat
