#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <system_error>

#include "hat/core/error.hpp"
#include "hat/io/durable.hpp"
#include "io/hdf5_library.hpp"

namespace hat::hdf5 {

namespace {
/// What can be said without HDF5, in plain words.
void check_readable(const std::filesystem::path& path) {
  std::error_code error;
  const auto status = std::filesystem::status(path, error);
  if (!std::filesystem::exists(status)) throw InputError(path.string(), "", "no such file");
  if (std::filesystem::is_directory(status)) throw InputError(path.string(), "", "is a folder, not a file");
  if (!std::filesystem::is_regular_file(status)) throw InputError(path.string(), "", "is no regular file");
  if (::access(path.c_str(), R_OK) != 0) throw InputError(path.string(), "", std::strerror(errno));
  const auto size = std::filesystem::file_size(path, error);
  if (error) throw InputError(path.string(), "", error.message());
  if (size == 0) throw InputError(path.string(), "", "is empty");
}

std::string explain_open_error(const std::string& reason) {
  if (reason.find("truncated file") != std::string::npos) {
    return fmt::format("is truncated: the file ends before its data do (HDF5: {})", reason);
  }
  if (reason.find("already open for write") != std::string::npos || reason == "Resource temporarily unavailable") {
    return fmt::format("is being written, or its writer was killed (HDF5: {})", reason);
  }
  return fmt::format("is damaged or truncated (HDF5: {})", reason);
}

Properties writing_properties(const std::filesystem::path& path) {
  Properties access(H5Pcreate(H5P_FILE_ACCESS));
  // The 1.10 format: virtual arrays need it, and its metadata carry checksums.
  if (!access.valid() || H5Pset_libver_bounds(access.get(), H5F_LIBVER_V110, H5F_LIBVER_V110) < 0 ||
      H5Pset_fclose_degree(access.get(), H5F_CLOSE_SEMI) < 0) {
    throw Error(fmt::format("{}: HDF5 file properties: {}", path.string(), pending_error()));
  }
  return access;
}

hid_t open_as(const std::filesystem::path& path, unsigned flags, const Properties& access) {
  return open_file(access, [&](hid_t list) { return H5Fopen(path.c_str(), flags, list); });
}

void check_is_hdf5(const std::filesystem::path& path) {
  check_readable(path);
  const htri_t is_hdf5 = H5Fis_hdf5(path.c_str());
  if (is_hdf5 == 0) throw InputError(path.string(), "", "is not an HDF5 file");
  if (is_hdf5 < 0) pending_error();
}
}  // namespace

File File::create(const std::filesystem::path& path) {
  const LibraryLock lock;
  const Properties access = writing_properties(path);
  const auto create = [&path](hid_t list) { return H5Fcreate(path.c_str(), H5F_ACC_TRUNC, H5P_DEFAULT, list); };
  File file(open_file(access, create), path.string(), true);
  if (!file.handle_.valid()) throw Error(fmt::format("{}: cannot create: {}", path.string(), pending_error()));
  return file;
}

File File::open(const std::filesystem::path& path) {
  const LibraryLock lock;
  check_is_hdf5(path);
  const Properties access(H5Pcreate(H5P_FILE_ACCESS));
  File file(open_as(path, H5F_ACC_RDONLY, access), path.string(), false);
  if (!file.handle_.valid()) throw InputError(path.string(), "", explain_open_error(pending_error()));
  return file;
}

File File::open_to_write(const std::filesystem::path& path) {
  const LibraryLock lock;
  check_is_hdf5(path);
  const Properties access = writing_properties(path);
  File file(open_as(path, H5F_ACC_RDWR, access), path.string(), true);
  if (!file.handle_.valid()) throw InputError(path.string(), "", explain_open_error(pending_error()));
  return file;
}

File File::open_appended(const std::filesystem::path& path) {
  const LibraryLock lock;
  check_is_hdf5(path);
  // What does not fit its checksum may be half written, so HDF5 reads it again, after pauses that double each time: its
  // default of 100 attempts would wait for years where the file is damaged.
  constexpr unsigned kAttempts = 20;
  const Properties access(H5Pcreate(H5P_FILE_ACCESS));
  if (!access.valid() || H5Pset_metadata_read_attempts(access.get(), kAttempts) < 0) {
    throw Error(fmt::format("{}: HDF5 file properties: {}", path.string(), pending_error()));
  }
  File file(open_as(path, H5F_ACC_RDONLY | H5F_ACC_SWMR_READ, access), path.string(), false);
  if (!file.handle_.valid()) throw InputError(path.string(), "", explain_open_error(pending_error()));
  return file;
}

// What the tool h5clear does: the property has no public name, but belongs to every list of file properties.
void File::clear_writer(const std::filesystem::path& path) {
  const LibraryLock lock;
  check_is_hdf5(path);
  const Properties access = writing_properties(path);
  const hbool_t yes = true;
  if (H5Pset(access.get(), "clear_status_flags", &yes) < 0) {
    throw Error(fmt::format("{}: HDF5 file properties: {}", path.string(), pending_error()));
  }
  Handle<H5Fclose> file(open_as(path, H5F_ACC_RDWR, access));
  if (!file.valid() || H5Fclose(file.release()) < 0) {
    throw InputError(path.string(), "", explain_open_error(pending_error()));
  }
}

void File::start_appending() {
  const LibraryLock lock;
  if (H5Fstart_swmr_write(handle_.get()) < 0) {
    throw Error(fmt::format("{}: cannot be opened to readers while it is written: {}", path_, pending_error()));
  }
}

void File::flush() {
  const LibraryLock lock;
  if (H5Fflush(handle_.get(), H5F_SCOPE_GLOBAL) < 0) {
    throw Error(fmt::format("{}: cannot write: {}", path_, pending_error()));
  }
}

Group File::root() const {
  const LibraryLock lock;
  Group group(H5Gopen2(handle_.get(), "/", H5P_DEFAULT), path_, "/", writable_);
  if (!group.handle_.valid()) group.fail("open the root group");
  return group;
}

void File::close() {
  {
    const LibraryLock lock;
    // After a failure the handle stays: objects may still be alive, and the destructor closes it behind them.
    if (H5Fflush(handle_.get(), H5F_SCOPE_GLOBAL) < 0 || H5Fclose(handle_.get()) < 0) {
      throw Error(fmt::format("{}: cannot write and close: {}", path_, pending_error()));
    }
    handle_.release();
  }
  if (writable_) fsync_file(path_);
}

}  // namespace hat::hdf5
