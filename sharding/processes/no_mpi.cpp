// Replaces sharding/processes/mpi.cpp in a program built without MPI.
#include "core/error.h"
#include "sharding/processes/mpi.h"

namespace sherd::sharding {

std::int64_t mpi_staging_bytes(int) {
  return 0;
}

std::unique_ptr<Processes> join_mpi(std::chrono::milliseconds, const JoinCalls&) {
  throw UsageError(
      "mpirun started {} processes, but this program was built without MPI: build the cpu preset "
      "where "
      "libopenmpi-dev and openmpi-bin are installed, or start one process with --ranks.",
      num_processes_started());
}

void finish_mpi() {}

std::string mpi_library() {
  return "";
}

}  // namespace sherd::sharding
