#include "hat/server/replay.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <optional>
#include <set>
#include <utility>

#include "hat/config/deck_schema.hpp"
#include "hat/core/bfloat16.hpp"
#include "hat/core/error.hpp"
#include "hat/core/fault.hpp"
#include "hat/server/checkpoint_slices.hpp"
#include "server/delay_remedies.hpp"
#include "server/part_values.hpp"
#include "server/pushed_gradients.hpp"

namespace hat {

RunPlan plan_of(const LogAttempt& attempt) {
  Deck deck = stored_deck(attempt.deck, fmt::format("the deck in the log of attempt {}", attempt.number));
  deck.model.vocabulary = attempt.vocabulary;
  deck.servers = attempt.servers;
  // Where the ranks were does not matter any more: one worker beside the servers.
  const std::vector<int> one_node(static_cast<size_t>(attempt.servers + 1), 0);
  RunPlan plan = make_run_plan(deck, plan_roles(one_node, attempt.servers, Placement::packed));
  plan.deck_text = attempt.deck;
  if (attempt.payload == LogPayload::metadata) plan.compute = attempt.compute;
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
  std::function<void(const Published&)> listener = {};

  PartState& part_of(int64_t block, int64_t begin);
  bool is_predicted(const PartState& part) const {
    return plan.deck.delay.predict && plan.predicted_slots[static_cast<size_t>(part.index)].slots > 0;
  }
  void publish(const PartState& part, std::vector<float> predicted) const;
};

ShardReplay::Impl::PartState& ShardReplay::Impl::part_of(int64_t block, int64_t begin) {
  for (PartState& part : parts) {
    const Part& place = plan.shards.parts[static_cast<size_t>(part.index)];
    if (place.block == block && place.begin == begin) return part;
  }
  throw InputError(
      fmt::format("log of server {}", server), "updates",
      fmt::format("has a part of block {} from element {} on, which the server did not own", block, begin));
}

void ShardReplay::Impl::publish(const PartState& part, std::vector<float> predicted) const {
  if (!listener) return;
  std::vector<float> values = part.values;
  if (plan.deck.pull_format == PullFormat::bf16) {
    std::vector<bfloat16> rounded(values.size());
    for (std::vector<float>* pulled : {&values, &predicted}) {
      to_bfloat16(*pulled, std::span(rounded).first(pulled->size()));
      to_float(std::span(rounded).first(pulled->size()), *pulled);
    }
  }
  listener({.part = part.index, .version = part.version, .values = values, .predicted = predicted});
}

void ShardReplay::publish_to(std::function<void(const Published&)> listener) {
  impl_->listener = std::move(listener);
  if (!impl_->listener) return;
  for (const Impl::PartState& part : impl_->parts) {
    impl_->publish(part, impl_->is_predicted(part) ? part.values : std::vector<float>{});
  }
}

std::vector<float> ShardReplay::compensated(const LoggedUpdate& update, std::span<const float> gradient,
                                            std::span<const float> base_values) {
  const Impl::PartState& part = impl_->part_of(update.block, update.begin);
  std::vector<float> result(gradient.size());
  for (int64_t p = 0; p < part.optimizer.pieces(); ++p) {
    const TensorPiece& piece = part.optimizer.piece(p);
    const auto first = static_cast<size_t>(piece.part_offset);
    const auto count = static_cast<size_t>(piece.size());
    compensate(impl_->plan.deck.delay.compensation, gradient.subspan(first, count),
               std::span(part.values).subspan(first, count), base_values.subspan(first, count),
               std::span(result).subspan(first, count));
  }
  return result;
}

int64_t ShardReplay::apply(const LoggedUpdate& update, std::span<const float> gradient) {
  Impl::PartState& part = impl_->part_of(update.block, update.begin);
  if (gradient.size() != part.values.size()) {
    throw InputError(fmt::format("log of server {}", impl_->server), "updates",
                     fmt::format("has an update of {} elements of block {}, of which the server owned {}",
                                 gradient.size(), update.block, part.values.size()));
  }
  const LearningRates rates{.base = update.learning_rate, .muon = update.muon_learning_rate};
  const bool predicts = impl_->listener && impl_->is_predicted(part);
  std::vector<float> predicted;
  if (predicts) predicted = part.values;
  for (int64_t p = 0; p < part.optimizer.pieces(); ++p) {
    part.optimizer.update(p, part.version, rates, update.scale, gradient.data(), part.values.data(), part.values.data(),
                          update.staleness);
  }
  if (predicts) predict(static_cast<float>(impl_->plan.deck.staleness), part.values, predicted);
  ++part.version;
  ++impl_->applied;
  impl_->publish(part, std::move(predicted));
  return part.version;
}

void ShardReplay::check(const LoggedVersion& published) {
  const Impl::PartState& part = impl_->part_of(published.block, published.begin);
  ++impl_->checked;
  if (published.version == part.version && published.values_checksum == checksum_of_values(part.values)) return;
  throw InputError(fmt::format("log of server {}", impl_->server), "versions",
                   fmt::format("version {} of block {} comes out with other values than were published", part.version,
                               published.block));
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

std::string log_name(const GradientLogReader::Attempt& attempt, int server) {
  return fmt::format("log of server {} in attempt {}", server, attempt.header.number);
}

/// Hands out the gradient of one update after the other: as logged, or put together from the pushes.
class LoggedGradients {
 public:
  LoggedGradients(GradientLogReader& log, const GradientLogReader::Attempt& attempt, const RunPlan& plan, int server,
                  int64_t from, int64_t to)
      : log_(log), attempt_(attempt), server_(server) {
    if (attempt.header.payload != LogPayload::push) return;
    pushes_.emplace(plan, log_name(attempt, server), log.pushes(attempt, server, from, to));
  }

  const std::vector<float>& of(const LoggedUpdate& update) {
    if (pushes_) {
      const auto read = [this](const PushedGradients::Push& push, std::vector<float>& values) {
        log_.read(attempt_, server_, push.row, values);
      };
      pushes_->take(update, read, gradient_);
    } else {
      log_.read(attempt_, server_, update, gradient_);
    }
    return gradient_;
  }

 private:
  GradientLogReader& log_;
  const GradientLogReader::Attempt& attempt_;
  int server_;
  std::optional<PushedGradients> pushes_;
  std::vector<float> gradient_;
};

/// Versions as they were published, by block and version.
std::map<std::pair<int64_t, int64_t>, LoggedVersion> published(GradientLogReader& log,
                                                               const GradientLogReader::Attempt& attempt, int server,
                                                               int64_t from, int64_t to) {
  std::map<std::pair<int64_t, int64_t>, LoggedVersion> versions;
  for (const LoggedVersion& row : log.versions(attempt, server, from, to)) versions[{row.block, row.version}] = row;
  return versions;
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
      const int64_t version = apply(update, gradients.of(update));
      const auto found = checksums.find({update.block, version});
      if (is_as_in_run && found != checksums.end()) check(found->second);
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
                               int64_t from, int64_t to, RebuiltFrom rebuilt) {
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
  const bool computes = attempt.header.payload == LogPayload::metadata;
  if (computes ? rebuilt != RebuiltFrom::computations : !holds_gradients(attempt.header.payload)) return stretch;
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
  std::map<int64_t, int64_t> computed;  // by step: tokens
  if (computes) {
    for (const auto& computation : log.computations(attempt, from, limit)) {
      computed[computation.row.step] += computation.row.tokens;
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
    if (complete != plan.shards.parts.size() || (computes && computed[step->first] != rows.tokens)) break;
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

int64_t reachable_step(GradientLogReader& log, int64_t from, RebuiltFrom rebuilt) {
  int64_t reached = from;
  while (true) {
    const GradientLogReader::Attempt* attempt = log.attempt_of(reached);
    if (attempt == nullptr) return reached;
    const int64_t end =
        complete_stretch(log, *attempt, plan_of(attempt->header), reached, std::numeric_limits<int64_t>::max(), rebuilt)
            .end;
    if (end == reached) return reached;
    reached = end;
  }
}

}  // namespace hat
