#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>

#include "hat/comm/communicator.hpp"

namespace hat {

/// Memory that all ranks of a communicator read and write (MPI_Win_allocate_shared), zeroed, aligned to 64 bytes.
/// Construction and destruction are collective; the ranks must be on one node. What is written is ordered by atomic
/// operations alone.
class SharedMemory {
 public:
  SharedMemory(const Communicator& node, int64_t bytes);
  ~SharedMemory();
  SharedMemory(const SharedMemory&) = delete;
  SharedMemory& operator=(const SharedMemory&) = delete;

  std::byte* data() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace hat
