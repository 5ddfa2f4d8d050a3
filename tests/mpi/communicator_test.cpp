// The suite of every communicator on `mpi`: this program is started several times by mpirun, and all
// its processes run the same tests at the same time.
#include "sharding/comm/mpi.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include "tests/mpi/world.h"
#include "tests/sharding/comm/communicator_conformance.h"
#include "tests/sharding/comm/communicator_failures.h"
#include "tests/sharding/comm/communicator_members.h"

namespace sherd::sharding {
namespace {

using testing::mpi_world;

constexpr std::chrono::minutes kPatience{1};

// In shared memory of this machine, under a name that process 0 chooses.
void with_shared_counters(int count, const std::function<void(CommunicatorKind::Counters)>& call) {
  const auto processes = join_mpi(kPatience);
  const bool first = processes->index() == 0;
  const std::string name =
      processes->links().all_gather("name", fmt::format("/sherd-counters-{}", ::getpid()))[0];
  const std::size_t bytes = static_cast<std::size_t>(count) * sizeof(std::atomic<int>);
  if (first) {
    const int file = ::shm_open(name.c_str(), O_CREAT | O_EXCL | O_RDWR, 0600);
    CHECK(file >= 0 && ::ftruncate(file, static_cast<off_t>(bytes)) == 0);
    ::close(file);
  }
  processes->links().all_gather("made", "");
  const int file = ::shm_open(name.c_str(), O_RDWR, 0600);
  void* memory = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  CHECK(memory != MAP_FAILED);
  ::close(file);
  processes->links().all_gather("open", "");
  if (first) ::shm_unlink(name.c_str());
  call({static_cast<std::atomic<int>*>(memory), static_cast<std::size_t>(count)});
  ::munmap(memory, bytes);
  processes->end({}, kPatience);
}

CommunicatorKind mpi() {
  const int here = mpi_world().ranks_per_process, world_size = mpi_world().num_processes * here;
  const auto run = [=](const GroupOptions& options, const std::function<void(Member&)>& body) {
    const auto processes = join_mpi(kPatience);
    {
      const auto rendezvous = processes->make_rendezvous(here, options.timeout);
      const Communicators communicators =
          joined(*rendezvous, world_size, processes->index() * here, here);
      processes->links().all_gather("all have joined", "");
      run_members(communicators, options, body);
    }
    processes->end({}, kPatience);
  };
  return {.name = "mpi",
          .world_size = world_size,
          .adds_in_rank_order = true,
          .run = run,
          .num_ranks_here = here,
          .with_shared_counters = with_shared_counters};
}

INSTANTIATE_TEST_SUITE_P(Mpi, CommunicatorConformance, ::testing::Values(mpi()), kind_name);

}  // namespace
}  // namespace sherd::sharding
