#include "hat/server/replay.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <set>
#include <utility>

#include "hat/config/deck_schema.hpp"
#include "hat/core/error.hpp"
#include "hat/core/fault.hpp"
#include "hat/gradient/gradient_sum.hpp"
#include "hat/server/checkpoint_slices.hpp"
#include "server/part_values.hpp"

namespace hat {

RunPlan plan_of(const LogAttempt& attempt) {
  Deck deck = stored_deck(attempt.deck, fmt::format("the deck in the log of attempt {}", attempt.number));
  deck.model.vocabulary = attempt.vocabulary;
  deck.servers = attempt.servers;
  // Where the ranks were does not matter any more: one worker beside the servers.
  const std::vector<int> one_node(static_cast<size_t>(attempt.servers + 1), 0);
  RunPlan plan = make_run_plan(deck, plan_roles(one_node, attempt.servers, Placement::packed));
  plan.deck_text = attempt.deck;
  return plan;
}

struct ShardReplay::Impl {
  struct PartState {
    int64_t index;
    Optimizer optimizer;
    std::vector<float> values;
    int64_t version = 0;
  };
  const RunPlan& plan;
  int server;
  std::vector<PartState> parts = {};
  int64_t applied = 0;
  int64_t checked = 0;

  PartState& part_of(const LoggedUpdate& update);
  void apply(const LoggedUpdate& update, const float* gradient);
};

ShardReplay::Impl::PartState& ShardReplay::Impl::part_of(const LoggedUpdate& update) {
  for (PartState& part : parts) {
    const Part& place = plan.shards.parts[static_cast<size_t>(part.index)];
    if (place.block == update.block && place.begin == update.begin && place.count == update.count) return part;
  }
  throw InputError(fmt::format("log of server {}", server), "updates",
                   fmt::format("has an update of elements {} to {} of block {}, which the server did not own",
                               update.begin, update.begin + update.count, update.block));
}

void ShardReplay::Impl::apply(const LoggedUpdate& update, const float* gradient) {
  PartState& part = part_of(update);
  const LearningRates rates{.base = update.learning_rate, .muon = update.muon_learning_rate};
  for (int64_t p = 0; p < part.optimizer.pieces(); ++p) {
    part.optimizer.update(p, part.version, rates, update.scale, gradient, part.values.data(), part.values.data(),
                          update.staleness);
  }
  ++part.version;
  ++applied;
}

ShardReplay::ShardReplay(const RunPlan& plan, int server)
    : impl_(std::make_unique<Impl>(Impl{.plan = plan, .server = server})) {
  for (const int64_t index : plan.shards.parts_of_server[static_cast<size_t>(server)]) {
    const Part& place = plan.shards.parts[static_cast<size_t>(index)];
    impl_->parts.push_back({.index = index,
                            .optimizer = Optimizer(plan.deck.optimizer, plan.layout, place),
                            .values = std::vector<float>(static_cast<size_t>(place.count))});
  }
}
ShardReplay::~ShardReplay() = default;
ShardReplay::ShardReplay(ShardReplay&&) noexcept = default;

void ShardReplay::initialize() {
  for (Impl::PartState& part : impl_->parts) initialize_part(impl_->plan, part.index, part.values.data());
}

void ShardReplay::restore(const TensorSource& saved, const std::vector<int64_t>& block_versions) {
  for (Impl::PartState& part : impl_->parts) {
    const int64_t block = impl_->plan.shards.parts[static_cast<size_t>(part.index)].block;
    part.version = block_versions.at(static_cast<size_t>(block));
    restore_part(impl_->plan, part.index, saved, part.optimizer, part.values.data());
  }
}

TensorSource tensors_of(const CheckpointReader& checkpoint) {
  return [&checkpoint](const std::string& path, int64_t first_row, int64_t rows, int64_t columns, float* values) {
    checkpoint.read(path, first_row, rows, columns, values);
  };
}

TensorSource tensors_of(std::vector<TensorSlice> slices) {
  return [slices = std::move(slices)](const std::string& path, int64_t first_row, int64_t rows, int64_t columns,
                                      float* values) {
    int64_t copied = 0;
    for (const TensorSlice& slice : slices) {
      const int64_t first = std::max(first_row, slice.first_row);
      const int64_t count = std::min(first_row + rows, slice.first_row + slice.rows) - first;
      if (slice.path != path || count <= 0) continue;
      std::copy_n(slice.data + (first - slice.first_row) * columns, count * columns,
                  values + (first - first_row) * columns);
      copied += count;
    }
    if (copied != rows) throw Error(fmt::format("{}: {} of {} rows are there", path, copied, rows));
  };
}

namespace {

/// Hands out the gradient of one update after the other: as logged, or added up from the pushes in their order.
class LoggedGradients {
 public:
  LoggedGradients(GradientLogReader& log, const GradientLogReader::Attempt& attempt, const RunPlan& plan, int server,
                  int64_t from, int64_t to)
      : log_(log), attempt_(attempt), plan_(plan), server_(server) {
    if (attempt.header.payload != LogPayload::push) return;
    for (GradientLogReader::Push& push : log.pushes(attempt, server, from, to)) {
      pushes_[{push.row.block, plan.unbounded() ? 0 : push.row.step}].push_back(push.row);
    }
  }

