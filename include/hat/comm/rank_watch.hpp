#pragma once
#include <cstdint>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "hat/comm/communicator.hpp"
#include "hat/core/error.hpp"

namespace hat {

/// Some ranks are gone, and the others may go on without them. Thrown out of whatever a rank was doing; what it had
/// under way with others can never complete and must be left as it is.
class RankLost : public Error {
 public:
  RankLost(std::set<int> ranks, const std::string& why) : Error(why), ranks_(std::move(ranks)) {}
  const std::set<int>& ranks() const { return ranks_; }  ///< of the communicator that is watched

 private:
  std::set<int> ranks_;
};

/// Whether the launcher lets the others live when a rank dies (mpirun --enable-recovery).
bool launcher_spares_survivors();

/// Looks after the processes of this host, through /proc: nobody else tells who died (facts of Open MPI 4.1).
class RankWatch {
 public:
  /// Collective; `world` must outlive this object. `frozen_after_s`: a process that was stopped so long counts as lost.
  RankWatch(const Communicator& world, double frozen_after_s);
  /// Of `survivors`, a communicator of the ranks `ranks` of the one that `before` watches. Not collective.
  RankWatch(const Communicator& survivors, const RankWatch& before, const std::set<int>& ranks);

  /// Throws RankLost when a rank of this host is gone or frozen, or another rank says that one of its own is. Cheap:
  /// looks a few times a second.
  void throw_if_lost();
  /// Tells all others at once, so that they leave what they are doing while this rank still tidies up.
  void tell_others(const std::set<int>& lost) const;
  /// Those that are lost now, as far as this host can tell.
  std::set<int> find_lost();
  /// The run goes on without them: `describe_gone` does not speak of them any more.
  void give_up(const std::set<int>& ranks);
  /// Ranks of this host whose processes are gone, as text; empty: none. From any thread.
  std::string describe_gone() const;
  /// Kills the ranks of this host that are stopped: they would keep the launcher waiting. From any thread.
  void kill_stopped() const;
  /// For the end of a job, which the launcher waits for: kills ranks of this host that are stopped. The lowest one
  /// stays for a few seconds to see the others off. Makes no MPI calls.
  void see_off() const;
  /// Kills the process of a rank of this host that counts as lost (it may only be stopped, and would go on some day).
  void kill(int rank) const;

 private:
  struct Process {
    bool is_here = false;  // on this host
    int pid = 0;
    uint64_t started = 0;      // clock ticks after boot: a pid may be used again
    double stopped_since = 0;  // 0: it runs
  };
  friend std::set<int> agree_on_survivors(const Communicator& world, RankWatch& watch, std::set<int> lost,
                                          double patience_s);
  const Communicator* world_;
  std::set<int> here_;              // have told this rank that they wait for it to regroup
  std::vector<Process> processes_;  // by rank
  int own_rank_;
  double frozen_after_s_;
  double looked_s_ = 0;
  mutable std::mutex mutex_;
  std::set<int> given_up_;  // under the mutex
};

/// The survivors of `world` agree on who they are. Called by each of them when it has noticed or been told of a loss;
/// the same set of ranks is returned on all. The lowest rank that lives asks all others; whoever does not answer within
/// `patience_s` is lost too, and killed where that can be done. Throws Error when no agreement comes about. (Where
/// hosts cannot reach each other any more, those of each part agree on themselves: only the lock of the run folder
/// keeps both from going on.)
std::set<int> agree_on_survivors(const Communicator& world, RankWatch& watch, std::set<int> lost, double patience_s);

}  // namespace hat
