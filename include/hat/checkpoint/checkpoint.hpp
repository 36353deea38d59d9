#pragma once
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "hat/model/layout.hpp"

namespace hat {

/// Rows [first_row, first_row + rows) of one named tensor, as one server owns them.
struct TensorSlice {
  std::string path;  ///< "/parameters/layers.0.attention.q.weight", "/optimizer/adamw.m/layers.0..."
  int64_t total_rows = 0;
  int64_t columns = 1;
  bool is_vector = false;  ///< stored with one dimension
  int64_t first_row = 0;
  int64_t rows = 0;
  const float* data = nullptr;  ///< rows * columns values; not needed for write_master
};

/// Everything in a checkpoint that is not a tensor. Stored in the master file as attributes and small datasets.
struct CheckpointState {
  int64_t step = 0;  ///< steps completed; training continues with step number `step`
  int64_t epoch = 0;
  int64_t tokens = 0;  ///< target tokens trained so far
  uint64_t seed = 0;   ///< with counter-based random numbers, seed and step are the whole random state
  std::vector<std::string> block_names;
  std::vector<int64_t> block_versions;  ///< optimizer updates each block has had
  std::vector<double> recent_norms;     ///< global gradient norms of the newest steps, oldest first (clip = previous)
  std::string deck;                     ///< the effective deck, as OptionSet::effective writes it
  std::string dataset_path;
  std::string dataset_identity;
  std::string tokenizer;
  ModelConfig model;  ///< vocabulary set
};

/// Folder of one checkpoint inside a run: <run>/checkpoints/step-00001000/{checkpoint.h5, server-0.h5, ..., complete}.
/// While being written it is called step-00001000.partial.
std::filesystem::path checkpoint_folder(const std::filesystem::path& run, int64_t step);

/// Writes this server's tensors into <folder>.partial/server-<n>.h5 and makes them durable (fsync).
void write_server_file(const std::filesystem::path& folder, int64_t server, int64_t step,
                       const std::vector<TensorSlice>& slices);

/// Once every server file is durable: writes checkpoint.h5, in which every tensor stands whole under its name (HDF5
/// virtual datasets over the server files, fill value NaN, names relative), the marker `complete`, makes all durable
/// and renames the folder to its final name. `slices[s]` are the slices of server s.
void complete_checkpoint(const std::filesystem::path& folder, const CheckpointState& state,
                         const std::vector<std::vector<TensorSlice>>& slices);

/// Removes the oldest complete checkpoints beyond `keep`, and abandoned .partial folders of steps before the newest
/// complete one.
void rotate_checkpoints(const std::filesystem::path& run, int64_t keep);

/// The newest complete checkpoint of a run, if any.
std::optional<std::filesystem::path> newest_checkpoint(const std::filesystem::path& run);

/// Steps of the complete checkpoints of a run, ascending.
std::vector<int64_t> complete_checkpoints(const std::filesystem::path& run);

/// Takes step folders that are not complete, but have the name of a complete one, out of the way of the checkpoints to
/// come: each becomes <folder>.incomplete (or .incomplete-2, ...). Returns their new names.
std::vector<std::filesystem::path> set_incomplete_aside(const std::filesystem::path& run);

/// What to do about a damaged checkpoint of a run, to be put behind an error: "; older checkpoints: ..., move ... away
/// to use the newest of them", or nothing where there are none.
std::string way_around(const std::filesystem::path& folder);

/// A complete checkpoint, read only. Accepts the folder, the file checkpoint.h5 in it, or a run folder (newest one).
/// Throws InputError naming file and reason: missing server files, format version, truncated or foreign files, NaN
/// fill.
class CheckpointReader {
 public:
  explicit CheckpointReader(const std::filesystem::path& path);
  ~CheckpointReader();
  CheckpointReader(CheckpointReader&&) noexcept;

  const std::filesystem::path& folder() const;
  const CheckpointState& state() const;
  std::vector<std::string> tensors() const;  ///< paths of all tensors
  bool has(const std::string& tensor_path) const;
  /// Rows [first_row, first_row + rows) of a tensor; throws InputError when shapes do not match `columns`.
  void read(const std::string& tensor_path, int64_t first_row, int64_t rows, int64_t columns, float* values) const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

/// Path of a parameter tensor in a checkpoint.
std::string parameter_path(const BlockSpec& block, const TensorSpec& tensor);

/// All parameters of a checkpoint, block by block, for single-process commands (eval, generate).
std::vector<std::vector<float>> read_parameters(const CheckpointReader& reader, const ModelLayout& layout);

}  // namespace hat
