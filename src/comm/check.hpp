#pragma once
#include <mpi.h>

namespace hat {

/// Throws Error with MPI's own text when `code` is not MPI_SUCCESS. `what` names the call.
void check_mpi(int code, const char* what);

}  // namespace hat
