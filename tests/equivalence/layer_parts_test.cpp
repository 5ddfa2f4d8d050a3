// Layers with a second unit: it is gathered, reduced, updated and saved as a unit of its own, and no bit of a
// training depends on where the cut between the units is, nor on how the second one is sharded.

#include <gtest/gtest.h>

#include <mutex>

#include "engine/model/sites.h"
#include "engine/saving/run_state.h"
#include "engine/train/layout/sharding_plan.h"
#include "tests/support/runs/counted_training.h"
#include "tests/support/runs/training_harness.h"

namespace sherd::testing {
namespace {

using model::SiteId;

const std::vector<model::LayerPart> kMlpApart = {{"mlp", {SiteId::kUp, SiteId::kDown}}};

model::ModelShape four_layers(bool tied) {
  model::ModelShape shape = tiny_model(tied);
  shape.num_layers = 4;
  return shape;
}

engine::TrainingOptions options_of(const model::ModelShape& shape) {
  engine::TrainingOptions options = tiny_training(shape, 0.05f);  // clips
  options.optimizer.momentum = 0.9f;
  return options;
}

// The same run with the MLPs apart.
Outcome train_apart(engine::TrainingOptions options, const RunShape& setup,
                    std::vector<model::LayerPart> parts = kMlpApart) {
  options.model.layer_parts = std::move(parts);
  return train(options, setup, 3);
}

TEST(LayerParts, ChangeNoBitAtAnyStageWorldPrefetchDepthOrPlaceOfTheCut) {
  int run = 0;
  for (const bool tied : {true, false}) {
    for (int stage = 0; stage <= 3; ++stage) {
      for (const int world : {1, 2, 3}) {
        engine::TrainingOptions options = options_of(four_layers(tied));
        options.model.recompute = static_cast<model::Recompute>(run % 3);
        const RunShape setup{.world_size = world,
                             .num_micro_steps = 1 + run % 2,
                             .stage = stage,
                             .prefetch_depth = run % 4,
                             .reshard_after_forward = run % 5 != 0,
                             .delay_seed = 17};
        const Outcome expected = train(options, setup, 3);
        const std::string what = fmt::format("{} {}", name_of(setup), tied ? "tied" : "untied");
        EXPECT_EQ(difference(train_apart(options, setup), expected), "") << what;
        EXPECT_EQ(difference(train_apart(options, setup,
                                         {{"out", {SiteId::kAttentionOutput}},
                                          {"norms", {SiteId::kNorm1, SiteId::kNorm2}}}),
                             expected),
                  "")
            << what;
        ++run;
      }
    }
  }
}

TEST(LayerParts, ChangeNoBitInPipelinesWithHalvesOfBackwardsAndWithAdapters) {
  for (const auto order : {schedule::Order::k1F1B, schedule::Order::kZbH1}) {
    for (int stage = 0; stage <= 3; ++stage) {
      engine::TrainingOptions options = options_of(four_layers(false));
      options.model.recompute = static_cast<model::Recompute>(stage % 3);
      if (stage == 1) {
        options.model.adapter = {.rank = 2, .targets = {"attention.query", "mlp.up", "mlp.down"}};
      }
      options.pipeline.order = order;
      const RunShape setup{.world_size = 4,
                           .axes = {{"pipeline", 2}, {"shard", 2}},
                           .num_micro_steps = 4,
                           .stage = stage,
                           .delay_seed = 23};
      const Outcome on_one =
          train(options, {.num_micro_steps = 8, .grad_sync = setup.grad_sync}, 3);
      EXPECT_EQ(difference(train_apart(options, setup), on_one), "") << name_of(setup);
    }
  }
}

TEST(LayerParts, ChangeNoBitUnderMuonDionAndLamb) {
  for (const auto type :
       {optim::OptimizerType::kMuon, optim::OptimizerType::kDion, optim::OptimizerType::kLamb}) {
    engine::TrainingOptions options = options_of(four_layers(true));
    options.optimizer.type = type;
    for (int stage = 0; stage <= 3; ++stage) {
      const RunShape setup{.world_size = 2, .stage = stage};
      EXPECT_EQ(difference(train_apart(options, setup), train(options, setup, 3)), "")
          << name_of(setup);
    }
  }
}

// The block is sharded over the ranks of a replica, its MLP over all ranks: ranks along the mesh's first axis are
// copies to one unit of a layer and shards to the other.
RunShape two_groups(int stage) {
  return {.world_size = 4, .axes = {{"replicate", 2}, {"shard", 2}}, .stage = stage};
}

engine::TrainingOptions in_two_groups(engine::TrainingOptions options, int stage) {
  options.model.layer_parts = kMlpApart;
  sharding::Placement all_ranks =
      sharding::placement_of(stage, sharding::GradSync::kEveryMicroStep);
  all_ranks.group = {"replicate", "shard"};
  for (sharding::AxisSet* kind :
       {&all_ranks.parameters, &all_ranks.gradients, &all_ranks.optimizer}) {
    if (!kind->empty()) *kind = all_ranks.group;
  }
  all_ranks.batch_groups = 2;
  options.parts[1] = {all_ranks, options.precision};
  return options;
}

TEST(LayerParts, OfAnotherGroupHaveTheBitsOfOneGroupAndTheirMemoryAsPlanned) {
  for (int stage = 0; stage <= 3; ++stage) {
    const engine::TrainingOptions options = options_of(four_layers(true));
    const RunShape setup = two_groups(stage);
    EXPECT_EQ(difference(train(in_two_groups(options, stage), setup, 3), train(options, setup, 3)),
              "")
        << "stage " << stage;
  }
}

TEST(LayerParts, OfAnotherGroupHoldHalfAsMuchAtStage3) {
  const engine::TrainingOptions options =
      applied(in_two_groups(options_of(four_layers(true)), 3), two_groups(3));
  const sharding::Mesh mesh = mesh_of(two_groups(3));
  for (const sharding::UnitPlan& unit : engine::sharding_plan(options, mesh, 1).units) {
    const bool is_mlp = unit.spec.id.part == 1;
    EXPECT_EQ(unit.num_parts, is_mlp ? 4 : 2) << unit.spec.name;
    EXPECT_EQ(unit.num_replicas, is_mlp ? 1 : 2) << unit.spec.name;
    EXPECT_EQ(unit.updated_numel(), unit.layout.numel() / unit.num_parts) << unit.spec.name;
  }
}

TEST(LayerParts, OfAnotherGroupAreWrittenToCheckpointsOnce) {
  for (int stage = 0; stage <= 3; ++stage) {
    const RunShape setup = two_groups(stage);
    const engine::TrainingOptions options =
        applied(in_two_groups(options_of(four_layers(true)), stage), setup);
    const auto tensors = engine::state_tensors(options);
    std::vector<std::vector<int>> writers;
    for (const auto& tensor : tensors) {
      writers.emplace_back(static_cast<std::size_t>(tensor.numel()), 0);
    }
    std::mutex mutex;
    run_ranks(setup, [&](sharding::Rank& rank) {
      engine::ShardedModel model(options, rank);
      const engine::TrainingStep training_step(options, model);
      const auto state = engine::run_state(options, model, training_step, engine::Pieces::kOwned);
      std::lock_guard lock(mutex);
      for (const sharding::StatePiece& piece : state.pieces) {
        for (std::int64_t i = 0; i < piece.count; ++i) {
          ++writers[static_cast<std::size_t>(piece.tensor)]
                   [static_cast<std::size_t>(piece.first_element + i)];
        }
      }
    });
    for (std::size_t i = 0; i < tensors.size(); ++i) {
      EXPECT_EQ(writers[i], std::vector<int>(writers[i].size(), 1))
          << tensors[i].name << " " << tensors[i].kind << ", stage " << stage;
    }
  }
}

TEST(LayerParts, OfAnotherGroupSendWhatIsPlanned) {
  for (int stage = 0; stage <= 3; ++stage) {
    const RunShape setup = two_groups(stage);
    expect_steps_as_planned(in_two_groups(options_of(four_layers(false)), stage), setup);
  }
}

// Each part has gradient slots and an accumulator in types of its own.
TEST(LayerParts, MayReduceGradientsInAnotherTypeThanTheirBlock) {
  engine::TrainingOptions options = options_of(four_layers(true));
  options.model.dtype = DType::kBF16;
  options.precision = {DType::kBF16, DType::kBF16, DType::kF32};
  options.model.layer_parts = kMlpApart;
  for (int stage = 0; stage <= 3; ++stage) {
    const RunShape setup{.world_size = 2, .num_micro_steps = 2, .stage = stage};
    engine::TrainingOptions in_f32 = applied(options, setup);
    in_f32.parts[1] = {in_f32.placement, {DType::kBF16, DType::kF32, DType::kF32}};
    const Outcome own = train(in_f32, setup, 2), same = train(options, setup, 2);
    EXPECT_NE(difference(own, same), "") << "the MLPs' gradients aren't rounded to bf16";
    EXPECT_NEAR(own.losses[1], same.losses[1], 1e-2);
    const RunShape one_stage_0{.world_size = 2, .num_micro_steps = 2, .stage = 0};
    engine::TrainingOptions stage_0 = applied(options, one_stage_0);
    stage_0.parts[1] = {stage_0.placement, in_f32.parts[1].precision};
    EXPECT_EQ(difference(own, train(stage_0, one_stage_0, 2)), "") << "stage " << stage;
  }
}

}  // namespace
}  // namespace sherd::testing
