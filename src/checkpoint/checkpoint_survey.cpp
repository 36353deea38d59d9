#include "hat/checkpoint/checkpoint_survey.hpp"

#include <algorithm>
#include <cmath>

#include "checkpoint/checkpoint_files.hpp"
#include "hat/core/error.hpp"
#include "hat/io/checksum.hpp"

namespace hat {

namespace {
constexpr int64_t kPieceValues = int64_t{1} << 18;

/// Adds one slice to what is known of its tensor; throws InputError when it is damaged.
void survey_slice(const hdf5::File& file, const SliceEntry& entry, TensorSurvey& tensor) {
  const hdf5::Array array = open_slice(file, entry);
  const int64_t piece_rows = std::clamp(kPieceValues / std::max<int64_t>(entry.columns, 1), int64_t{1}, entry.rows);
  std::vector<float> values(static_cast<size_t>(piece_rows * entry.columns));
  Checksum checksum;
  double squares = 0.0;
  int64_t not_finite = 0;
  for (int64_t row = 0; row < entry.rows; row += piece_rows) {
    const int64_t rows = std::min(piece_rows, entry.rows - row);
    array.read(row, rows, values.data());
    const auto count = static_cast<size_t>(rows * entry.columns);
    checksum.add(values.data(), count * sizeof(float));
    for (size_t i = 0; i < count; ++i) {
      const double value = values[i];
      if (std::isfinite(value)) {
        squares += value * value;
      } else {
        ++not_finite;
      }
    }
  }
  if (checksum_text(checksum.value()) != array.text("checksum")) {
    throw InputError(array.file(), array.name(), "the checksum does not match: the values are damaged");
  }
  tensor.norm = std::hypot(tensor.norm, std::sqrt(squares));
  tensor.not_finite += not_finite;
}

std::vector<std::optional<hdf5::File>> open_servers(CheckpointSurvey& survey) {
  std::vector<std::optional<hdf5::File>> files;
  for (int64_t server = 0; server < survey.servers; ++server) {
    files.emplace_back();
    try {
      files.back() = open_server_file(survey.folder, server, survey.state->step);
    } catch (const InputError& error) {
      survey.problems.emplace_back(error.what());
    }
  }
  return files;
}
}  // namespace

CheckpointSurvey survey_checkpoint(const std::filesystem::path& path) {
  CheckpointSurvey survey;
  survey.folder = resolve_checkpoint(path);
  Master master;
  try {
    master = load_master(survey.folder / kMasterName);
  } catch (const InputError& error) {
    survey.problems.emplace_back(error.what());
    return survey;
  }
  survey.servers = master.servers;
  survey.state = master.state;
  try {
    check_marker(survey.folder, master);
  } catch (const InputError& error) {
    survey.problems.emplace_back(error.what());
  }
  const auto files = open_servers(survey);
  for (const SliceEntry& entry : master.slices) {
    if (survey.tensors.empty() || survey.tensors.back().path != entry.tensor) {
      survey.tensors.push_back({entry.tensor, entry.total_rows, entry.columns, entry.is_vector});
    }
    TensorSurvey& tensor = survey.tensors.back();
    const auto& file = files[static_cast<size_t>(entry.server)];
    try {
      if (file) {
        survey_slice(*file, entry, tensor);
      } else {
        tensor.unreadable_values += entry.rows * entry.columns;  // the problem is told once, for the file
      }
    } catch (const InputError& error) {
      survey.problems.emplace_back(error.what());
      tensor.unreadable_values += entry.rows * entry.columns;
    }
  }
  return survey;
}

}  // namespace hat
