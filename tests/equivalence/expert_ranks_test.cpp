// Ranks that divide the experts: the bits of ranks that all have every expert, in planned memory, however rows are
// spread and however small the buffer is.

#include <gtest/gtest.h>

#include "engine/train/expert_statistics.h"
#include "kernels/pointwise.h"
#include "sharding/zero/parameter_gather.h"
#include "tests/equivalence/expert_rank_runs.h"

namespace sherd::testing {
namespace {

// Ranks of which each has all experts.
RunShape with_every_expert(RunShape setup) {
  int world = 1;
  for (sharding::MeshAxis& axis : setup.axes) {
    if (axis.name == "expert") std::swap(world, axis.degree);
    if (axis.name == "shard") axis.degree *= world;
  }
  setup.delay_seed = 0;
  return setup;
}

void expect_equal_bits(const engine::TrainingOptions& options, const RunShape& setup) {
  EXPECT_EQ(difference(train(options, with_every_expert(setup), 3), train(options, setup, 3)), "")
      << name_of(setup);
}

TEST(ExpertRanks, HaveTheBitsOfOneRankWithAllMicroBatches) {
  for (const ModelForm& each : divisible_forms()) {
    const engine::TrainingOptions options = tiny_training(each.shape);
    const Outcome one = train(options, {.num_micro_steps = 8}, 3);
    for (const int degree : {2, 4, 8}) {
      Outcome found = train(options,
                            {.world_size = degree,
                             .axes = axes(degree, 1),
                             .num_micro_steps = 8 / degree,
                             .stage = degree == 2 ? 1 : 3,
                             .delay_seed = 11},
                            3);
      found.grad_norms = one.grad_norms;  // added in another order
      EXPECT_EQ(difference(one, found), "") << each.name << " on " << degree << " expert ranks";
    }
  }
}

TEST(ExpertRanks, HaveTheBitsOfWholeExpertsAtEveryStageWithClippingAndRecompute) {
  int run = 0;
  for (const ModelForm& each : divisible_forms()) {
    for (int stage = 0; stage <= 3; ++stage) {
      engine::TrainingOptions options = tiny_training(each.shape, 0.05f);
      options.model.recompute = static_cast<model::Recompute>(run % 3);
      const bool all_ranks = run % 2 == 0;
      expect_equal_bits(options, {.world_size = 4,
                                  .axes = all_ranks ? axes(4, 1) : axes(2, 2),
                                  .num_micro_steps = 1 + run % 2,
                                  .stage = stage,
                                  .prefetch_depth = run % 3,
                                  .threads_per_rank = 1 + run % 2,
                                  .delay_seed = static_cast<std::uint64_t>(7 + run)});
      ++run;
    }
  }
}

TEST(ExpertRanks, HaveTheBitsOfWholeExpertsInReplicas) {
  for (const bool divides : {false, true}) {
    for (int stage = divides ? 1 : 0; stage <= 3; ++stage) {
      const auto options = tiny_training(form("experts"), 0.05f);
      expect_equal_bits(options, {.world_size = 4,
                                  .axes = axes(2, 1, 2),
                                  .num_micro_steps = 2,
                                  .stage = stage,
                                  .divides_optimizer = divides,
                                  .delay_seed = 29});
    }
  }
}

TEST(ExpertRanks, HaveTheBitsOfWholeExpertsInGroupsOfTheBatch) {
  for (int stage = 0; stage <= 3; ++stage) {
    const auto options = tiny_training(form("experts"), 0.05f);
    expect_equal_bits(options, {.world_size = 4,
                                .axes = axes(2, 2),
                                .num_micro_steps = 2,
                                .stage = stage,
                                .batch_groups = stage % 2 == 0 ? 2 : 4,
                                .delay_seed = 31});
  }
}

TEST(ExpertRanks, HaveTheBitsOfWholeExpertsInPipelinesWithHalvesOfBackwards) {
  for (const auto order : {schedule::Order::k1F1B, schedule::Order::kZbH1}) {
    for (int stage = 0; stage <= 3; ++stage) {
      engine::TrainingOptions options = tiny_training(form("sandwich_experts"));
      options.model.tied = false;
      options.model.num_layers = 4;
      options.model.recompute = static_cast<model::Recompute>(stage % 3);
      options.pipeline.order = order;
      expect_equal_bits(options, {.world_size = 4,
                                  .axes = axes(2, 1, 1, 2),
                                  .num_micro_steps = 4,
                                  .stage = stage,
                                  .delay_seed = 37});
    }
  }
}

TEST(ExpertRanks, HaveTheBitsOfWholeExpertsWithAdaptersOnFrozenOnes) {
  for (int stage = 0; stage <= 3; ++stage) {
    engine::TrainingOptions options = tiny_training(form("sandwich_experts"));
    options.model.adapter = {.rank = 2, .targets = {"attention.query", "mlp.down"}};
    expect_equal_bits(options, {.world_size = 4,
                                .axes = stage % 2 == 0 ? axes(4, 1) : axes(2, 2),
                                .num_micro_steps = 2,
                                .stage = stage,
                                .delay_seed = 41});
  }
}

TEST(ExpertRanks, HaveTheBitsOfWholeExpertsIn16BitsAndUnderEveryOptimizer) {
  int run = 0;
  for (const auto type :
       {optim::OptimizerType::kAdamW, optim::OptimizerType::kLamb, optim::OptimizerType::kMuon,
        optim::OptimizerType::kLion, optim::OptimizerType::kDion}) {
    engine::TrainingOptions options = tiny_training(form("sandwich_experts"));
    options.optimizer.type = type;
    options.optimizer.momentum = 0.9f;
    if (run % 2 == 0) {
      options.model.dtype = options.precision.parameters = DType::kBF16;
      options.precision.reduce = DType::kF32;
    }
    for (const int stage : {run % 4, 3}) {
      expect_equal_bits(options, {.world_size = 4, .axes = axes(2, 2), .stage = stage});
    }
    ++run;
  }
}

// Each tensor rank has a part of every expert's width, and exchanges it with expert ranks.
TEST(ExpertRanks, HaveTheBitsOfWholeExpertsOnTensorRanks) {
  int run = 0;
  for (const ModelForm& each : cuttable_expert_forms_with_biases()) {
    for (int stage = 0; stage <= 3; ++stage) {
      engine::TrainingOptions options = tiny_training(each.shape, 0.05f);
      options.model.moe.experts = 8;
      if (options.model.moe.groups > 1) options.model.moe.groups = 4;
      options.model.tied = false;
      options.model.recompute = static_cast<model::Recompute>(run % 3);
      options.model.part.sequence_parallel = run % 4 == 1;
      options.optimizer.type = run % 8 == 2   ? optim::OptimizerType::kMuon
                               : run % 8 == 6 ? optim::OptimizerType::kDion
                                              : optim::OptimizerType::kAdamW;
      options.optimizer.momentum = 0.9f;
      options.pipeline.order = schedule::Order::kZbH1;
      const bool in_pipeline = run % 3 == 2;
      RunShape setup{.world_size = in_pipeline ? 8 : 4 << stage % 2,
                     .axes = in_pipeline ? axes(2, 1, 1, 2) : axes(2, 1 + stage % 2),
                     .num_micro_steps = 2,
                     .stage = stage,
                     .delay_seed = static_cast<std::uint64_t>(60 + run)};
      setup.axes.push_back({"tensor", 2});
      expect_equal_bits(options, setup);
      // And one rank with all micro-batches, as many tensor ranks.
      RunShape one{.world_size = 2, .axes = {{"tensor", 2}}, .num_micro_steps = 4};
      RunShape dealt = one;
      dealt.world_size = 8;
      dealt.axes = {{"expert", 4}, {"tensor", 2}};
      dealt.num_micro_steps = 1;
      dealt.stage = stage;
      const Outcome expected = train(options, one, 2);
      Outcome found = train(options, dealt, 2);
      found.grad_norms = expected.grad_norms;  // added in another order
      EXPECT_EQ(difference(expected, found), "") << each.name << ", stage " << stage;
      ++run;
    }
  }
}

// Experts get the rows of a rank's own positions; their gradients add up over context ranks.
TEST(ExpertRanks, HaveTheBitsOfWholeExpertsOnContextRanks) {
  int run = 0;
  for (const ModelForm& each : cuttable_expert_forms_with_biases()) {
    for (const auto method : {model::ContextMethod::kUlysses, model::ContextMethod::kAllGather,
                              model::ContextMethod::kRing}) {
      engine::TrainingOptions options = tiny_training(each.shape, 0.05f);
      options.model.moe.experts = 8;
      if (options.model.moe.groups > 1) options.model.moe.groups = 4;
      options.model.seq_length = 8;
      options.model.kv_heads = 4;
      options.model.context.method = method;
      options.model.recompute = static_cast<model::Recompute>(run % 3);
      const bool on_tensor_ranks = run % 2 == 1;
      RunShape setup{.world_size = 8,
                     .axes = on_tensor_ranks ? axes(2, 1) : axes(2, 2),
                     .num_micro_steps = 2,
                     .stage = run % 4,
                     .delay_seed = static_cast<std::uint64_t>(90 + run)};
      setup.axes.push_back({"context", 2});
      if (on_tensor_ranks) setup.axes.push_back({"tensor", 2});
      expect_equal_bits(options, setup);
      RunShape one{.world_size = 2, .axes = {{"context", 2}}, .num_micro_steps = 4};
      RunShape dealt = one;
      dealt.world_size = 8;
      dealt.axes = {{"expert", 4}, {"context", 2}};
      dealt.num_micro_steps = 1;
      dealt.stage = run % 4;
      const Outcome expected = train(options, one, 2);
      Outcome found = train(options, dealt, 2);
      found.grad_norms = expected.grad_norms;  // added in another order
      EXPECT_EQ(difference(expected, found), "") << each.name << ", stage " << run % 4;
      ++run;
    }
  }
}

// Tokens in all, pieces and rounds: every expert gets every token.
TEST(ExpertRanks, HaveTheSameBitsWithABufferOfAnySize) {
  for (const char* name : {"experts", "sinks_and_biases"}) {
    engine::TrainingOptions options = tiny_training(form(name));
    options.model.moe.experts = 4;
    options.model.moe.per_token = 3;
    options.model.num_layers = 2;
    options.model.sequences = 2;
    options.model.seq_length = 350;
    options.model.max_positions = 350;
    const Outcome expected = train(options, {.world_size = 2, .stage = 2}, 2);
    for (const std::int64_t rows : {1, 513, 1024, 5000}) {
      options.model.moe.buffer_rows = rows;
      EXPECT_EQ(difference(expected, train(options, {.world_size = 2, .stage = 2}, 2)), "")
          << name << ", " << rows;
      EXPECT_EQ(difference(expected,
                           train(options, {.world_size = 2, .axes = axes(2, 1), .stage = 2}, 2)),
                "")
          << name << ", " << rows << " rows, on expert ranks";
    }
  }
}

// Many rounds, on ranks that share their experts with others and on such as don't, with delays.
TEST(ExpertRanks, HaveTheSameBitsInManyRounds) {
  engine::TrainingOptions options = tiny_training(form("experts"));
  options.model.moe.experts = 4;
  options.model.moe.per_token = 2;
  options.model.moe.balance = options.model.moe.z = 0.0;
  options.model.num_layers = 2;
  options.model.sequences = 2;
  options.model.seq_length = 400;
  options.model.max_positions = 400;
  options.model.moe.buffer_rows = 512;
  int run = 0;
  for (const auto& [expert, shard, replicate, pipeline] :
       {std::tuple{4, 2, 1, 1}, {2, 2, 2, 1}, {4, 1, 1, 2}, {2, 1, 2, 1}}) {
    options.model.recompute = static_cast<model::Recompute>(run % 3);
    options.pipeline.order = run % 2 == 0 ? schedule::Order::kZbH1 : schedule::Order::k1F1B;
    expect_equal_bits(options, {.world_size = expert * shard * replicate * pipeline,
                                .axes = axes(expert, shard, replicate, pipeline),
                                .num_micro_steps = 2,
                                .stage = run % 4,
                                .delay_seed = static_cast<std::uint64_t>(50 + run)});
    ++run;
  }
}

// What rank 0 has for loss and norm after `steps` steps in which routers begin with zeros: all logits are equal, so that
// every token takes the experts with the lowest numbers.
std::vector<engine::StepResult> with_equal_logits(engine::TrainingOptions options,
                                                  const RunShape& setup, int steps) {
  options = applied(std::move(options), setup);
  std::vector<engine::StepResult> results;
  run_ranks(setup, [&](sharding::Rank& rank) {
    engine::ShardedModel model(options, rank);
    engine::TrainingStep step(options, model);
    std::vector<std::int32_t> memory;
    const engine::NextBatch next = tokens_for(options, rank, memory);
    rank.guard([&] {
      for (std::size_t unit = 0; unit < model.units().size(); ++unit) {
        if (!model.units()[unit].name().ends_with(".router")) continue;
        for (const int slice : model.units()[unit].updated_slices()) {
          kernels::fill_zero(rank.compute(), model.units()[unit].fp32_slice(slice));
        }
        model.parameters().publish(static_cast<int>(unit));
      }
      for (int i = 0; i < steps; ++i) {
        const engine::StepResult result = step.run(i, next);
        if (rank.rank == 0) results.push_back(result);
      }
      rank.compute().synchronize();
    });
  });
  return results;
}

TEST(ExpertRanks, HaveTheSameBitsIfAllTokensGoToOneExpertOrToOneRanksExperts) {
  for (const int per_token : {1, 2}) {
    engine::TrainingOptions options = tiny_training(form("experts"));
    options.model.moe.per_token = per_token;
    options.model.moe.balance = options.model.moe.z = 0.0;
    const RunShape setup{.world_size = 4, .axes = axes(4, 1), .stage = 3};
    const auto expected = with_equal_logits(options, with_every_expert(setup), 3);
    const auto found = with_equal_logits(options, setup, 3);
    ASSERT_EQ(found.size(), expected.size());
    const std::vector<std::int64_t>& counts = found[0].experts->layers[0].counts;
    for (std::size_t e = 0; e < counts.size(); ++e) {
      const bool chosen = e < static_cast<std::size_t>(per_token);
      EXPECT_EQ(counts[e], chosen ? 4 * options.model.tokens() : 0) << e;
    }
    for (std::size_t i = 0; i < found.size(); ++i) {
      EXPECT_EQ(found[i].loss, expected[i].loss) << "step " << i;
      EXPECT_EQ(found[i].grad_norm, expected[i].grad_norm) << "step " << i;
    }
  }
}

}  // namespace
}  // namespace sherd::testing
