// Multi-token prediction: the same bits at every stage and on any number of ranks, in planned memory,
// and nothing for the model itself where its losses have no weight.

#include <gtest/gtest.h>

#include "tests/equivalence/mesh_case.h"
#include "tests/support/models/model_forms.h"

namespace sherd::testing {
namespace {

using Case = MeshCase;

constexpr int kSteps = 3;

model::ModelShape without_predictions(bool tied) {
  model::ModelShape shape = tiny_model(tied);
  shape.width = 24;
  shape.query_heads = 4;
  shape.kv_heads = 2;
  shape.head_size = 0;
  shape.positions = model::Positions::kRope;
  shape.dropout = 0.0;
  shape.seq_length = 12;
  return shape;
}

engine::TrainingOptions options_of(model::ModelShape shape, int layers,
                                   DType compute = DType::kF32) {
  shape.mtp_layers = layers;
  shape.mtp_loss = 0.3;
  shape.dtype = compute;
  engine::TrainingOptions options = tiny_training(shape, 0.5f);  // clips
  options.precision.parameters = compute;
  return options;
}

TEST(MultiTokenPrediction, StagesWorldsAndMicroStepsChangeNoBit) {
  int number = 0;
  for (const int layers : {1, 2}) {
    for (const bool tied : {false, true}) {
      for (const DType compute : {DType::kF32, DType::kBF16}) {
        engine::TrainingOptions options = options_of(without_predictions(tied), layers, compute);
        options.model.norm =
            number % 2 == 0 ? kernels::NormKind::kRmsNorm : kernels::NormKind::kLayerNorm;
        const Outcome one = train(options, {.num_micro_steps = 4}, kSteps);
        for (int stage = 0; stage <= 3; ++stage, ++number) {
          options.model.recompute = static_cast<model::Recompute>(number % 3);
          const int world = number % 2 == 0 ? 4 : 2;
          const RunShape shape{.world_size = world,
                               .num_micro_steps = 4 / world,
                               .stage = stage,
                               .prefetch_depth = number % 3,
                               .reshard_after_forward = number % 4 != 0,
                               .threads_per_rank = 1 + number % 2,
                               .delay_seed = static_cast<std::uint64_t>(number % 2 * 9)};
          EXPECT_EQ(difference(one, train(options, shape, kSteps)), "")
              << layers << " layers, " << name_of(shape);
        }
      }
    }
  }
}

TEST(MultiTokenPrediction, StagesAgreeAtTheBoundaryToo) {
  const auto options = options_of(without_predictions(true), 2);
  RunShape shape{.world_size = 2, .num_micro_steps = 3, .grad_sync = sharding::GradSync::kBoundary};
  const Outcome stage0 = train(options, shape, kSteps);
  for (shape.stage = 1; shape.stage <= 3; ++shape.stage) {
    EXPECT_EQ(difference(stage0, train(options, shape, kSteps)), "") << name_of(shape);
  }
}

TEST(MultiTokenPrediction, ContextRanksAndReplicasKeepTheBitsOfUnshardedState) {
  int number = 0;
  for (const auto method : {model::ContextMethod::kAllGather, model::ContextMethod::kUlysses,
                            model::ContextMethod::kRing}) {
    engine::TrainingOptions options = options_of(without_predictions(false), 1 + number % 2);
    options.model.context.method = method;
    for (const Case& each : {Case{.context = 2, .shards = 2, .stage = 1 + number % 3},
                             Case{.context = 2, .replicas = 2, .stage = 3, .micro_steps = 2}}) {
      const Outcome alone = same_batch(options, each, {.context = 2});
      EXPECT_EQ(difference(run(options, each), alone), "") << name_of(each);
    }
    ++number;
  }
}

TEST(MultiTokenPrediction, MixturesOfExpertsAgreeAtEveryStageAndOnExpertRanks) {
  int forms = 0;
  for (const ModelForm& form : expert_forms()) {
    if (form.shape.positions != model::Positions::kRope) continue;
    ++forms;
    model::ModelShape shape = form.shape;
    shape.dropout = 0.0;
    shape.moe.experts = 8;
    if (shape.moe.groups > 1) shape.moe.groups = 4;
    const auto options = options_of(shape, 1, shape.dtype);
    const auto axes = [](int expert, int shard) {
      return std::vector<sharding::MeshAxis>{{"expert", expert}, {"shard", shard}};
    };
    const Outcome whole = train(options, {.world_size = 2, .axes = axes(1, 2), .stage = 1}, 2);
    for (const int stage : {0, 3}) {
      for (const int expert : {1, 2}) {
        const RunShape setup{.world_size = 2, .axes = axes(expert, 2 / expert), .stage = stage};
        EXPECT_EQ(difference(whole, train(options, setup, 2)), "") << form.name << name_of(setup);
      }
    }
  }
  EXPECT_GE(forms, 3);
}

TEST(MultiTokenPrediction, OptimizersAgreeAtEveryStage) {
  using enum optim::OptimizerType;
  for (const optim::OptimizerType type : {kSgd, kLamb, kMuon, kAdafactor, kDion}) {
    engine::TrainingOptions options = options_of(without_predictions(false), 1);
    options.optimizer.type = type;
    options.optimizer.momentum = 0.9f;
    const Outcome stage0 = train(options, {.world_size = 2}, kSteps);
    for (int stage = 1; stage <= 3; ++stage) {
      const RunShape shape{.world_size = 2, .stage = stage};
      EXPECT_EQ(difference(stage0, train(options, shape, kSteps)), "")
          << static_cast<int>(type) << ", " << name_of(shape);
    }
  }
}

// The weights of the model itself begin as without predictions, and without a weight their losses
// move none of them.
TEST(MultiTokenPrediction, WithoutAWeightLeavesTheModelAsItWouldBe) {
  for (const bool tied : {false, true}) {
    engine::TrainingOptions options = options_of(without_predictions(tied), 0);
    options.max_norm = 0.0f;
    const RunShape shape{.world_size = 2, .num_micro_steps = 2, .stage = 2};
    const Outcome alone = train(options, shape, kSteps);
    options.model.mtp_layers = 2;
    options.model.mtp_loss = 0.0;
    const Outcome with = train(options, shape, kSteps);
    EXPECT_EQ(with.losses, alone.losses);
    EXPECT_EQ(with.grad_norms, alone.grad_norms);
    for (const auto& [name, values] : alone.parameters) {
      EXPECT_EQ(with.parameters.at(name), values) << name;
    }
    EXPECT_GT(with.parameters.size(), alone.parameters.size());
    options.model.mtp_loss = 0.3;
    EXPECT_NE(train(options, shape, kSteps).grad_norms, alone.grad_norms);
  }
}

}  // namespace
}  // namespace sherd::testing
