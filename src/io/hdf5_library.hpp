#pragma once
#include <hdf5.h>

#include <functional>
#include <string>

#include "hat/io/hdf5.hpp"

namespace hat::hdf5 {

using Space = Handle<H5Sclose>;
using Type = Handle<H5Tclose>;
using Properties = Handle<H5Pclose>;
using AttributeHandle = Handle<H5Aclose>;
using DatasetHandle = Handle<H5Dclose>;

/// The innermost text of HDF5's error stack on one line; the operating system's words if it was its error. Clears it.
std::string pending_error();

/// `open(access)`, a function of HDF5 that opens or makes a file. File systems that refuse locks are no reason to stop:
/// then it is called once more, and from now on, without any. (HDF5_USE_FILE_LOCKING, if set, decides instead.)
hid_t open_file(const Properties& access, const std::function<hid_t(hid_t access)>& open);

hid_t stored_type(Element element);  ///< little-endian
hid_t memory_type(Element element);
/// Of new objects: missing groups in between are made, names are UTF-8.
Properties link_properties();
/// UTF-8 texts of at most `size` bytes, padded with zeros. (Those of variable length lie in a heap without checksums,
/// of which HDF5 believes what it reads: a bit that is flipped there may crash the reader.)
Type text_type(size_t size);

}  // namespace hat::hdf5
