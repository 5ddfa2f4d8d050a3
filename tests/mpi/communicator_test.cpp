// The suite of every communicator on `mpi`: this program is started several times by mpirun, and all
// its processes run the same tests at the same time.
#include "sharding/processes/mpi.h"

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
    SHERD_CHECK(file >= 0 && ::ftruncate(file, static_cast<off_t>(bytes)) == 0);
    ::close(file);
  }
  processes->links().all_gather("made", "");
  const int file = ::shm_open(name.c_str(), O_RDWR, 0600);
  void* memory = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  SHERD_CHECK(memory != MAP_FAILED);
  ::close(file);
  processes->links().all_gather("open", "");
  if (first) ::shm_unlink(name.c_str());
  call({static_cast<std::atomic<int>*>(memory), static_cast<std::size_t>(count)});
  ::munmap(memory, bytes);
  processes->end({}, kPatience);
}

// `machines`: of each process; empty: everything is direct.
CommunicatorKind mpi(const std::string& name, const std::vector<int>& machines,
                     bool adds_on_machines = false) {
  const int here = mpi_world().ranks_per_process, world_size = mpi_world().num_processes * here;
  const auto run = [=](const GroupOptions& options, const std::function<void(Member&)>& body) {
    const auto processes = join_mpi(kPatience);
    {
      const auto rendezvous = processes->make_rendezvous(
          here, options.timeout, {machines, !machines.empty(), adds_on_machines});
      const Communicators communicators =
          joined(*rendezvous, world_size, processes->index() * here, here);
      processes->links().all_gather("all have joined", "");
      run_members(communicators, options, body);
    }
    processes->end({}, kPatience);
  };
  return {.name = name,
          .world_size = world_size,
          .adds_in_rank_order = !adds_on_machines,
          .run = run,
          .num_ranks_here = here,
          .with_shared_counters = with_shared_counters};
}

CommunicatorKind mpi() {
  return mpi("mpi", {});
}

// As if each two processes, or of two processes each, were on a machine of their own.
std::vector<int> machines_of_test() {
  const int count = mpi_world().num_processes;
  std::vector<int> machines;
  for (int process = 0; process < count; ++process) {
    machines.push_back(count == 2 ? process : process / 2);
  }
  return machines;
}
CommunicatorKind mpi_on_machines() {
  return mpi("mpiOnMachines", machines_of_test());
}
// Gradients are added on a machine first.
CommunicatorKind mpi_adding_on_machines() {
  return mpi("mpiAddingOnMachines", machines_of_test(), true);
}

INSTANTIATE_TEST_SUITE_P(Mpi, CommunicatorConformance,
                         ::testing::Values(mpi(), mpi_on_machines(), mpi_adding_on_machines()),
                         kind_name);

// A count that 31 bits don't hold; MPI's own are ints. Needs 2 GiB for each rank.
TEST(MpiCountsSlow, MoreThanTwoToThe31BytesArrive) {
  const std::int64_t numel = (std::int64_t{1} << 31) + 100;
  mpi().run({}, [&](Member& member) {
    std::vector<std::uint8_t> bytes(static_cast<std::size_t>(numel));
    const auto value = [](std::int64_t i) { return static_cast<std::uint8_t>(i * 31 >> 7); };
    if (member.rank() == 0) {
      for (std::int64_t i = 0; i < numel; ++i) bytes[static_cast<std::size_t>(i)] = value(i);
    }
    member.communicator.broadcast(member.stream, "x", {bytes.data(), DType::kU8, numel}, 0);
    member.stream.synchronize();
    std::int64_t wrong = 0;
    for (std::int64_t i = 0; i < numel; ++i)
      wrong += bytes[static_cast<std::size_t>(i)] != value(i);
    EXPECT_EQ(wrong, 0);
  });
}

// Slices of many pieces of staging, the last one short.
void expect_sums_of_ranks(const CommunicatorKind& kind, float unit) {
  const std::int64_t count = 3 * (mpi_staging_bytes(kind.world_size) / 4) + 77;
  kind.run({}, [&](Member& member) {
    const auto world = static_cast<std::int64_t>(member.world_size());
    std::vector<float> full(static_cast<std::size_t>(world * count)),
        out(static_cast<std::size_t>(count));
    const auto value = [unit](std::int64_t rank, std::int64_t i) {
      return static_cast<float>((i * 7 + rank * 13) % 1001) * unit;
    };
    for (std::int64_t i = 0; i < world * count; ++i) {
      full[static_cast<std::size_t>(i)] = value(member.rank(), i);
    }
    const float before = 3.0f;
    std::fill(out.begin(), out.end(), before);
    member.communicator.reduce_scatter(member.stream, "x",
                                       {full.data(), DType::kF32, world * count},
                                       {out.data(), DType::kF32, count}, {.onto_out = true});
    member.stream.synchronize();
    std::int64_t wrong = 0;
    for (std::int64_t i = 0; i < count; ++i) {
      float sum = before;
      for (std::int64_t r = 0; r < world; ++r) sum += value(r, member.rank() * count + i);
      wrong += out[static_cast<std::size_t>(i)] != sum;
    }
    EXPECT_EQ(wrong, 0);
  });
}
TEST(MpiStaging, SumsOfSlicesLargerThanTheStagingAreTheSumsOfRanks) {
  expect_sums_of_ranks(mpi(), 0.37f);
}
// Whole numbers, whose sums are exact in any order.
TEST(MpiStaging, SumsThatAreFormedOnMachinesFirstLeaveNothingOutAndAddNothingTwice) {
  expect_sums_of_ranks(mpi_adding_on_machines(), 1.0f);
}

}  // namespace
}  // namespace sherd::sharding
