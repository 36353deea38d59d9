#pragma once
#include <gtest/gtest.h>

#include <cstdio>
#include <functional>

#include "hat/comm/communicator.hpp"
#include "hat/comm/mpi_environment.hpp"

/// What the MPI tests share: a main that runs GoogleTest on every rank.
namespace hat::test {

/// Prints failures of this rank and ends all ranks at the first one: the others may be waiting for this rank in a
/// collective call, and a test that hangs says nothing.
class RankReporter : public ::testing::EmptyTestEventListener {
 public:
  explicit RankReporter(int rank) : rank_(rank) {}
  void OnTestPartResult(const ::testing::TestPartResult& result) override {
    if (result.skipped()) std::printf("rank %d: [  SKIPPED ] %s\n", rank_, result.message());
    if (!result.failed()) return;
    std::printf("rank %d: %s:%d: %s\n", rank_, result.file_name() == nullptr ? "?" : result.file_name(),
                result.line_number(), result.message());
    std::fflush(stdout);
    abort_all_ranks(1);
  }

 private:
  int rank_;
};

/// `use_arguments` sees what GoogleTest left of the command line, before the tests run. Returns the exit code.
inline int run_mpi_tests(int argc, char** argv, const std::function<void(int, char**)>& use_arguments = {}) {
  const MpiEnvironment mpi;
  ::testing::InitGoogleTest(&argc, argv);
  if (use_arguments) use_arguments(argc, argv);
  const int rank = Communicator::world().rank();
  ::testing::TestEventListeners& listeners = ::testing::UnitTest::GetInstance()->listeners();
  if (rank != 0) delete listeners.Release(listeners.default_result_printer());
  listeners.Append(new RankReporter(rank));  // GoogleTest owns it
  return RUN_ALL_TESTS();
}

}  // namespace hat::test
