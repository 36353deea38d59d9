// NCCL's functions, loaded with its library when the first is called: a machine without it can run everything else.
#include <nccl.h>

#include <memory>
#include <type_traits>

#include "device/dynamic_library.hpp"

namespace {

/// Never unloaded: its own threads live as long as the process. HAT_NCCL: where it was at build time.
const hat::DynamicLibrary& library() {
  static const auto* const kLibrary =
      std::make_unique<hat::DynamicLibrary>(std::initializer_list<const char*>{"libnccl.so.2", HAT_NCCL}).release();
  return *kLibrary;
}

constexpr char kNoLibrary[] = "libnccl.so.2 cannot be loaded";

/// The function of that name and type, null without the library.
template <auto* kFunction>
auto* loaded(const char* name) {
  static auto* const kLoaded = library().find<std::remove_pointer_t<decltype(kFunction)>>(name);
  return kLoaded;
}

template <auto* kFunction, class... Arguments>
ncclResult_t call(const char* name, Arguments... arguments) {
  auto* const function = loaded<kFunction>(name);
  return function == nullptr ? ncclSystemError : function(arguments...);
}

}  // namespace

ncclResult_t ncclGetVersion(int* version) { return call<ncclGetVersion>("ncclGetVersion", version); }
ncclResult_t ncclGetUniqueId(ncclUniqueId* id) { return call<ncclGetUniqueId>("ncclGetUniqueId", id); }
ncclResult_t ncclCommInitRankConfig(ncclComm_t* comm, int ranks, ncclUniqueId id, int rank, ncclConfig_t* config) {
  return call<ncclCommInitRankConfig>("ncclCommInitRankConfig", comm, ranks, id, rank, config);
}
ncclResult_t ncclCommFinalize(ncclComm_t comm) { return call<ncclCommFinalize>("ncclCommFinalize", comm); }
ncclResult_t ncclCommDestroy(ncclComm_t comm) { return call<ncclCommDestroy>("ncclCommDestroy", comm); }
ncclResult_t ncclCommAbort(ncclComm_t comm) { return call<ncclCommAbort>("ncclCommAbort", comm); }
ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t* error) {
  return call<ncclCommGetAsyncError>("ncclCommGetAsyncError", comm, error);
}
ncclResult_t ncclGroupStart() { return call<ncclGroupStart>("ncclGroupStart"); }
ncclResult_t ncclGroupEnd() { return call<ncclGroupEnd>("ncclGroupEnd"); }
ncclResult_t ncclAllReduce(const void* send, void* receive, size_t count, ncclDataType_t type, ncclRedOp_t operation,
                           ncclComm_t comm, cudaStream_t stream) {
  return call<ncclAllReduce>("ncclAllReduce", send, receive, count, type, operation, comm, stream);
}
const char* ncclGetErrorString(ncclResult_t result) {
  auto* const function = loaded<ncclGetErrorString>("ncclGetErrorString");
  return function == nullptr ? kNoLibrary : function(result);
}
const char* ncclGetLastError(ncclComm_t comm) {
  auto* const function = loaded<ncclGetLastError>("ncclGetLastError");
  return function == nullptr ? "" : function(comm);
}
