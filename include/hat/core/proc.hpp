#pragma once
#include <cstdint>
#include <string>

namespace hat {

/// What the kernel tells in files of lines "key : value". Empty or zero where there is no such file or key.
std::string proc_value(const char* path, const std::string& key);
/// Of a value in "kB", in bytes.
int64_t proc_bytes(const char* path, const std::string& key);

/// Memory that this process occupies now, and the most it ever did; 0 where /proc does not tell.
int64_t resident_bytes();
int64_t peak_resident_bytes();
/// Of what it occupies now: memory shared with other processes (on a node, windows of other ranks that it has read).
int64_t shared_resident_bytes();

}  // namespace hat
