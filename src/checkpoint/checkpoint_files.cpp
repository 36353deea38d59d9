#include "checkpoint/checkpoint_files.hpp"

#include <algorithm>
#include <fstream>
#include <iterator>

#include "hat/core/error.hpp"
#include "hat/io/checksum.hpp"

namespace hat {

namespace fs = std::filesystem;

namespace {
void check_format(const hdf5::Group& root, const std::string& format) {
  if (!root.has_attribute("format") || root.text("format") != format) {
    throw InputError(root.file(), "", fmt::format("is an HDF5 file, but not a '{}' (attribute 'format')", format));
  }
  if (const auto version = root.number<int64_t>("format_version"); version != kCheckpointVersion) {
    throw InputError(root.file(), "attribute 'format_version'",
                     fmt::format("is {}, this build reads {}", version, kCheckpointVersion));
  }
}

std::string read_whole(const fs::path& path) {
  if (fs::exists(path) && !fs::is_regular_file(path)) throw InputError(path.string(), "", "is no file");
  std::ifstream file(path, std::ios::binary);
  if (!file) throw InputError(path.string(), "", "cannot be read");
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

void store_model(hdf5::Group group, const ModelConfig& model) {
  group.set_text("family", model.family == ModelFamily::llama ? "llama" : "gpt2");
  group.set_number("width", model.width);
  group.set_number("layers", model.layers);
  group.set_number("heads", model.heads);
  group.set_number("kv_heads", model.kv_heads);
  group.set_number("mlp_width", model.mlp_width);
  group.set_number("max_length", model.max_length);
  group.set_number("vocabulary", model.vocabulary);
  group.set_number<uint8_t>("tied", model.tied ? 1 : 0);
  group.set_number("norm_epsilon", model.norm_epsilon);
  group.set_number("rope_base", model.rope_base);
}

ModelConfig load_model(const hdf5::Group& group) {
  ModelConfig model;
  const std::string family = group.text("family");
  if (family != "llama" && family != "gpt2") {
    throw InputError(group.file(), "/model attribute 'family'", fmt::format("'{}' is not known to this build", family));
  }
  model.family = family == "llama" ? ModelFamily::llama : ModelFamily::gpt2;
  model.width = group.number<int64_t>("width");
  model.layers = group.number<int64_t>("layers");
  model.heads = group.number<int64_t>("heads");
  model.kv_heads = group.number<int64_t>("kv_heads");
  model.mlp_width = group.number<int64_t>("mlp_width");
  model.max_length = group.number<int64_t>("max_length");
  model.vocabulary = group.number<int64_t>("vocabulary");
  model.tied = group.number<uint8_t>("tied") != 0;
  model.norm_epsilon = group.number<double>("norm_epsilon");
  model.rope_base = group.number<double>("rope_base");
  return model;
}

/// One column of the table of slices as a vector.
template <class T, class Member>
std::vector<T> column(const std::vector<SliceEntry>& slices, Member SliceEntry::*member) {
  std::vector<T> values;
  values.reserve(slices.size());
  for (const SliceEntry& entry : slices) values.push_back(static_cast<T>(entry.*member));
  return values;
}

void store_slices(hdf5::Group group, const std::vector<SliceEntry>& slices) {
  group.write_strings("tensor", column<std::string>(slices, &SliceEntry::tensor));
  group.write_vector("total_rows", column<int64_t>(slices, &SliceEntry::total_rows));
  group.write_vector("columns", column<int64_t>(slices, &SliceEntry::columns));
  group.write_vector("is_vector", column<uint8_t>(slices, &SliceEntry::is_vector));
  group.write_vector("server", column<int64_t>(slices, &SliceEntry::server));
  group.write_strings("object", column<std::string>(slices, &SliceEntry::object));
  group.write_vector("first_row", column<int64_t>(slices, &SliceEntry::first_row));
  group.write_vector("rows", column<int64_t>(slices, &SliceEntry::rows));
}

std::vector<SliceEntry> load_slices(const hdf5::Group& group) {
  const auto tensors = group.read_strings("tensor");
  const auto objects = group.read_strings("object");
  const auto total_rows = group.read_vector<int64_t>("total_rows");
  const auto columns = group.read_vector<int64_t>("columns");
  const auto is_vector = group.read_vector<uint8_t>("is_vector");
  const auto servers = group.read_vector<int64_t>("server");
  const auto first_rows = group.read_vector<int64_t>("first_row");
  const auto rows = group.read_vector<int64_t>("rows");
  for (const size_t size : {objects.size(), total_rows.size(), columns.size(), is_vector.size(), servers.size(),
                            first_rows.size(), rows.size()}) {
    if (size != tensors.size()) throw InputError(group.file(), "/slices", "the columns of the table differ in length");
  }
  std::vector<SliceEntry> slices;
  slices.reserve(tensors.size());
  for (size_t i = 0; i < tensors.size(); ++i) {
    slices.push_back(
        {tensors[i], total_rows[i], columns[i], is_vector[i] != 0, servers[i], objects[i], first_rows[i], rows[i]});
  }
  return slices;
}
}  // namespace

std::string server_file_name(int64_t server) { return fmt::format("server-{}.h5", server); }

fs::path partial_folder(const fs::path& folder) { return folder.string() + ".partial"; }

std::string slice_object(const std::vector<TensorSlice>& slices, size_t i) {
  const auto same = std::count_if(slices.begin(), slices.end(), [&](const TensorSlice& slice) {
    return slice.rows > 0 && slice.path == slices[i].path;
  });
  return same > 1 ? fmt::format("{}@{}", slices[i].path, slices[i].first_row) : slices[i].path;
}

std::string coverage_problem(const std::vector<SliceEntry>& slices) {
  for (size_t i = 0; i < slices.size(); ++i) {
    const SliceEntry& entry = slices[i];
    const bool first = i == 0 || slices[i - 1].tensor != entry.tensor;
    const bool last = i + 1 == slices.size() || slices[i + 1].tensor != entry.tensor;
    const int64_t expected = first ? 0 : slices[i - 1].first_row + slices[i - 1].rows;
    if (entry.first_row < expected) return fmt::format("{}: row {} is there twice", entry.tensor, entry.first_row);
    if (entry.first_row > expected) return fmt::format("{}: row {} is in no slice", entry.tensor, expected);
    if (!first && (slices[i - 1].total_rows != entry.total_rows || slices[i - 1].columns != entry.columns ||
                   slices[i - 1].is_vector != entry.is_vector)) {
      return fmt::format("{}: its slices disagree about its shape", entry.tensor);
    }
    const int64_t end = entry.first_row + entry.rows;
    if (end > entry.total_rows)
      return fmt::format("{}: a slice goes beyond its {} rows", entry.tensor, entry.total_rows);
    if (last && end < entry.total_rows) return fmt::format("{}: row {} is in no slice", entry.tensor, end);
  }
  return "";
}

void store_master(hdf5::File& file, const Master& master) {
  const CheckpointState& state = master.state;
  hdf5::Group root = file.root();
  root.set_text("format", kMasterFormat);
  root.set_number("format_version", kCheckpointVersion);
  root.set_number("servers", master.servers);
  root.set_text("deck", state.deck);
  hdf5::Group progress = root.create_group("state");
  progress.set_number("step", state.step);
  progress.set_number("epoch", state.epoch);
  progress.set_number("tokens", state.tokens);
  progress.set_number("seed", state.seed);
  progress.write_vector("recent_norms", state.recent_norms);
  hdf5::Group blocks = root.create_group("blocks");
  blocks.write_strings("names", state.block_names);
  blocks.write_vector("versions", state.block_versions);
  hdf5::Group data = root.create_group("dataset");
  data.set_text("path", state.dataset_path);
  data.set_text("identity", state.dataset_identity);
  data.set_text("tokenizer", state.tokenizer);
  store_model(root.create_group("model"), state.model);
  store_slices(root.create_group("slices"), master.slices);
}

Master load_master(const fs::path& path) {
  const hdf5::File file = hdf5::File::open(path);
  const hdf5::Group root = file.root();
  check_format(root, kMasterFormat);
  Master master;
  CheckpointState& state = master.state;
  master.servers = root.number<int64_t>("servers");
  state.deck = root.text("deck");
  const hdf5::Group progress = root.open_group("state");
  state.step = progress.number<int64_t>("step");
  state.epoch = progress.number<int64_t>("epoch");
  state.tokens = progress.number<int64_t>("tokens");
  state.seed = progress.number<uint64_t>("seed");
  state.recent_norms = progress.read_vector<double>("recent_norms");
  const hdf5::Group blocks = root.open_group("blocks");
  state.block_names = blocks.read_strings("names");
  state.block_versions = blocks.read_vector<int64_t>("versions");
  const hdf5::Group data = root.open_group("dataset");
  state.dataset_path = data.text("path");
  state.dataset_identity = data.text("identity");
  state.tokenizer = data.text("tokenizer");
  state.model = load_model(root.open_group("model"));
  master.slices = load_slices(root.open_group("slices"));
  if (const std::string problem = coverage_problem(master.slices); !problem.empty()) {
    throw InputError(path.string(), "/slices", problem);
  }
  for (const SliceEntry& entry : master.slices) {
    if (entry.server < 0 || entry.server >= master.servers) {
      throw InputError(path.string(), "/slices",
                       fmt::format("{} lies on server {} of {}", entry.tensor, entry.server, master.servers));
    }
  }
  return master;
}

std::string marker_text(const fs::path& master_path, int64_t step, int64_t servers) {
  Checksum checksum;
  const std::string content = read_whole(master_path);
  checksum.add(content.data(), content.size());
  return fmt::format("{} {}\nstep {}\nservers {}\nchecksum of {} {}\n", kMasterFormat, kCheckpointVersion, step,
                     servers, kMasterName, checksum_text(checksum.value()));
}

void check_marker(const fs::path& folder, const Master& master) {
  const fs::path marker = folder / kMarkerName;
  if (!fs::exists(marker)) throw InputError(marker.string(), "", "is missing: this checkpoint was not completed");
  if (read_whole(marker) != marker_text(folder / kMasterName, master.state.step, master.servers)) {
    throw InputError(marker.string(), "", fmt::format("does not fit {}: one of the two is damaged", kMasterName));
  }
}

hdf5::File open_server_file(const fs::path& folder, int64_t server, int64_t step) {
  hdf5::File file = hdf5::File::open(folder / server_file_name(server));
  const hdf5::Group root = file.root();
  check_format(root, kServerFormat);
  if (const auto stored = root.number<int64_t>("server"); stored != server) {
    throw InputError(file.path(), "attribute 'server'", fmt::format("is {}, not {}", stored, server));
  }
  if (const auto stored = root.number<int64_t>("step"); stored != step) {
    throw InputError(file.path(), "attribute 'step'", fmt::format("is {}, the checkpoint is of step {}", stored, step));
  }
  return file;
}

hdf5::Array open_slice(const hdf5::File& file, const SliceEntry& entry) {
  hdf5::Array array = file.root().open_array(entry.object);
  if (array.rows() != entry.rows || array.columns() != entry.columns || array.is_vector() != entry.is_vector) {
    throw InputError(file.path(), entry.object,
                     fmt::format("has the shape ({}, {}), {} says ({}, {})", array.rows(), array.columns(), kMasterName,
                                 entry.rows, entry.columns));
  }
  return array;
}

}  // namespace hat
