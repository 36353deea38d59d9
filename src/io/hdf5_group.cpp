#include <algorithm>
#include <array>
#include <limits>

#include "hat/core/error.hpp"
#include "io/hdf5_library.hpp"

namespace hat::hdf5 {

namespace {
constexpr unsigned kDeflateLevel = 1;

Space make_space(const ArrayShape& shape, bool extendible) {
  const std::array<hsize_t, 2> sizes{static_cast<hsize_t>(shape.rows), static_cast<hsize_t>(shape.columns)};
  const std::array<hsize_t, 2> limits{H5S_UNLIMITED, sizes[1]};
  return Space(H5Screate_simple(shape.is_vector ? 1 : 2, sizes.data(), extendible ? limits.data() : nullptr));
}
}  // namespace

Properties link_properties() {
  Properties properties(H5Pcreate(H5P_LINK_CREATE));
  H5Pset_create_intermediate_group(properties.get(), 1);
  H5Pset_char_encoding(properties.get(), H5T_CSET_UTF8);
  return properties;
}

std::string Group::child_name(const std::string& name) const {
  if (!name.empty() && name.front() == '/') return name;
  return name_ == "/" ? "/" + name : name_ + "/" + name;
}

Group Group::create_group(const std::string& name) {
  const LibraryLock lock;
  const Properties links = link_properties();
  Group group(H5Gcreate2(handle_.get(), name.c_str(), links.get(), H5P_DEFAULT, H5P_DEFAULT), file_, child_name(name),
              true);
  if (!group.handle_.valid()) group.fail("create the group");
  return group;
}

Array Group::create(const std::string& name, Element element, hid_t space, hid_t creation) {
  const Properties links = link_properties();
  Array array(H5Dcreate2(handle_.get(), name.c_str(), stored_type(element), space, links.get(), creation, H5P_DEFAULT),
              file_, child_name(name), true);
  if (!array.handle_.valid()) array.fail("create the array");
  array.load_shape();
  return array;
}

Array Group::create_array(const std::string& name, Element element, ArrayShape shape) {
  const LibraryLock lock;
  return create(name, element, make_space(shape, false).get(), H5P_DEFAULT);
}

Array Group::create_extendible(const std::string& name, Element element, ArrayShape shape, int64_t chunk_rows,
                               int64_t chunk_columns, Storage storage) {
  const LibraryLock lock;
  const Properties creation(H5Pcreate(H5P_DATASET_CREATE));
  const std::array<hsize_t, 2> chunk{static_cast<hsize_t>(chunk_rows),
                                     static_cast<hsize_t>(chunk_columns > 0 ? chunk_columns : shape.columns)};
  if (H5Pset_chunk(creation.get(), shape.is_vector ? 1 : 2, chunk.data()) < 0) fail("choose chunks");
  if (storage == Storage::deflate &&
      (H5Pset_shuffle(creation.get()) < 0 || H5Pset_deflate(creation.get(), kDeflateLevel) < 0)) {
    fail("choose compression");
  }
  return create(name, element, make_space(shape, true).get(), creation.get());
}

Array Group::create_virtual(const std::string& name, ArrayShape shape, const std::vector<VirtualPart>& parts) {
  const LibraryLock lock;
  const Properties creation(H5Pcreate(H5P_DATASET_CREATE));
  const float fill = std::numeric_limits<float>::quiet_NaN();
  if (H5Pset_fill_value(creation.get(), H5T_NATIVE_FLOAT, &fill) < 0) fail("choose the fill value");
  for (const VirtualPart& part : parts) {
    const Space whole = make_space(shape, false);
    const Space source = make_space({part.rows, shape.columns, shape.is_vector}, false);
    const std::array<hsize_t, 2> start{static_cast<hsize_t>(part.first_row), 0};
    const std::array<hsize_t, 2> count{static_cast<hsize_t>(part.rows), static_cast<hsize_t>(shape.columns)};
    if (H5Sselect_hyperslab(whole.get(), H5S_SELECT_SET, start.data(), nullptr, count.data(), nullptr) < 0 ||
        H5Pset_virtual(creation.get(), whole.get(), part.file.c_str(), part.object.c_str(), source.get()) < 0) {
      fail(fmt::format("map '{}' to {}", child_name(name), part.file));
    }
  }
  return create(name, Element::float32, make_space(shape, false).get(), creation.get());
}

void Group::write_strings(const std::string& name, const std::vector<std::string>& values) {
  const LibraryLock lock;
  const Type type = string_type();
  const Properties links = link_properties();
  const Space space = make_space({static_cast<int64_t>(values.size()), 1, true}, false);
  const DatasetHandle dataset(
      H5Dcreate2(handle_.get(), name.c_str(), type.get(), space.get(), links.get(), H5P_DEFAULT, H5P_DEFAULT));
  std::vector<const char*> pointers;
  pointers.reserve(values.size());
  for (const std::string& value : values) pointers.push_back(value.c_str());
  if (!dataset.valid() || (!values.empty() && H5Dwrite(dataset.get(), type.get(), H5S_ALL, H5S_ALL, H5P_DEFAULT,
                                                       static_cast<const void*>(pointers.data())) < 0)) {
    fail(fmt::format("write '{}'", name));
  }
}

std::vector<std::string> Group::read_strings(const std::string& name) const {
  const LibraryLock lock;
  if (!has(name)) throw InputError(file_, child_name(name), "is missing");
  const DatasetHandle dataset(H5Dopen2(handle_.get(), name.c_str(), H5P_DEFAULT));
  const Type stored(dataset.valid() ? H5Dget_type(dataset.get()) : H5I_INVALID_HID);
  const Space space(dataset.valid() ? H5Dget_space(dataset.get()) : H5I_INVALID_HID);
  if (!stored.valid() || !space.valid()) fail(fmt::format("read '{}'", name));
  if (H5Tis_variable_str(stored.get()) <= 0) throw InputError(file_, child_name(name), "is not a list of texts");
  std::vector<char*> pointers(static_cast<size_t>(H5Sget_simple_extent_npoints(space.get())), nullptr);
  if (pointers.empty()) return {};
  if (H5Dread(dataset.get(), stored.get(), H5S_ALL, H5S_ALL, H5P_DEFAULT, static_cast<void*>(pointers.data())) < 0) {
    fail(fmt::format("read '{}'", name));
  }
  std::vector<std::string> values;
  values.reserve(pointers.size());
  for (char* pointer : pointers) {
    values.emplace_back(pointer == nullptr ? "" : pointer);
    H5free_memory(pointer);
  }
  return values;
}

bool Group::has(const std::string& name) const {
  const LibraryLock lock;
  // H5Lexists wants every group on the way to exist.
  const size_t first = name.front() == '/' ? 1 : 0;
  for (size_t end = name.find('/', first);; end = name.find('/', end + 1)) {
    const htri_t found = H5Lexists(handle_.get(), name.substr(0, end).c_str(), H5P_DEFAULT);
    if (found < 0) fail(fmt::format("look for '{}'", name));
    if (found == 0) return false;
    if (end == std::string::npos) return true;
  }
}

Group Group::open_group(const std::string& name) const {
  const LibraryLock lock;
  if (!has(name)) throw InputError(file_, child_name(name), "is missing");
  Group group(H5Gopen2(handle_.get(), name.c_str(), H5P_DEFAULT), file_, child_name(name), writable_);
  if (!group.handle_.valid()) group.fail("open the group");
  return group;
}

Array Group::open_array(const std::string& name) const {
  const LibraryLock lock;
  if (!has(name)) throw InputError(file_, child_name(name), "is missing");
  // No chunk cache: rows are read straight from the file, only those asked for, not the chunk around them.
  const Properties access(H5Pcreate(H5P_DATASET_ACCESS));
  if (H5Pset_chunk_cache(access.get(), 0, 0, H5D_CHUNK_CACHE_W0_DEFAULT) < 0) fail("set the chunk cache");
  Array array(H5Dopen2(handle_.get(), name.c_str(), access.get()), file_, child_name(name), writable_);
  if (!array.handle_.valid()) array.fail("open the array");
  array.load_shape();
  return array;
}

std::vector<std::string> Group::names() const {
  const LibraryLock lock;
  H5G_info_t info;
  if (H5Gget_info(handle_.get(), &info) < 0) fail("list the group");
  std::vector<std::string> names;
  names.reserve(info.nlinks);
  for (hsize_t i = 0; i < info.nlinks; ++i) {
    std::array<char, 1024> name{};
    if (H5Lget_name_by_idx(handle_.get(), ".", H5_INDEX_NAME, H5_ITER_INC, i, name.data(), name.size(), H5P_DEFAULT) <
        0) {
      fail("list the group");
    }
    names.emplace_back(name.data());
  }
  std::sort(names.begin(), names.end());
  return names;
}

bool Group::is_group(const std::string& child) const {
  const LibraryLock lock;
  const Handle<H5Oclose> object(H5Oopen(handle_.get(), child.c_str(), H5P_DEFAULT));
  if (!object.valid()) fail(fmt::format("open '{}'", child));
  return H5Iget_type(object.get()) == H5I_GROUP;
}

}  // namespace hat::hdf5