  const std::vector<float>& of(const LoggedUpdate& update) {
    if (attempt_.header.payload != LogPayload::push) {
      log_.read(attempt_, server_, update, gradient_);
    } else if (plan_.unbounded()) {
      read_push_of(update);
    } else {
      add_up(update);
    }
    return gradient_;
  }

 private:
  // One update per push, in the order in which they came. What was left out, of later steps, is passed over.
  void read_push_of(const LoggedUpdate& update) {
    std::vector<LoggedPush>& waiting = pushes_[{update.block, 0}];
    const auto found = std::ranges::find_if(waiting, [&](const LoggedPush& push) {
      return push.step == update.step && push.begin == update.begin && push.tokens == update.tokens;
    });
    if (found == waiting.end()) throw missing(update);
    log_.read(attempt_, server_, *found, gradient_);
    waiting.erase(found);
  }

  void add_up(const LoggedUpdate& update) {
    const AddingOrder adding = plan_.deck.deterministic ? AddingOrder::by_unit : AddingOrder::arrival;
    GradientSum sum(update.count, update.step_tokens, adding);
    for (const LoggedPush& push : pushes_[{update.block, update.step}]) {
      log_.read(attempt_, server_, push, values_);
      if (push.complete != 0) {
        sum.set(push.begin - update.begin, values_);
      } else {
        sum.add(push.begin - update.begin, values_, push.tokens, push.order);
      }
    }
    if (!sum.complete()) throw missing(update);
    gradient_ = *sum.values();
  }

  InputError missing(const LoggedUpdate& update) const {
    return {fmt::format("log of server {} in attempt {}", server_, attempt_.header.number), "pushes",
            fmt::format("lacks pushes of step {}", update.step)};
  }

