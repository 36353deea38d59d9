#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "hat/core/sequence.hpp"
#include "hat/ledger/ledger_options.hpp"
#include "hat/ledger/unit_cost_model.hpp"

namespace hat {

/// Why a sequence is split.
enum class GangReason {
  ends_earlier,  ///< the step does, as predicted (or the deck wants it, by split.policy = always)
  memory,        ///< no worker can hold it
  link_check     ///< to see whether links are really as slow as a plan without gangs has it
};

/// A sequence that several workers compute at once.
struct PlannedGang {
  size_t place = 0;                   ///< of the sequence, in those given
  std::vector<int64_t> workers = {};  ///< members, in the order of their ranges
  std::vector<int64_t> lengths = {};  ///< target tokens of each range
  double seconds = 0;                 ///< predicted, from when all members have begun; no seconds but FLOP in units of
  bool in_seconds = false;            ///< one token's where no unit's time is known yet
  double exchange_s = 0;              ///< of `seconds`: what members wait for each other
  GangReason reason = GangReason::ends_earlier;
};

/// Decides by predicted time which sequences of a step are computed by several workers, and by which. In virtual time
/// it lets gangs begin first, longest sequence first, each on the workers that are free earliest, then all
/// other sequences, longest first; for some rules of who is split how far: sequences that take one worker longer than
/// a share of the step's mean load, each into ranges of at most another share. The rule that lets the step end
/// earliest is taken; none is split where that gains nothing.
///
/// A step has ended when its last sequence has, or, with staleness, when that begins to hold up the next steps.
class GangPlanner {
 public:
  /// Both outlive the planner.
  GangPlanner(const LedgerOptions& options, const UnitCostModel& costs) : options_(options), costs_(costs) {}

  /// Gangs of a step with these sequences, longest first. `free_at`: by worker, when it can begin. In the order in
  /// which every member takes them: so no two ever wait for each other. `staleness`: S of this step. Without
  /// `may_split` only sequences that are too long for the memory of one worker are split.
  std::vector<PlannedGang> plan(std::span<const Sequence> sequences, const std::vector<double>& free_at,
                                int64_t staleness, bool may_split = true) const;
  /// Where only what messages are predicted to cost keeps a step with these sequences from having gangs: the one that
  /// tells most about it, of two workers that wait for each other for at most `wait_s`, as predicted.
  std::optional<PlannedGang> link_check(std::span<const Sequence> sequences, const std::vector<double>& free_at,
                                        int64_t staleness, double wait_s) const;

  /// Seconds that a gang's members wait for keys, values and gradients of each other. 0 while units are not predicted
  /// in seconds.
  double exchange_seconds(std::span<const int64_t> workers, std::span<const int64_t> lengths) const;
  /// A gang took `seconds` from when all had begun, of which its slowest member computed `compute_s`.
  void observe(const PlannedGang& gang, double seconds, double compute_s);
  /// Mean of |predicted - measured| / measured over gangs; NaN before the first.
  double relative_error() const;

 private:
  struct Rule {
    double longer_than = 0;  // share of the mean load from which on a sequence is split
    double range = 0;        // share of the mean load that a range has at most
    int64_t most_workers = 0;
  };
  static const Rule kNotSplit;
  enum class MessageCost { predicted, none };
  struct Load {
    std::vector<double> free_at = {};  // by worker
    std::vector<double> speeds = {};   // cost per second
    double speed = 0;                  // of all
    double mean_speed = 0;
    double work = 0;        // cost of the step
    double seconds = 0;     // of every worker, if nobody ever waits
    double common_end = 0;  // when all have ended together, if nobody waits
    int64_t staleness = 0;
    MessageCost messages = MessageCost::predicted;
  };
  struct Outcome {
    double score = 0;       // when the step ends, as far as that holds anything up
    double busy_until = 0;  // the common end, with what workers wait for each other
    std::vector<PlannedGang> gangs;
  };
  Outcome simulate(std::span<const Sequence> sequences, std::vector<double> free_at, const Load& load,
                   const Rule& rule) const;
  Load load_of(std::span<const Sequence> sequences, const std::vector<double>& free_at, int64_t staleness) const;
  Outcome earliest(std::span<const Sequence> sequences, const Load& load, Outcome unsplit) const;
  int64_t most_workers(const Load& load) const;
  bool must_split(const Sequence& sequence) const;
  PlannedGang form(const Sequence& sequence, std::vector<int64_t> workers, MessageCost messages) const;
  std::vector<int64_t> choose(const std::vector<double>& free_at, int64_t count) const;
  double transfer_seconds(std::span<const int64_t> workers, std::span<const int64_t> lengths) const;
  double latency_seconds(std::span<const int64_t> workers) const;
  bool on_one_node(std::span<const int64_t> workers) const;
  size_t kind(std::span<const int64_t> workers) const { return on_one_node(workers) ? 0 : 1; }
  double slack(const Load& load) const;
  double speed(int64_t worker) const;

  const LedgerOptions& options_;
  const UnitCostModel& costs_;
  /// What members of a gang wait for, of its transfers and of its messages' latencies as the links' speed has them:
  /// other work hides some, and the links' speed may have been measured badly.
  struct Exposed {
    double transfer = 0.5;
    double latency = 1;
    int64_t gangs = 0;  // that it is known from
  };
  std::array<Exposed, 2> exposed_;  // on one node, between nodes
  double error_sum_ = 0;
  int64_t observed_ = 0;
};

}  // namespace hat
