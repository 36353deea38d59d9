#include <algorithm>
#include <vector>

#include "hat/core/error.hpp"
#include "io/hdf5_library.hpp"

namespace hat::hdf5 {

void Object::fail(const std::string& action) const {
  const std::string reason = fmt::format("cannot {}: {}", action, pending_error());
  if (writable_) throw Error(fmt::format("{}: {}: {}", file_, name_, reason));
  throw InputError(file_, name_, reason);
}

void Object::fail_attribute(const std::string& key, const std::string& reason) const {
  const std::string where =
      name_ == "/" ? fmt::format("attribute '{}'", key) : fmt::format("{} attribute '{}'", name_, key);
  throw InputError(file_, where, reason);
}

bool Object::has_attribute(const std::string& key) const {
  const LibraryLock lock;
  const htri_t found = H5Aexists(handle_.get(), key.c_str());
  if (found < 0) fail(fmt::format("look for attribute '{}'", key));
  return found > 0;
}

void Object::set_text(const std::string& key, const std::string& value) {
  const LibraryLock lock;
  const Type type = text_type(value.size());
  const Space space(H5Screate(H5S_SCALAR));
  const AttributeHandle attribute(
      H5Acreate2(handle_.get(), key.c_str(), type.get(), space.get(), H5P_DEFAULT, H5P_DEFAULT));
  if (!attribute.valid() || H5Awrite(attribute.get(), type.get(), value.c_str()) < 0) {
    fail(fmt::format("write attribute '{}'", key));
  }
}

std::string Object::text(const std::string& key) const {
  const LibraryLock lock;
  if (!has_attribute(key)) fail_attribute(key, "is missing");
  const AttributeHandle attribute(H5Aopen(handle_.get(), key.c_str(), H5P_DEFAULT));
  const Type stored(attribute.valid() ? H5Aget_type(attribute.get()) : H5I_INVALID_HID);
  if (!stored.valid()) fail(fmt::format("read attribute '{}'", key));
  const Space space(H5Aget_space(attribute.get()));
  if (H5Tget_class(stored.get()) != H5T_STRING || H5Sget_simple_extent_npoints(space.get()) != 1) {
    fail_attribute(key, "is not a text");
  }
  if (H5Tis_variable_str(stored.get()) > 0) {  // as earlier versions and other programs write it
    char* data = nullptr;
    if (H5Aread(attribute.get(), stored.get(), &data) < 0) fail(fmt::format("read attribute '{}'", key));
    std::string value = data == nullptr ? "" : data;
    H5free_memory(data);
    return value;
  }
  std::string value(H5Tget_size(stored.get()), '\0');
  if (H5Aread(attribute.get(), stored.get(), value.data()) < 0) fail(fmt::format("read attribute '{}'", key));
  value.resize(std::min(value.find('\0'), value.size()));  // padding
  return value;
}

void Object::set_raw(const std::string& key, Element element, const void* value) {
  const LibraryLock lock;
  const Space space(H5Screate(H5S_SCALAR));
  const AttributeHandle attribute(
      H5Acreate2(handle_.get(), key.c_str(), stored_type(element), space.get(), H5P_DEFAULT, H5P_DEFAULT));
  if (!attribute.valid() || H5Awrite(attribute.get(), memory_type(element), value) < 0) {
    fail(fmt::format("write attribute '{}'", key));
  }
}

void Object::get_raw(const std::string& key, Element element, void* value) const {
  const LibraryLock lock;
  if (!has_attribute(key)) fail_attribute(key, "is missing");
  const AttributeHandle attribute(H5Aopen(handle_.get(), key.c_str(), H5P_DEFAULT));
  const Space space(attribute.valid() ? H5Aget_space(attribute.get()) : H5I_INVALID_HID);
  const Type stored(attribute.valid() ? H5Aget_type(attribute.get()) : H5I_INVALID_HID);
  if (!space.valid() || !stored.valid()) fail(fmt::format("read attribute '{}'", key));
  const H5T_class_t kind = H5Tget_class(stored.get());
  if ((kind != H5T_INTEGER && kind != H5T_FLOAT) || H5Sget_simple_extent_npoints(space.get()) != 1) {
    fail_attribute(key, "is not a number");
  }
  if (H5Aread(attribute.get(), memory_type(element), value) < 0) fail(fmt::format("read attribute '{}'", key));
}

}  // namespace hat::hdf5
