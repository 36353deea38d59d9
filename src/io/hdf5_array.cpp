#include <array>

#include "hat/core/error.hpp"
#include "io/hdf5_library.hpp"

namespace hat::hdf5 {

namespace {
/// Selects rows [first_row, first_row + rows) of a (n) or (n, columns) space.
herr_t select_rows(hid_t space, bool is_vector, int64_t first_row, int64_t rows, int64_t columns) {
  const std::array<hsize_t, 2> start{static_cast<hsize_t>(first_row), 0};
  const std::array<hsize_t, 2> count{static_cast<hsize_t>(rows), static_cast<hsize_t>(columns)};
  if (H5Sget_simple_extent_ndims(space) != (is_vector ? 1 : 2)) return -1;
  return H5Sselect_hyperslab(space, H5S_SELECT_SET, start.data(), nullptr, count.data(), nullptr);
}
}  // namespace

void Array::load_shape() {
  const Space space(H5Dget_space(handle_.get()));
  const Type type(H5Dget_type(handle_.get()));
  if (!space.valid() || !type.valid()) fail("read the shape");
  std::array<hsize_t, 2> sizes{0, 1};
  const int dimensions = H5Sget_simple_extent_ndims(space.get());
  if (dimensions != 1 && dimensions != 2) throw InputError(file_, name_, "is not an array of one or two dimensions");
  if (H5Sget_simple_extent_dims(space.get(), sizes.data(), nullptr) < 0) fail("read the shape");
  rows_ = static_cast<int64_t>(sizes[0]);
  columns_ = static_cast<int64_t>(sizes[1]);
  is_vector_ = dimensions == 1;
  for (const Element candidate : {Element::uint8, Element::uint16, Element::uint32, Element::uint64, Element::int32,
                                  Element::int64, Element::float32, Element::float64}) {
    if (H5Tequal(type.get(), stored_type(candidate)) > 0) {
      element_ = candidate;
      return;
    }
  }
  throw InputError(file_, name_, "has elements of a type that HAT does not use");
}

void Array::resize(int64_t rows) {
  const LibraryLock lock;
  const std::array<hsize_t, 2> sizes{static_cast<hsize_t>(rows), static_cast<hsize_t>(columns_)};
  if (H5Dset_extent(handle_.get(), sizes.data()) < 0) fail("grow");
  rows_ = rows;
}

void Array::read_raw(int64_t first_row, int64_t rows, Element element, void* values) const {
  if (first_row < 0 || rows < 0 || first_row > rows_ - rows) {
    throw InputError(file_, name_,
                     fmt::format("has {} rows, rows {} to {} are needed", rows_, first_row, first_row + rows - 1));
  }
  if (rows == 0 || columns_ == 0) return;
  const LibraryLock lock;
  const std::array<hsize_t, 2> count{static_cast<hsize_t>(rows), static_cast<hsize_t>(columns_)};
  const Space stored(H5Dget_space(handle_.get()));
  const Space memory(H5Screate_simple(is_vector_ ? 1 : 2, count.data(), nullptr));
  if (!stored.valid() || !memory.valid() || select_rows(stored.get(), is_vector_, first_row, rows, columns_) < 0 ||
      H5Dread(handle_.get(), memory_type(element), memory.get(), stored.get(), H5P_DEFAULT, values) < 0) {
    fail(fmt::format("read rows {} to {}", first_row, first_row + rows - 1));
  }
}

void Array::write_raw(int64_t first_row, int64_t rows, Element element, const void* values) {
  if (first_row < 0 || rows < 0 || first_row > rows_ - rows) {
    throw Error(fmt::format("{}: {}: rows {} to {} written to an array of {} rows", file_, name_, first_row,
                            first_row + rows - 1, rows_));
  }
  if (rows == 0 || columns_ == 0) return;
  const LibraryLock lock;
  const std::array<hsize_t, 2> count{static_cast<hsize_t>(rows), static_cast<hsize_t>(columns_)};
  const Space stored(H5Dget_space(handle_.get()));
  const Space memory(H5Screate_simple(is_vector_ ? 1 : 2, count.data(), nullptr));
  if (!stored.valid() || !memory.valid() || select_rows(stored.get(), is_vector_, first_row, rows, columns_) < 0 ||
      H5Dwrite(handle_.get(), memory_type(element), memory.get(), stored.get(), H5P_DEFAULT, values) < 0) {
    fail("write");
  }
}

}  // namespace hat::hdf5
