#include <algorithm>
#include <set>
#include <tuple>

#include "checkpoint/checkpoint_files.hpp"
#include "hat/core/error.hpp"
#include "hat/io/checksum.hpp"
#include "hat/io/durable.hpp"

namespace hat {

namespace fs = std::filesystem;

namespace {
void write_slice(hdf5::Group& root, const TensorSlice& slice, const std::string& object) {
  if (slice.data == nullptr) throw Error(fmt::format("{}: {}: there are no values to write", root.file(), slice.path));
  if (slice.is_vector && slice.columns != 1) throw Error(fmt::format("{}: a vector has one column", slice.path));
  hdf5::Array array = root.create_array(object, hdf5::Element::float32, {slice.rows, slice.columns, slice.is_vector});
  array.write(0, slice.rows, slice.data);
  Checksum checksum;
  checksum.add(slice.data, static_cast<size_t>(slice.rows * slice.columns) * sizeof(float));
  array.set_text("checksum", checksum_text(checksum.value()));
  array.set_number("first_row", slice.first_row);
  array.set_number("total_rows", slice.total_rows);
}

/// The table of all slices, sorted by tensor and row.
std::vector<SliceEntry> make_table(const std::vector<std::vector<TensorSlice>>& slices) {
  std::vector<SliceEntry> table;
  for (size_t server = 0; server < slices.size(); ++server) {
    for (size_t i = 0; i < slices[server].size(); ++i) {
      const TensorSlice& slice = slices[server][i];
      if (slice.rows == 0) continue;
      table.push_back({slice.path, slice.total_rows, slice.columns, slice.is_vector, static_cast<int64_t>(server),
                       slice_object(slices[server], i), slice.first_row, slice.rows});
    }
  }
  std::sort(table.begin(), table.end(), [](const SliceEntry& a, const SliceEntry& b) {
    return std::tie(a.tensor, a.first_row) < std::tie(b.tensor, b.first_row);
  });
  if (const std::string problem = coverage_problem(table); !problem.empty()) {
    throw Error(fmt::format("checkpoint: {}", problem));
  }
  return table;
}

/// Every tensor whole under its own name, for those who open the master file with h5py or h5dump.
void write_virtual_tensors(hdf5::Group& root, const std::vector<SliceEntry>& table) {
  for (size_t begin = 0; begin < table.size();) {
    std::vector<hdf5::VirtualPart> parts;
    size_t end = begin;
    for (; end < table.size() && table[end].tensor == table[begin].tensor; ++end) {
      parts.push_back({server_file_name(table[end].server), table[end].object, table[end].first_row, table[end].rows});
    }
    root.create_virtual(table[begin].tensor, {table[begin].total_rows, table[begin].columns, table[begin].is_vector},
                        parts);
    begin = end;
  }
}

/// Files of an earlier attempt at the same step, by more servers, must not come along.
void remove_strangers(const fs::path& partial, size_t servers) {
  std::set<std::string> expected;
  for (size_t server = 0; server < servers; ++server) expected.insert(server_file_name(static_cast<int64_t>(server)));
  std::vector<fs::path> strangers;
  for (const auto& entry : fs::directory_iterator(partial)) {
    if (!expected.contains(entry.path().filename().string())) strangers.push_back(entry.path());
  }
  for (const fs::path& stranger : strangers) fs::remove_all(stranger);
}
}  // namespace

void write_server_file(const fs::path& folder, int64_t server, int64_t step, const std::vector<TensorSlice>& slices) {
  const FaultEffect effect = fault_point(FaultPoint::checkpoint);
  const fs::path partial = partial_folder(folder);
  std::error_code error;
  fs::create_directories(partial, error);
  if (error) throw Error(fmt::format("{}: cannot create the folder: {}", partial.string(), error.message()));
  Draft draft(partial / server_file_name(server));
  hdf5::File file = hdf5::File::create(draft.path());
  {
    hdf5::Group root = file.root();
    root.set_text("format", kServerFormat);
    root.set_number("format_version", kCheckpointVersion);
    root.set_number("server", server);
    root.set_number("step", step);
    for (size_t i = 0; i < slices.size(); ++i) {
      if (slices[i].rows > 0) write_slice(root, slices[i], slice_object(slices, i));
    }
  }
  file.close();
  spoil_write(effect, draft.path());
  draft.rename();
}

void complete_checkpoint(const fs::path& folder, const CheckpointState& state,
                         const std::vector<std::vector<TensorSlice>>& slices) {
  const FaultEffect effect = fault_point(FaultPoint::complete);
  const Master master{state, static_cast<int64_t>(slices.size()), make_table(slices)};
  const fs::path partial = partial_folder(folder);
  if (fs::exists(folder)) throw Error(fmt::format("{}: exists already, nothing is overwritten", folder.string()));
  for (int64_t server = 0; server < master.servers; ++server) open_server_file(partial, server, state.step);
  remove_strangers(partial, slices.size());

  const fs::path master_path = partial / kMasterName;
  hdf5::File file = hdf5::File::create(master_path);
  store_master(file, master);
  {
    hdf5::Group root = file.root();
    write_virtual_tensors(root, master.slices);
  }
  file.close();
  spoil_write(effect, master_path);
  // The order matters: the marker says that all before it is durable, the rename makes it count.
  fsync_folder(partial);
  write_file_durably(partial / kMarkerName, marker_text(master_path, state.step, master.servers));
  rename_durably(partial, folder);
}

}  // namespace hat
