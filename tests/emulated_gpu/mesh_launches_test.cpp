// What ranks with a GPU each launch in a step, compared with their ledgers.

#include "tests/emulated_gpu/ledger_counts.h"
#include "tests/emulated_gpu/on_machine.h"
#include "tests/fake_cuda/grouped.h"
#include "tests/support/devices/gpu_meshes.h"

namespace sherd::testing {
namespace {

// The kernels that collectives launch, and those around a ring's blocks. In 16 bits a library computes attention.
TEST(NcclLaunches, OfMeshesAreThoseInTheLedger) {
  constexpr auto kRing = model::ContextMethod::kRing;
  const std::vector<GpuMesh> meshes = {
      {.tensor = 2, .stage = 2, .micro_steps = 2},
      {.shards = 2, .stage = 3, .dtype = DType::kBF16},
      {.context = 2, .stage = 1, .method = kRing},
      {.context = 2, .stage = 1, .dtype = DType::kBF16, .method = kRing}};
  for (const GpuMesh& each : meshes) {
    SCOPED_TRACE(name_of(each));
    LaunchCounts ledger = in_the_ledger(options_of(each), setup_of(each, RunShape::Place::kGpus));
    LaunchCounts launched;
    on_machine(2, 1, [&] {
      launched = launched_in_a_step(options_of(each), setup_of(each, RunShape::Place::kGpus));
    });
    for (LaunchCounts* counts : {&ledger, &launched}) {
      std::erase_if(*counts, [&](const auto& row) {
        return each.dtype != DType::kF32 &&
               (row.first.starts_with("attention_") || row.first == "set_pair");
      });
    }
    EXPECT_EQ(text_of(ledger), text_of(launched));
  }
}

// The buffer has room for all rows, whatever tokens choose: one round.
TEST(NcclLaunches, OfRanksThatDivideExpertsAreThoseInTheLedger) {
  model::ModelShape shape = shape_named(expert_forms(), "sandwich_experts");
  shape.moe.buffer_rows = 2 * shape.tokens() * shape.moe.per_token;
  const engine::TrainingOptions options = tiny_training(shape, 1.0f);
  const RunShape setup{.world_size = 2,
                       .axes = {{"expert", 2}, {"shard", 1}},
                       .stage = 3,
                       .place = RunShape::Place::kGpus};
  LaunchCounts launched;
  on_machine(2, 1, [&] { launched = launched_in_a_step(options, setup); });
  EXPECT_EQ(text_of(in_the_ledger(options, setup)), text_of(launched));
}

TEST(NcclGroupedProducts, ChangeNoBitWhereRanksDivideExperts) {
  const RunShape setup{.world_size = 2,
                       .axes = {{"expert", 2}, {"shard", 1}},
                       .stage = 3,
                       .place = RunShape::Place::kGpus};
  for (const std::uint64_t seed : {1, 2}) {
    Outcome loop, grouped;
    const int before = fake_cuda::grouped_products();
    on_machine(2, seed, [&] { loop = train(expert_training(false), setup, 2); });
    EXPECT_EQ(fake_cuda::grouped_products(), before);
    on_machine(2, seed, [&] { grouped = train(expert_training(true), setup, 2); });
    EXPECT_GT(fake_cuda::grouped_products(), before);
    EXPECT_EQ(difference(grouped, loop), "");
  }
}

}  // namespace
}  // namespace sherd::testing
