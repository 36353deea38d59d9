#include <fmt/format.h>

#include "commands/inspect.hpp"
#include "hat/core/text.hpp"

namespace hat {

namespace {
std::string shape_text(const TensorSurvey& tensor) {
  return tensor.is_vector ? fmt::format("({})", tensor.rows) : fmt::format("({}, {})", tensor.rows, tensor.columns);
}

void add_state(const CheckpointState& state, Inspection& result) {
  const char* family = state.model.family == ModelFamily::llama ? "llama" : "gpt2";
  result.text += fmt::format("  step        {} (epoch {}, {} target tokens trained)\n", state.step, state.epoch,
                             with_commas(state.tokens));
  result.text += fmt::format("  model       {}, width {}, {} layers, {} heads, vocabulary {}\n", family,
                             state.model.width, state.model.layers, state.model.heads, state.model.vocabulary);
  result.text += fmt::format("  dataset     {} (identity {}, tokenizer {})\n", state.dataset_path,
                             state.dataset_identity, state.tokenizer);
  auto versions = nlohmann::json::object();
  result.text += "  versions of the blocks\n";
  for (size_t i = 0; i < state.block_names.size() && i < state.block_versions.size(); ++i) {
    result.text += fmt::format("    {:<24} {}\n", state.block_names[i], state.block_versions[i]);
    versions[state.block_names[i]] = state.block_versions[i];
  }
  result.data["state"] = {{"step", state.step},
                          {"epoch", state.epoch},
                          {"tokens", state.tokens},
                          {"seed", state.seed},
                          {"recent_norms", state.recent_norms},
                          {"dataset_path", state.dataset_path},
                          {"dataset_identity", state.dataset_identity},
                          {"tokenizer", state.tokenizer},
                          {"block_versions", versions},
                          {"model",
                           {{"family", family},
                            {"width", state.model.width},
                            {"layers", state.model.layers},
                            {"heads", state.model.heads},
                            {"kv_heads", state.model.kv_heads},
                            {"mlp_width", state.model.mlp_width},
                            {"max_length", state.model.max_length},
                            {"vocabulary", state.model.vocabulary},
                            {"tied", state.model.tied}}},
                          {"deck", state.deck}};
}

void add_tensor(const TensorSurvey& tensor, Inspection& result) {
  result.text += fmt::format("    {:<52} {:<16} {:>12.6g}", tensor.path, shape_text(tensor), tensor.norm);
  if (tensor.not_finite > 0) result.text += fmt::format("  {} values not finite", with_commas(tensor.not_finite));
  if (tensor.unreadable_values > 0)
    result.text += fmt::format("  {} values unreadable", with_commas(tensor.unreadable_values));
  result.text += '\n';
  auto shape = nlohmann::json::array({tensor.rows});
  if (!tensor.is_vector) shape.push_back(tensor.columns);
  result.data["tensors"].push_back({{"path", tensor.path},
                                    {"shape", shape},
                                    {"norm", tensor.norm},
                                    {"not_finite", tensor.not_finite},
                                    {"unreadable", tensor.unreadable_values}});
}
}  // namespace

std::vector<std::string> checkpoint_problems(const CheckpointSurvey& survey) {
  std::vector<std::string> problems = survey.problems;
  for (const TensorSurvey& tensor : survey.tensors) {
    if (tensor.not_finite == 0) continue;
    problems.push_back(
        fmt::format("{}: {}: {} values are not finite", survey.folder.string(), tensor.path, tensor.not_finite));
  }
  return problems;
}

Inspection inspect_checkpoint(const std::filesystem::path& path) {
  const CheckpointSurvey survey = survey_checkpoint(path);
  Inspection result;
  result.text = fmt::format("checkpoint {}\n  servers     {}\n", survey.folder.string(), survey.servers);
  result.data = {{"kind", "checkpoint"}, {"path", survey.folder.string()}, {"servers", survey.servers}};
  if (survey.state) add_state(*survey.state, result);
  result.text += fmt::format("  {} tensors: path, shape, norm\n", survey.tensors.size());
  result.data["tensors"] = nlohmann::json::array();
  for (const TensorSurvey& tensor : survey.tensors) add_tensor(tensor, result);
  if (survey.state) result.text += "\nThe deck\n" + survey.state->deck + "\n";
  result.problems = checkpoint_problems(survey);
  return result;
}

}  // namespace hat
