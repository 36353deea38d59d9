#include "hat/comm/mpi_environment.hpp"

#include <mpi.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <iterator>
#include <optional>
#include <thread>

#include "check.hpp"
#include "hat/core/error.hpp"

namespace hat {

void check_mpi(int code, const char* what) {
  if (code == MPI_SUCCESS) return;
  char text[MPI_MAX_ERROR_STRING];
  int length = 0;
  MPI_Error_string(code, text, &length);
  throw Error(fmt::format("{} failed: {}", what, std::string_view(text, static_cast<size_t>(length))));
}

namespace {

// Value of a string control variable of the MPI library; empty when it has none of that name.
std::optional<std::string> control_variable(const char* name) {
  int provided = 0;
  if (MPI_T_init_thread(MPI_THREAD_SINGLE, &provided) != MPI_SUCCESS) return std::nullopt;
  std::optional<std::string> value;
  int index = 0;
  if (MPI_T_cvar_get_index(name, &index) == MPI_SUCCESS) {
    MPI_T_cvar_handle handle = nullptr;
    int count = 0;
    if (MPI_T_cvar_handle_alloc(index, nullptr, &handle, &count) == MPI_SUCCESS) {
      std::string text(static_cast<size_t>(count) + 1, '\0');
      if (MPI_T_cvar_read(handle, text.data()) == MPI_SUCCESS) {
        text.resize(std::strlen(text.c_str()));  // it was filled up to the first NUL
        value = text;
      }
      MPI_T_cvar_handle_free(&handle);
    }
  }
  MPI_T_finalize();
  return value;
}

void allow_windows_over_tcp() {
  if (std::getenv("OMPI_MCA_osc") != nullptr) return;  // the user's choice stands
  const std::optional<std::string> excluded = control_variable("osc");
  if (excluded && excluded->starts_with('^') && excluded->find("pt2pt") != std::string::npos) {
    setenv("OMPI_MCA_osc", "^ucx", 0);
  }
}

std::string thread_level_name(int level) {
  switch (level) {
    case MPI_THREAD_SINGLE:
      return "single";
    case MPI_THREAD_FUNNELED:
      return "funneled";
    case MPI_THREAD_SERIALIZED:
      return "serialized";
    default:
      return "multiple";
  }
}

long environment_number(const char* name) {
  const char* text = std::getenv(name);
  return text == nullptr ? 0 : std::strtol(text, nullptr, 10);
}

// Asked before MPI_Init: an Open MPI process that is alone puts PMIX_RANK into its own environment.
bool has_launcher_of_mpi() {
  constexpr const char* kVariables[] = {"OMPI_COMM_WORLD_SIZE", "PMIX_RANK", "PMI_RANK", "PMI_SIZE", "PALS_RANKID"};
  return std::any_of(std::begin(kVariables), std::end(kVariables),
                     [](const char* name) { return std::getenv(name) != nullptr; });
}

bool launched_by_mpi = false;

}  // namespace

MpiEnvironment::MpiEnvironment() {
  launched_by_mpi = has_launcher_of_mpi();
  allow_windows_over_tcp();
  // More ranks than cores is normal on workstations: a rank that waits inside MPI lets others run.
  setenv("OMPI_MCA_mpi_yield_when_idle", "1", 0);
  int provided = 0;
  check_mpi(MPI_Init_thread(nullptr, nullptr, MPI_THREAD_FUNNELED, &provided), "MPI_Init_thread");
  check_mpi(MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN), "MPI_Comm_set_errhandler");
  check_mpi(MPI_Comm_set_errhandler(MPI_COMM_SELF, MPI_ERRORS_RETURN), "MPI_Comm_set_errhandler");
  if (provided < MPI_THREAD_FUNNELED) {
    MPI_Finalize();
    throw Error("this MPI library offers only MPI_THREAD_SINGLE; hat needs MPI_THREAD_FUNNELED");
  }
}

MpiEnvironment::~MpiEnvironment() {
  // While an exception unwinds, other ranks may be inside a collective: finalizing would hang, so the caller aborts.
  if (std::uncaught_exceptions() == 0) MPI_Finalize();
}

void abort_all_ranks(int exit_code) {
  MPI_Abort(MPI_COMM_WORLD, exit_code);
  std::_Exit(exit_code);
}

int rank_told_by_launcher() {
  for (const char* name : {"OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK", "PALS_RANKID"}) {
    if (std::getenv(name) != nullptr) return static_cast<int>(environment_number(name));
  }
  return 0;
}

void let_lower_ranks_speak(int rank) {
  constexpr int kMostTurns = 4;
  std::this_thread::sleep_for(std::chrono::milliseconds(1500) * std::min(rank, kMostTurns));
}

std::vector<std::pair<std::string, std::string>> mpi_description() {
  std::vector<std::pair<std::string, std::string>> lines;
  char version[MPI_MAX_LIBRARY_VERSION_STRING];
  int length = 0;
  MPI_Get_library_version(version, &length);
  std::string library(version, static_cast<size_t>(length));
  library = library.substr(0, library.find_first_of(",\n"));
  lines.emplace_back("library", library);
  int level = 0;
  MPI_Query_thread(&level);
  lines.emplace_back("thread level", thread_level_name(level));
  for (const char* framework : {"pml", "btl", "osc", "coll"}) {
    const std::optional<std::string> value = control_variable(framework);
    if (value) lines.emplace_back(std::string(framework) + " components", value->empty() ? "(default)" : *value);
  }
  const char* osc = std::getenv("OMPI_MCA_osc");
  lines.emplace_back("OMPI_MCA_osc", osc == nullptr ? "(unset)" : osc);
  return lines;
}

void refuse_accidental_singleton() {
  int size = 0;
  check_mpi(MPI_Comm_size(MPI_COMM_WORLD, &size), "MPI_Comm_size");
  if (size > 1 || launched_by_mpi) return;
  for (const char* name : {"SLURM_STEP_NUM_TASKS", "SLURM_NTASKS"}) {
    const long tasks = environment_number(name);
    if (tasks > 1) {
      throw InputError(
          "environment", name,
          fmt::format("Slurm started {} tasks, but MPI sees one process alone, so every task would train by "
                      "itself; use `mpirun hat ...` inside the job or `srun --mpi=pmix hat ...`, and "
                      "`mpirun -n 1` when one rank is meant",
                      tasks));
    }
  }
}

}  // namespace hat
