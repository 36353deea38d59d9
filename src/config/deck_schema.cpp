#include "hat/config/deck_schema.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <string_view>
#include <vector>

#include "config/delay_keys.hpp"
#include "config/emulation_keys.hpp"
#include "config/fault_keys.hpp"
#include "config/gang_keys.hpp"
#include "config/log_keys.hpp"
#include "config/mode_change.hpp"
#include "config/nccl_keys.hpp"
#include "hat/config/checks.hpp"

namespace hat {

namespace {

constexpr int64_t kMostTokens = 1'000'000'000;  // of one step or sequence: positions are 32-bit integers
constexpr int64_t kWidest = 1 << 20;

void add_run_keys(OptionSet& options, Deck& deck) {
  options.add_named<Mode>("mode", deck.mode, {{"sync", Mode::sync}, {"hybrid", Mode::hybrid}, {"async", Mode::async}},
                          "Preset of staleness, barriers and clipping");
  options.add_flag(
      "deterministic", deck.deterministic,
      "Fix units and adding order in advance: equal seeds and ranks give equal bits (staleness.rule exact)");
  options.add("seed", deck.seed, "Seed of start values and data order")->check(integer_in(0));
  options.add("servers", deck.servers, "Ranks that own parameters; the others are workers")
      ->check(integer_in(1, 65536));
  options.add_named<Placement>(
      "servers.placement", deck.placement,
      {{"spread", Placement::spread}, {"packed", Placement::packed}, {"dedicated", Placement::dedicated}},
      "Servers evenly over the hosts, together on the first ones, or on hosts of their own");
  options.add_named<int64_t>("staleness", deck.staleness, {{"unbounded", kUnbounded}},
                             "S: step t may use any version >= t - S. Preset: sync 0, hybrid and async 1",
                             kMostStaleness);
  options.add_named<StalenessRule>(
      "staleness.rule", deck.staleness_rule, {{"exact", StalenessRule::exact}, {"freshest", StalenessRule::freshest}},
      "Version t - S for everyone, or the newest there is. Preset: async freshest, else exact");
  options.add("barriers", deck.barriers,
              "Blocks all workers reduce together: none, all, attention, upper, sensitivity, or names and patterns of "
              "blocks (layers.*.mlp). Preset: hybrid upper, else none");
  options.add_named<BarrierPath>(
      "barriers.via", deck.barrier_path, {{"ring", BarrierPath::ring}, {"server", BarrierPath::server}},
      "How gradients of barrier blocks are summed: ring all-reduce of the workers, or pushed by each worker like the "
      "others; then those of workers that are done are at the servers before the last one comes");
  options.add_named<Dispatch>("dispatch", deck.dispatch,
                              {{"on_demand", Dispatch::on_demand},
                               {"static", Dispatch::static_},
                               {"sorted", Dispatch::sorted},
                               {"balanced", Dispatch::balanced}},
                              "Who computes what of a step. on_demand: units for whoever becomes free, long sequences "
                              "first. Fixed in advance: static: equal counts; sorted: equal counts, dealt out by "
                              "length; balanced: equal estimated cost");
  options.add_named<PullFormat>(
      "pull.format", deck.pull_format, {{"fp32", PullFormat::fp32}, {"bf16", PullFormat::bf16}},
      "What parameters travel as. bf16 halves the bytes of a pull; the servers' own values and "
      "checkpoints stay fp32, validation during training is of what was pulled");
  options.add_flag("pull.share", deck.pull_share,
                   "Workers of a node keep the parameters together in shared memory: each version comes to the node "
                   "once (staleness.rule exact; otherwise each has its own)");
  options
      .add("prefetch.depth", deck.prefetch_depth,
           "Units that a worker leases and pulls parameters for while it computes one: 0: none, what comes next is "
           "asked "
           "for when the unit is done; 2: with staleness.rule freshest parameters are then a unit older")
      ->check(integer_in(0, 2));
  options
      .add("batch_tokens", deck.batch_tokens,
           "Target tokens of a step; 0: as many as batch_sequences have. Of the two, the one counts that is set "
           "nearest to the "
           "command line")
      ->check(integer_in(0, kMostTokens));
  options.add("unit_tokens", deck.unit_tokens, "Target tokens of a task unit; 0: from batch_tokens and the workers")
      ->check(integer_in(0, kMostTokens));
  options
      .add("device", deck.device,
           "Where workers compute: cpu; cuda, each on a device of its own among those that it sees; auto: cuda where "
           "every worker has one, else cpu; a run that is continued goes on with what it began on")
      ->check(CLI::IsMember({"auto", "cpu", "cuda"}));
  options.add("output", deck.output, "Run folder; must not hold a run unless resume is set");
  options.add_flag("resume", deck.resume,
                   "Continue the run in the output folder from its newest checkpoint; with RUN/deck.toml as the deck "
                   "and no --output: the run in RUN");
  options.add_named<Precision>("precision", deck.precision,
                               {{"auto", Precision::automatic}, {"fp32", Precision::fp32}, {"bf16", Precision::bf16}},
                               "Operands of matrix products and attention; sums and parameters are fp32. auto: the "
                               "faster, measured at the start "
                               "(fp32 if deterministic)");
  options.add("worker.threads", deck.worker.threads, "Threads of one worker's arithmetic, at most its node's cores")
      ->check(integer_in(1, 4096));
  options
      .add("worker.memory_gib", deck.worker.memory_gib,
           "GiB that a worker's own buffers may take at most where it computes; 0: its share of what is available on "
           "its node, or free on its CUDA device")
      ->check(real_in(0, 1e9));
  options.add_named<Recompute>("worker.recompute", deck.worker.recompute,
                               {{"auto", Recompute::automatic},
                                {"none", Recompute::none},
                                {"inner", Recompute::inner},
                                {"full", Recompute::full}},
                               "Activations computed twice to save memory: none, q, k, v and the inside of the mlp, or "
                               "all of a layer; auto: the first that fits");
  options
      .add("worker.chunk_tokens", deck.worker.chunk_tokens, "Tokens of a unit that projections and mlps take at a time")
      ->check(integer_in(1, kMostTokens));
  options.add_flag("worker.tf32", deck.worker.tf32,
                   "On CUDA devices: matrix products in fp32 round their operands to 10 bits of mantissa");
  options.add_flag("worker.share_device", deck.worker.share_device,
                   "Let several workers compute on one CUDA device, where there are fewer devices than workers");
  options.add("log.every", deck.log_every, "Steps between progress lines")->check(integer_in(1, kMany));
  options
      .add("timeout_s", deck.timeout_s,
           "Longest silence of other ranks in seconds. Whoever computes is not silent, however long a unit takes")
      ->check(real_in(0, 1e6, Ends::without_least));
  options
      .add("stall_after_s", deck.stall_after_s,
           "Seconds of silence after which a line says who waits for whom, and again more and more seldom; 0: never")
      ->check(real_in(0, 1e6));
  options
      .add("time_limit", deck.time_limit,
           "Time that this start of the run has, from the start of the process; it stops before with a checkpoint. 0: "
           "none but what Slurm leaves the job, which counts in any case")
      ->check(time_span());
}

void add_model_keys(OptionSet& options, ModelConfig& model) {
  options.add_named<ModelFamily>("model.family", model.family,
                                 {{"llama", ModelFamily::llama}, {"gpt2", ModelFamily::gpt2}}, "Architecture");
  options.add("model.width", model.width, "Width of the residual stream")->check(integer_in(2, kWidest));
  options.add("model.layers", model.layers, "Layers, each an attention and an mlp block")->check(integer_in(1, 10000));
  options.add("model.heads", model.heads, "Query heads; divides the width into even head sizes")
      ->check(integer_in(1, kWidest));
  options.add("model.kv_heads", model.kv_heads, "Key/value heads, divides heads; 0: as many as heads")
      ->check(integer_in(0, kWidest));
  options.add("model.mlp_width", model.mlp_width, "Hidden width of the mlp; 0: the family's usual one")
      ->check(integer_in(0, kWidest));
  options.add("model.max_length", model.max_length, "Longest sequence in tokens")->check(integer_in(1, kMostTokens));
  options.add("model.vocabulary", model.vocabulary, "Tokens the model knows; 0: as many as the tokenizer")
      ->check(integer_in(0, kMostTokens));
  options.add_flag("model.tied", model.tied, "The head uses the embedding matrix");
  options.add("model.norm_epsilon", model.norm_epsilon, "Added under the root of the norms")
      ->check(real_in(0, 1, Ends::without_least));
  options.add("model.rope_base", model.rope_base, "Base of the rotary position angles (llama)")
      ->check(real_in(1, 1e12, Ends::without_least));
}

void add_optimizer_keys(OptionSet& options, Deck& deck) {
  OptimizerConfig& optimizer = deck.optimizer;
  options.add_named<OptimizerKind>(
      "optimizer", optimizer.kind,
      {{"adamw", OptimizerKind::adamw}, {"sgd", OptimizerKind::sgd}, {"muon", OptimizerKind::muon}},
      "adamw, sgd with momentum, or muon for hidden matrices and adamw for the rest");
  options
      .add("optimizer.learning_rate", optimizer.learning_rate, "Peak learning rate of adamw (also beside muon) and sgd")
      ->check(real_in(0, 1000));
  options.add("optimizer.muon_learning_rate", optimizer.muon_learning_rate, "Peak learning rate of muon's matrices")
      ->check(real_in(0, 1000));
  options.add("optimizer.beta1", optimizer.beta1, "Decay of adamw's mean")->check(real_in(0, 1, Ends::without_most));
  options.add("optimizer.beta2", optimizer.beta2, "Decay of adamw's mean square")
      ->check(real_in(0, 1, Ends::without_most));
  options.add("optimizer.epsilon", optimizer.epsilon, "Added to adamw's denominator")
      ->check(real_in(0, 1, Ends::without_least));
  options.add("optimizer.momentum", optimizer.momentum, "Momentum of sgd and muon")
      ->check(real_in(0, 1, Ends::without_most));
  options.add("optimizer.weight_decay", optimizer.weight_decay, "Decoupled weight decay, on matrices only")
      ->check(real_in(0, 1000));
  options.add_named<ScheduleKind>(
      "schedule", deck.schedule.kind,
      {{"cosine", ScheduleKind::cosine}, {"linear", ScheduleKind::linear}, {"constant", ScheduleKind::constant}},
      "Learning rate after the warm-up");
  options.add("schedule.warmup_steps", deck.schedule.warmup_steps, "Steps of linear rise to the peak learning rate")
      ->check(integer_in(0, kMany));
  options.add("schedule.final_fraction", deck.schedule.final_fraction, "Of the peak learning rate, at the last step")
      ->check(real_in(0, 1));
  options.add_named<ClipRule>("clip", deck.clip.rule,
                              {{"none", ClipRule::none},
                               {"global", ClipRule::global},
                               {"previous", ClipRule::previous},
                               {"block", ClipRule::block}},
                              "Norm that gradients are clipped by. Preset: sync global, else previous");
  options.add("clip.norm", deck.clip.norm, "Largest norm of a gradient per token")
      ->check(real_in(0, 1e12, Ends::without_least));
}

void add_schedule_of_run_keys(OptionSet& options, Deck& deck) {
  options.add("data.path", deck.data.path, "Dataset written by 'hat tokenize'");
  options.add_named<LongPolicy>("data.long", deck.data.long_documents,
                                {{"cut", LongPolicy::cut}, {"refuse", LongPolicy::refuse}},
                                "Documents longer than model.max_length");
  options.add("train.steps", deck.train.steps, "Steps to train; set one of train.steps, train.tokens, train.epochs")
      ->check(integer_in(0, kMany));
  options.add("train.tokens", deck.train.tokens, "Target tokens to train")->check(integer_in(0, kMany * 1'000'000));
  options.add("train.epochs", deck.train.epochs, "Passes over the training documents")->check(real_in(0, 1e6));
  options.add("eval.every", deck.eval.every, "Steps between validations; 0: only before and after training")
      ->check(integer_in(0, kMany));
  options.add("eval.tokens", deck.eval.tokens, "At most this many validation tokens, whole documents; 0: all")
      ->check(integer_in(0, kMany * 1'000'000));
  options.add("checkpoint.every", deck.checkpoint.every, "Steps between checkpoints")->check(integer_in(1, kMany));
  options.add("checkpoint.keep", deck.checkpoint.keep, "Newest checkpoints that are kept")
      ->check(integer_in(1, 1'000'000));
  options.add("sample.prompt", deck.sample.prompt, "Start of the text generated after training");
  options.add("sample.tokens", deck.sample.tokens, "Tokens generated after training; 0: none")
      ->check(integer_in(0, 1'000'000));
  options.add("sample.temperature", deck.sample.temperature, "0: always the likeliest token")->check(real_in(0, 100));
}

void add_trace_keys(OptionSet& options, TraceConfig& trace) {
  options.add_flag(
      "trace", trace.enabled,
      "Record what every rank does and when, and write trace.json for chrome://tracing and Perfetto; on CUDA "
      "devices a block's times are those of its launches");
  options.add("trace.steps", trace.steps, "Steps from the start that the trace records; 0: all")
      ->check(integer_in(0, kMany));
}

void add_cutting_keys(OptionSet& options, CuttingConfig& cutting) {
  options
      .add("batch_sequences", cutting.batch_sequences,
           "A step is exactly so many sequences, whatever their tokens; 0: off, by batch_tokens")
      ->check(integer_in(0, kMostTokens));
  options.add_named<SplitRule>("split", cutting.split,
                               {{"exact", SplitRule::exact}, {"independent", SplitRule::independent}},
                               "A sequence is never cut, or cut into pieces trained as documents of their own");
  options
      .add("max_delay", cutting.max_delay_s,
           "A unit of several sequences, on demand, costs at most so many seconds of its worker, as far as they are "
           "known; but it is filled to 512 tokens all the same, if as many fall to that worker, and takes a rest of "
           "the step along that is too little "
           "for a unit of its own")
      ->check(real_in(0, 1e6, Ends::without_least));
  options.add_named<ShardRule>("shard.rule", cutting.shard_rule,
                               {{"delay", ShardRule::delay}, {"article", ShardRule::article}},
                               "Tokens of a piece under split = independent: what takes max_delay at shard.flops, or "
                               "max(512, int(max_delay * shard.flops / 8))");
  options.add("shard.flops", cutting.shard_flops, "FLOP/s of the device that pieces are cut for")
      ->check(real_in(0, 1e18));
}

void add_sensitivity_keys(OptionSet& options, SensitivityConfig& sensitivity) {
  options.add_named<SensitivityMeasure>("sensitivity.measure", sensitivity.measure,
                                        {{"consecutive", SensitivityMeasure::consecutive},
                                         {"pairwise", SensitivityMeasure::pairwise},
                                         {"article", SensitivityMeasure::article}},
                                        "What barriers = sensitivity goes by: difference of a step's successive pushes "
                                        "over their norm, of all pairs over "
                                        "their norm, or of successive ones as they are");
  options
      .add("sensitivity.threshold", sensitivity.threshold,
           "A block becomes a barrier block above it (consecutive, pairwise: 1.41 where pushes have nothing in "
           "common). A "
           "resumed run begins with the blocks named in barriers")
      ->check(real_in(0, 1e12, Ends::without_least));
  options.add("sensitivity.window", sensitivity.window, "Steps that a decision averages over")
      ->check(integer_in(1, 100'000));
  options
      .add("sensitivity.hysteresis", sensitivity.hysteresis,
           "A barrier block is released below threshold times (1 - hysteresis)")
      ->check(real_in(0, 1, Ends::without_most));
  options.add_named<SensitivityOver>(
      "sensitivity.over", sensitivity.over, {{"pushes", SensitivityOver::pushes}, {"steps", SensitivityOver::steps}},
      "What the measure article compares: successive pushes of a step, or gradients of successive steps");
  options.add_flag("sensitivity.record", sensitivity.record,
                   "Measure and log every block and step, whatever the barriers are (4 KiB a push to server 0)");
  options.add("sensitivity.noise_block", sensitivity.noise_block,
              "For tests: the block whose pushes get noise, each its own, in steps noise_from to noise_to - 1");
  options.add("sensitivity.noise_from", sensitivity.noise_from, "First step with noise")->check(integer_in(0, kMany));
  options.add("sensitivity.noise_to", sensitivity.noise_to, "First step without noise again")
      ->check(integer_in(0, kMany));
  options.add("sensitivity.noise_scale", sensitivity.noise_scale, "Norm of the noise over the norm of the gradient")
      ->check(real_in(0, 1e6));
}

void add_staleness_limit_keys(OptionSet& options, StalenessLimitConfig& limit) {
  options.add("staleness.limit", limit.versions, "Unbounded staleness: versions that a push may be late; 0: any")
      ->check(integer_in(0, kMany));
  options
      .add("staleness.limit_s", limit.seconds,
           "Unbounded staleness: seconds that a push may come after its parameters were asked for; 0: any")
      ->check(real_in(0, 1e9));
  options.add_named<OverLimit>(
      "staleness.over_limit", limit.action,
      {{"apply", OverLimit::apply}, {"scale", OverLimit::scale}, {"recompute", OverLimit::recompute}},
      "Pushes over the limit are counted; scale: and multiplied by limit / staleness; recompute: their unit is "
      "computed again with the newest parameters before it is pushed, at most 3 times");
}

/// Throws the error for a key, naming where the user set it or could have, or else where its causes were set.
[[noreturn]] void refuse(const OptionSet& options, const std::string& key, const std::string& reason,
                         const std::vector<std::string>& causes = {}) {
  throw options.error(key, reason, causes);
}

void fill_presets(const OptionSet& options, Deck& deck) {
  if (options.is_default("staleness")) deck.staleness = deck.mode == Mode::sync ? 0 : 1;
  if (options.is_default("staleness.rule")) {
    deck.staleness_rule = deck.mode == Mode::async ? StalenessRule::freshest : StalenessRule::exact;
  }
  if (options.is_default("barriers")) deck.barriers = {deck.mode == Mode::hybrid ? "upper" : "none"};
  if (options.is_default("clip")) deck.clip.rule = deck.mode == Mode::sync ? ClipRule::global : ClipRule::previous;
  // One update per push: waiting for the disk at each lets gradients grow late.
  if (options.is_default("log.durability") && deck.staleness == kUnbounded) {
    deck.log.durability = LogDurability::interval;
  }
}

/// One of several keys that exclude each other; its value 0 means that it is not set.
struct Rival {
  const char* key;
  bool is_set;
  std::function<void()> unset;
};

// Those set nearest to the user count: the command line wins over the environment, and that over the deck, between such
// keys as it does for one.
void keep_nearest(const OptionSet& options, const std::vector<Rival>& rivals) {
  auto nearest = OptionSet::Nearness::default_value;
  for (const Rival& rival : rivals) {
    if (rival.is_set) nearest = std::max(nearest, options.nearness(rival.key));
  }
  for (const Rival& rival : rivals) {
    if (rival.is_set && options.nearness(rival.key) < nearest) rival.unset();
  }
}

void keep_nearest_rivals(const OptionSet& options, Deck& deck) {
  TrainConfig& train = deck.train;
  keep_nearest(options, {{"train.steps", train.steps > 0, [&] { train.steps = 0; }},
                         {"train.tokens", train.tokens > 0, [&] { train.tokens = 0; }},
                         {"train.epochs", train.epochs > 0, [&] { train.epochs = 0; }}});
  int64_t& sequences = deck.cutting.batch_sequences;
  keep_nearest(options, {{"batch_tokens", deck.batch_tokens > 0, [&] { deck.batch_tokens = 0; }},
                         {"batch_sequences", sequences > 0, [&] { sequences = 0; }}});
}

bool has_barriers(const Deck& deck) { return deck.barriers != std::vector<std::string>{"none"}; }

void check_barriers(const OptionSet& options, const Deck& deck) {
  static constexpr std::string_view kPatternCharacters = "abcdefghijklmnopqrstuvwxyz0123456789_.*?";
  if (deck.barriers.empty()) refuse(options, "barriers", "is empty; write \"none\" for no barriers");
  for (const std::string& name : deck.barriers) {
    if (name.empty() || name.find_first_not_of(kPatternCharacters) != std::string::npos) {
      refuse(options, "barriers", fmt::format("'{}' is no name or pattern of a block", name));
    }
    if ((name == "none" || name == "all") && deck.barriers.size() > 1) {
      refuse(options, "barriers", fmt::format("'{}' stands alone, not in a list", name));
    }
  }
}

/// Keys that only count together with another one.
void check_sensitivity_is_used(const OptionSet& options, const SensitivityConfig& sensitivity, bool decides) {
  const SensitivityConfig unset;
  const auto require = [&](bool is_default, bool is_met, const char* key, const char* needed) {
    if (!is_default && !is_met) refuse(options, key, fmt::format("changes nothing without {}", needed), {"barriers"});
  };
  const char* barriers = "sensitivity among the barriers";
  require(sensitivity.threshold == unset.threshold, decides, "sensitivity.threshold", barriers);
  require(sensitivity.window == unset.window, decides, "sensitivity.window", barriers);
  require(sensitivity.hysteresis == unset.hysteresis, decides, "sensitivity.hysteresis", barriers);
  require(sensitivity.measure == unset.measure, decides || sensitivity.record, "sensitivity.measure",
          "sensitivity among the barriers or sensitivity.record");
  const bool noise = !sensitivity.noise_block.empty();
  require(sensitivity.noise_from == unset.noise_from, noise, "sensitivity.noise_from", "sensitivity.noise_block");
  require(sensitivity.noise_to == unset.noise_to, noise, "sensitivity.noise_to", "sensitivity.noise_block");
}

void check_sensitivity(const OptionSet& options, const Deck& deck) {
  const SensitivityConfig& sensitivity = deck.sensitivity;
  const bool decides = std::ranges::count(deck.barriers, "sensitivity") > 0;
  if (decides) {
    if (deck.mode != Mode::hybrid) refuse(options, "barriers", "'sensitivity' needs mode hybrid", {"mode"});
    if (deck.staleness == 0)
      refuse(options, "barriers", "'sensitivity' needs a staleness above 0: nothing is late", {"staleness"});
  }
  if (sensitivity.over == SensitivityOver::steps && sensitivity.measure != SensitivityMeasure::article) {
    refuse(options, "sensitivity.over", "only the measure article compares steps", {"sensitivity.measure"});
  }
  const bool noise = !sensitivity.noise_block.empty();
  if (noise != (sensitivity.noise_scale > 0)) {
    refuse(options, "sensitivity.noise_block", "set noise_block and noise_scale together", {"sensitivity.noise_scale"});
  }
  check_sensitivity_is_used(options, sensitivity, decides);
  if (noise && sensitivity.noise_from >= sensitivity.noise_to) {
    refuse(options, "sensitivity.noise_to",
           fmt::format("{} is not behind noise_from, {}", sensitivity.noise_to, sensitivity.noise_from),
           {"sensitivity.noise_from", "sensitivity.noise_block"});
  }
}

void check_staleness_limit(const OptionSet& options, const Deck& deck) {
  const StalenessLimitConfig& limit = deck.staleness_limit;
  if (limit.is_set() && deck.staleness != kUnbounded) {
    refuse(options, limit.versions > 0 ? "staleness.limit" : "staleness.limit_s",
           "is for staleness unbounded; otherwise staleness itself is the limit", {"staleness", "mode"});
  }
  if (!limit.is_set() && limit.action != OverLimit::apply) {
    refuse(options, "staleness.over_limit", "there is no staleness.limit and no staleness.limit_s");
  }
}

void check_consistency(const OptionSet& options, const Deck& deck) {
  const bool unbounded = deck.staleness == kUnbounded;
  if (deck.mode == Mode::sync && deck.staleness != 0) {
    refuse(options, "staleness", "mode sync has staleness 0; use mode hybrid or async", {"mode"});
  }
  if (unbounded && deck.mode != Mode::async) refuse(options, "staleness", "unbounded needs mode async", {"mode"});
  check_barriers(options, deck);
  if (has_barriers(deck) && unbounded)
    refuse(options, "barriers", "unbounded staleness has no steps to wait for", {"staleness"});
  if (has_barriers(deck) && deck.mode == Mode::async) {
    refuse(options, "barriers", "mode async has no barriers; use mode hybrid", {"mode"});
  }
  if (unbounded && deck.staleness_rule == StalenessRule::exact) {
    refuse(options, "staleness.rule", "unbounded staleness has no exact version; use freshest", {"staleness"});
  }
  if (deck.clip.rule == ClipRule::global && deck.mode != Mode::sync && !unbounded) {
    refuse(options, "clip",
           "global clipping makes every update wait for the whole step; use mode sync, or clip previous or block",
           {"mode", "staleness"});
  }
  if (deck.deterministic && unbounded) {
    refuse(options, "deterministic", "unbounded staleness depends on timing; set a bound", {"staleness"});
  }
  if (deck.deterministic && deck.staleness_rule != StalenessRule::exact) {
    refuse(options, "staleness.rule", "deterministic needs the rule exact", {"deterministic", "mode"});
  }
}

void settle_cutting(const OptionSet& options, Deck& deck) {
  const CuttingConfig& cutting = deck.cutting;
  if (cutting.batch_sequences == 0) {
    if (deck.batch_tokens == 0) refuse(options, "batch_tokens", "0 needs batch_sequences", {"batch_sequences"});
  } else if (deck.batch_tokens != 0) {
    refuse(options, "batch_sequences",
           "and batch_tokens are both set; a step ends by one of them (batch_tokens = 0: by batch_sequences)");
  }
  if (cutting.split == SplitRule::independent && cutting.shard_flops == 0) {
    refuse(options, "shard.flops", "split = independent cuts for a device: give its FLOP/s", {"split"});
  }
  if (cutting.split == SplitRule::exact && cutting.shard_flops > 0) {
    refuse(options, "shard.flops", "has no meaning with split = exact", {"split"});
  }
  if (cutting.split == SplitRule::exact && cutting.shard_rule != ShardRule::delay) {
    refuse(options, "shard.rule", "has no meaning with split = exact", {"split"});
  }
}

void check_sizes(const OptionSet& options, const Deck& deck) {
  const ModelConfig& model = deck.model;
  if (model.width % model.heads != 0) {
    refuse(options, "model.heads", fmt::format("{} heads do not divide a width of {}", model.heads, model.width),
           {"model.width"});
  }
  if ((model.width / model.heads) % 2 != 0) {
    refuse(options, "model.heads",
           fmt::format("{} heads of a width of {} have the odd size {}; it must be even", model.heads, model.width,
                       model.width / model.heads),
           {"model.width"});
  }
  const int64_t kv_heads = model.kv_heads == 0 ? model.heads : model.kv_heads;
  if (kv_heads > model.heads || model.heads % kv_heads != 0) {
    refuse(options, "model.kv_heads", fmt::format("{} do not divide {} heads", kv_heads, model.heads), {"model.heads"});
  }
  if (model.family == ModelFamily::gpt2 && kv_heads != model.heads) {
    refuse(options, "model.kv_heads", "the gpt2 family has as many key/value heads as heads", {"model.family"});
  }
  if (deck.cutting.batch_sequences == 0 && deck.unit_tokens > deck.batch_tokens) {
    refuse(options, "unit_tokens",
           fmt::format("{} is more than the {} batch_tokens of a step", deck.unit_tokens, deck.batch_tokens),
           {"batch_tokens"});
  }
  const int ends = (deck.train.steps > 0 ? 1 : 0) + (deck.train.tokens > 0 ? 1 : 0) + (deck.train.epochs > 0 ? 1 : 0);
  if (ends != 1) {
    refuse(options, "train.steps",
           fmt::format("set exactly one of train.steps, train.tokens and train.epochs (now: {})", ends),
           {"train.tokens", "train.epochs"});
  }
}

}  // namespace

void add_deck_keys(OptionSet& options, Deck& deck) {
  add_run_keys(options, deck);
  add_model_keys(options, deck.model);
  add_optimizer_keys(options, deck);
  add_schedule_of_run_keys(options, deck);
  add_trace_keys(options, deck.trace);
  add_cutting_keys(options, deck.cutting);
  add_gang_keys(options, deck.gang);
  add_log_keys(options, deck.log);
  add_fault_keys(options, deck.fault);
  add_delay_keys(options, deck);
  add_emulation_keys(options, deck.emulation);
  add_nccl_keys(options, deck.nccl);
  add_sensitivity_keys(options, deck.sensitivity);
  add_staleness_limit_keys(options, deck.staleness_limit);
}

void resolve_presets(const OptionSet& options, Deck& deck) {
  fill_presets(options, deck);
  keep_nearest_rivals(options, deck);
  check_mode_change(options, deck);
  check_consistency(options, deck);
  settle_cutting(options, deck);
  check_delay(options, deck);
  check_gang(options, deck);
  check_log(options, deck);
  check_fault(options, deck.fault);
  check_sensitivity(options, deck);
  check_staleness_limit(options, deck);
  check_sizes(options, deck);
  if (deck.trace.steps > 0 && !deck.trace.enabled)
    refuse(options, "trace.steps", "no trace is recorded; set trace = true", {"trace"});
  check_emulation(options, deck.emulation);
  if (deck.device == "cpu" && deck.worker.tf32) {
    refuse(options, "worker.tf32", "is for CUDA devices, and device is cpu", {"device"});
  }
  if (deck.output.empty()) refuse(options, "output", "is empty; name a folder");
  if (deck.data.path.empty()) refuse(options, "data.path", "is not set; name a dataset made by 'hat tokenize'");
}

Deck stored_deck(const std::string& text, const std::string& name) {
  Deck deck;
  CLI::App app;
  OptionSet options(app);
  add_deck_keys(options, deck);
  options.load_deck(text, name);
  return deck;
}

}  // namespace hat
