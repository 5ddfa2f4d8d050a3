// Collectives between the threads of this machine, against copies of as many bytes.
#include "sharding/comm/threads.h"
#include "sharding/mesh/process_groups.h"
#include "sharding/zero/placement.h"
#include "tests/bench/measure.h"

namespace sherd {
namespace {

// Thread ranks, one per core, exchange a unit as large as they make it together.
struct Ranks {
  Ranks() {
    const sharding::Mesh mesh = sharding::Mesh::sharded(engine::num_usable_cores());
    const auto rendezvous = sharding::make_thread_rendezvous();
    for (int r = 0; r < mesh.world_size(); ++r) {
      communicators.push_back(rendezvous->join(
          sharding::group_of(mesh, r, sharding::zero_axes(), sharding::Purpose::kGather)));
    }
    for (int r = 0; r < size(); ++r) {
      streams.push_back(make_cpu_worker_stream({.name = "comm", .rank = r, .hook = {}}));
    }
  }
  int size() const { return static_cast<int>(communicators.size()); }
  template <class Call>
  void all(const Call& call) {
    for (int r = 0; r < size(); ++r) call(r, *communicators[r], *streams[r]);
    for (auto& stream : streams) stream->synchronize();
  }

  std::vector<std::unique_ptr<sharding::Communicator>> communicators;
  std::vector<std::unique_ptr<Stream>> streams;
};

void all_gather(benchmark::State& state) {
  Ranks ranks;
  const std::int64_t numel = std::int64_t{8 << 20} * ranks.size();
  // Each rank reads and writes the slices of the others.
  const auto slices = static_cast<double>(ranks.size() * (ranks.size() - 1));
  measure(state, "GB/s", 2.0 * slices * 4.0 * (8 << 20), copy_rate, [&] {
    ranks.all([&](int r, sharding::Communicator& communicator, Stream& stream) {
      communicator.all_gather(stream, "unit", tensor("full." + std::to_string(r), numel));
    });
  });
}
BENCHMARK(all_gather)->UseRealTime()->Unit(benchmark::kMillisecond);

void reduce_scatter(benchmark::State& state) {
  Ranks ranks;
  const std::int64_t slice = 8 << 20, numel = slice * ranks.size();
  // Each rank reads its slice of every rank and writes the sum.
  const auto slices = static_cast<double>(ranks.size() * (ranks.size() + 1));
  measure(state, "GB/s", slices * 4.0 * static_cast<double>(slice), copy_rate, [&] {
    ranks.all([&](int r, sharding::Communicator& communicator, Stream& stream) {
      communicator.reduce_scatter(stream, "unit", tensor("full." + std::to_string(r), numel),
                                  tensor("sum." + std::to_string(r), slice));
    });
  });
}
BENCHMARK(reduce_scatter)->UseRealTime()->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace sherd
