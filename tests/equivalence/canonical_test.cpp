// Canonical sums (engine/model/cut/tensor_cut.h): runs on any number of tensor ranks are bit-identical to the run on one,
// whatever else is sharded.

#include <gtest/gtest.h>

#include <map>

#include "engine/model/cut/tensor_cut.h"
#include "tests/equivalence/distance.h"
#include "tests/equivalence/mesh_case.h"
#include "tests/support/models/model_forms.h"

namespace sherd::testing {
namespace {

using Case = MeshCase;

// With dropout; with clipping that acts; heads of 8 columns, so that one head of keys has eight groups.
engine::TrainingOptions options_of(model::ModelShape shape, DType dtype = DType::kF32,
                                   optim::OptimizerType type = optim::OptimizerType::kAdamW) {
  shape.head_size = 8;
  model::sum_canonically(shape);
  engine::TrainingOptions options = tiny_training(shape, 0.5f);
  options.model.dtype = dtype;
  options.precision.parameters = dtype;
  options.optimizer.type = type;
  options.optimizer.momentum = 0.9f;
  return options;
}

void expect_equal(const engine::TrainingOptions& options, const Case& each, int num_steps = 3) {
  EXPECT_EQ(difference(run(options, each, num_steps), same_batch(options, each, {}, num_steps)), "")
      << name_of(each);
}

TEST(Canonical, EveryMeshHasTheBitsOfOneRank) {
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    const engine::TrainingOptions options = options_of(cuttable_form("llama"), dtype);
    for (const Case& each :
         {Case{.tensor = 2}, Case{.tensor = 4, .shards = 2, .stage = 1},
          Case{.tensor = 8, .stage = 3}, Case{.tensor = 2, .shards = 3, .stage = 2},
          Case{.tensor = 4, .shards = 2, .stage = 3, .micro_steps = 2},
          Case{.tensor = 2, .shards = 2, .replicas = 2, .stage = 3},
          Case{.tensor = 4, .pipeline = 2, .stage = 0, .micro_steps = 3}}) {
      expect_equal(options, each);
    }
  }
}

TEST(Canonical, PipelinesWithTensorRanksAndShardsHaveTheBitsOfOneRank) {
  using schedule::Order;
  model::ModelShape shape = cuttable_form("llama");
  shape.num_layers = 4;
  const engine::TrainingOptions options = options_of(shape);
  int stage = 0;
  for (const Order order :
       {Order::kLayerParallel, Order::kGPipe, Order::k1F1B, Order::kInterleaved1F1B, Order::kZbH1,
        Order::kZbV, Order::kDualPipeV}) {
    expect_equal(options,
                 {.tensor = 2,
                  .shards = 2,
                  .pipeline = 2,
                  .stage = stage++ % 4,
                  .micro_steps = 4,
                  .order = order},
                 2);
  }
}

// A tied matrix at both ends has two sums of gradients on one rank, too, which are added once.
TEST(Canonical, TiedEndsHaveTheBitsOfOneRank) {
  using schedule::Order;
  model::ModelShape shape = cuttable_form("gpt2");
  shape.num_layers = 4;
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    const engine::TrainingOptions options = options_of(shape, dtype);
    for (const Case& each :
         {Case{.shards = 2, .stage = 0, .micro_steps = 2},
          Case{.replicas = 2, .stage = 1, .micro_steps = 2},
          Case{.pipeline = 2, .stage = 0, .micro_steps = 3},
          Case{.tensor = 2, .shards = 2, .pipeline = 2, .stage = 3, .micro_steps = 2},
          Case{.pipeline = 2, .stage = 1, .micro_steps = 4, .order = Order::kZbV},
          Case{.tensor = 2,
          .shards = 2,
          .pipeline = 2,
          .stage = 2,
          .micro_steps = 4,
          .order = Order::kDualPipeV},
          Case{.replicas = 2, .pipeline = 2, .stage = 3, .micro_steps = 4, .order = Order::kZbV}}) {
      expect_equal(options, each, 2);
    }
  }
}

TEST(Canonical, SixteenRanksHaveTheBitsOfOne) {
  expect_equal(options_of(cuttable_form("gpt2")), {.tensor = 8, .shards = 2, .stage = 3}, 2);
}

class CanonicalForms : public ::testing::TestWithParam<ModelForm> {};
INSTANTIATE_TEST_SUITE_P(Forms, CanonicalForms, ::testing::ValuesIn(cuttable_forms()),
                         [](const auto& info) { return info.param.name; });

TEST_P(CanonicalForms, HaveTheBitsOfOneRankHoweverTheyAreRecomputed) {
  int tensor = 2;
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    engine::TrainingOptions options = options_of(GetParam().shape, dtype);
    for (const auto recompute :
         {model::Recompute::kNone, model::Recompute::kSelective, model::Recompute::kFull}) {
      options.model.recompute = recompute;
      expect_equal(options, {.tensor = tensor, .stage = tensor % 3}, 2);
      tensor = tensor == 8 ? 2 : 2 * tensor;
    }
  }
}

TEST(Canonical, OptimizersThatNeedWholeTensorsHaveTheBitsOfOneRank) {
  for (const auto type :
       {optim::OptimizerType::kLamb, optim::OptimizerType::kLars, optim::OptimizerType::kMuon}) {
    const engine::TrainingOptions options =
        options_of(cuttable_form("fewer_kv_heads_than_ranks"), DType::kF32, type);
    expect_equal(options, {.tensor = 4, .shards = 2, .stage = 3});
    expect_equal(options, {.tensor = 2, .stage = 0, .micro_steps = 2});
  }
}

TEST(CanonicalSlow, EveryDegreeWithEveryStageHasTheBitsOfOneRank) {
  for (const char* form : {"llama", "gpt2"}) {
    for (const DType dtype : {DType::kF32, DType::kBF16}) {
      const engine::TrainingOptions options = options_of(cuttable_form(form), dtype);
      std::map<int, Outcome> expected;  // by micro-batches
      for (const int micro_batches : {2, 4}) {
        expected.emplace(micro_batches, run(options, {.micro_steps = micro_batches}, 10));
      }
      for (const int tensor : {1, 2, 4, 8}) {
        for (const int shards : {1, 2}) {
          for (int stage = 0; stage <= 3; ++stage) {
            const Case each{.tensor = tensor, .shards = shards, .stage = stage, .micro_steps = 2};
            EXPECT_EQ(difference(run(options, each, 10), expected.at(2 * shards)), "")
                << name_of(each) << ", " << form << ", " << name_of(dtype);
          }
        }
      }
    }
  }
}

// Another order of the same sums: near, and not the same.
TEST(Canonical, SumsAreThoseOfTheModel) {
  engine::TrainingOptions options =
      options_of(cuttable_form("gpt2"), DType::kF32, optim::OptimizerType::kSgd);
  const Outcome canonical = run(options, {});
  options.model.part = {};
  const Outcome plain = run(options, {});
  EXPECT_NE(canonical.parameters, plain.parameters);
  for (std::size_t step = 0; step < plain.losses.size(); ++step) {
    EXPECT_NEAR(canonical.losses[step], plain.losses[step], 1e-5);
    EXPECT_NEAR(canonical.grad_norms[step], plain.grad_norms[step], 1e-5 * plain.grad_norms[step]);
  }
  for (const auto& [name, values] : plain.parameters) {
    EXPECT_LE(distance(canonical.parameters.at(name), values), 1e-5 * length(values)) << name;
  }
}

}  // namespace
}  // namespace sherd::testing
