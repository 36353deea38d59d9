#include "commands/run_folder.hpp"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <fstream>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <sstream>

#include "hat/comm/mpi_environment.hpp"
#include "hat/core/clock.hpp"
#include "hat/core/error.hpp"
#include "hat/core/text.hpp"
#include "hat/io/durable.hpp"

namespace hat {

namespace fs = std::filesystem;

namespace {

/// To read, if it is a file: a pipe of that name would keep its reader waiting.
std::ifstream opened(const fs::path& path) {
  std::ifstream file;
  if (fs::is_regular_file(path)) {
    file.open(path, std::ios::binary);
  } else {
    file.setstate(std::ios::failbit);
  }
  return file;
}

bool holds_run(const fs::path& run) {
  return fs::exists(run / "deck.toml") || fs::exists(run / "metrics.jsonl") || fs::exists(run / "checkpoints");
}

void check_holds_no_run(const Deck& deck) {
  if (deck.resume || !holds_run(deck.output)) return;
  const bool can_continue = newest_checkpoint(deck.output).has_value();
  throw InputError(deck.output, "output",
                   can_continue
                       ? "already holds a run; choose another folder, or continue that run with --resume"
                       : "already holds a run, without a checkpoint to continue from; choose another folder, or "
                         "delete this one");
}

/// Belongs to the rank that tells why the run failed, until status.json does.
fs::path failure_claim(const fs::path& run) { return run / ".hat-failure"; }

bool has_status(const fs::path& run, const char* wanted) noexcept {
  try {
    std::ifstream file = opened(run / "status.json");
    const auto status = nlohmann::json::parse(file, nullptr, false);
    return status.is_object() && status.value("status", "") == wanted;
  } catch (const std::exception&) {
    return false;
  }
}

/// Of metrics.jsonl, one that stands for a committed step. (The last one may be torn.)
bool is_step_line(const std::string& line) {
  return line.find("\"kind\":\"step\"") != std::string::npos && line.ends_with('}');
}

void write_status(const fs::path& run, const nlohmann::json& status) {
  rewrite_file_durably(run / "status.json", status.dump(2) + "\n");
}

// The nearest folder above that exists: where creating has to start.
fs::path existing_part(fs::path path) {
  path = fs::absolute(path);
  while (!fs::exists(path) && path.has_parent_path() && path != path.root_path()) path = path.parent_path();
  return path;
}

void set_aside(const fs::path& path, const std::string& why) {
  fs::path kept = path.string() + ".damaged";
  for (int n = 2; fs::exists(kept); ++n) kept = fmt::format("{}.damaged-{}", path.string(), n);
  fmt::print(stderr, "hat: {}: cannot be continued, is kept as {} ({})\n", path.string(), kept.filename().string(),
             why);
  rename_durably(path, kept);
}

/// What is in the way of the run's own files and folders is kept beside them. A log that begins with something else
/// would hide behind the lines to come.
void set_damaged_aside(const fs::path& run) {
  for (const char* name : {"status.json", "metrics.jsonl", "metrics.h5", "metrics.h5.tmp"}) {
    if (fs::exists(run / name) && !fs::is_regular_file(run / name)) set_aside(run / name, "it is no file");
  }
  for (const char* name : {"checkpoints", "log"}) {
    if (fs::exists(run / name) && !fs::is_directory(run / name)) set_aside(run / name, "it is no folder");
  }
  const fs::path path = run / "metrics.jsonl";
  std::ifstream file = opened(path);
  std::string line;
  if (!std::getline(file, line) || nlohmann::json::parse(line, nullptr, false).is_object()) return;
  set_aside(path, "its first line is no JSON object");
}

void try_to_write_in(const fs::path& folder, const fs::path& run) {
  const fs::path probe = folder / ".hat-write-test";
  std::ofstream file(probe);
  file << "hat writes this to see whether it can\n";
  file.close();
  const bool good = file.good();
  std::error_code ignored;
  fs::remove(probe, ignored);
  if (!good) {
    throw InputError(run.string(), "output",
                     fmt::format("cannot write in {} (permission, read-only or full)", folder.string()));
  }
}

/// Value of a key of a stored deck: of its top, or "section.key".
std::optional<std::string> stored_value(const std::string& deck, const std::string& key) {
  const size_t dot = key.find('.');
  const std::string section = dot == std::string::npos ? "" : fmt::format("[{}]", key.substr(0, dot));
  const std::string start = (dot == std::string::npos ? key : key.substr(dot + 1)) + " = ";
  std::istringstream lines(deck);
  std::string line;
  std::string here;
  while (std::getline(lines, line)) {
    if (line.starts_with('[')) here = line;
    if (here == section && line.starts_with(start)) return line.substr(start.size());
  }
  return std::nullopt;
}

void require_same(const fs::path& source, const std::string& key, const std::string& now, const std::string& then) {
  if (now == then) return;
  throw InputError(
      source.string(), key,
      fmt::format("was {} when this run began and is {} now; a run continues with the same {}", then, now, key));
}

}  // namespace

RunFolderLock::RunFolderLock(const fs::path& run) : file_(::open(run.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC)) {
  constexpr double kPatience_s = 2;
  constexpr unsigned kPause_us = 50'000;
  const double begin_s = now_s();
  while (file_ >= 0 && ::flock(file_, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK) {
    if (now_s() - begin_s > kPatience_s) {
      ::close(file_);
      throw InputError(run.string(), "output", "another hat process is training in this folder");
    }
    ::usleep(kPause_us);
  }
}

RunFolderLock::~RunFolderLock() {
  if (file_ >= 0) ::close(file_);
}

bool is_held(const fs::path& run) noexcept {
  const int file = ::open(run.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  // (Where locks are refused nobody can tell.)
  const bool is_held = file >= 0 && ::flock(file, LOCK_SH | LOCK_NB) != 0 && errno == EWOULDBLOCK;
  if (file >= 0) ::close(file);  // a process that begins meanwhile has patience
  return is_held;
}

void check_not_held(const fs::path& run) {
  if (fs::is_directory(run)) const RunFolderLock lock(run);
}

void check_run_folder(const Deck& deck) {
  const fs::path run = deck.output;
  if (run.empty()) throw KeyError("output", "names no run folder");
  if (fs::exists(run) && !fs::is_directory(run)) throw InputError(run.string(), "output", "is not a folder");
  check_holds_no_run(deck);
  const fs::path existing = existing_part(run);
  if (!fs::is_directory(existing)) {
    throw InputError(run.string(), "output", fmt::format("{} is not a folder", existing.string()));
  }
  try_to_write_in(existing, run);
}

std::unique_ptr<RunFolderLock> make_run_folder(const RunPlan& plan, std::unique_ptr<RunFolderLock> held) {
  const fs::path run = plan.deck.output;
  const auto make = [&](const fs::path& folder) {
    std::error_code error;
    fs::create_directories(folder, error);
    if (error) throw InputError(run.string(), "output", fmt::format("cannot be created: {}", error.message()));
  };
  make(run);
  auto lock = held ? std::move(held) : std::make_unique<RunFolderLock>(run);
  check_holds_no_run(plan.deck);   // of another process that began at the same time
  fs::remove(failure_claim(run));  // of an earlier start, whose failure could not be noted
  set_damaged_aside(run);
  for (const fs::path& aside : set_incomplete_aside(run)) {
    fmt::print(stderr, "hat: {}: is no complete checkpoint, is kept as {}\n",
               fs::path(aside).replace_extension().string(), aside.filename().string());
  }
  write_file_durably(run / "deck.toml", plan.deck_text);
  make(run / "checkpoints");  // last: a folder with a deck and nothing else is one that a start was killed in
  write_status(run, {{"status", "running"}});  // a failure of an earlier start is no longer one
  return lock;
}

bool may_tell_failure(const fs::path& run, int rank) noexcept {
  constexpr double kPatience_s = 6;
  constexpr unsigned kPause_us = 20'000;
  const std::string claim = failure_claim(run).string();
  const int file = ::open(claim.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
  const int error = errno;
  if (file >= 0) {
    ::close(file);
    // The first one takes its claim back when the reason is noted: this rank may be later than that.
    if (!has_failed(run)) return true;
    ::unlink(claim.c_str());
    return false;
  }
  if (error != EEXIST) let_lower_ranks_speak(rank);
  for (const double begin_s = now_s(); error == EEXIST && now_s() - begin_s < kPatience_s; ::usleep(kPause_us)) {
    if (has_failed(run)) return false;
  }
  return !has_failed(run);
}

void note_failure(const fs::path& run, const std::string& reason) noexcept {
  try {
    write_status(run, {{"status", "failed"}, {"reason", reason}});
    fs::remove(failure_claim(run));
  } catch (const std::exception&) {
    // `reason` stands on stderr already, and often says why this failed as well (a full disk): one line is enough.
  }
}

void note_stop(const fs::path& run, int64_t step, const std::string& reason) {
  write_status(run, {{"status", "stopped"}, {"reason", reason}, {"step", step}});
}

bool has_failed(const fs::path& run) noexcept { return has_status(run, "failed"); }

bool is_over(const RunPlan& plan) {
  return plan.deck.resume && plan.first_step >= plan.end_step && has_status(plan.deck.output, "finished");
}

int64_t last_logged_step(const fs::path& run) {
  std::string newest;
  std::ifstream metrics = opened(run / "metrics.jsonl");
  for (std::string line; std::getline(metrics, line);) {
    if (is_step_line(line)) newest = line;
  }
  const auto parsed = nlohmann::json::parse(newest, nullptr, false);
  const auto step = parsed.is_object() ? parsed.find("step") : parsed.end();
  return parsed.is_object() && step != parsed.end() && step->is_number_integer() ? step->get<int64_t>() : 0;
}

bool loses_no_step(const fs::path& run) {
  std::ifstream file = opened(run / "deck.toml");
  const std::string deck(std::istreambuf_iterator<char>(file), {});
  const std::string payload = stored_value(deck, "log.payload").value_or("");
  return (payload == "\"sum\"" || payload == "\"push\"") && stored_value(deck, "log.durability") == "\"commit\"";
}

namespace {

/// The newest start's text for `key`, of those that name one of `names`: its number among them.
std::optional<size_t> last_started_with(const fs::path& run, const char* key, std::span<const char* const> names) {
  std::optional<size_t> last;
  std::ifstream metrics = opened(run / "metrics.jsonl");
  for (std::string line; std::getline(metrics, line);) {
    if (line.find("\"kind\":\"start\"") == std::string::npos) continue;
    for (size_t i = 0; i < names.size(); ++i) {
      if (line.find(fmt::format("\"{}\":\"{}\"", key, names[i])) != std::string::npos) last = i;
    }
  }
  return last;
}

}  // namespace

std::optional<Element> last_arithmetic(const fs::path& run) {
  constexpr std::array kKinds{Element::fp32, Element::bf16};
  const std::array names{name_of(kKinds[0]), name_of(kKinds[1])};
  const std::optional<size_t> last = last_started_with(run, "precision", names);
  return last ? std::optional(kKinds.at(*last)) : std::nullopt;
}

std::optional<DeviceKind> last_device(const fs::path& run) {
  constexpr std::array kKinds{DeviceKind::cpu, DeviceKind::cuda};
  const std::array names{name_of(kKinds[0]), name_of(kKinds[1])};
  const std::optional<size_t> last = last_started_with(run, "device", names);
  return last ? std::optional(kKinds.at(*last)) : std::nullopt;
}

bool has_logged_steps(const fs::path& run) {
  std::ifstream metrics = opened(run / "metrics.jsonl");
  for (std::string line; std::getline(metrics, line);) {
    if (is_step_line(line)) return true;
  }
  return false;
}

bool has_not_begun(const fs::path& run) {
  return fs::exists(run / "deck.toml") && !fs::exists(run / "log") && !newest_checkpoint(run) && !has_logged_steps(run);
}

fs::path checkpoint_to_continue(const fs::path& run) {
  if (!fs::exists(run)) throw InputError(run.string(), "resume", "there is no such run to continue");
  const std::optional<fs::path> newest = newest_checkpoint(run);
  if (!newest) {
    throw InputError(run.string(), "resume",
                     "holds no complete checkpoint to continue from; choose another folder, or delete this one, and "
                     "begin without --resume");
  }
  return *newest;
}

void check_continuation(const CheckpointState& state, const fs::path& source, const RunPlan& plan,
                        const Dataset& dataset) {
  const ModelConfig& then = state.model;
  const ModelConfig& now = plan.deck.model;
  const auto family = [](const ModelConfig& model) { return model.family == ModelFamily::gpt2 ? "gpt2" : "llama"; };
  require_same(source, "model.family", family(now), family(then));
  const auto require_same_count = [&source](const char* key, int64_t count, int64_t before) {
    require_same(source, key, std::to_string(count), std::to_string(before));
  };
  require_same_count("model.width", now.width, then.width);
  require_same_count("model.layers", now.layers, then.layers);
  require_same_count("model.heads", now.heads, then.heads);
  require_same_count("model.kv_heads", kv_heads(now), kv_heads(then));
  require_same_count("model.mlp_width", mlp_width(now), mlp_width(then));
  require_same_count("model.vocabulary", now.vocabulary, then.vocabulary);
  require_same(source, "model.tied", now.tied ? "true" : "false", then.tied ? "true" : "false");
  if (state.dataset_identity != dataset.identity()) {
    throw InputError(source.string(), "data.path",
                     fmt::format("{} is not the dataset that this run began with ({})", dataset.path().string(),
                                 state.dataset_path));
  }
  require_same(source, "seed", std::to_string(plan.deck.seed), std::to_string(state.seed));
  require_same(source, "batch_tokens", stored_value(plan.deck_text, "batch_tokens").value_or("unknown"),
               stored_value(state.deck, "batch_tokens").value_or("unknown"));
  std::vector<std::string> cutting{"batch_sequences", "split"};
  if (plan.deck.cutting.split == SplitRule::independent) {
    cutting.insert(cutting.end(), {"max_delay", "shard.rule", "shard.flops", "length_scale"});
    if (plan.deck.cutting.shard_rule == ShardRule::delay) cutting.emplace_back("cost_of");
  }
  for (const std::string& key : cutting) {
    const std::string now = stored_value(plan.deck_text, key).value_or("unknown");
    require_same(source, key, now, stored_value(state.deck, key).value_or(now));  // older runs did not have it
  }
  require_same(source, "optimizer", stored_value(plan.deck_text, "optimizer").value_or("unknown"),
               stored_value(state.deck, "optimizer").value_or("unknown"));
  // The rule staleness keeps a state that the other has not. Runs from before there were two rules had the fixed one.
  const std::string rule = stored_value(plan.deck_text, "optimizer.momentum_rule").value_or("unknown");
  const bool fixed = plan.deck.optimizer.momentum_rule == MomentumRule::fixed;
  require_same(source, "optimizer.momentum_rule", rule,
               stored_value(state.deck, "optimizer.momentum_rule").value_or(fixed ? rule : "fixed"));
  require_same_count("model.max_length", now.max_length, then.max_length);
  require_same(source, "model.norm_epsilon", fmt::to_string(now.norm_epsilon), fmt::to_string(then.norm_epsilon));
  require_same(source, "model.rope_base", fmt::to_string(now.rope_base), fmt::to_string(then.rope_base));
  const bool one_per_step = std::all_of(state.block_versions.begin(), state.block_versions.end(),
                                        [&](int64_t version) { return version == state.step; });
  if (!plan.unbounded() && !one_per_step) {
    throw InputError(source.string(), "staleness",
                     "was unbounded in a start of this run: its blocks have had one update per push, not per step; "
                     "continue it unbounded");
  }
}

}  // namespace hat
