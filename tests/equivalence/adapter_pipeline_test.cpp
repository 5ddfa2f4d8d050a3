// Adapters on ranks that have parts of the layers: losses, norms and trained weights are bit-identical to one rank, with
// every schedule and stage, and each rank's memory is as planned.

#include <gtest/gtest.h>

#include "engine/train/layout/slot_book.h"
#include "tests/equivalence/mesh_case.h"

namespace sherd::testing {
namespace {

using schedule::Order;

// `trained`: modules in addition to A and B.
engine::TrainingOptions adapted(bool tied, std::vector<std::string> trained) {
  model::ModelShape shape = tiny_model(tied);
  shape.num_layers = 7;
  shape.adapter = {.rank = 3, .scale = 1.5, .dropout = 0.2};
  shape.adapter.targets = tied ? std::vector<std::string>{"attention.qkv", "mlp.up", "mlp.down"}
                               : std::vector<std::string>{"attention.query", "attention.output",
                                                          "mlp.gate", "mlp.down"};
  shape.adapter.trained_modules = std::move(trained);
  return tiny_training(shape, 0.05f);  // clips
}

engine::TrainingOptions quantised_pipeline(engine::TrainingOptions options) {
  options.nf4_base = true;
  return options;
}

void expect_bits_of_one_rank(const engine::TrainingOptions& options, const MeshCase& each) {
  EXPECT_EQ(difference(run(options, each), same_batch(options, each)), "") << name_of(each);
}

const MeshCase kPipelines[] = {
    {.shards = 2, .pipeline = 2, .stage = 3, .micro_steps = 3, .order = Order::k1F1B},
    {.pipeline = 3, .stage = 2, .micro_steps = 2, .order = Order::kLayerParallel},
    {.pipeline = 3, .stage = 0, .micro_steps = 4, .order = Order::kGPipe},
    {.pipeline = 2, .stage = 1, .micro_steps = 4, .order = Order::kInterleaved1F1B},
    {.pipeline = 3, .stage = 3, .micro_steps = 5, .order = Order::kZbH1},
    {.shards = 2, .pipeline = 2, .stage = 1, .micro_steps = 3, .order = Order::kZbV},
    {.pipeline = 2, .stage = 2, .micro_steps = 5, .order = Order::kDualPipeV},
    {.replicas = 2, .pipeline = 2, .stage = 0, .micro_steps = 2, .order = Order::kZbH1},
};

TEST(AdapterPipeline, EveryScheduleAndStageHasTheBitsOfOneRank) {
  for (const MeshCase& each : kPipelines) {
    expect_bits_of_one_rank(adapted(false, {"head", "norm2", "embedding.token"}), each);
  }
}

// A and B alone: frozen ends, which need no sum where both have the same matrix.
TEST(AdapterPipeline, FrozenEndsHaveThemTooTiedOrNot) {
  for (const MeshCase& each : kPipelines) {
    expect_bits_of_one_rank(adapted(each.stage % 2 == 0, {}), each);
  }
}

TEST(AdapterPipeline, AQuantisedBaseIsDecodedOnTheRankThatHasIt) {
  for (const MeshCase& each : kPipelines) {
    expect_bits_of_one_rank(quantised_pipeline(adapted(false, {"norm1"})), each);
  }
}

TEST(AdapterPipeline, RecomputedActivationsHaveThemToo) {
  for (const auto recompute : {model::Recompute::kSelective, model::Recompute::kFull}) {
    engine::TrainingOptions options = adapted(false, {"mlp.up"});
    options.model.adapter.targets = {"attention.qkv"};
    options.model.recompute = recompute;
    expect_bits_of_one_rank(options, kPipelines[4]);
    expect_bits_of_one_rank(options, kPipelines[5]);
  }
}

// What both ends have of a tied unit, and train: the head alone has a gradient of its norm.
TEST(AdapterPipeline, ATrainedNormWithAFrozenMatrixAtBothEndsIsAddedUpOnce) {
  for (const MeshCase& each : kPipelines) {
    expect_bits_of_one_rank(adapted(true, {"final_norm"}), each);
  }
}

// Halves of a backward aren't apart: nothing waits, and a backward's end frees what the forward kept.
TEST(AdapterPipeline, NothingIsKeptForWeightGradients) {
  engine::TrainingOptions options = adapted(false, {});
  options.num_micro_steps = 6;
  options.pipeline.order = Order::kZbH1;
  const sharding::Mesh mesh({{"pipeline", 3}});
  for (int rank = 0; rank < 3; ++rank) {
    const engine::RankPipeline pipeline = engine::rank_pipeline(options, mesh, rank);
    EXPECT_EQ(engine::count_slots(pipeline, false).waiting, 0);
    for (const schedule::Action& action : pipeline.actions()) {
      EXPECT_NE(action.kind, schedule::ActionKind::kWeightGradient);
    }
  }
}

}  // namespace
}  // namespace sherd::testing
