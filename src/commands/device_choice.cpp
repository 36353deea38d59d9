#include "commands/device_choice.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <optional>
#include <utility>

#include "commands/all_ranks.hpp"
#include "commands/run_folder.hpp"
#include "hat/comm/mailbox.hpp"
#include "hat/core/text.hpp"
#include "hat/device/cuda.hpp"
#include "hat/device/nccl_communicator.hpp"

namespace hat {

namespace {

/// What a rank tells the others of the devices that it sees.
struct SeenDevices {
  std::string problem;
  int64_t count = 0;
  std::string ids;  // a line each
  std::string names;
  template <class F>
  void fields(F& f) {
    f(problem), f(count), f(ids), f(names);
  }
};

SeenDevices look() {
  const cuda::VisibleDevices visible = cuda::visible_devices();
  SeenDevices seen{.problem = visible.problem, .count = std::ssize(visible.devices), .ids = {}, .names = {}};
  for (const cuda::VisibleDevice& device : visible.devices) {
    seen.ids += device.id + "\n";
    seen.names += device.name + "\n";
  }
  return seen;
}

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = text.find('\n', begin);
    lines.push_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  return lines;
}

/// Of all workers, the same on all ranks. Collective.
std::vector<DevicesOfWorker> gather_devices(const Communicator& world, const std::vector<int>& node_of_rank,
                                            const RunSetup& setup) {
  const std::vector<std::string> all = world.all_gather(packed(setup.worker >= 0 ? look() : SeenDevices{}));
  std::vector<DevicesOfWorker> workers;
  for (const int rank : setup.plan.roles.rank_of_worker) {
    const auto r = static_cast<size_t>(rank);
    const auto seen = unpacked<SeenDevices>(all[r]);
    workers.push_back(
        {.node = node_of_rank[r], .ids = lines_of(seen.ids), .names = lines_of(seen.names), .problem = seen.problem});
  }
  return workers;
}

/// What stands against CUDA devices, and which key is to blame. No reason: nothing.
struct Objection {
  std::string key = "device";
  std::string reason = {};
  std::vector<std::string> causes = {};
};

/// Of the deck.
Objection objection_of(const Deck& deck) {
  if (deck.log.payload == LogPayload::metadata) {
    return {.key = "log.payload",
            .reason = "metadata has units computed again on CPUs, to other bits than those of CUDA devices",
            .causes = {"device"}};
  }
  if (deck.sensitivity.noise_scale > 0) {
    return {.key = "sensitivity.noise_block", .reason = "noise is for gradients on CPUs", .causes = {"device"}};
  }
  return {};
}

/// Of the machine.
Objection objection_of(const std::vector<DevicesOfWorker>& workers) {
  for (size_t w = 0; w < workers.size(); ++w) {
    if (workers[w].ids.empty())
      return {.reason = fmt::format("worker {} has no CUDA device ({})", w, workers[w].problem)};
  }
  return {};
}

Objection objection_of(const Deck& deck, const std::vector<DevicesOfWorker>& workers,
                       const std::vector<AssignedDevice>& assigned) {
  if (deck.worker.share_device) return {};
  for (size_t w = 0; w < assigned.size(); ++w) {
    if (assigned[w].sharers == 1) continue;
    const auto here = std::count_if(workers.begin(), workers.end(),
                                    [&](const DevicesOfWorker& other) { return other.node == workers[w].node; });
    return {.reason = fmt::format("{} of a node would share CUDA devices; start fewer, or set worker.share_device",
                                  counted(here, "worker"))};
  }
  return {};
}

/// "cuda (2 x NVIDIA H200)".
std::string name_devices(const std::vector<DevicesOfWorker>& workers, const std::vector<AssignedDevice>& assigned) {
  std::map<std::string, int> count;
  bool shared = false;
  for (size_t w = 0; w < workers.size(); ++w) {
    ++count[workers[w].names[static_cast<size_t>(assigned[w].index)]];
    shared = shared || assigned[w].sharers > 1;
  }
  std::vector<std::string> names;
  names.reserve(count.size());
  for (const auto& [name, workers_on_it] : count) names.push_back(fmt::format("{} x {}", workers_on_it, name));
  return fmt::format("cuda ({}{})", fmt::join(names, ", "), shared ? ", workers share devices" : "");
}

}  // namespace

std::vector<AssignedDevice> assign_devices(const std::vector<DevicesOfWorker>& workers) {
  std::map<std::pair<int, std::string>, int> users;  // by node and device
  const auto users_of = [&](const DevicesOfWorker& worker, size_t device) -> int& {
    return users[{worker.node, worker.ids[device]}];
  };
  std::vector<AssignedDevice> assigned;
  for (const DevicesOfWorker& worker : workers) {
    size_t best = 0;
    for (size_t device = 1; device < worker.ids.size(); ++device) {
      if (users_of(worker, device) < users_of(worker, best)) best = device;
    }
    const bool is_first = users_of(worker, best)++ == 0;
    assigned.push_back({.index = static_cast<int>(best), .is_first = is_first});
  }
  for (size_t w = 0; w < workers.size(); ++w) {
    assigned[w].sharers = users_of(workers[w], static_cast<size_t>(assigned[w].index));
  }
  return assigned;
}

