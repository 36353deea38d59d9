#include <fmt/format.h>

#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <numbers>
#include <string>

#include "commands/device_choice.hpp"
#include "commands/loaded_model.hpp"
#include "hat/commands/commands.hpp"
#include "hat/config/checks.hpp"
#include "hat/config/option_set.hpp"
#include "hat/core/clock.hpp"
#include "hat/core/text.hpp"
#include "hat/dataset/data_order.hpp"

namespace hat {

namespace {

constexpr int64_t kGroupTokens = 4096;  // computed at once; the result does not depend on it

struct EvalOptions {
  std::string model;
  std::string data;
  int64_t tokens = 0;
  int64_t threads = 1;
  std::string device = "cpu";
  bool json = false;
};

struct Evaluation {
  LossSum loss;
  int64_t documents = 0;
  int64_t text_bytes = 0;
  double seconds = 0.0;
  double nats_per_token() const { return loss.nats / static_cast<double>(loss.tokens); }
  /// All target nats, end-of-text tokens included, over ln 2 times the bytes of text.
  double bits_per_byte() const { return loss.nats / (std::numbers::ln2 * static_cast<double>(text_bytes)); }
};

/// Sequences that begin a document.
int64_t count_documents(const std::vector<std::vector<Sequence>>& groups) {
  int64_t documents = 0;
  for (const auto& group : groups) {
    for (const Sequence& sequence : group) documents += sequence.begin == 0 ? 1 : 0;
  }
  return documents;
}

Evaluation evaluate(LoadedModel& model, const Dataset& dataset, int64_t max_tokens) {
  const auto groups = validation_groups(dataset, model.checkpoint().state().model.max_length, kGroupTokens, max_tokens);
  Evaluation evaluation;
  evaluation.documents = count_documents(groups);
  evaluation.text_bytes = text_bytes(dataset, Split::validation, groups);
  PassObserver observer;
  const double start_s = now_s();
  for (const auto& group : groups) {
    const PackedBatch batch = read_batch(dataset, Split::validation, group);
    const LossSum loss = model.transformer().loss(batch, model.parameters(), observer);
    evaluation.loss.nats += loss.nats;
    evaluation.loss.tokens += loss.tokens;
  }
  evaluation.seconds = now_s() - start_s;
  return evaluation;
}

void check_fit(const CheckpointState& state, const Dataset& dataset, const std::string& model) {
  if (state.tokenizer != dataset.tokenizer().name()) {
    throw InputError(dataset.path().string(), "tokenizer",
                     fmt::format("'{}', but the model {} was trained with '{}'", dataset.tokenizer().name(), model,
                                 state.tokenizer));
  }
  if (dataset.tokens(Split::validation) == 0) {
    throw InputError(dataset.path().string(), "validation", "has no documents");
  }
}

void print(const Evaluation& result, const LoadedModel& model, const Dataset& dataset, bool as_json) {
  const CheckpointState& state = model.checkpoint().state();
  const std::string checkpoint = model.checkpoint().folder().string();
  if (as_json) {
    const nlohmann::ordered_json json{{"checkpoint", checkpoint},
                                      {"step", state.step},
                                      {"dataset", dataset.path().string()},
                                      {"dataset_identity", dataset.identity()},
                                      {"documents", result.documents},
                                      {"tokens", result.loss.tokens},
                                      {"text_bytes", result.text_bytes},
                                      {"nats_per_token", result.nats_per_token()},
                                      {"bits_per_byte", result.bits_per_byte()},
                                      {"seconds", result.seconds}};
    fmt::print("{}\n", json.dump(2));
    return;
  }
  fmt::print("checkpoint       {} (step {})\n", checkpoint, with_commas(state.step));
  fmt::print("dataset          {}, validation split\n", dataset.path().string());
  fmt::print("documents        {}\n", with_commas(result.documents));
  fmt::print("tokens           {} ({} bytes of text)\n", with_commas(result.loss.tokens),
             with_commas(result.text_bytes));
  fmt::print("nats per token   {:.5f}\n", result.nats_per_token());
  fmt::print("bits per byte    {:.5f}\n", result.bits_per_byte());
  fmt::print("time             {:.1f} s ({:.0f} tokens/s)\n", result.seconds,
             static_cast<double>(result.loss.tokens) / result.seconds);
}

ExitCode eval(OptionSet& keys, const EvalOptions& options) {
  keys.load(std::nullopt);
  const DeviceKind device = keys.naming_places([&] { return device_for_one(options.device); });
  LoadedModel model(options.model, static_cast<int>(options.threads), device);
  const CheckpointState& state = model.checkpoint().state();
  const bool use_recorded = options.data.empty();
  if (use_recorded && !std::filesystem::exists(state.dataset_path)) {
    throw InputError(state.dataset_path, "data", "the dataset of this run is not there; name one with --data");
  }
  const Dataset dataset(use_recorded ? state.dataset_path : options.data);
  check_fit(state, dataset, options.model);
  if (use_recorded && dataset.identity() != state.dataset_identity) {
    throw InputError(dataset.path().string(), "identity",
                     "is not the dataset that the model was trained on any more; name the one to use with --data");
  }
  const Evaluation evaluation = keys.naming_places([&] { return evaluate(model, dataset, options.tokens); });
  print(evaluation, model, dataset, options.json);
  return ExitCode::success;
}

}  // namespace

CommandBody add_eval(CLI::App& app) {
  CLI::App* command = app.add_subcommand("eval", "Loss of a trained model on the validation split of a dataset");
  command->footer("Example: hat eval hat-run --data dataset.h5");
  auto options = std::make_shared<EvalOptions>();
  auto keys = std::make_shared<OptionSet>(*command, "eval");
  command->add_option("model", options->model, "Run folder (its newest checkpoint) or checkpoint")->required();
  keys->add("data", options->data, "Dataset written by 'hat tokenize'; empty: the one the model was trained on");
  keys->add("tokens", options->tokens, "At most this many tokens, whole documents; 0: all")->check(integer_in(0));
  keys->add("threads", options->threads, "Threads of the arithmetic")->check(integer_in(1, 4096));
  keys->add("device", options->device, "What computes: cpu, cuda, or auto: cuda where there is a device")
      ->check(CLI::IsMember({"auto", "cpu", "cuda"}));
  command->add_flag("--json", options->json, "Print a JSON object instead of the table")->check(true_or_false());
  return [keys, options] { return eval(*keys, *options); };
}

}  // namespace hat
