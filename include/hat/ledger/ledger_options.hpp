#pragma once
#include <cstdint>
#include <vector>

#include "hat/comm/link_speed.hpp"
#include "hat/config/deck.hpp"

namespace hat {

/// When a sequence is leased to several workers at once.
struct GangOptions {
  SplitPolicy policy = SplitPolicy::never;
  int64_t max_workers = 1;               ///< of one gang
  double forward_bytes = 0;              ///< of one token, that go to each later range, in all layers
  double backward_bytes = 0;             ///< of one token, that come back from each later range
  int64_t layers = 1;                    ///< in each of which ranges wait for each other, forward and backward
  int64_t least_gang = 0;                ///< of a sequence that is longer than unsplit_tokens; 0: no sequence is
  int64_t unsplit_tokens = 0;            ///< what fits into the memory of one worker
  std::vector<int> node_of_worker = {};  ///< workers of one node are preferred
  LinkSpeeds links = {};
};

struct LedgerOptions {
  int workers = 1;
  int completions = 1;  ///< that a step needs to be committed: of each server, and of whatever else completes it
  Dispatch dispatch = Dispatch::on_demand;
  int64_t unit_tokens = 512;  ///< most target tokens of a unit of several sequences; on demand, where little is left of
                              ///< a step, as many as its longest sequence has
  int64_t least_tokens =
      512;  ///< on demand a unit has at least so many, unless they do not fit or the step has no more
  /// On demand a unit of several sequences takes at most this long; but it is filled to least_tokens all the same, and
  /// takes a rest of the step along that is too little for a unit of its own.
  double max_delay_s = 0.5;
  double area_weight = 0;      ///< of the cost model
  bool deterministic = false;  ///< units go to workers by their number, not by demand
  int64_t first_step = 0;      ///< where training starts or continues
  int64_t end_step = 0;        ///< one behind the last
  int64_t lookahead = 2;       ///< steps beyond the last committed one from which units may be leased
  /// S: units of step t begin once step t - 1 - S is done (on demand: to plan ahead); kUnbounded: any time.
  int64_t staleness = 0;
  int64_t sync_steps = 0;      ///< first steps of training in which S is 0
  double before_barrier = 1;   ///< share of a unit's time before it needs all of the step before; 1: it never does
  int64_t evaluate_every = 0;  ///< steps; 0: only before and after training
  int64_t pause_every = 0;     ///< steps at which everything in flight is finished first; 0: never
  GangOptions gang = {};
};

}  // namespace hat