namespace {

const char* name_of(NcclAlgorithm algorithm) {
  switch (algorithm) {
    case NcclAlgorithm::ring:
      return "ring";
    case NcclAlgorithm::tree:
      return "tree";
    case NcclAlgorithm::automatic:
      break;
  }
  return "its own choice of algorithm";
}

/// How workers on CUDA devices sum gradients of barrier blocks: by NCCL where each can. Collective.
void choose_rings(const Communicator& world, RunSetup& setup) {
  enum Obstacle : int64_t { none, no_library, shared_device };  // the larger, the more is said of it
  RunPlan& plan = setup.plan;
  if (plan.compute.device != DeviceKind::cuda || plan.roles.workers() == 1) return;
  const bool has_barriers = plan.barriers_change() ||
                            std::find(plan.is_barrier.begin(), plan.is_barrier.end(), true) != plan.is_barrier.end();
  if (!has_barriers || plan.deck.barrier_path != BarrierPath::ring) return;
  int64_t own = none;
  if (setup.worker >= 0 && nccl_version().empty()) own = no_library;
  if (setup.device_sharers > 1) own = shared_device;
  switch (world.all_reduce_max(own)) {
    case none:
      plan.sums_with_nccl = true;
      setup.rings = fmt::format("gradients of barrier blocks are summed by NCCL ({}{}; buckets of up to {} MiB)",
                                name_of(plan.deck.nccl.algorithm),
                                user_chose_nccl_algorithm() ? ", but NCCL_ALGO is set" : "", plan.deck.nccl.bucket_mib);
      break;
    case shared_device:
      setup.rings =
          "gradients of barrier blocks are summed by MPI, on the hosts: workers share devices, which NCCL refuses";
      break;
    default:
      setup.rings = "gradients of barrier blocks are summed by MPI, on the hosts: there is no NCCL";
  }
}

/// What a run that is continued with device auto began on; none: this start chooses. Collective.
std::optional<DeviceKind> kept_device(const Communicator& world, const Deck& deck) {
  if (deck.device != "auto" || !deck.resume) return std::nullopt;
  std::optional<DeviceKind> before;
  if (world.rank() == 0) before = last_device(deck.output);
  const std::string kept = world.broadcast(before ? name_of(*before) : "", 0);
  if (kept.empty()) return std::nullopt;
  return kept == name_of(DeviceKind::cuda) ? DeviceKind::cuda : DeviceKind::cpu;
}

}  // namespace

ExitCode choose_device(const Communicator& world, const std::vector<int>& node_of_rank, RunSetup& setup,
                       const KeyBlame& blame) {
  RunPlan& plan = setup.plan;
  const Deck& deck = plan.deck;
  setup.devices = "cpu";
  if (deck.device == "cpu") return ExitCode::success;
  const std::optional<DeviceKind> before = kept_device(world, deck);
  const std::vector<DevicesOfWorker> workers = gather_devices(world, node_of_rank, setup);
  const ExitCode code = on_all_ranks(
      world,
      [&] {
        Objection objection;
        if (before == DeviceKind::cpu) objection.reason = "as before in this run";
        if (objection.reason.empty()) objection = objection_of(workers);
        if (objection.reason.empty()) objection = objection_of(deck);
        std::vector<AssignedDevice> assigned;
        if (objection.reason.empty()) {
          assigned = assign_devices(workers);
          objection = objection_of(deck, workers, assigned);
        }
        if (objection.reason.empty()) {
          plan.compute.device = DeviceKind::cuda;
          plan.compute.tf32 = deck.worker.tf32;
          for (const AssignedDevice& device : assigned) {
            plan.device_of_worker.push_back(device.index);
            plan.counts_device.push_back(device.is_first);
          }
          if (setup.worker >= 0) setup.device_sharers = assigned[static_cast<size_t>(setup.worker)].sharers;
          setup.devices = name_devices(workers, assigned);
          return;
        }
        if (deck.device == "cuda") throw KeyError(objection.key, objection.reason, objection.causes);
        if (before == DeviceKind::cuda) {
          throw KeyError(objection.key,
                         fmt::format("auto keeps to the CUDA devices that the run began on, and {}; --device cpu goes "
                                     "on on CPUs, which round otherwise",
                                     objection.reason),
                         objection.causes);
        }
        if (deck.worker.tf32) {
          throw KeyError("worker.tf32",
                         fmt::format("is for CUDA devices, and workers compute on CPUs: {}", objection.reason));
        }
        setup.devices = fmt::format("cpu (auto: {})", objection.reason);
      },
      blame);
  if (code == ExitCode::success) choose_rings(world, setup);
  return code;
}

DeviceKind device_for_one(const std::string& wanted) {
  if (wanted == "cpu") return DeviceKind::cpu;
  const cuda::VisibleDevices visible = cuda::visible_devices();
  if (!visible.devices.empty()) return DeviceKind::cuda;
  if (wanted == "cuda") throw KeyError("device", fmt::format("there is no CUDA device ({})", visible.problem));
  return DeviceKind::cpu;
}

int64_t device_share(const RunSetup& setup) {
  // Libraries may load and take more later; NCCL's buffers are an estimate.
  constexpr double kUsable = 0.9;
  return static_cast<int64_t>(kUsable * static_cast<double>(setup.free_of_device)) / setup.device_sharers;
}

}  // namespace hat
