#include <array>

#include "hat/core/error.hpp"
#include "io/hdf5_library.hpp"

namespace hat::hdf5 {

namespace {
constexpr size_t kColumnBytes = 8;

Type row_type(const std::vector<TableColumn>& columns, hid_t (*type_of)(Element)) {
  Type type(H5Tcreate(H5T_COMPOUND, columns.size() * kColumnBytes));
  for (size_t c = 0; c < columns.size(); ++c) {
    if (element_size(columns[c].element) != kColumnBytes ||
        H5Tinsert(type.get(), columns[c].name.c_str(), c * kColumnBytes, type_of(columns[c].element)) < 0) {
      throw Error(fmt::format("column '{}' of a table: {}", columns[c].name, pending_error()));
    }
  }
  return type;
}
}  // namespace

Table Group::create_table(const std::string& name, const std::vector<TableColumn>& columns, int64_t chunk_rows) {
  const LibraryLock lock;
  const Type stored = row_type(columns, stored_type);
  const Properties creation(H5Pcreate(H5P_DATASET_CREATE));
  const hsize_t none = 0;
  const hsize_t unlimited = H5S_UNLIMITED;
  const auto chunk = static_cast<hsize_t>(chunk_rows);
  const Space space(H5Screate_simple(1, &none, &unlimited));
  const Properties links = link_properties();
  if (H5Pset_chunk(creation.get(), 1, &chunk) < 0) fail("choose chunks");
  Table table(
      H5Dcreate2(handle_.get(), name.c_str(), stored.get(), space.get(), links.get(), creation.get(), H5P_DEFAULT),
      file_, child_name(name), true);
  if (!table.handle_.valid()) table.fail("create the table");
  table.type_ = row_type(columns, memory_type);
  return table;
}

Table Group::open_table(const std::string& name, const std::vector<TableColumn>& columns) const {
  const LibraryLock lock;
  if (!has(name)) throw InputError(file_, child_name(name), "is missing");
  Table table(H5Dopen2(handle_.get(), name.c_str(), H5P_DEFAULT), file_, child_name(name), writable_);
  if (!table.handle_.valid()) table.fail("open the table");
  table.load_shape(columns);
  return table;
}

void Table::load_shape(const std::vector<TableColumn>& columns) {
  const Space space(H5Dget_space(handle_.get()));
  const Type stored(H5Dget_type(handle_.get()));
  if (!space.valid() || !stored.valid()) fail("read the shape");
  hsize_t rows = 0;
  if (H5Sget_simple_extent_ndims(space.get()) != 1 || H5Sget_simple_extent_dims(space.get(), &rows, nullptr) < 0 ||
      H5Tequal(stored.get(), row_type(columns, stored_type).get()) <= 0) {
    throw InputError(file_, name_, "is not a table of the columns that it should have");
  }
  rows_ = static_cast<int64_t>(rows);
  type_ = row_type(columns, memory_type);
}

void Table::append(int64_t rows, const void* words) {
  if (rows == 0) return;
  const LibraryLock lock;
  const auto first = static_cast<hsize_t>(rows_);
  const auto count = static_cast<hsize_t>(rows);
  const hsize_t total = first + count;
  if (H5Dset_extent(handle_.get(), &total) < 0) fail("grow");
  const Space stored(H5Dget_space(handle_.get()));
  const Space memory(H5Screate_simple(1, &count, nullptr));
  if (!stored.valid() || !memory.valid() ||
      H5Sselect_hyperslab(stored.get(), H5S_SELECT_SET, &first, nullptr, &count, nullptr) < 0 ||
      H5Dwrite(handle_.get(), type_.get(), memory.get(), stored.get(), H5P_DEFAULT, words) < 0) {
    fail("write");
  }
  rows_ += rows;
}

void Table::read(int64_t first_row, int64_t rows, void* words) const {
  if (first_row < 0 || rows < 0 || first_row > rows_ - rows) {
    throw InputError(file_, name_,
                     fmt::format("has {} rows, rows {} to {} are needed", rows_, first_row, first_row + rows - 1));
  }
  if (rows == 0) return;
  const LibraryLock lock;
  const auto first = static_cast<hsize_t>(first_row);
  const auto count = static_cast<hsize_t>(rows);
  const Space stored(H5Dget_space(handle_.get()));
  const Space memory(H5Screate_simple(1, &count, nullptr));
  if (!stored.valid() || !memory.valid() ||
      H5Sselect_hyperslab(stored.get(), H5S_SELECT_SET, &first, nullptr, &count, nullptr) < 0 ||
      H5Dread(handle_.get(), type_.get(), memory.get(), stored.get(), H5P_DEFAULT, words) < 0) {
    fail(fmt::format("read rows {} to {}", first_row, first_row + rows - 1));
  }
}

}  // namespace hat::hdf5
