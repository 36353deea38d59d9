#include "config/emulation_keys.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "hat/config/checks.hpp"

namespace hat {

namespace {

constexpr double kFastest = 1e18;  // FLOP/s, bytes/s
constexpr double kLongest = 1e6;   // seconds
constexpr int64_t kMostRanks = 1'000'000;

CLI::Validator worker_number_or_all() {
  return CLI::Validator(
      [](std::string& text) -> std::string {
        if (text == "all" || integer_in(0, kMostRanks)(text).empty()) return "";
        return fmt::format("must be all or numbers of workers, not '{}'", text);
      },
      "[all, number]");
}

void add_device_keys(OptionSet& options, EmulatedDeviceConfig& device) {
  options
      .add("worker.emulate.speed", device.speed,
           "FLOP/s of an emulated device: one for all workers, or one for each; 0: not emulated")
      ->check(real_in(0, kFastest));
  options.add("worker.emulate.jitter", device.jitter, "Relative standard deviation of a unit's duration")
      ->check(real_in(0, 10));
  options.add("worker.emulate.slow_every_s", device.slow_every_s, "Seconds from one slow phase to the next; 0: none")
      ->check(real_in(0, kLongest));
  options.add("worker.emulate.slow_for_s", device.slow_for_s, "Seconds that a slow phase lasts")
      ->check(real_in(0, kLongest));
  options.add("worker.emulate.slow_factor", device.slow_factor, "How much longer everything takes in a slow phase")
      ->check(real_in(1, 1e6));
  options.add("worker.emulate.stall_every_s", device.stall_every_s, "Mean seconds between random stalls; 0: none")
      ->check(real_in(0, kLongest));
  options.add("worker.emulate.stall_for_s", device.stall_for_s, "Seconds that a stall lasts")
      ->check(real_in(0, kLongest));
  options.add("worker.emulate.disturbed", device.disturbed, "Workers that slow phases and stalls hit: all, or numbers")
      ->check(worker_number_or_all());
  options.add("worker.emulate.busy_watts", device.busy_watts, "Watts of a computing device, for modelled energy")
      ->check(real_in(0, 1e9));
  options.add("worker.emulate.idle_watts", device.idle_watts, "Watts of a waiting device, for modelled energy")
      ->check(real_in(0, 1e9));
}

void add_network_keys(OptionSet& options, EmulatedNetworkConfig& network) {
  options
      .add("comm.emulate.bandwidth", network.bandwidth,
           "Bytes/s of a rank's emulated link in each direction; 0: not emulated")
      ->check(real_in(0, kFastest));
  options.add("comm.emulate.server_bandwidth", network.server_bandwidth, "Bytes/s of a server's link; 0: the same")
      ->check(real_in(0, kFastest));
  options.add("comm.emulate.latency_s", network.latency_s, "Seconds that every transfer takes longer")
      ->check(real_in(0, kLongest));
  options.add("comm.emulate.jitter", network.jitter, "Relative standard deviation of a transfer's duration")
      ->check(real_in(0, 10));
  options
      .add("comm.emulate.ranks_per_node", network.ranks_per_node,
           "Consecutive ranks that share an emulated node: transfers between them cost nothing")
      ->check(integer_in(1, kMostRanks));
}

[[noreturn]] void refuse(const OptionSet& options, const std::string& key, const std::string& reason,
                         const std::vector<std::string>& causes = {}) {
  throw options.error(key, reason, causes);
}

/// `key` differs from its default, but only counts together with one of the keys that are `needed`.
void require(const OptionSet& options, bool is_default, bool is_met, const std::string& key,
             const std::vector<std::string>& needed) {
  if (is_default || is_met) return;
  refuse(options, key, fmt::format("changes nothing without {}", fmt::join(needed, " or ")), needed);
}

void check_device(const OptionSet& options, const EmulatedDeviceConfig& device) {
  const std::string prefix = "worker.emulate.";
  if (device.speed.size() > 1 && *std::min_element(device.speed.begin(), device.speed.end()) == 0) {
    refuse(options, prefix + "speed", "every worker's speed must be above 0, or there is one 0 for none emulated");
  }
  const std::string speed = prefix + "speed";
  require(options, device.jitter == 0, device.on(), prefix + "jitter", {speed});
  require(options, device.slow_every_s == 0, device.on(), prefix + "slow_every_s", {speed});
  require(options, device.stall_every_s == 0, device.on(), prefix + "stall_every_s", {speed});
  const bool slow = device.slow_every_s > 0;
  const bool stalls = device.stall_every_s > 0;
  const std::string slow_every = prefix + "slow_every_s";
  const std::string stall_every = prefix + "stall_every_s";
  require(options, device.slow_for_s == 0, slow, prefix + "slow_for_s", {slow_every});
  require(options, device.slow_factor == 1, slow, prefix + "slow_factor", {slow_every});
  require(options, device.stall_for_s == 0, stalls, prefix + "stall_for_s", {stall_every});
  require(options, device.disturbed == EmulatedDeviceConfig{}.disturbed, slow || stalls, prefix + "disturbed",
          {slow_every, stall_every});
  if (slow && (device.slow_for_s == 0 || device.slow_for_s > device.slow_every_s)) {
    refuse(options, prefix + "slow_for_s",
           fmt::format("must be above 0 and at most the {} s of {}slow_every_s", device.slow_every_s, prefix),
           {slow_every});
  }
  if (slow && device.slow_factor == 1)
    refuse(options, prefix + "slow_factor", "must be above 1 where phases are slow", {slow_every});
  if (stalls && device.stall_for_s == 0) {
    refuse(options, prefix + "stall_for_s", "must be above 0 where there are stalls", {stall_every});
  }
  if (device.disturbed.size() > 1 && std::count(device.disturbed.begin(), device.disturbed.end(), "all") > 0) {
    refuse(options, prefix + "disturbed", "'all' stands alone, not in a list");
  }
  if (device.idle_watts > device.busy_watts) {
    refuse(options, prefix + "idle_watts",
           fmt::format("{} is more than the {} of {}busy_watts", device.idle_watts, device.busy_watts, prefix),
           {prefix + "busy_watts"});
  }
}

}  // namespace

void add_emulation_keys(OptionSet& options, EmulationConfig& emulation) {
  add_device_keys(options, emulation.device);
  add_network_keys(options, emulation.network);
  options.add_named<CostModel>(
      "cost_of", emulation.cost_of,
      {{"own", CostModel::own}, {"gpt2_124m", CostModel::gpt2_124m}, {"llama_1b", CostModel::llama_1b}},
      "Model whose FLOP and bytes emulated devices and links are charged; own: the deck's");
  options.add("length_scale", emulation.length_scale, "Tokens of cost_of that an emulated device takes for one")
      ->check(real_in(0, 1e6, Ends::without_least));
}

void check_emulation(const OptionSet& options, const EmulationConfig& emulation) {
  check_device(options, emulation.device);
  const EmulatedNetworkConfig& network = emulation.network;
  const bool links = network.on();
  const std::string bandwidth = "comm.emulate.bandwidth";
  require(options, network.server_bandwidth == 0, links, "comm.emulate.server_bandwidth", {bandwidth});
  require(options, network.latency_s == 0, links, "comm.emulate.latency_s", {bandwidth});
  require(options, network.jitter == 0, links, "comm.emulate.jitter", {bandwidth});
  require(options, network.ranks_per_node == 1, links, "comm.emulate.ranks_per_node", {bandwidth});
  const bool device = emulation.device.on();
  require(options, emulation.cost_of == CostModel::own, device || links, "cost_of",
          {"worker.emulate.speed", bandwidth});
  require(options, emulation.length_scale == 1, device, "length_scale", {"worker.emulate.speed"});
}

}  // namespace hat
