// Runs whose matrices are cut over tensor ranks: near the run of one rank, and bit for bit equal to one
// another however their state is sharded; memory as planned.

#include <gtest/gtest.h>

#include "optim/slices.h"
#include "tests/equivalence/near_one_rank.h"
#include "tests/support/models/model_forms.h"

namespace sherd::testing {
namespace {

using Case = MeshCase;

// Sizes that 2 and 4 ranks can share; the vocabulary, 41, not evenly. On 4 ranks two hold copies of each of the 2
// key/value heads.
engine::TrainingOptions options_of(bool tied = false,
                                   optim::OptimizerType type = optim::OptimizerType::kAdamW) {
  model::ModelShape shape = tiny_model(tied);
  shape.ffn_width = 36;
  engine::TrainingOptions options = tiny_training(shape, 0.5f);  // clips
  options.optimizer.type = type;
  options.optimizer.momentum = 0.9f;
  if (type == optim::OptimizerType::kSgd) options.lr_schedule.lr = 0.05;
  return options;
}

// The same batch on tensor ranks alone.
Outcome unsharded(const engine::TrainingOptions& options, const Case& each, int num_steps = 3) {
  return same_batch(options, each, {.tensor = each.tensor}, num_steps);
}

TEST(Tensor, RunsStartWithTheWeightsOfOneRank) {
  for (const bool tied : {false, true}) {
    const engine::TrainingOptions options = options_of(tied);
    const auto one = start_of(options, {.tensor = 1}).parameters;
    for (const Case& each :
         {Case{.tensor = 2, .stage = 2}, Case{.tensor = 4, .shards = 2, .stage = 3}}) {
      EXPECT_EQ(start_of(options, each).parameters, one) << name_of(each);
    }
  }
}

// B.4 #23, #28: the norm, and not the loss alone, with what ranks have copies of. SGD: a weight moves in proportion to its gradient, so no rounding is blown up.
TEST(Tensor, RunsStayNearOneRank) {
  for (const bool tied : {false, true}) {
    const engine::TrainingOptions options = options_of(tied, optim::OptimizerType::kSgd);
    const Outcome one = run(options, {.tensor = 1, .micro_steps = 2});
    for (const int tensor : {2, 4}) {
      const Case each{.tensor = tensor, .micro_steps = 2};
      expect_near(options, run(options, each), one, 1e-5, name_of(each));
    }
  }
}

TEST(Tensor, StagesShardsReplicasAndPipelinesKeepTheBits) {
  const engine::TrainingOptions options = options_of();
  for (const Case& each :
       {Case{.tensor = 2, .shards = 2, .stage = 0},
        Case{.tensor = 2, .shards = 2, .stage = 1, .micro_steps = 2},
        Case{.tensor = 4, .shards = 2, .stage = 2}, Case{.tensor = 2, .shards = 3, .stage = 3},
        Case{.tensor = 2, .shards = 2, .replicas = 2, .stage = 3},
        Case{.tensor = 2, .pipeline = 3, .stage = 1, .micro_steps = 4},
        Case{.tensor = 2, .shards = 2, .pipeline = 2, .stage = 3, .micro_steps = 3},
        Case{.tensor = 4, .shards = 1, .pipeline = 2, .stage = 2, .micro_steps = 2}}) {
    EXPECT_EQ(difference(run(options, each), unsharded(options, each)), "") << name_of(each);
  }
}

class TensorForms : public ::testing::TestWithParam<ModelForm> {};
INSTANTIATE_TEST_SUITE_P(Forms, TensorForms, ::testing::ValuesIn(tensor_rank_forms()),
                         [](const auto& info) { return info.param.name; });

TEST_P(TensorForms, KeepTheBitsHoweverTheyAreShardedAndRecomputed) {
  expect_bits_however_recomputed(options_of(false), GetParam().shape);
}

// Of moments that are rounded at random: the number of an element in the whole tensor, however it is cut.
TEST(Tensor, RoundingIsDrawnByTheElementOfTheWholeTensor) {
  engine::TrainingOptions options = options_of();
  options.optimizer.moment_type = {DType::kBF16, true, 5};
  const RunShape setup = setup_of({.tensor = 4, .shards = 3, .stage = 1});
  options = applied(options, setup);
  run_ranks(setup, [&](sharding::Rank& rank) {
    engine::ShardedModel model(options, rank);
    rank.compute().synchronize();
    const auto slices = optim::updated_slices(model.units(), options.optimizer);
    for (std::size_t unit = 0; unit < slices.size(); ++unit) {
      for (const kernels::UpdateSegment& segment : slices[unit][0].segments) {
        const ParameterSpec& parameter =
            optim::parameter_at(model.units()[unit].spec(), segment.parameter);
        for_each_run(parameter.cut->boxes(), parameter.cut->columns(), segment.first_element,
                     segment.count, [&](const BoxRun& run) {
                       EXPECT_EQ(run.in_part + segment.random_shift, run.in_tensor)
                           << parameter.name << " on rank " << rank.rank;
                     });
      }
    }
  });
}

TEST(Tensor, OptimizersThatNeedWholeTensorsAreRight) {
  struct Row {
    optim::OptimizerType type;
    double tolerance;
  };
  for (const Row& row :
       {Row{optim::OptimizerType::kLamb, 1e-2}, Row{optim::OptimizerType::kLars, 1e-5},
        Row{optim::OptimizerType::kMuon, 1e-2}, Row{optim::OptimizerType::kAdafactor, 1e-2},
        Row{optim::OptimizerType::kDion, 1e-2}}) {
    for (const bool tied : {false, true}) {
      engine::TrainingOptions options = options_of(tied, row.type);
      // Without rotary positions the key's bias moves no loss: its gradient is rounding alone, which an
      // optimizer that divides by its size blows up.
      options.model.biases.qkv = false;
      const Outcome one = run(options, {.tensor = 1, .micro_steps = 2});
      for (const Case& each :
           {Case{.tensor = 2, .micro_steps = 2}, Case{.tensor = 4, .micro_steps = 2},
            Case{.tensor = 2, .shards = 2, .stage = 3},
            Case{.tensor = 4, .shards = 2, .stage = 0}}) {
        const Outcome cut = run(options, each);
        const std::string label =
            fmt::format("{}, optimizer {}", name_of(each), static_cast<int>(row.type));
        expect_near(options, cut, one, row.tolerance, label);
        EXPECT_EQ(difference(cut, unsharded(options, each)), "") << label;
      }
    }
  }
}

}  // namespace
}  // namespace sherd::testing
