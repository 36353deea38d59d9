#pragma once
#include <cstdint>
#include <string>
#include <vector>

namespace hat {

/// Devices and a network slower than the real ones, so that the protocol of a cluster shows on a few cores: all
/// arithmetic and all messages are real, and last as long as they would there. All off by default.

/// Model whose cost a token is charged at, in time and bytes (key cost_of).
enum class CostModel {
  own,        ///< the deck's
  gpt2_124m,  ///< 12 layers, 768 wide, 12 heads, vocabulary 50257, tied head
  llama_1b,   ///< 16 layers, 2048 wide, 32 heads (8 key/value), MLP 8192, vocabulary 128256, tied head
};

/// Keys worker.emulate.*
struct EmulatedDeviceConfig {
  std::vector<double> speed{0};  ///< FLOP/s of every worker, or one per worker; 0: not emulated
  double jitter = 0;             ///< standard deviation of a unit's duration over its mean (log-normal)
  double slow_every_s = 0;       ///< a slow phase begins this often (each worker at its own moment); 0: none
  double slow_for_s = 0;
  double slow_factor = 1;    ///< how much longer everything takes in a slow phase
  double stall_every_s = 0;  ///< mean time between stalls (exponential), in which nothing is computed; 0: none
  double stall_for_s = 0;
  std::vector<std::string> disturbed{"all"};  ///< workers that slow phases and stalls hit: numbers, or all
  double busy_watts = 0;                      ///< of a device that computes; for modelled energy; 0: not told
  double idle_watts = 0;

  bool on() const { return speed.front() > 0; }
  double speed_of(int worker) const { return speed.size() == 1 ? speed.front() : speed[static_cast<size_t>(worker)]; }
  bool is_disturbed(int worker) const;
};

/// Keys comm.emulate.*
struct EmulatedNetworkConfig {
  double bandwidth = 0;         ///< bytes/s of every rank's link, in each direction; 0: not emulated
  double server_bandwidth = 0;  ///< of servers' links; 0: the same
  double latency_s = 0;         ///< of every transfer
  double jitter = 0;            ///< standard deviation of a transfer's duration over its mean (log-normal)
  int64_t ranks_per_node = 1;   ///< consecutive ranks between which a transfer costs nothing

  bool on() const { return bandwidth > 0; }
};

struct EmulationConfig {
  EmulatedDeviceConfig device;
  EmulatedNetworkConfig network;
  CostModel cost_of = CostModel::own;
  double length_scale = 1;  ///< a sequence of n tokens is charged the time of length_scale * n
};

/// What can be refused once the ranks are known: speeds and disturbed workers that do not fit their number, an emulated
/// network over several hosts (its links are words in shared memory). Throws KeyError.
void check_emulated_ranks(const EmulationConfig& emulation, int workers, int nodes);

}  // namespace hat
