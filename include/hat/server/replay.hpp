#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "hat/checkpoint/checkpoint.hpp"
#include "hat/checkpoint/gradient_log_reader.hpp"
#include "hat/gradient/run_plan.hpp"

namespace hat {

/// The plan of an attempt as far as its servers go, from the deck that its log holds. Throws InputError.
RunPlan plan_of(const LogAttempt& attempt);

/// Rows [first_row, first_row + rows) of a saved tensor.
using TensorSource =
    std::function<void(const std::string& path, int64_t first_row, int64_t rows, int64_t columns, float* values)>;
/// The checkpoint must outlive what is returned.
TensorSource tensors_of(const CheckpointReader& checkpoint);
/// Slices that cover every tensor; their data must outlive what is returned.
TensorSource tensors_of(std::vector<TensorSlice> slices);

/// One server's shard, rebuilt from a checkpoint (or the start values) and the gradient log: the same arithmetic as in
/// the run, so the same bits.
class ShardReplay {
 public:
  /// `plan` must outlive this object.
  ShardReplay(const RunPlan& plan, int server);
  ~ShardReplay();
  ShardReplay(ShardReplay&&) noexcept;

  void initialize();
  /// `block_versions`: updates that each block has had.
  void restore(const TensorSource& saved, const std::vector<int64_t>& block_versions);

  /// Applies steps [from, to) of the log. Returns the step that all parts have reached: `to`, or the first step whose
  /// records are missing or damaged (the shard is then somewhere behind it, and of no use); why stands in `problem`.
  int64_t apply(GradientLogReader& log, const GradientLogReader::Attempt& attempt, int64_t from, int64_t to,
                std::string& problem);

  /// A part as workers get it with a version.
  struct Published {
    int64_t part = 0;
    int64_t version = 0;
    std::span<const float> values;
    std::span<const float> predicted;  ///< staleness.predict; empty: the part is never late
  };
  /// Told of every version from now on, at once of the present ones.
  void publish_to(std::function<void(const Published&)> listener);

  /// The gradient as the optimizer took it (staleness.compensation); `base_values`: of the part, on which it was
  /// computed.
  std::vector<float> compensated(const LoggedUpdate& update, std::span<const float> gradient,
                                 std::span<const float> base_values);
  /// Applies one update. Throws InputError when its part is not this server's. Returns the new version.
  int64_t apply(const LoggedUpdate& update, std::span<const float> gradient);
  /// Holds the part's values against what stands in the log of this version.
  void check(const LoggedVersion& published);

  /// As Shard::slices of all parts, in their order.
  std::vector<TensorSlice> slices();
  int64_t updates_applied() const;
  int64_t versions_checked() const;  ///< of those updates: results that the log has a checksum of

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

/// What the rows of a log say of a stretch of steps of one attempt, of all its servers.
struct LoggedStretch {
  int64_t end = 0;                     ///< steps from the beginning of the stretch to here are complete on all servers
  int64_t epoch = 0;                   ///< of the last of them
  int64_t tokens = 0;                  ///< target tokens of them
  std::vector<double> norms;           ///< whole gradient norms of the newest ones, oldest first; unbounded: none
  std::vector<int64_t> block_updates;  ///< by block: updates in them
};

/// What a step may be rebuilt from.
enum class RebuiltFrom {
  gradients,    ///< that stand in the log
  computations  ///< or, where only metadata were logged, by computing them again
};

/// Looks at steps from `from` on, up to the beginning of the next attempt and to `to`.
LoggedStretch complete_stretch(GradientLogReader& log, const GradientLogReader::Attempt& attempt, const RunPlan& plan,
                               int64_t from, int64_t to, RebuiltFrom rebuilt = RebuiltFrom::gradients);

/// Steps in (from, to), ascending, that all updates of earlier steps stand before, and none of later ones, on every
/// server: a replay may stop there and go on another time. (Unbounded asynchronous runs; in others each step is one.)
std::vector<int64_t> clean_cuts(GradientLogReader& log, const GradientLogReader::Attempt& attempt, const RunPlan& plan,
                                int64_t from, int64_t to);

/// What a checkpoint says beside its tensors, before the first step of a run.
CheckpointState state_at_start(const LogAttempt& attempt, const RunPlan& plan);
/// Takes the state of a checkpoint at the beginning of a stretch to its end.
void extend(CheckpointState& state, const LoggedStretch& stretch, const LogAttempt& attempt);

/// The step that a run can be rebuilt to from a checkpoint of `from` (0: from the start), through all attempts.
int64_t reachable_step(GradientLogReader& log, int64_t from, RebuiltFrom rebuilt = RebuiltFrom::gradients);

}  // namespace hat
