#include "io/hdf5_library.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <initializer_list>

#include "hat/core/error.hpp"

namespace hat::hdf5 {

namespace {
std::recursive_mutex& library_mutex() {
  // Never destroyed: handles in static objects may outlive it otherwise.
  static auto* mutex = new std::recursive_mutex;
  return *mutex;
}

herr_t take_innermost(unsigned position, const H5E_error2_t* entry, void* text) {
  if (position == 0 && entry->desc != nullptr) *static_cast<std::string*>(text) = entry->desc;
  return 0;
}

void set_locking([[maybe_unused]] hid_t access, [[maybe_unused]] bool locks) {
#if H5_VERSION_GE(1, 10, 7)               // before, only the environment can say so
  constexpr bool kIgnoresMissing = true;  // where the system has no such call; a refusal is told
  H5Pset_file_locking(access, locks, kIgnoresMissing);
#endif
}
}  // namespace

LibraryLock::LibraryLock() : guard_(library_mutex()) {
  // At exit HDF5 would try again to close files whose closing failed (full disk), and print about it.
  static const bool first = [] {
    H5dont_atexit();
    return H5open() >= 0;
  }();
  if (!first) throw Error("the HDF5 library cannot be initialised");
  H5Eset_auto2(H5E_DEFAULT, nullptr, nullptr);
}

hid_t open_file(const Properties& access, const std::function<hid_t(hid_t access)>& open) {
  static bool locks = true;
  const LibraryLock lock;
  set_locking(access.get(), locks);
  const hid_t file = open(access.get());
  if (file >= 0 || !locks) return file;
  std::string reason;
  H5Ewalk2(H5E_DEFAULT, H5E_WALK_UPWARD, take_innermost, &reason);
  const std::initializer_list<int> refusals{ENOLCK, EOPNOTSUPP};
  if (std::ranges::none_of(refusals, [&](int code) { return reason.find(std::strerror(code)) != std::string::npos; })) {
    return file;
  }
  locks = false;
  set_locking(access.get(), locks);
  return open(access.get());
}

std::string pending_error() {
  const LibraryLock lock;
  std::string text;
  H5Ewalk2(H5E_DEFAULT, H5E_WALK_UPWARD, take_innermost, &text);
  H5Eclear2(H5E_DEFAULT);
  const std::string marker = "error message = '";
  if (const size_t begin = text.find(marker); begin != std::string::npos) {
    const size_t end = text.find('\'', begin + marker.size());
    text = text.substr(begin + marker.size(), end - begin - marker.size());
  }
  std::replace_if(
      text.begin(), text.end(), [](char c) { return c == '\n' || c == '\r'; }, ' ');
  return text.empty() ? "no reason given by HDF5" : text;
}

size_t element_size(Element element) {
  static constexpr std::array<size_t, 8> kSizes{1, 2, 4, 8, 4, 8, 4, 8};
  return kSizes.at(static_cast<size_t>(element));
}

hid_t stored_type(Element element) {
  const std::array<hid_t, 8> types{H5T_STD_U8LE,  H5T_STD_U16LE, H5T_STD_U32LE,  H5T_STD_U64LE,
                                   H5T_STD_I32LE, H5T_STD_I64LE, H5T_IEEE_F32LE, H5T_IEEE_F64LE};
  return types.at(static_cast<size_t>(element));
}

hid_t memory_type(Element element) {
  const std::array<hid_t, 8> types{H5T_NATIVE_UINT8, H5T_NATIVE_UINT16, H5T_NATIVE_UINT32, H5T_NATIVE_UINT64,
                                   H5T_NATIVE_INT32, H5T_NATIVE_INT64,  H5T_NATIVE_FLOAT,  H5T_NATIVE_DOUBLE};
  return types.at(static_cast<size_t>(element));
}

Type text_type(size_t size) {
  Type type(H5Tcopy(H5T_C_S1));
  if (!type.valid() || H5Tset_size(type.get(), std::max<size_t>(size, 1)) < 0 ||
      H5Tset_strpad(type.get(), H5T_STR_NULLPAD) < 0 || H5Tset_cset(type.get(), H5T_CSET_UTF8) < 0) {
    throw Error(fmt::format("HDF5 string type: {}", pending_error()));
  }
  return type;
}

std::string library_version() {
  const LibraryLock lock;
  unsigned major = 0;
  unsigned minor = 0;
  unsigned release = 0;
  if (H5get_libversion(&major, &minor, &release) < 0) throw Error("HDF5 does not tell its version");
  return fmt::format("{}.{}.{}", major, minor, release);
}

}  // namespace hat::hdf5