  GradientLogReader& log_;
  const GradientLogReader::Attempt& attempt_;
  const RunPlan& plan_;
  int server_;
  std::map<std::pair<int64_t, int64_t>, std::vector<LoggedPush>> pushes_;  // (block, step)
  std::vector<float> gradient_;
  std::vector<float> values_;
};

/// Versions as they were published: (block, version) -> checksum.
std::map<std::pair<int64_t, int64_t>, uint64_t> published(GradientLogReader& log,
                                                          const GradientLogReader::Attempt& attempt, int server,
                                                          int64_t from, int64_t to) {
  std::map<std::pair<int64_t, int64_t>, uint64_t> checksums;
  for (const LoggedVersion& row : log.versions(attempt, server, from, to)) {
    checksums[{row.block, row.version}] = row.values_checksum;
  }
  return checksums;
}

}  // namespace

int64_t ShardReplay::apply(GradientLogReader& log, const GradientLogReader::Attempt& attempt, int64_t from, int64_t to,
                           std::string& problem) {
  const int server = impl_->server;
  int64_t reached = from;
  try {
    LoggedGradients gradients(log, attempt, impl_->plan, server, from, to);
    const auto checksums = published(log, attempt, server, from, to);
    // Unbounded: where later steps are left out, the versions are others than those of the run.
    bool is_as_in_run = true;
    const int64_t end = impl_->plan.unbounded() ? std::numeric_limits<int64_t>::max() : to;
    for (const LoggedUpdate& update : log.updates(attempt, server, from, end)) {
      if (update.step >= to) {
        is_as_in_run = false;
        continue;
      }
      reached = update.step;
      fault_point(FaultPoint::replay);
      impl_->apply(update, gradients.of(update).data());
      const Impl::PartState& part = impl_->part_of(update);
      const auto found = checksums.find({update.block, part.version});
      const bool is_known = is_as_in_run && found != checksums.end();
      impl_->checked += is_known ? 1 : 0;
      if (is_known && found->second != checksum_of_values(part.values)) {
        throw InputError(fmt::format("log of server {} in attempt {}", server, attempt.header.number), "versions",
                         fmt::format("version {} of block {} comes out with other values than were published",
                                     part.version, update.block));
      }
    }
    reached = to;
  } catch (const InputError& error) {
    problem = error.what();
  }
  return reached;
}

std::vector<TensorSlice> ShardReplay::slices() {
  std::vector<TensorSlice> slices;
  for (Impl::PartState& part : impl_->parts) {
    const std::vector<TensorSlice> own = part_slices(impl_->plan, part.index, part.optimizer, part.values.data());
    slices.insert(slices.end(), own.begin(), own.end());
  }
  return slices;
}

int64_t ShardReplay::updates_applied() const { return impl_->applied; }
int64_t ShardReplay::versions_checked() const { return impl_->checked; }

LoggedStretch complete_stretch(GradientLogReader& log, const GradientLogReader::Attempt& attempt, const RunPlan& plan,
                               int64_t from, int64_t to) {
  struct PartStep {
    int64_t tokens = 0;
    double sum_of_squares = 0;
  };
  struct StepRows {
    int64_t epoch = 0;
    int64_t tokens = 0;
    std::map<int64_t, std::map<int64_t, PartStep>> parts;  // by server, then block: in the order of adding norms
  };
  LoggedStretch stretch{.end = from, .norms = {}, .block_updates = std::vector<int64_t>(plan.layout.blocks.size(), 0)};
  const LogPayload payload = attempt.header.payload;
  if (payload != LogPayload::sum && payload != LogPayload::push) return stretch;
  const int64_t limit = std::min(to, log.end_of(attempt));
  std::map<int64_t, StepRows> steps;
  std::vector<std::vector<LoggedUpdate>> updates;
  for (int server = 0; server < plan.roles.servers(); ++server) {
    updates.push_back(log.updates(attempt, server, from, limit));
    for (const LoggedUpdate& update : updates.back()) {
      StepRows& rows = steps[update.step];
      rows.epoch = update.epoch;
      rows.tokens = update.step_tokens;
      PartStep& part = rows.parts[server][update.block];
      part.tokens += update.tokens;
      part.sum_of_squares = update.sum_of_squares;
    }
  }
  for (auto step = steps.find(from); step != steps.end() && step->first == stretch.end; ++step) {
    const StepRows& rows = step->second;
    double squares = 0;
    size_t complete = 0;
    for (const auto& [server, parts] : rows.parts) {
      double of_server = 0;
      for (const auto& [block, part] : parts) {
        of_server += part.sum_of_squares;
        if (part.tokens == rows.tokens) ++complete;
      }
      squares += of_server;
    }
    if (complete != plan.shards.parts.size()) break;
    stretch.end = step->first + 1;
    stretch.epoch = rows.epoch;
    stretch.tokens += rows.tokens;
    if (!plan.unbounded()) stretch.norms.push_back(std::sqrt(squares));
  }
  if (std::ssize(stretch.norms) > kNormsKept) {
    stretch.norms.erase(stretch.norms.begin(), stretch.norms.end() - kNormsKept);
  }
  for (const std::vector<LoggedUpdate>& of_server : updates) {
    std::map<int64_t, int64_t> counts;  // the parts of a block have equally many
    for (const LoggedUpdate& update : of_server) counts[update.block] += update.step < stretch.end ? 1 : 0;
    for (const auto& [block, count] : counts) stretch.block_updates[static_cast<size_t>(block)] = count;
  }
  return stretch;
}

std::vector<int64_t> clean_cuts(GradientLogReader& log, const GradientLogReader::Attempt& attempt, const RunPlan& plan,
                                int64_t from, int64_t to) {
  std::set<int64_t> crossed;  // a later step's update stands before one of an earlier step
  for (int server = 0; server < plan.roles.servers(); ++server) {
    int64_t newest = from;
    for (const LoggedUpdate& update : log.updates(attempt, server, from, std::numeric_limits<int64_t>::max())) {
      for (int64_t step = update.step + 1; step <= std::min(newest, to - 1); ++step) crossed.insert(step);
      newest = std::max(newest, update.step);
    }
  }
  std::vector<int64_t> cuts;
  for (int64_t step = from + 1; step < to; ++step) {
    if (!crossed.contains(step)) cuts.push_back(step);
  }
  return cuts;
}

CheckpointState state_at_start(const LogAttempt& attempt, const RunPlan& plan) {
  CheckpointState state{.step = 0,
                        .epoch = 0,
                        .tokens = 0,
                        .seed = plan.deck.seed,
                        .block_names = {},
                        .block_versions = std::vector<int64_t>(plan.layout.blocks.size(), 0),
                        .recent_norms = {},
                        .deck = attempt.deck,
                        .dataset_path = attempt.dataset_path,
                        .dataset_identity = attempt.dataset_identity,
                        .tokenizer = attempt.tokenizer,
                        .model = plan.deck.model};
  for (const BlockSpec& block : plan.layout.blocks) state.block_names.push_back(block.name);
  return state;
}

void extend(CheckpointState& state, const LoggedStretch& stretch, const LogAttempt& attempt) {
  if (stretch.end == state.step) return;
  state.step = stretch.end;
  state.epoch = stretch.epoch;
  state.tokens += stretch.tokens;
  state.deck = attempt.deck;
  for (size_t b = 0; b < state.block_versions.size(); ++b) state.block_versions[b] += stretch.block_updates[b];
  std::vector<double>& norms = state.recent_norms;
  norms.insert(norms.end(), stretch.norms.begin(), stretch.norms.end());
  if (std::ssize(norms) > kNormsKept) norms.erase(norms.begin(), norms.end() - kNormsKept);
}

int64_t reachable_step(GradientLogReader& log, int64_t from) {
  int64_t reached = from;
  while (true) {
    const GradientLogReader::Attempt* attempt = log.attempt_of(reached);
    if (attempt == nullptr) return reached;
    const int64_t end =
        complete_stretch(log, *attempt, plan_of(attempt->header), reached, std::numeric_limits<int64_t>::max()).end;
    if (end == reached) return reached;
    reached = end;
  }
}

}  // namespace hat
