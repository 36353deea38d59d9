#pragma once
#include <string>
#include <utility>
#include <vector>

namespace hat {

/// MPI from construction to destruction. Asks for MPI_THREAD_FUNNELED: exactly one thread of a rank is ever inside MPI,
/// which is also what Open MPI's one-sided component for TCP needs.
///
/// Before MPI_Init it repairs one setting: Debian's Open MPI excludes osc/pt2pt system-wide, and without it no
/// one-sided window can be made between hosts over TCP. When the user set nothing himself (OMPI_MCA_osc), pt2pt is
/// allowed again; better components keep their higher priority.
class MpiEnvironment {
 public:
  MpiEnvironment();
  ~MpiEnvironment();
  MpiEnvironment(const MpiEnvironment&) = delete;
  MpiEnvironment& operator=(const MpiEnvironment&) = delete;
};

/// Ends all ranks of the job with this exit code. For errors while communication is in flight.
[[noreturn]] void abort_all_ranks(int exit_code);

/// Rank of this process as its launcher tells it, without MPI; 0 when nobody does.
int rank_told_by_launcher();

/// Waits 1.5 s for each lower rank (at most 6 s) before an error is reported that other ranks probably have as
/// well. The first to end with an error takes the others down, so that the user reads one line and not one per rank.
void let_lower_ranks_speak(int rank);

/// Name and value pairs for `hat info`: library version, thread level, which components are in use.
std::vector<std::pair<std::string, std::string>> mpi_description();

/// Throws InputError when this process was started as one of several by a launcher that MPI does not know
/// (`srun` without PMIx): each of them would believe to be rank 0 of 1 and write the same files.
void refuse_accidental_singleton();

}  // namespace hat
