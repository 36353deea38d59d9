#include <algorithm>

#include "checkpoint/checkpoint_files.hpp"
#include "hat/core/error.hpp"
#include "hat/io/checksum.hpp"

namespace hat {

namespace fs = std::filesystem;

struct CheckpointReader::Impl {
  fs::path folder;
  Master master;
  std::vector<hdf5::File> servers;

  void open() {
    if (!fs::exists(folder / kMarkerName)) {
      throw InputError((folder / kMarkerName).string(), "", "is missing: this checkpoint was not completed");
    }
    master = load_master(folder / kMasterName);
    check_marker(folder, master);
    for (int64_t server = 0; server < master.servers; ++server) {
      servers.push_back(open_server_file(folder, server, master.state.step));
    }
    for (const SliceEntry& entry : master.slices) open_slice(servers[static_cast<size_t>(entry.server)], entry);
  }

  /// The slices of one tensor, by row; throws when there are none.
  std::span<const SliceEntry> slices_of(const std::string& tensor) const {
    SliceEntry wanted;
    wanted.tensor = tensor;
    const auto [begin, end] =
        std::equal_range(master.slices.begin(), master.slices.end(), wanted,
                         [](const SliceEntry& a, const SliceEntry& b) { return a.tensor < b.tensor; });
    if (begin == end) throw InputError((folder / kMasterName).string(), tensor, "is missing");
    return {begin, end};
  }

  /// Rows [first, first + rows) of one slice, counted inside the slice.
  void read_slice(const SliceEntry& entry, int64_t first, int64_t rows, float* values) const {
    const hdf5::Array array = open_slice(servers[static_cast<size_t>(entry.server)], entry);
    array.read(first, rows, values);
    if (rows != entry.rows) return;  // the checksum is over the whole slice
    Checksum checksum;
    checksum.add(values, static_cast<size_t>(rows * entry.columns) * sizeof(float));
    if (checksum_text(checksum.value()) != array.text("checksum")) {
      throw InputError(array.file(), array.name(),
                       "the checksum does not match: the values are damaged" + way_around(folder));
    }
  }
};

CheckpointReader::CheckpointReader(const fs::path& path) : impl_(std::make_unique<Impl>()) {
  impl_->folder = resolve_checkpoint(path);
  try {
    impl_->open();
  } catch (const InputError& error) {
    throw InputError(error.what() + way_around(impl_->folder));
  }
}
CheckpointReader::~CheckpointReader() = default;
CheckpointReader::CheckpointReader(CheckpointReader&&) noexcept = default;

const fs::path& CheckpointReader::folder() const { return impl_->folder; }
const CheckpointState& CheckpointReader::state() const { return impl_->master.state; }

std::vector<std::string> CheckpointReader::tensors() const {
  std::vector<std::string> names;
  for (const SliceEntry& entry : impl_->master.slices) {
    if (names.empty() || names.back() != entry.tensor) names.push_back(entry.tensor);
  }
  return names;
}

bool CheckpointReader::has(const std::string& tensor_path) const {
  return std::any_of(impl_->master.slices.begin(), impl_->master.slices.end(),
                     [&](const SliceEntry& entry) { return entry.tensor == tensor_path; });
}

void CheckpointReader::read(const std::string& tensor_path, int64_t first_row, int64_t rows, int64_t columns,
                            float* values) const {
  const auto slices = impl_->slices_of(tensor_path);
  const SliceEntry& shape = slices.front();
  if (shape.columns != columns || first_row < 0 || rows < 0 || first_row > shape.total_rows - rows) {
    throw InputError((impl_->folder / kMasterName).string(), tensor_path,
                     fmt::format("has the shape ({}, {}), rows {} to {} of {} columns are needed", shape.total_rows,
                                 shape.columns, first_row, first_row + rows - 1, columns));
  }
  for (const SliceEntry& entry : slices) {
    const int64_t begin = std::max(first_row, entry.first_row);
    const int64_t end = std::min(first_row + rows, entry.first_row + entry.rows);
    if (begin >= end) continue;
    impl_->read_slice(entry, begin - entry.first_row, end - begin, values + (begin - first_row) * columns);
  }
}

std::string parameter_path(const BlockSpec& block, const TensorSpec& tensor) {
  return "/parameters/" + block.name + "." + tensor.name;
}

std::vector<std::vector<float>> read_parameters(const CheckpointReader& reader, const ModelLayout& layout) {
  std::vector<std::vector<float>> parameters;
  parameters.reserve(layout.blocks.size());
  for (const BlockSpec& block : layout.blocks) {
    auto& values = parameters.emplace_back(static_cast<size_t>(block.size));
    for (const TensorSpec& tensor : block.tensors) {
      reader.read(parameter_path(block, tensor), 0, tensor.rows, tensor.columns, values.data() + tensor.offset);
    }
  }
  return parameters;
}

}  // namespace hat
