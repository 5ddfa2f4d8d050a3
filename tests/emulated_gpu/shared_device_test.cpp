// sharding/comm/shared_device.cpp on real streams' sources, in many orders of their work.
#include "sharding/comm/shared_device.h"

#include "tests/fake_cuda/ranks.h"
#include "tests/sharding/comm/communicator_failures.h"

namespace sherd::sharding {
namespace {

std::vector<CommunicatorKind> kinds() {
  std::vector<CommunicatorKind> kinds;
  for (const int world_size : {1, 2, 3, 4, 8}) {
    for (std::uint64_t seed = 1; seed <= 2; ++seed) {
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

}  // namespace
}  // namespace sherd::sharding
