#pragma once
#include <filesystem>
#include <string>
#include <vector>

#include "hat/checkpoint/checkpoint.hpp"
#include "hat/io/hdf5.hpp"

namespace hat {

// The files of a checkpoint folder and what stands in them; src/checkpoint/FORMAT.md describes the layout.
inline constexpr const char* kMasterName = "checkpoint.h5";
inline constexpr const char* kMarkerName = "complete";
inline constexpr const char* kMasterFormat = "hat-checkpoint";
inline constexpr const char* kServerFormat = "hat-checkpoint-server";
inline constexpr int64_t kCheckpointVersion = 1;

std::string server_file_name(int64_t server);
std::filesystem::path partial_folder(const std::filesystem::path& folder);

/// Where one slice of a tensor is: `object` in the file of `server`.
struct SliceEntry {
  std::string tensor;
  int64_t total_rows = 0;
  int64_t columns = 1;
  bool is_vector = false;
  int64_t server = 0;
  std::string object;
  int64_t first_row = 0;
  int64_t rows = 0;
};

/// What the master file says: the state, and the table of slices sorted by tensor and row. In a sound one the slices of
/// every tensor cover its rows exactly once.
struct Master {
  CheckpointState state;
  int64_t servers = 0;
  std::vector<SliceEntry> slices;
};

/// Name of slice `i` inside its server's file: the tensor's path, with "@<first row>" when the server has several
/// slices of that tensor.
std::string slice_object(const std::vector<TensorSlice>& slices, size_t i);

/// Why the sorted slices do not cover their tensors exactly once; empty when they do.
std::string coverage_problem(const std::vector<SliceEntry>& slices);

void store_master(hdf5::File& file, const Master& master);
/// Throws InputError naming what is missing or wrong.
Master load_master(const std::filesystem::path& path);

/// Content of the marker `complete`. It holds the checksum of the master file, so that the pair is whole or not at all.
std::string marker_text(const std::filesystem::path& master_path, int64_t step, int64_t servers);
/// Throws InputError unless the folder's marker is there and fits the master file.
void check_marker(const std::filesystem::path& folder, const Master& master);

/// Opens the file of one server and checks format, version, server and step.
hdf5::File open_server_file(const std::filesystem::path& folder, int64_t server, int64_t step);
/// Opens the array of a slice and checks its shape.
hdf5::Array open_slice(const hdf5::File& file, const SliceEntry& entry);

/// The checkpoint folder meant by a path to it, to its checkpoint.h5, or to a run folder (its newest complete one).
std::filesystem::path resolve_checkpoint(const std::filesystem::path& path);

}  // namespace hat
