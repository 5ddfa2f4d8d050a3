/// How this test program was started.
#pragma once

namespace sherd::testing {

struct MpiWorldShape {
  int num_processes = 1, ranks_per_process = 1;
};
/// From mpirun's environment and SHERD_RANKS_PER_PROCESS.
MpiWorldShape mpi_world();

}  // namespace sherd::testing
