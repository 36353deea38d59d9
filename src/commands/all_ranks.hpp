#pragma once
#include <fmt/format.h>

#include <cstdint>
#include <cstdio>
#include <exception>
#include <string>

#include "hat/comm/communicator.hpp"
#include "hat/comm/rank_watch.hpp"
#include "hat/core/error.hpp"

namespace hat {

/// Runs `job` on every rank, then agrees on how it went: if it failed anywhere, the first such rank prints its one
/// line, and all ranks return the same exit code. `blame` names the place of keys that are wrong. Collective.
template <class Job>
ExitCode on_all_ranks(const Communicator& world, Job job, const KeyBlame& blame = {}) {
  std::string error;
  auto code = ExitCode::success;
  try {
    job();
  } catch (const RankLost&) {
    throw;  // the others come to know of it, too
  } catch (const KeyError& bad) {
    error = blame ? blame(bad).what() : bad.what();
    code = ExitCode::bad_input;
  } catch (const InputError& bad) {
    error = bad.what();
    code = ExitCode::bad_input;
  } catch (const std::exception& bad) {
    error = bad.what();
    code = ExitCode::failure;
  }
  const int64_t priority = code == ExitCode::success ? 0 : world.size() - world.rank();
  const int64_t first = world.all_reduce_max(priority);
  if (first == 0) return ExitCode::success;
  if (priority == first) fmt::print(stderr, "hat: {}\n", error);
  return static_cast<ExitCode>(world.all_reduce_max(static_cast<int64_t>(code)));
}

}  // namespace hat
