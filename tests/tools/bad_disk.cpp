// A file system that misbehaves, preloaded (LD_PRELOAD):
//   BAD_DISK_NO_LOCKS=1         refuses locks (ENOLCK), as some network file systems do
//   BAD_DISK_READ_ONLY_IF=FILE  refuses every change below BAD_DISK_FOLDER (EROFS) as soon as FILE exists, as Linux
//   does to a
//                               disk that has failed: to files that are open already, too
#include <dlfcn.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>

namespace {

template <class Function>
Function real(const char* name) {
  return reinterpret_cast<Function>(::dlsym(RTLD_NEXT, name));
}

bool refuses_locks() { return std::getenv("BAD_DISK_NO_LOCKS") != nullptr; }

bool is_read_only() {
  const char* when = std::getenv("BAD_DISK_READ_ONLY_IF");
  return when != nullptr && ::access(when, F_OK) == 0;
}

bool is_below(const char* path) {
  const char* folder = std::getenv("BAD_DISK_FOLDER");
  return folder != nullptr && path != nullptr && std::strncmp(path, folder, std::strlen(folder)) == 0;
}

bool is_refused(const char* path) { return is_below(path) && is_read_only(); }

bool is_refused(int file) {
  if (std::getenv("BAD_DISK_READ_ONLY_IF") == nullptr) return false;
  std::array<char, 4096> path{};
  const std::string link = "/proc/self/fd/" + std::to_string(file);
  return ::readlink(link.c_str(), path.data(), path.size() - 1) > 0 && is_refused(path.data());
}

int refuse(int reason) {
  errno = reason;
  return -1;
}

}  // namespace

extern "C" {

int flock(int file, int operation) {
  if (refuses_locks()) return refuse(ENOLCK);
  static const auto next = real<int (*)(int, int)>("flock");
  return next(file, operation);
}

int fcntl(int file, int command, ...) {
  va_list arguments;
  va_start(arguments, command);
  void* argument = va_arg(arguments, void*);
  va_end(arguments);
  const bool is_lock = command == F_SETLK || command == F_SETLKW || command == F_OFD_SETLK || command == F_OFD_SETLKW;
  if (is_lock && refuses_locks()) return refuse(ENOLCK);
  static const auto next = real<int (*)(int, int, void*)>("fcntl");
  return next(file, command, argument);
}

ssize_t write(int file, const void* data, size_t size) {
  if (is_refused(file)) return refuse(EROFS);
  static const auto next = real<ssize_t (*)(int, const void*, size_t)>("write");
  return next(file, data, size);
}

ssize_t writev(int file, const iovec* pieces, int count) {
  if (is_refused(file)) return refuse(EROFS);
  static const auto next = real<ssize_t (*)(int, const iovec*, int)>("writev");
  return next(file, pieces, count);
}

ssize_t pwrite(int file, const void* data, size_t size, off_t offset) {
  if (is_refused(file)) return refuse(EROFS);
  static const auto next = real<ssize_t (*)(int, const void*, size_t, off_t)>("pwrite");
  return next(file, data, size, offset);
}

int ftruncate(int file, off_t size) {
  if (is_refused(file)) return refuse(EROFS);
  static const auto next = real<int (*)(int, off_t)>("ftruncate");
  return next(file, size);
}

int open(const char* path, int flags, ...) {
  va_list arguments;
  va_start(arguments, flags);
  const mode_t mode = va_arg(arguments, mode_t);
  va_end(arguments);
  if ((flags & (O_WRONLY | O_RDWR | O_CREAT | O_TRUNC)) != 0 && is_refused(path)) return refuse(EROFS);
  static const auto next = real<int (*)(const char*, int, mode_t)>("open");
  return next(path, flags, mode);
}

int rename(const char* from, const char* to) {
  if (is_refused(to)) return refuse(EROFS);
  static const auto next = real<int (*)(const char*, const char*)>("rename");
  return next(from, to);
}

int mkdir(const char* path, mode_t mode) {
  if (is_refused(path)) return refuse(EROFS);
  static const auto next = real<int (*)(const char*, mode_t)>("mkdir");
  return next(path, mode);
}

}  // extern "C"
