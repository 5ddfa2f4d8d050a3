// Adapters of experts' matrices: the bits of one rank at every degree of expert parallelism, stage, recompute, buffer and
// pipeline, in planned memory (training_harness.h), on frozen values or codes.

#include <gtest/gtest.h>

#include "engine/model/parameters.h"
#include "tests/support/models/weighed_forms.h"
#include "tests/support/runs/training_harness.h"

namespace sherd::testing {
namespace {

constexpr int kSteps = 3;

// Forms whose experts four ranks can divide.
std::vector<ModelForm> adapted_forms() {
  std::vector<ModelForm> forms = expert_forms_on_cpus();
  for (ModelForm& form : forms) {
    form.shape.moe.experts = 8;
    if (form.shape.moe.groups > 1) form.shape.moe.groups = 4;
    model::AdapterShape& adapter = form.shape.adapter;
    adapter = {.rank = 3, .scale = 1.5};
    adapter.targets = {"attention.query", "moe.experts.up", "moe.experts.down"};
    if (form.shape.gated()) adapter.targets.push_back("moe.experts.gate");
  }
  // Experts alone, of which some of the matrices are trained whole.
  model::ModelShape alone = forms.front().shape;
  alone.adapter.targets = {"moe.experts.gate"};
  alone.adapter.trained_modules = {"moe.experts.down"};
  forms.push_back({"gates_and_whole_downs", alone});
  return forms;
}

std::vector<sharding::MeshAxis> adapter_axes(int expert, int shard, int replicate = 1,
                                             int pipeline = 1) {
  return {{"pipeline", pipeline}, {"replicate", replicate}, {"expert", expert}, {"shard", shard}};
}

// As many ranks, of which each has all experts.
RunShape with_all_experts(RunShape setup) {
  int degree = 1;
  for (sharding::MeshAxis& axis : setup.axes) {
    if (axis.name == "expert") std::swap(degree, axis.degree);
    if (axis.name == "shard") axis.degree *= degree;
  }
  setup.delay_seed = 0;
  return setup;
}

void expect_same_bits(const engine::TrainingOptions& options, const RunShape& setup) {
  EXPECT_EQ(
      difference(train(options, with_all_experts(setup), kSteps), train(options, setup, kSteps)),
      "")
      << name_of(setup);
}

TEST(ExpertAdapterLadder, RanksHaveTheBitsOfOneRankWithAllMicroBatches) {
  for (const ModelForm& each : adapted_forms()) {
    const engine::TrainingOptions options = tiny_training(each.shape);
    const Outcome one = train(options, {.num_micro_steps = 4}, kSteps);
    for (const auto& [expert, shard] : {std::pair{1, 4}, {1, 2}, {2, 1}, {2, 2}, {4, 1}}) {
      const int world = expert * shard;
      Outcome found = train(options,
                            {.world_size = world,
                             .axes = adapter_axes(expert, shard),
                             .num_micro_steps = 4 / world,
                             .stage = world == 2 ? 1 : 3,
                             .delay_seed = 11},
                            kSteps);
      found.grad_norms = one.grad_norms;  // added in another order
      EXPECT_EQ(difference(one, found), "") << each.name << ", " << expert << " x " << shard;
    }
  }
}

TEST(ExpertAdapterLadder, StagesRecomputeReplicasAndClippingChangeNoBit) {
  int run = 0;
  for (const ModelForm& each : adapted_forms()) {
    for (int stage = 0; stage <= 3; ++stage, ++run) {
      engine::TrainingOptions options = tiny_training(each.shape, 0.05f);
      options.model.recompute = static_cast<model::Recompute>(run % 3);
      expect_same_bits(options, {.world_size = 4,
                                 .axes = run % 3 == 0   ? adapter_axes(4, 1)
                                         : run % 3 == 1 ? adapter_axes(2, 2)
                                                        : adapter_axes(2, 1, 2),
                                 .num_micro_steps = 1 + run % 2,
                                 .stage = stage,
                                 .prefetch_depth = run % 3,
                                 .threads_per_rank = 1 + run % 2,
                                 .delay_seed = static_cast<std::uint64_t>(17 + run)});
    }
  }
}

TEST(ExpertAdapterLadder, RecomputeChangesNoBitInAnyPrecision) {
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    for (const ModelForm& each : adapted_forms()) {
      engine::TrainingOptions options = tiny_training(each.shape);
      options.model.dtype = dtype;
      options.precision = {dtype, DType::kF32, DType::kF32};
      const Outcome none = train(options, {.world_size = 2}, kSteps);
      for (const auto recompute : {model::Recompute::kSelective, model::Recompute::kFull}) {
        options.model.recompute = recompute;
        EXPECT_EQ(difference(none, train(options, {.world_size = 2, .stage = 3}, kSteps)), "")
            << each.name;
      }
    }
  }
}

TEST(ExpertAdapterLadder, PipelinesHaveTheBitsOfWholeExpertsInEveryOrder) {
  for (const auto order : {schedule::Order::k1F1B, schedule::Order::kZbH1}) {
    for (int stage = 0; stage <= 3; ++stage) {
      engine::TrainingOptions options =
          tiny_training(shape_named(adapted_forms(), "sandwich_experts"));
      options.model.tied = false;
      options.model.num_layers = 4;
      options.model.recompute = static_cast<model::Recompute>(stage % 3);
      options.pipeline.order = order;
      const RunShape setup{.world_size = 4,
                           .axes = adapter_axes(2, 1, 1, 2),
                           .num_micro_steps = 4,
                           .stage = stage,
                           .delay_seed = 37};
      expect_same_bits(options, setup);
      const RunShape alone{.world_size = 2, .axes = adapter_axes(2, 1), .num_micro_steps = 4};
      EXPECT_EQ(difference(train(options, alone, kSteps), train(options, setup, kSteps)), "");
    }
  }
}

TEST(ExpertAdapterLadder, ABufferOfAnySizeChangesNoBit) {
  engine::TrainingOptions options = tiny_training(shape_named(adapted_forms(), "experts"));
  options.model.moe.experts = 4;
  options.model.moe.per_token = 3;
  options.model.num_layers = 2;
  options.model.sequences = 2;
  options.model.seq_length = options.model.max_positions = 350;
  const Outcome expected = train(options, {.world_size = 2, .stage = 2}, 2);
  for (const std::int64_t rows : {1, 513, 5000}) {
    options.model.moe.buffer_rows = rows;
    for (const auto& of : {adapter_axes(1, 2), adapter_axes(2, 1)}) {
      const RunShape setup{.world_size = 2, .axes = of, .stage = 2};
      EXPECT_EQ(difference(expected, train(options, setup, 2)), "") << name_of(setup) << rows;
    }
  }
}

// Whole blocks of codes for each of four ranks.
TEST(ExpertAdapterLadder, FrozenCodesAreDividedToo) {
  for (int stage = 0; stage <= 3; ++stage) {
    engine::TrainingOptions options = tiny_training(shape_named(adapted_forms(), "experts"));
    options.nf4_base = true;
    options.model.width = 64;
    options.model.head_size = 16;
    options.model.ffn_width = options.model.moe.ffn_width = 32;
    expect_same_bits(options, {.world_size = 4,
                               .axes = stage % 2 == 0 ? adapter_axes(4, 1) : adapter_axes(2, 2),
                               .num_micro_steps = 2,
                               .stage = stage,
                               .delay_seed = 41});
  }
}

TEST(ExpertAdapterLadder, EveryOptimizerAgreesAndMuonTakesEachExpertsMatrices) {
  for (const auto type : {optim::OptimizerType::kSgd, optim::OptimizerType::kLion,
                          optim::OptimizerType::kLamb, optim::OptimizerType::kMuon}) {
    engine::TrainingOptions options = tiny_training(shape_named(adapted_forms(), "experts"));
    options.optimizer.type = type;
    options.optimizer.momentum = 0.9f;
    for (const int stage : {1, 3}) {
      expect_same_bits(options, {.world_size = 4, .axes = adapter_axes(2, 2), .stage = stage});
    }
  }
  for (const UnitSpec& unit :
       model::parameter_table(shape_named(adapted_forms(), "parallel_experts"))) {
    for (const ParameterSpec& parameter : unit.parameters) {
      if (parameter.name.find(".moe.experts.") == std::string::npos) continue;
      EXPECT_EQ(parameter.matrix_rows.size(), 8u) << parameter.name;
    }
  }
}

// B begins at zero.
TEST(ExpertAdapters, AddNothingToTheFirstForward) {
  for (const ModelForm& each : adapted_forms()) {
    model::ModelShape without = each.shape;
    without.adapter = {};
    EXPECT_EQ(train(tiny_training(each.shape), {}, 1).losses[0],
              train(tiny_training(without), {}, 1).losses[0])
        << each.name;
  }
}

}  // namespace
}  // namespace sherd::testing
