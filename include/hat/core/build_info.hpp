#pragma once
#include <string>

namespace hat {

/// What this executable was built with. Filled in by CMake.
struct BuildInfo {
  std::string version;
  std::string revision;  ///< git revision of the sources, "unknown" outside a checkout
  std::string build_type;
  std::string compiler;
  std::string gemm_backend;  ///< "onednn" or "cblas"
  std::string sanitizers;
  std::string native;  ///< ON: compiled for the building machine's instruction set
  bool cuda_found;     ///< the CUDA toolkit was there at build time
  std::string cuda_version;
  bool nccl_found;
};

const BuildInfo& build_info();

/// What decides how numbers come out: version, revision, compiler, matrix library.
std::string text_of(const BuildInfo& build);

}  // namespace hat
