// Mixtures of experts beyond what holds for every form (forms_test.cpp, pipeline_test.cpp): what routers decide is
// counted once, and an expert that no token chooses is updated like any other parameter.

#include <gtest/gtest.h>

#include <cmath>
#include <numeric>

#include "engine/train/expert_statistics.h"
#include "tests/support/models/weighed_forms.h"
#include "tests/support/runs/training_harness.h"

namespace sherd::testing {
namespace {

model::ModelShape form(const std::string& name) {
  return shape_named(expert_forms(), name);
}

// What rank 0 learns of `steps` steps.
std::vector<engine::ExpertReport> reports(engine::TrainingOptions options, const RunShape& setup,
                                          int steps, bool evaluates = false) {
  options = applied(std::move(options), setup);
  std::vector<engine::ExpertReport> reports;
  run_ranks(setup, [&](sharding::Rank& rank) {
    engine::ShardedModel model(options, rank);
    engine::TrainingStep step(options, model);
    std::vector<std::int32_t> memory;
    const engine::NextBatch next = tokens_for(options, rank, memory);
    rank.guard([&] {
      for (int i = 0; i < steps; ++i) {
        const engine::StepResult result = step.run(i, next);
        if (rank.rank == 0) reports.push_back(*result.experts);
        if (!evaluates) continue;
        const engine::TokenBatch batch = next(i + 100, 0);
        model.plan(model.evaluation_uses());
        model.forward({.inputs = batch.inputs, .targets = batch.targets});
        model.evaluate_head({.inputs = batch.inputs, .targets = batch.targets});
      }
      rank.compute().synchronize();
    });
  });
  return reports;
}

void expect_equal(const std::vector<engine::ExpertReport>& a,
                  const std::vector<engine::ExpertReport>& b, const std::string& what) {
  ASSERT_EQ(a.size(), b.size());
  for (std::size_t step = 0; step < a.size(); ++step) {
    ASSERT_EQ(a[step].layers.size(), b[step].layers.size());
    for (std::size_t i = 0; i < a[step].layers.size(); ++i) {
      EXPECT_EQ(a[step].layers[i].layer, b[step].layers[i].layer);
      EXPECT_EQ(a[step].layers[i].counts, b[step].layers[i].counts) << what << ", step " << step;
    }
    EXPECT_EQ(a[step].balance_loss, b[step].balance_loss) << what << ", step " << step;
    EXPECT_EQ(a[step].z_loss, b[step].z_loss) << what << ", step " << step;
  }
}

TEST(Experts, AreCountedOnceForEachTokenAndChoice) {
  const model::ModelShape shape = form("experts");
  const auto options = tiny_training(shape);
  const std::vector<engine::ExpertReport> found =
      reports(options, {.world_size = 2, .num_micro_steps = 3, .stage = 1}, 2);
  ASSERT_EQ(found[0].layers.size(), 2u);  // the first and the last of three
  EXPECT_EQ(found[0].layers[1].layer, 2);
  for (const engine::ExpertReport& report : found) {
    for (const auto& [layer, counts] : report.layers) {
      EXPECT_EQ(std::accumulate(counts.begin(), counts.end(), std::int64_t{0}),
                2 * 3 * shape.tokens() * shape.moe.per_token);
    }
    EXPECT_GT(report.balance_loss, 0.0);
    EXPECT_GT(report.z_loss, 0.0);
  }
}

// Tensor ranks have the same tokens, context ranks others of the same sequences. One step: before
// it, weights are equal to the last bit.
TEST(Experts, AreCountedOnceByRanksThatShareTheModel) {
  for (const ModelForm& each : cuttable_expert_forms())
    for (const char* axis : {"tensor", "context"}) {
      engine::TrainingOptions options = tiny_training(each.shape);
      options.model.seq_length = 8;
      options.model.context.method = model::ContextMethod::kAllGather;
      const auto one = reports(options, {.num_micro_steps = 2}, 1);
      const auto cut = reports(
          options,
          {.world_size = 4, .axes = {{"shard", 2}, {axis, 2}}, .num_micro_steps = 1, .stage = 2},
          1);
      ASSERT_EQ(cut[0].layers.size(), one[0].layers.size());
      for (std::size_t i = 0; i < cut[0].layers.size(); ++i) {
        EXPECT_EQ(cut[0].layers[i].counts, one[0].layers[i].counts) << each.name;
      }
      EXPECT_NEAR(cut[0].balance_loss, one[0].balance_loss, 1e-5 * one[0].balance_loss);
      EXPECT_NEAR(cut[0].z_loss, one[0].z_loss, 1e-5 * one[0].z_loss);
    }
}

TEST(Experts, AreCountedAlikeHoweverBatchesAreDealtAndWhateverIsRecomputed) {
  for (const ModelForm& each : expert_forms_on_cpus()) {
    engine::TrainingOptions options = tiny_training(each.shape);
    const auto expected = reports(options, {.num_micro_steps = 4}, 2);
    for (const auto recompute :
         {model::Recompute::kNone, model::Recompute::kSelective, model::Recompute::kFull}) {
      options.model.recompute = recompute;
      expect_equal(expected, reports(options, {.world_size = 4, .stage = 3}, 2),
                   each.name + " on four ranks");
      expect_equal(expected,
                   reports(options, {.world_size = 2, .num_micro_steps = 2, .stage = 2}, 2, true),
                   each.name + " with evaluations between steps");
    }
  }
}

TEST(Experts, AreCountedInPipelines) {
  engine::TrainingOptions options = tiny_training(form("sandwich_experts"));
  options.model.tied = false;
  const auto expected = reports(options, {.num_micro_steps = 4}, 2);
  options.pipeline.order = schedule::Order::kZbH1;
  expect_equal(
      expected,
      reports(options, {.world_size = 3, .axes = {{"pipeline", 3}}, .num_micro_steps = 4}, 2),
      "in a pipeline");
}

// A loss that is too small or too large by the number of micro-batches or ranks would show.
TEST(Experts, LossesOfBalanceDontDependOnHowBatchesAreDealt) {
  engine::TrainingOptions options = tiny_training(form("experts"));
  options.model.moe.balance = 10.0;
  options.model.moe.z = 1.0;
  const Outcome one = train(options, {.num_micro_steps = 4}, 3);
  Outcome four = train(options, {.world_size = 4, .stage = 3, .delay_seed = 5}, 3);
  four.grad_norms = one.grad_norms;  // added in another order
  EXPECT_EQ(difference(one, four), "");
  engine::TrainingOptions without = options;
  without.model.moe.balance = without.model.moe.z = 0.0;
  EXPECT_NE(difference(train(without, {.num_micro_steps = 4}, 3), one), "");
}

// The bias that corrects an expert's choice: integers decide its sign, after each update, and nothing else touches it.
engine::TrainingOptions corrected(engine::TrainingOptions options, float rate) {
  options.model.moe.correction_bias = true;
  options.model.moe.bias_update_rate = rate;
  return options;
}

TEST(Experts, AreCorrectedByTheSignOfWhatTheStepCounted) {
  const engine::TrainingOptions options =
      corrected(tiny_training(form("sandwich_experts"), 0.05f), 0.125f);
  const RunShape setup{.world_size = 2, .num_micro_steps = 2, .stage = 2};
  constexpr int kSteps = 10;
  const auto found = reports(options, setup, kSteps, true);  // evaluations count nothing
  const Outcome outcome = train(options, setup, kSteps);
  for (const auto& [layer, counts] : found[0].layers) {
    std::vector<float> expected(counts.size(), 0.0f);
    for (const engine::ExpertReport& step : found) {
      const auto at = std::ranges::find(step.layers, layer, &engine::ExpertReport::Layer::layer);
      const std::int64_t sum =
          std::accumulate(at->counts.begin(), at->counts.end(), std::int64_t{0});
      for (std::size_t e = 0; e < expected.size(); ++e) {
        const std::int64_t own = at->counts[e] * std::ssize(expected);
        expected[e] += own < sum ? 0.125f : own > sum ? -0.125f : 0.0f;
      }
    }
    EXPECT_EQ(outcome.parameters.at(fmt::format("block.{}.moe.router.bias", layer)), expected)
        << layer;
  }
}

TEST(Experts, AreCorrectedAlikeAtEveryStageInEveryWorldUnderEveryOptimizer) {
  for (const auto type : {optim::OptimizerType::kAdamW, optim::OptimizerType::kLion,
                          optim::OptimizerType::kLamb, optim::OptimizerType::kMuon}) {
    engine::TrainingOptions options = corrected(tiny_training(form("sandwich_experts")), 0.25f);
    options.optimizer.type = type;
    const Outcome expected = train(options, {.world_size = 2, .stage = 0}, 4);
    for (int stage = 1; stage <= 3; ++stage) {
      options.model.recompute = static_cast<model::Recompute>(stage % 3);
      EXPECT_EQ(difference(expected, train(options, {.world_size = 2, .stage = stage}, 4)), "");
    }
    options.model.recompute = model::Recompute::kNone;
    const RunShape divided{.world_size = 2, .axes = {{"expert", 2}}, .stage = 3};
    EXPECT_EQ(difference(expected, train(options, divided, 4)), "");
    for (const auto& [name, values] : expected.parameters) {
      if (!name.ends_with(".router.bias")) continue;
      for (const float value : values) EXPECT_EQ(value, 0.25f * std::round(value / 0.25f)) << name;
    }
  }
}

TEST(Experts, AreCorrectedInPipelinesWithHalvesOfBackwards) {
  engine::TrainingOptions options = corrected(tiny_training(form("sandwich_experts")), 0.25f);
  options.model.tied = false;
  const Outcome expected = train(options, {.num_micro_steps = 4}, 3);
  options.pipeline.order = schedule::Order::kZbH1;
  EXPECT_EQ(
      difference(
          expected,
          train(options, {.world_size = 3, .axes = {{"pipeline", 3}}, .num_micro_steps = 4}, 3)),
      "");
}

// The previous step's counts are sums over all its micro-batches: another way of dealing them gives the same losses.
TEST(Experts, LossesThatCountThePreviousStepDontDependOnHowBatchesAreDealt) {
  engine::TrainingOptions options = tiny_training(form("experts"));
  options.model.moe.scope = kernels::BalanceScope::kPreviousStep;
  options.model.moe.balance = 3.0;
  const Outcome one = train(options, {.num_micro_steps = 4}, 4);
  for (const RunShape& setup : {RunShape{.world_size = 4, .stage = 3, .delay_seed = 5},
                                RunShape{.world_size = 2, .num_micro_steps = 2, .stage = 1}}) {
    Outcome dealt = train(options, setup, 4);
    dealt.grad_norms = one.grad_norms;  // added in another order
    EXPECT_EQ(difference(one, dealt), "") << name_of(setup);
  }
  engine::TrainingOptions own = options;
  own.model.moe.scope = kernels::BalanceScope::kMicroBatch;
  const Outcome by_micro_batch = train(own, {.num_micro_steps = 4}, 4);
  EXPECT_EQ(by_micro_batch.grad_norms[0], one.grad_norms[0]) << "no step was before the first";
  EXPECT_NE(by_micro_batch.grad_norms[1], one.grad_norms[1]);
}

// One of 64 experts for each of 18 tokens: most have none.
TEST(Experts, ThatNoTokenChoosesAreDecayedAndKeepTheirMoments) {
  engine::TrainingOptions options = tiny_training(form("experts"));
  options.model.moe.experts = 64;
  options.model.moe.per_token = 1;
  options.model.moe.balance = options.model.moe.z = 0.0;
  options.optimizer.type = optim::OptimizerType::kSgd;
  options.optimizer.momentum = 0.0f;
  const auto found = reports(options, {}, 1);
  const auto& counts = found[0].layers[0].counts;
  const auto idle = std::ranges::find(counts, 0);
  ASSERT_NE(idle, counts.end());
  const auto expert = static_cast<std::size_t>(idle - counts.begin());
  engine::TrainingOptions still = options;
  still.lr_schedule.lr = 0.0;
  const Outcome before = train(still, {}, 1), after = train(options, {}, 1);
  const std::string name = "block.0.moe.experts.down.weight";
  const auto numel = static_cast<std::size_t>(options.model.width * options.model.moe.ffn_width);
  const float lr = static_cast<float>(options.lr_schedule.lr), decay = 0.1f;
  for (std::size_t i = expert * numel; i < (expert + 1) * numel; ++i) {
    const float p = before.parameters.at(name)[i];
    ASSERT_EQ(after.parameters.at(name)[i], p - lr * (0.0f + decay * p)) << i;
  }
}

// The router of a 16-bit model computes in f32.
TEST(Experts, OfA16BitModelHaveARouterInF32) {
  engine::TrainingOptions options = tiny_training(form("sandwich_experts"));
  options.model.dtype = DType::kBF16;
  options.precision.parameters = DType::kBF16;
  for (int stage = 0; stage <= 3; ++stage) {
    const RunShape setup{.world_size = 2, .stage = stage, .delay_seed = 3};
    EXPECT_EQ(difference(train(options, {.world_size = 2}, 3), train(options, setup, 3)), "");
  }
  run_ranks({}, [&](sharding::Rank& rank) {
    engine::ShardedModel model(applied(options, {}), rank);
    for (const sharding::UnitState& unit : model.units()) {
      const bool is_router = unit.name().ends_with(".router");
      EXPECT_EQ(unit.precision().parameters, is_router ? DType::kF32 : DType::kBF16) << unit.name();
    }
  });
}

}  // namespace
}  // namespace sherd::testing
