#include "hat/server/recomputation.hpp"

#include <algorithm>
#include <map>
#include <optional>
#include <string>
#include <utility>

#include "hat/comm/ring_all_reduce.hpp"
#include "hat/core/build_info.hpp"
#include "server/recomputation_state.hpp"

namespace hat {

Recomputation::Recomputation(const RunPlan& plan, GradientLogReader& log, const GradientLogReader::Attempt& attempt,
                             const Dataset& dataset, std::vector<ShardReplay>& shards, int64_t from)
    : impl_(std::make_unique<Impl>(plan, attempt, dataset, shards, from)) {
  if (dataset.identity() != attempt.header.dataset_identity) {
    throw InputError(dataset.path().string(), "", "is not the dataset that the run was trained on");
  }
  impl_->load(log, attempt);
  for (ShardReplay& shard : shards) {
    shard.publish_to([impl = impl_.get()](const ShardReplay::Published& published) { impl->keep(published); });
  }
}
Recomputation::~Recomputation() {
  for (ShardReplay& shard : impl_->shards) shard.publish_to({});
}

void Recomputation::Impl::load(GradientLogReader& log, const GradientLogReader::Attempt& attempt) {
  const int64_t end = log.end_of(attempt);
  for (int server = 0; server < plan.roles.servers(); ++server) {
    std::map<std::pair<int64_t, int64_t>, size_t> part_of;  // (block, begin)
    for (const int64_t part : plan.shards.parts_of_server[static_cast<size_t>(server)]) {
      const Part& place = plan.shards.parts[static_cast<size_t>(part)];
      part_of[{place.block, place.begin}] = static_cast<size_t>(part);
      parts[static_cast<size_t>(part)].server = server;
    }
    const auto find = [&](int64_t block, int64_t begin) -> size_t {
      const auto found = part_of.find({block, begin});
      if (found == part_of.end()) throw error(fmt::format("server {} did not own block {}", server, block));
      return found->second;
    };
    for (const LoggedUpdate& update : log.updates(attempt, server, first_step, end)) {
      const size_t part = find(update.block, update.begin);
      parts[part].ahead.push_back(update);
      if (const auto key = compensated_by(part, update)) add_use(*key);
    }
    for (const LoggedVersion& version : log.versions(attempt, server, first_step, end)) {
      parts[find(version.block, version.begin)].versions[version.version] = version;
    }
    std::vector<PushedGradients::Push> of_server = log.pushes(attempt, server, first_step, end);
    for (const PushedGradients::Push& push : of_server) {
      if (push.row.complete != 0) rings.insert({push.row.block, push.row.step});
    }
    pushes.emplace_back(plan, fmt::format("log of server {} in attempt {}", server, header.number),
                        std::move(of_server));
  }
  const auto blocks = std::ssize(plan.layout.blocks);
  for (Computation& computation : log.computations(attempt, first_step, end)) {
    const int64_t worker = computation.row.worker;
    const ComputationLists& lists = computation.lists;
    const bool is_sound = worker >= 0 && worker < std::ssize(workers) && std::ssize(lists.versions) == blocks &&
                          !lists.sequences.empty() &&
                          (computation.row.member < 0 || computation.row.member + 1 < std::ssize(lists.bounds));
    if (!is_sound) {
      throw error(fmt::format("what is said of unit {} is of another run", computation.row.unit));
    }
    for (int64_t block = 0; block < blocks; ++block) add_use(used_by(computation, block));
    ComputingWorker& state = workers[static_cast<size_t>(worker)];
    ++state.left[computation.row.step];
    state.ahead.push_back(std::move(computation));
  }
  for (ComputingWorker& worker : workers) worker.gradients.resize(static_cast<size_t>(blocks));
}

VersionKey Recomputation::Impl::used_by(const Computation& computation, int64_t block) const {
  const int64_t version = computation.lists.versions[static_cast<size_t>(block)];
  return {.block = block, .version = version, .predicted = plan.deck.delay.predict && version < computation.row.step};
}

/// What staleness.compensation changes the gradient by, as in Shard::remedied_gradient.
std::optional<VersionKey> Recomputation::Impl::compensated_by(size_t part, const LoggedUpdate& update) const {
  if (plan.deck.delay.compensation == 0 || update.staleness == 0) return std::nullopt;
  return VersionKey{.block = update.block,
                    .version = update.step - static_cast<int64_t>(update.staleness),
                    .predicted = plan.deck.delay.predict && plan.predicted_slots[part].slots > 0};
}

void Recomputation::Impl::keep(const ShardReplay::Published& published) {
  const Part& part = plan.shards.parts[static_cast<size_t>(published.part)];
  for (const bool predicted : {false, true}) {
    const auto found = versions.find({part.block, published.version, predicted});
    const std::span<const float> values = predicted ? published.predicted : published.values;
    if (found == versions.end() || values.empty()) continue;
    UsedVersion& version = found->second;
    version.values.resize(static_cast<size_t>(plan.layout.blocks[static_cast<size_t>(part.block)].size));
    std::ranges::copy(values, version.values.begin() + part.begin);
    version.filled += part.count;
  }
}

bool Recomputation::Impl::is_here(const VersionKey& key) const {
  return versions.at(key).filled == plan.layout.blocks[static_cast<size_t>(key.block)].size;
}

void Recomputation::Impl::end_use(const VersionKey& key) {
  const auto found = versions.find(key);
  if (--found->second.uses == 0) versions.erase(found);
}

GradientKey Recomputation::Impl::key_of(const PushedGradients::Push& push) const {
  const LoggedPush& row = push.row;
  if (row.complete != 0) return {.worker = kRing, .block = row.block, .step = row.step};
  const bool single = plan.pushes_single_units() && !push.units.empty();
  return {.worker = row.worker, .block = row.block, .step = row.step, .unit = single ? push.units.front() : kWholeStep};
}

bool Recomputation::Impl::is_computed(const PushedGradients::Push& push) {
  if (push.row.complete != 0) return add_ring_up(push.row.block, push.row.step);
  return gradients.contains(key_of(push));
}

/// The sum of all workers' gradients, in the order of RingAllReduce: that of chunk i begins with rank i and goes round.
bool Recomputation::Impl::add_ring_up(int64_t block, int64_t step) {
  const GradientKey sum_key{.worker = kRing, .block = block, .step = step};
  if (gradients.contains(sum_key)) return true;
  for (const ComputingWorker& worker : workers) {
    if (worker.left.contains(step)) return false;
  }
  const int64_t size = plan.layout.blocks[static_cast<size_t>(block)].size;
  const auto p = std::ssize(workers);
  std::vector<std::vector<float>> own;
  for (int64_t worker = 0; worker < p; ++worker) {
    auto found = gradients.extract({.worker = worker, .block = block, .step = step});
    // A worker without a unit enters with zeros.
    own.push_back(found.empty() ? std::vector<float>(static_cast<size_t>(size)) : std::move(found.mapped().values));
  }
  std::vector<float> sum(static_cast<size_t>(size));
  for (int64_t i = 0; i < p; ++i) {
    const Range chunk = split_evenly(size, p, i);
    for (int64_t e = chunk.begin; e < chunk.end; ++e) {
      const auto at = static_cast<size_t>(e);
      float value = own[static_cast<size_t>(i)][at];
      for (int64_t k = 1; k < p; ++k) value = own[static_cast<size_t>((i + k) % p)][at] + value;
      sum[at] = value;
    }
  }
  gradients[sum_key].values = std::move(sum);
  return true;
}

void Recomputation::Impl::read(const PushedGradients::Push& push, std::vector<float>& values) {
  const auto found = gradients.find(key_of(push));
  ComputedGradient& gradient = found->second;
  const auto first = gradient.values.begin() + push.row.begin;
  values.assign(first, first + push.row.count);
  if (checksum_of_values(values) != push.row.values_checksum) {
    const std::string build = text_of(build_info());
    throw error(fmt::format("the gradient of block {} that worker {} pushed in step {} comes out with other bits{}",
                            name_of_block(push.row.block), push.row.worker, push.row.step,
                            build == header.build
                                ? "; another kind of processor may round otherwise"
                                : fmt::format("; the run was trained with {}, this is {}", header.build, build)));
  }
  gradient.taken += push.row.count;
  if (gradient.taken == std::ssize(gradient.values)) gradients.erase(found);
}

/// Unbounded, updates of later steps may come between those before `to`: what training has after `to` steps then exists
/// nowhere in the run.
void Recomputation::Impl::check_order(size_t part, int64_t to) const {
  bool is_behind = false;
  for (const LoggedUpdate& update : parts[part].ahead) {
    if (update.step < to && is_behind) {
      throw error(
          fmt::format("in this run (staleness = unbounded) updates of later steps came between those before "
                      "step {}: without gradients only steps can be rebuilt where it paused, those of its "
                      "checkpoints",
                      to));
    }
    is_behind = is_behind || update.step >= to;
  }
}

bool Recomputation::Impl::apply_next(size_t index, int64_t to) {
  AppliedPart& part = parts[index];
  if (part.ahead.empty() || part.ahead.front().step >= to) return false;
  const LoggedUpdate update = part.ahead.front();
  PushedGradients& of_server = pushes[static_cast<size_t>(part.server)];
  for (const PushedGradients::Push* push : of_server.pushes_of(update)) {
    if (!is_computed(*push)) return false;
  }
  const std::optional<VersionKey> base = compensated_by(index, update);
  if (base && !is_here(*base)) return false;
  part.ahead.pop_front();
  std::vector<float> gradient;
  of_server.take(
      update, [this](const PushedGradients::Push& push, std::vector<float>& values) { read(push, values); }, gradient);
  ShardReplay& shard = shards[static_cast<size_t>(part.server)];
  if (base) {
    const std::span<const float> base_values(versions.at(*base).values);
    gradient =
        shard.compensated(update, gradient, base_values.subspan(static_cast<size_t>(update.begin), gradient.size()));
    end_use(*base);
  }
  if (checksum_of_values(gradient) != update.values_checksum) {
    throw error(fmt::format("the gradient of step {} for block {} comes out with other bits", update.step,
                            name_of_block(update.block)));
  }
  const int64_t version = shard.apply(update, gradient);
  const auto logged = part.versions.find(version);
  if (logged == part.versions.end()) return true;
  shard.check(logged->second);
  part.versions.erase(logged);
  return true;
}

/// Why nothing can be computed or applied any more.
void Recomputation::Impl::explain(int64_t to) const {
  for (const ComputingWorker& worker : workers) {
    if (worker.ahead.empty() || worker.ahead.front().row.step >= to) continue;
    const Computation& next = worker.ahead.front();
    for (int64_t block = 0; block < std::ssize(plan.layout.blocks); ++block) {
      const VersionKey key = used_by(next, block);
      if (is_here(key)) continue;
      throw error(
          fmt::format("step {} was computed on version {} of block {}, which is not there; a replay without "
                      "gradients that begins at step {} must begin where the attempt did (--from {})",
                      next.row.step, key.version, name_of_block(block), first_step, header.first_step));
    }
  }
  throw error(fmt::format("records are missing of the steps before {}", to));
}

void Recomputation::advance(int64_t to) {
  Impl& impl = *impl_;
  for (size_t part = 0; part < impl.parts.size(); ++part) impl.check_order(part, to);
  bool goes_on = true;
  while (goes_on) {
    goes_on = false;
    for (size_t part = 0; part < impl.parts.size(); ++part) {
      while (impl.apply_next(part, to)) goes_on = true;
    }
    for (int64_t worker = 0; worker < std::ssize(impl.workers); ++worker) {
      if (impl.compute_next(worker, to)) goes_on = true;
    }
  }
  const bool is_complete = std::ranges::all_of(
      impl.parts, [to](const AppliedPart& part) { return part.ahead.empty() || part.ahead.front().step >= to; });
  if (!is_complete) impl.explain(to);
}

}  // namespace hat
