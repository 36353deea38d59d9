#pragma once
#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "hat/config/emulation.hpp"
#include "hat/core/fault.hpp"

namespace hat {

/// The deck of `hat train`: every key with its default. A key `model.width` is the deck entry `width` of `[model]`, the
/// option `--model.width` and the environment variable `HAT_MODEL_WIDTH`; the command line wins over the environment,
/// the environment over the deck file. deck_schema.cpp holds the documentation and the limits of each key.

enum class Mode { sync, hybrid, async };
enum class Placement { spread, packed, dedicated };
enum class StalenessRule { exact, freshest };
enum class Dispatch { on_demand, static_, sorted, balanced };  ///< ledger/ledger.hpp tells what each does
enum class PullFormat { fp32, bf16 };
enum class BarrierPath { ring, server };  ///< of barrier blocks' gradients
enum class ModelFamily { llama, gpt2 };
enum class OptimizerKind { adamw, sgd, muon };
enum class ScheduleKind { cosine, linear, constant };
enum class ClipRule { none, global, previous, block };
enum class MomentumRule { fixed, staleness };
enum class LongPolicy { cut, refuse };
enum class SplitRule { exact, independent };          ///< what becomes of a sequence that takes a worker too long
enum class ShardRule { delay, article };              ///< how long pieces are under SplitRule::independent
enum class SplitPolicy { never, automatic, always };  ///< of one sequence over several workers (GangConfig)
enum class WireFormat { fp32, bf16 };                 ///< of what the workers of a gang exchange
enum class Precision { automatic, fp32, bf16 };       ///< of matrix products and attention

/// What a forward pass keeps for the backward pass; the rest is computed again there, to the same bits.
enum class Recompute {
  automatic,  ///< the first of the following that fits into memory
  none,       ///< keeps what matrix products made: nothing but norms and activations is computed twice
  inner,      ///< keeps inputs of the blocks and outputs of the attention: q, k, v and the MLP's inside come twice
  full,       ///< keeps inputs of the layers: every layer's forward is computed twice
};

/// Architecture of a decoder transformer. Llama: RMSNorm, RoPE, grouped-query attention, SwiGLU, no biases.
/// GPT-2: LayerNorm, learned positions, GELU (tanh form), biases, kv_heads = heads.
struct ModelConfig {
  ModelFamily family = ModelFamily::llama;
  int64_t width = 128;        ///< C
  int64_t layers = 4;         ///< L
  int64_t heads = 4;          ///< query heads; width / heads is the head size, even
  int64_t kv_heads = 0;       ///< key/value heads, divides heads; 0: as many as heads
  int64_t mlp_width = 0;      ///< 0: the family's usual one (llama 8/3 width up to a multiple of 32, gpt2 4 width)
  int64_t max_length = 1024;  ///< longest sequence in tokens; GPT-2 has this many learned positions
  int64_t vocabulary = 0;     ///< V; 0: the tokenizer's
  bool tied = false;          ///< the head uses the embedding matrix
  double norm_epsilon = 1e-5;
  double rope_base = 10000.0;
};

struct DataConfig {
  std::string path;                             ///< dataset.h5
  LongPolicy long_documents = LongPolicy::cut;  ///< key data.long
};

/// How documents become sequences, and sequences steps.
struct CuttingConfig {
  int64_t batch_sequences = 0;         ///< sequences of a step, whatever their tokens; 0: off, by batch_tokens
  SplitRule split = SplitRule::exact;  ///< exact: never cut. independent: in pieces trained as documents of their own
  double max_delay_s = 0.5;            ///< key max_delay: a unit costs at most so many seconds of its worker
  ShardRule shard_rule = ShardRule::delay;  ///< key shard.rule; gradient/shard_size.hpp has the formulas
  double shard_flops = 0;                   ///< key shard.flops: FLOP/s of the device that pieces are cut for
};

/// One sequence computed by several workers at once, a gang (keys split.*).
struct GangConfig {
  SplitPolicy policy = SplitPolicy::automatic;  ///< automatic: where the step ends earlier, as predicted
  int64_t max_workers = 0;                      ///< of one gang; 0: all
  WireFormat wire = WireFormat::fp32;           ///< of keys, values and their gradients; keys and values that are kept
                                                ///< in bf16 travel as they are
};

/// Of GPU workers (keys comm.nccl.*).
enum class NcclAlgorithm { ring, tree, automatic };
struct NcclConfig {
  NcclAlgorithm algorithm = NcclAlgorithm::ring;
  double bucket_mib = 32;  ///< gradients that are summed in one go
};

struct OptimizerConfig {
  OptimizerKind kind = OptimizerKind::adamw;  ///< key optimizer
  double learning_rate = 1e-3;                ///< AdamW (also beside Muon) and SGD
  double muon_learning_rate = 0.02;
  double beta1 = 0.9;
  double beta2 = 0.95;
  double epsilon = 1e-8;
  double momentum = 0.95;     ///< SGD and Muon
  double weight_decay = 0.1;  ///< decoupled, on matrices only
  /// staleness: beta1 and momentum are raised to the power 1 + mean staleness of the update
  MomentumRule momentum_rule = MomentumRule::fixed;
};

struct ScheduleConfig {
  ScheduleKind kind = ScheduleKind::cosine;  ///< key schedule
  int64_t warmup_steps = 100;
  double final_fraction = 0.1;  ///< of the peak learning rate, reached at the last step
};

struct ClipConfig {
  ClipRule rule = ClipRule::global;  ///< key clip; preset by mode: sync global, hybrid and async previous
  double norm = 1.0;
};

/// Remedies for delay (key staleness.*), none by default.
struct DelayConfig {
  bool predict = false;     ///< late gradients are taken at w + S times the last update of the block
  int64_t sync_steps = 0;   ///< the first steps of training, with S = 0 for every block
  double compensation = 0;  ///< lambda of delay compensation
};

struct TrainConfig {
  int64_t steps = 0;  ///< exactly one of steps, tokens, epochs is set
  int64_t tokens = 0;
  double epochs = 0;
};

struct EvalConfig {
  int64_t every = 0;   ///< steps between validations; 0: only before and after training
  int64_t tokens = 0;  ///< at most this many validation tokens, whole documents; 0: all
};

/// What the gradient log holds beside its rows (key log.payload).
enum class LogPayload { none, metadata, sum, push };
enum class LogDurability { commit, interval };
enum class LogKeep { recovery, all };
enum class LogCompression { automatic, none, deflate };

/// The gradient log (keys log.*).
struct LogConfig {
  LogPayload payload = LogPayload::sum;              ///< none: there is no log
  LogDurability durability = LogDurability::commit;  ///< published when on disk, or at once
  double interval_s = 1;                             ///< key log.interval_s: between fsyncs with `interval`
  LogKeep keep = LogKeep::recovery;
  LogCompression compression = LogCompression::automatic;
};

struct CheckpointConfig {
  int64_t every = 1000;  ///< steps
  int64_t keep = 2;      ///< newest ones kept
};

struct SampleConfig {
  std::string prompt;
  int64_t tokens = 200;
  double temperature = 0.8;
};

struct WorkerConfig {
  int64_t threads = 1;
  double memory_gib = 0;  ///< what its own buffers may take; 0: its share of what the node has available
  Recompute recompute = Recompute::automatic;
  int64_t chunk_tokens = 2048;  ///< rows of a unit that projections and MLPs take at a time
  bool tf32 = false;            ///< CUDA: products in fp32 round their operands to TF32
  bool share_device = false;    ///< several workers may compute on one CUDA device
};

struct TraceConfig {
  bool enabled = false;  ///< key trace
  int64_t steps = 0;     ///< first steps of this start that are recorded; 0: all
};

/// How different the gradients of a block are (server/sensitivity.hpp has the formulas).
enum class SensitivityMeasure { consecutive, pairwise, article };
enum class SensitivityOver { pushes, steps };  ///< of the measure article: consecutive pushes of a step, or steps

struct SensitivityConfig {
  SensitivityMeasure measure = SensitivityMeasure::consecutive;
  double threshold = 1.3;   ///< above it a block becomes a barrier block
  int64_t window = 16;      ///< steps whose mean is compared
  double hysteresis = 0.1;  ///< released below threshold (1 - hysteresis)
  SensitivityOver over = SensitivityOver::pushes;
  bool record = false;      ///< measure and log, whatever the barriers are
  std::string noise_block;  ///< for tests: gets noise of noise_scale times its gradient's norm in steps
  int64_t noise_from = 0;   ///< noise_from to
  int64_t noise_to = 0;     ///< noise_to - 1
  double noise_scale = 0;
};

enum class OverLimit { apply, scale, recompute };

/// Unbounded staleness: what is done with pushes later than this.
struct StalenessLimitConfig {
  int64_t versions = 0;  ///< key staleness.limit; 0: off
  double seconds = 0;    ///< key staleness.limit_s, since the parameters were asked for; 0: off
  OverLimit action = OverLimit::apply;
  bool is_set() const { return versions > 0 || seconds > 0; }
};

struct Deck {
  Mode mode = Mode::hybrid;
  bool deterministic = false;
  uint64_t seed = 1;
  int64_t servers = 1;
  Placement placement = Placement::spread;              ///< key servers.placement
  int64_t staleness = 1;                                ///< S; preset by mode: sync 0, hybrid and async 1; kUnbounded
  StalenessRule staleness_rule = StalenessRule::exact;  ///< key staleness.rule; preset: async freshest, else exact
  std::vector<std::string> barriers;  ///< none | all | attention | upper | sensitivity | names or patterns; preset:
                                      ///< hybrid upper, else none
  BarrierPath barrier_path = BarrierPath::ring;  ///< key barriers.via
  PullFormat pull_format = PullFormat::fp32;     ///< key pull.format: what parameters travel as; servers hold fp32
  bool pull_share = true;                        ///< key pull.share: workers of a node keep their parameters together
  int64_t prefetch_depth = 1;  ///< key prefetch.depth: units leased and pulled for beyond the one being computed
  Dispatch dispatch = Dispatch::on_demand;
  int64_t batch_tokens = 4096;     ///< target tokens of a step; 0: as many as batch_sequences have
  int64_t unit_tokens = 0;         ///< target tokens of a task unit; 0: chosen from batch_tokens and the workers
  std::string device = "auto";     ///< auto | cpu | cuda
  std::string output = "hat-run";  ///< run folder
  bool resume = false;
  int64_t log_every = 10;        ///< key log.every, steps
  double timeout_s = 300;        ///< longest silence of another rank
  double stall_after_s = 60;     ///< silence after which server 0 says who waits for whom; 0: never
  std::string time_limit = "0";  ///< of the process, parse_duration; 0: none but Slurm's
  Precision precision = Precision::automatic;
  WorkerConfig worker;
  ModelConfig model;
  DataConfig data;
  CuttingConfig cutting;
  GangConfig gang;
  OptimizerConfig optimizer;
  ScheduleConfig schedule;
  ClipConfig clip;
  DelayConfig delay;
  TrainConfig train;
  EvalConfig eval;
  CheckpointConfig checkpoint;
  LogConfig log;
  FaultConfig fault;
  SampleConfig sample;
  TraceConfig trace;
  EmulationConfig emulation;
  NcclConfig nccl;
  SensitivityConfig sensitivity;
  StalenessLimitConfig staleness_limit;
};

/// Value of Deck::staleness for "unbounded": one update per push, the classic parameter server.
inline constexpr int64_t kUnbounded = -1;
/// Largest Deck::staleness that is a bound.
inline constexpr int64_t kMostStaleness = 64;

/// Longest time of a collective at the start or the end of a run: ranks may come to it at quite different times,
/// whatever silence is allowed later.
inline double start_patience_s(const Deck& deck) {
  constexpr double kLeast_s = 20;
  return std::max(deck.timeout_s, kLeast_s);
}

/// Every rank says at least so often that it is there.
inline double alive_every_s(const Deck& deck) {
  const double shortest_s = deck.stall_after_s > 0 ? std::min(deck.timeout_s, deck.stall_after_s) : deck.timeout_s;
  return shortest_s / 4;
}

/// The oldest version on which step `step` may be computed where blocks are late by `staleness` >= 0 behind the first
/// `sync_steps`: behind those never an older one than the last of them had. Below 0: any.
inline int64_t oldest_late_version(int64_t step, int64_t staleness, int64_t sync_steps) {
  return std::max(std::min(step, sync_steps - 1), step - (step < sync_steps ? 0 : staleness));
}

}  // namespace hat
