// Tensor and context ranks on the fake CUDA runtime and NCCL with our own kernels, in several orders of their work: on
// a GPU for each rank and on one that they share. What they send is what was planned.

#include <gtest/gtest.h>

#include "engine/data/batcher.h"
#include "engine/train/token_feed.h"
#include "sharding/mesh/process_groups.h"
#include "tests/emulated_gpu/on_machine.h"
#include "tests/engine/model/reference_run.h"
#include "tests/support/devices/gpu_meshes.h"
#include "tests/support/models/model_forms.h"
#include "tests/support/runs/counted_traffic.h"

namespace sherd::testing {
namespace {

using Place = RunShape::Place;

TEST(SharedDeviceMesh, LossesFollowTheCpusAndBitsAreThoseOfUnshardedRanks) {
  std::uint64_t seed = 0;
  for (const GpuMesh& each : gpu_meshes()) {
    Outcome sharded;
    on_machine(1, ++seed, [&] { sharded = train_on(each, Place::kGpu); });
    expect_near_the_cpus(each, sharded);
    on_machine(1, ++seed, [&] {
      EXPECT_EQ(difference(train_unsharded(each, Place::kGpu), sharded), "") << name_of(each);
    });
  }
}

TEST(NcclMesh, LossesFollowTheCpusOnAGpuForEachRank) {
  std::uint64_t seed = 100;
  for (const GpuMesh& each : gpu_meshes()) {
    on_machine(each.world_size(), ++seed,
               [&] { expect_near_the_cpus(each, train_on(each, Place::kGpus)); });
  }
}

// NCCL adds in an order of its own. Of two addends there is one sum.
TEST(NcclMesh, TwoRanksHaveTheBitsOfTwoThatShareAGpu) {
  std::uint64_t seed = 200;
  for (const GpuMesh& each :
       {GpuMesh{.tensor = 2, .stage = 3, .tied = true},
        GpuMesh{.tensor = 2, .dtype = DType::kBF16, .sequence_parallel = true},
        GpuMesh{.context = 2, .stage = 2},
        GpuMesh{.context = 2, .dtype = DType::kF16, .method = model::ContextMethod::kAllGather}}) {
    Outcome shared;
    on_machine(1, ++seed, [&] { shared = train_on(each, Place::kGpu); });
    on_machine(2, ++seed, [&] {
      EXPECT_EQ(difference(train_on(each, Place::kGpus), shared), "") << name_of(each);
    });
  }
}

TEST(NcclMesh, ARunRepeatsItsBitsInEveryOrderOfItsWork) {
  const GpuMesh gathers{.tensor = 2,
                        .context = 2,
                        .shards = 2,
                        .stage = 3,
                        .sequence_parallel = true,
                        .method = model::ContextMethod::kAllGather};
  const GpuMesh ring{.context = 4, .stage = 3, .method = model::ContextMethod::kRing};
  for (const GpuMesh& each : {gathers, ring}) {
    Outcome first;
    for (std::uint64_t seed = 1; seed <= 3; ++seed) {
      on_machine(each.world_size(), seed, [&] {
        const Outcome outcome = train_on(each, Place::kGpus);
        if (seed == 1) first = outcome;
        EXPECT_EQ(difference(outcome, first), "") << name_of(each) << ", seed " << seed;
      });
    }
  }
}

// Calls of ranks that share a GPU meet, on threads of the ring's own.
TEST(SharedDeviceMesh, ARingRepeatsItsBitsInEveryOrderOfItsWork) {
  const GpuMesh each{.context = 3, .stage = 2, .method = model::ContextMethod::kRing};
  Outcome first;
  for (std::uint64_t seed = 1; seed <= 3; ++seed) {
    on_machine(1, seed, [&] {
      const Outcome outcome = train_on(each, Place::kGpu);
      if (seed == 1) first = outcome;
      EXPECT_EQ(difference(outcome, first), "") << "seed " << seed;
    });
  }
}

void expect_runs_of_pytorch_on_a_gpu_each(const ReferenceMesh& mesh) {
  const int ranks = mesh.tensor * mesh.context * mesh.shards;
  on_machine(ranks, 8, [&] { expect_runs_of_pytorch(mesh, Place::kGpus); });
}

TEST(NcclMesh, RunsOfContextRanksArePyTorchs) {
  expect_runs_of_pytorch_on_a_gpu_each(reference_meshes()[2]);
}

TEST(NcclMeshSlow, RunsArePyTorchsOnThreeMeshes) {
  for (const ReferenceMesh& mesh : reference_meshes()) expect_runs_of_pytorch_on_a_gpu_each(mesh);
}

TEST(SharedDeviceMeshSlow, RunsArePyTorchsOnThreeMeshes) {
  for (const ReferenceMesh& mesh : reference_meshes()) {
    on_machine(1, 7, [&] { expect_runs_of_pytorch(mesh, Place::kGpu); });
  }
}

// Every rank as a process of its own, which torchrun would start.
TEST(NcclMesh, ProcessesTrainAsThreadsDo) {
  for (const GpuMesh& each :
       {GpuMesh{.tensor = 2, .stage = 1}, GpuMesh{.context = 2, .stage = 3}}) {
    Outcome threads;
    on_machine(2, 1, [&] { threads = train_on(each, Place::kGpus); });
    on_machine(2, 2, [&] {
      RunShape setup = setup_of(each, Place::kGpus);
      setup.processes = true;
      EXPECT_EQ(difference(train(options_of(each), setup, each.steps), threads), "")
          << name_of(each);
    });
  }
}

// Tokens as the harness has them.
data::FillBatch fill_of(const engine::TrainingOptions& options, const sharding::Rank& rank) {
  const data::BatchShape shape{.micro_batch_size = options.model.sequences,
                               .num_micro_steps = options.num_micro_steps,
                               .world = rank.data_degree(),
                               .num_replicas = 1};
  const int index = rank.data_index();
  return [&options, shape, index](std::int64_t step, std::int64_t micro_step,
                                  const data::Batch& batch) {
    fill_tokens(options.model, step, shape.first_row(micro_step, index),
                batch.inputs.as<std::int32_t>(), batch.targets.as<std::int32_t>());
  };
}

// In two steps of every rank; and the time in the exchanges counts as waiting for their axis.
void expect_traffic_as_planned(const GpuMesh& each, Place place) {
  const RunShape setup = setup_of(each, place);
  engine::TrainingOptions options = applied(options_of(each), setup);
  // Chunks of 64 tokens on a CPU, of which a GPU takes eight at a time.
  options.model.logits_chunk_elements = 64 * options.model.vocab_size;
  options.model.sequences = 8;
  options.model.num_layers = 1;
  engine::LaunchOptions launch = launch_options(setup);
  place_training(launch, setup, options);
  engine::run_ranks(launch, [&](sharding::Rank& rank) {
    Counts counts;
    rank.groups->wrap_with([&](std::unique_ptr<sharding::Communicator> inner) {
      return std::make_unique<Counting>(std::move(inner), counts);
    });
    engine::ShardedModel model(options, rank);
    engine::TrainingStep training_step(options, model);
    std::optional<engine::TokenFeed> feed(std::in_place, options, rank, fill_of(options, rank));
    feed->start(0);
    const Counts expected = planned(options, rank.mesh, rank.rank, DeviceKind::kCuda);
    rank.guard([&] {
      for (int step = 0; step < 2; ++step) {
        counts.clear();
        const engine::StepResult result = training_step.run(
            step, [&](std::int64_t at, std::int64_t micro) { return feed->next(at, micro); });
        EXPECT_EQ(counts, expected) << name_of(each) << ", rank " << rank.rank << "\nsent\n"
                                    << text_of(counts) << "planned\n"
                                    << text_of(expected);
        for (const auto& [axis, milliseconds] : result.exposed_by_axis) {
          if (axis == sharding::kTensorAxis || axis == sharding::kContextAxis) {
            EXPECT_GT(milliseconds, 0.0) << axis << ", " << name_of(each);
          }
        }
      }
    });
  });
}

TEST(NcclMesh, SendsWhatWasPlannedAndSaysForWhomItWaited) {
  std::uint64_t seed = 300;
  for (GpuMesh each : gpu_meshes()) {
    if (each.pipeline > 1 || each.dtype == DType::kF16) continue;  // f16 sends what bf16 does
    on_machine(each.world_size(), ++seed, [&] { expect_traffic_as_planned(each, Place::kGpus); });
  }
}

// Bytes travel by NCCL's sends and receives, and are added in the order of ranks.
TEST(NcclBlocks, OnAGpuForEachRankHaveTheBitsOfRanksThatShareOne) {
  using kernels::BlockFormat;
  engine::TrainingOptions options = tiny_training(tiny_model(true), 1.0f);
  options.model.dropout = 0.0;
  options.precision.gather_blocks = BlockFormat::kInt8;
  options.precision.reduce_blocks = BlockFormat::kInt8;
  options.precision.replica_blocks = BlockFormat::kInt4;
  for (const int stage : {0, 2, 3}) {
    RunShape setup{.world_size = 4,
                   .axes = {{"replicate", 2}, {"shard", 2}},
                   .stage = stage,
                   .divides_optimizer = stage == 3,
                   .place = Place::kGpu};
    Outcome shared, apart;
    on_machine(1, 700, [&] { shared = train(options, setup, 2); });
    setup.place = Place::kGpus;
    on_machine(4, 701, [&] { apart = train(options, setup, 2); });
    EXPECT_EQ(difference(apart, shared), "") << stage;
  }
}

// Rows travel by NCCL, which copies them. Of two addends of other gradients there is one sum.
TEST(NcclExperts, OnAGpuForEachRankFollowRanksThatShareOne) {
  std::uint64_t seed = 500;
  for (const auto& [expert, shard] : {std::pair(2, 1), {2, 2}}) {
    model::ModelShape shape = shape_named(expert_forms(), "parallel_experts");
    shape.dropout = 0.0;
    const engine::TrainingOptions options = tiny_training(shape, 1.0f);
    RunShape setup{.world_size = expert * shard,
                   .axes = {{"expert", expert}, {"shard", shard}},
                   .stage = 3,
                   .place = Place::kGpu};
    Outcome shared, apart;
    on_machine(1, ++seed, [&] { shared = train(options, setup, 2); });
    setup.place = Place::kGpus;
    on_machine(setup.world_size, ++seed, [&] { apart = train(options, setup, 2); });
    const std::string differs = difference(apart, shared);
    EXPECT_TRUE(shard > 1 || differs.empty()) << differs;
    for (std::size_t step = 0; step < shared.losses.size(); ++step) {
      EXPECT_NEAR(apart.losses[step], shared.losses[step], 1e-5) << name_of(setup);
    }
  }
}

}  // namespace
}  // namespace sherd::testing
