#include <algorithm>
#include <tuple>
#include <utility>

#include "hat/dataset/data_order.hpp"
#include "hat/gradient/planted_noise.hpp"
#include "hat/model/memory_exchange.hpp"
#include "server/recomputation_state.hpp"

namespace hat {

namespace {

/// Where the sequence of a range begins: step, document, token. Each range is a unit of its own.
std::tuple<int64_t, int64_t, int64_t> sequence_of(const GradientLogReader::Computation& range) {
  const Sequence& sequence = range.lists.sequences.at(0);
  return {range.row.step, sequence.document, sequence.begin - sequence.earlier};
}

}  // namespace

bool Recomputation::Impl::has_parameters(const Computation& computation) const {
  for (int64_t block = 0; block < std::ssize(plan.layout.blocks); ++block) {
    if (!is_here(used_by(computation, block))) return false;
  }
  return true;
}

/// Workers that compute a sequence together, in the order of their ranges; empty while some have others before it.
std::vector<int64_t> Recomputation::Impl::gang_of(const Computation& computation) const {
  const auto members = static_cast<size_t>(std::ssize(computation.lists.bounds) - 1);
  std::vector<int64_t> gang(members, -1);
  for (size_t worker = 0; worker < workers.size(); ++worker) {
    if (workers[worker].ahead.empty()) continue;
    const Computation& next = workers[worker].ahead.front();
    if (next.lists.bounds != computation.lists.bounds || next.row.member < 0) continue;
    if (sequence_of(next) != sequence_of(computation)) continue;
    gang.at(static_cast<size_t>(next.row.member)) = static_cast<int64_t>(worker);
  }
  return std::ranges::find(gang, -1) == gang.end() ? gang : std::vector<int64_t>{};
}

Transformer& Recomputation::Impl::model_of(size_t member) {
  ComputeOptions compute = plan.compute;
  compute.device = DeviceKind::cpu;  // servers have no other
  while (models.size() <= member) models.push_back(std::make_unique<Transformer>(plan.deck.model, compute));
  return *models[member];
}

bool Recomputation::Impl::compute_next(int64_t worker, int64_t to) {
  const ComputingWorker& state = workers[static_cast<size_t>(worker)];
  if (state.ahead.empty() || state.ahead.front().row.step >= to) return false;
  const Computation& next = state.ahead.front();
  if (!has_parameters(next)) return false;
  if (next.row.member < 0) {
    compute(worker, model_of(0), nullptr);
    leave(worker);
    return true;
  }
  const std::vector<int64_t> gang = gang_of(next);
  if (gang.empty()) return false;
  model_of(gang.size());  // none is made by the threads
  run_gang(next.lists.bounds, plan.deck.model, plan.compute.arithmetic, gang_wire(plan),
           [&](const GangRange& range, MemoryExchange& exchange) {
             const auto member = static_cast<size_t>(range.member);
             compute(gang[member], *models[member], &exchange);
           });
  for (const int64_t member : gang) leave(member);
  return true;
}

/// Adds the gradient of the worker's next unit to those that it has.
void Recomputation::Impl::compute(int64_t worker, Transformer& model, RangeExchange* exchange) {
  ComputingWorker& state = workers[static_cast<size_t>(worker)];
  const Computation& computation = state.ahead.front();
  PackedBatch batch = read_batch(dataset, Split::train, computation.lists.sequences);
  if (exchange != nullptr) batch.range = {.bounds = computation.lists.bounds, .member = computation.row.member};
  ParameterPointers parameters;
  GradientPointers sums;
  for (size_t block = 0; block < plan.layout.blocks.size(); ++block) {
    parameters.push_back(versions.at(used_by(computation, static_cast<int64_t>(block))).values.data());
    state.gradients[block].resize(static_cast<size_t>(plan.layout.blocks[block].size));
    sums.push_back(state.gradients[block].data());
  }
  PassObserver nobody;
  model.gradient(batch, parameters, sums, nobody, exchange);
}

/// The unit is computed: gradients that the worker sent then go out (Worker: send_block).
void Recomputation::Impl::leave(int64_t worker) {
  ComputingWorker& state = workers[static_cast<size_t>(worker)];
  const Computation computation = std::move(state.ahead.front());
  state.ahead.pop_front();
  const auto [unit, step] = std::pair(computation.row.unit, computation.row.step);
  const auto left = state.left.find(step);
  const bool is_last = --left->second == 0;
  if (is_last) state.left.erase(left);
  for (size_t b = 0; b < plan.layout.blocks.size(); ++b) {
    const auto block = static_cast<int64_t>(b);
    const bool is_single = plan.pushes_single_units() && !is_ring(block, step);
    if (is_single || is_last) {
      plant_noise(plan, block, step, unit, state.gradients[b]);
      gradients[{.worker = worker, .block = block, .step = step, .unit = is_single ? unit : kWholeStep}].values =
          std::exchange(state.gradients[b], {});
    }
    end_use(used_by(computation, block));
  }
}

}  // namespace hat
