// sharding/comm/shared_device.cpp and nccl.cpp on real streams' sources, in many orders of their work, and
// with our own kernels: tests/fake_cuda has none.
#include "sharding/comm/shared_device.h"

#include <numeric>

#include "sharding/comm/nccl.h"

#include "tests/fake_cuda/ranks.h"
#include "tests/sharding/comm/communicator_failures.h"

namespace sherd::sharding {
namespace {

std::vector<CommunicatorKind> kinds() {
  std::vector<CommunicatorKind> kinds;
  for (const int world_size : {1, 2, 3, 4, 8}) {
    // Of eight ranks one order of the work takes as long as all others.
    for (std::uint64_t seed = 1; seed <= (world_size < 8 ? 2 : 1); ++seed) {
      kinds.push_back(on_gpus("shared", world_size,
                              std::vector<int>(static_cast<std::size_t>(world_size), 0),
                              /*adds_in_rank_order=*/true, seed,
                              [](auto timeout) { return make_shared_device_rendezvous(timeout); }));
    }
  }
  return kinds;
}
INSTANTIATE_TEST_SUITE_P(SharedDevice, CommunicatorConformance, ::testing::ValuesIn(kinds()),
                         kind_name);

// What its sums in an order of its own are added to or converted into is our kernels' work.
std::vector<CommunicatorKind> nccl_kinds() {
  std::vector<CommunicatorKind> kinds;
  for (const int world_size : {1, 2, 3}) {
    std::vector<int> devices(static_cast<std::size_t>(world_size));
    std::iota(devices.begin(), devices.end(), 0);
    kinds.push_back(
        on_gpus("nccl", world_size, devices, /*adds_in_rank_order=*/false, /*seed=*/1,
                [devices](auto timeout) { return make_nccl_rendezvous(devices, timeout); }));
  }
  return kinds;
}
INSTANTIATE_TEST_SUITE_P(Nccl, CommunicatorConformance, ::testing::ValuesIn(nccl_kinds()),
                         kind_name);

// The machine sees accesses that nothing orders, and takes the work in another order each time.
TEST(SharedDevice, CollectivesReadWhatOtherRanksStreamsHaveWritten) {
  constexpr int kWorld = 3, kSlice = 64, kCount = kWorld * kSlice;
  for (std::uint64_t seed = 1; seed <= 10; ++seed) {
    fake_cuda::start({.seed = seed});
    // A copy of memory that the device doesn't know would be waited for.
    const auto memory = cuda_arena_memory(2 * kWorld * kCount * sizeof(float));
    const auto rendezvous = make_shared_device_rendezvous(std::chrono::seconds(60));
    run_on_gpus(kWorld, std::vector<int>(kWorld, 0), *rendezvous, {}, [&](Member& member) {
      const int rank = member.communicator.rank();
      float* const own = reinterpret_cast<float*>(memory->data()) + 2 * kCount * rank;
      float* const full = own + kCount;
      std::fill_n(own, kCount, static_cast<float>(rank + 1));
      const Tensor tensor{full, DType::kF32, kCount};
      member.stream.copy(own, full + rank * kSlice, kSlice * sizeof(float));
      member.communicator.all_gather(member.stream, "gather", tensor);
      member.stream.synchronize();
      for (int i = 0; i < kCount; ++i) EXPECT_EQ(full[i], 1 + i / kSlice) << "seed " << seed;
      member.stream.copy(own, full, tensor.bytes());
      member.communicator.all_reduce(member.stream, "sum", tensor);
      member.stream.synchronize();
      for (int i = 0; i < kCount; ++i) EXPECT_EQ(full[i], 1 + 2 + 3) << "seed " << seed;
    });
    EXPECT_EQ(fake_cuda::races(), std::vector<std::string>()) << "seed " << seed;
  }
}

}  // namespace
}  // namespace sherd::sharding
