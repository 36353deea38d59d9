// A disk that takes its time: preloaded (LD_PRELOAD), fsync of files whose path contains SLOW_DISK_MATCH lasts
// SLOW_DISK_S seconds longer.
#include <dlfcn.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <cstdlib>
#include <string>
#include <thread>

extern "C" int fsync(int file) {
  const std::string link = "/proc/self/fd/" + std::to_string(file);
  std::array<char, 4096> path{};
  const char* match = std::getenv("SLOW_DISK_MATCH");
  const char* seconds = std::getenv("SLOW_DISK_S");
  if (match != nullptr && seconds != nullptr && ::readlink(link.c_str(), path.data(), path.size() - 1) > 0 &&
      std::string(path.data()).find(match) != std::string::npos) {
    std::this_thread::sleep_for(std::chrono::duration<double>(std::atof(seconds)));
  }
  using Fsync = int (*)(int);
  static const auto real = reinterpret_cast<Fsync>(::dlsym(RTLD_NEXT, "fsync"));
  return real(file);
}
