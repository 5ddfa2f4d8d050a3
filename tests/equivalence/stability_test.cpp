// z-loss, largest attention scores and QK-clip (docs/stability.md) of trainings: the same on every mesh on which
// training is the same, and nothing else changes.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "engine/model/cut/tensor_cut.h"
#include "engine/train/qk_clip.h"
#include "engine/train/stability_statistics.h"
#include "kernels/attention.h"
#include "tests/equivalence/mesh_case.h"
#include "tests/support/models/model_forms.h"

namespace sherd::testing {
namespace {

using Case = MeshCase;
using engine::StabilityReport;

// A z-loss, scores and a clip that acts on them in every step; f16 has a loss scale.
engine::TrainingOptions with_all(model::ModelShape shape, DType dtype = DType::kF32) {
  engine::TrainingOptions options = tiny_training(shape, 0.5f);
  options.model.dtype = dtype;
  options.precision.parameters = dtype;
  options.model.z_loss = 0.5;
  options.model.max_attention_logit = true;
  options.qk_clip_threshold = 1e-4;
  if (dtype == DType::kF16) {
    options.loss_scaling.mode = optim::LossScaling::Mode::kStatic;
    options.loss_scaling.initial_scale_power = 8;
  }
  return options;
}

struct Steps {
  std::vector<StabilityReport> reports;
  std::vector<double> losses;
  std::vector<std::int64_t> clipped;
};

// What rank 0 learns of `num_steps` steps; every step has the batch of step 0 if `repeats`.
Steps steps_of(engine::TrainingOptions options, const Case& each, int num_steps,
               bool repeats = false, bool evaluates = false) {
  options.pipeline.order = each.order;
  options.pipeline.chunks_per_rank = schedule::default_chunks_per_rank(each.order);
  const RunShape setup = setup_of(each);
  options = applied(std::move(options), setup);
  Steps steps;
  run_ranks(setup, [&](sharding::Rank& rank) {
    engine::ShardedModel model(options, rank);
    engine::TrainingStep step(options, model);
    std::vector<std::int32_t> memory;
    const engine::NextBatch next = tokens_for(options, rank, memory);
    rank.guard([&] {
      for (int i = 0; i < num_steps; ++i) {
        const engine::StepResult result = step.run(repeats ? 0 : i, next);
        if (rank.rank == 0) {
          steps.reports.push_back(*result.stability);
          steps.losses.push_back(result.loss);
          steps.clipped.push_back(result.clipped_heads);
        }
        if (!evaluates) continue;
        const engine::TokenBatch batch = next(i + 100, 0);
        model.plan(model.evaluation_uses());
        model.forward({.inputs = batch.inputs, .targets = batch.targets});
        model.evaluate_head({.inputs = batch.inputs, .targets = batch.targets});
      }
      rank.compute().synchronize();
    });
  });
  return steps;
}

void expect_equal(const Steps& a, const Steps& b, const std::string& what) {
  ASSERT_EQ(a.reports.size(), b.reports.size());
  EXPECT_EQ(a.losses, b.losses) << what;
  EXPECT_EQ(a.clipped, b.clipped) << what;
  for (std::size_t step = 0; step < a.reports.size(); ++step) {
    EXPECT_EQ(a.reports[step].z_loss, b.reports[step].z_loss) << what << ", step " << step;
    EXPECT_EQ(a.reports[step].max_logits, b.reports[step].max_logits) << what << ", step " << step;
  }
}

TEST(Stability, NumbersAreTheSameOnAllDataRanksStagesAndPipelines) {
  for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF16}) {
    const engine::TrainingOptions options = with_all(tiny_model(false), dtype);
    const Steps expected = steps_of(options, {.micro_steps = 4}, 3);
    ASSERT_GT(*expected.reports[0].z_loss, 0.0);
    ASSERT_GT(expected.clipped[2], 0);
    for (const Case& each :
         {Case{.shards = 2, .stage = 1, .micro_steps = 2}, Case{.shards = 4, .stage = 3},
          Case{.shards = 2, .stage = 2, .micro_steps = 2},
          Case{.pipeline = 3, .stage = 1, .micro_steps = 4},
          Case{.shards = 2,
          .pipeline = 2,
          .stage = 3,
          .micro_steps = 2,
          .order = schedule::Order::kZbH1}}) {
      expect_equal(expected, steps_of(options, each, 3), name_of(each));
    }
  }
}

TEST(Stability, EvaluationsBetweenStepsChangeNothing) {
  const engine::TrainingOptions options = with_all(tiny_model(true));
  expect_equal(steps_of(options, {.micro_steps = 2}, 3),
               steps_of(options, {.micro_steps = 2}, 3, false, true), "with evaluations");
}

TEST(Stability, NumbersDontDependOnWhatIsRecomputed) {
  for (const ModelForm& form : forms_on_cpus()) {
    engine::TrainingOptions options = with_all(form.shape);
    options.qk_clip_threshold = 0.0;
    const Steps expected = steps_of(options, {}, 2);
    for (const auto recompute : {model::Recompute::kSelective, model::Recompute::kFull}) {
      options.model.recompute = recompute;
      expect_equal(expected, steps_of(options, {.shards = 1, .stage = 3}, 2), form.name);
    }
  }
}

// Canonical sums, with which training has the bits of one rank on tensor and context ranks.
TEST(Stability, NumbersAndWeightsHaveTheBitsOfOneRankOnTensorAndContextRanks) {
  for (const auto method : {model::ContextMethod::kUlysses, model::ContextMethod::kAllGather}) {
    model::ModelShape shape = cuttable_form("llama");
    shape.head_size = 8;
    shape.context.method = method;
    shape.seq_length = shape.max_positions = 16;
    model::sum_canonically(shape);
    const engine::TrainingOptions options = with_all(shape);
    const Steps expected = steps_of(options, {.micro_steps = 2}, 2);
    const Outcome outcome = run(options, {.micro_steps = 2});
    for (const Case& each :
         {Case{.tensor = 2, .stage = 2, .micro_steps = 2}, Case{.tensor = 8, .shards = 2},
          Case{.tensor = 4, .stage = 1, .micro_steps = 2},
          Case{.context = 2, .shards = 2, .stage = 3},
          Case{.context = 2, .tensor = 2, .stage = 3, .micro_steps = 2}}) {
      expect_equal(expected, steps_of(options, each, 2), name_of(each));
      EXPECT_EQ(difference(run(options, each), outcome), "") << name_of(each);
    }
  }
}

// Scores of the first layer come from the same weights on any number of ranks.
TEST(Stability, ScoresInARingAndOnTensorRanksAreThoseOfOneRank) {
  model::ModelShape shape = cuttable(tiny_model(false), 2);
  shape.context.method = model::ContextMethod::kRing;
  shape.seq_length = 24;
  shape.max_positions = 25;
  const engine::TrainingOptions options = with_all(shape);
  const StabilityReport one = steps_of(options, {}, 1).reports[0];
  for (const Case& each : {Case{.context = 2}, Case{.context = 3}, Case{.tensor = 2},
                           Case{.tensor = 4}, Case{.context = 2, .tensor = 2}}) {
    const StabilityReport cut = steps_of(options, each, 1).reports[0];
    EXPECT_EQ(cut.max_logits[0], one.max_logits[0]) << name_of(each);
    EXPECT_NEAR(*cut.z_loss, *one.z_loss, 1e-5 * *one.z_loss) << name_of(each);
    for (std::size_t head = 0; head < one.max_logits[1].size(); ++head) {
      EXPECT_NEAR(cut.max_logits[1][head], one.max_logits[1][head], 1e-5) << name_of(each);
    }
  }
}

// Memory is as planned in `run`.
TEST(Stability, WeightsHaveTheBitsOfOneRankOnEveryMesh) {
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    const engine::TrainingOptions options = with_all(tiny_model(false), dtype);
    for (const Case& each :
         {Case{.shards = 2, .stage = 0}, Case{.shards = 3, .stage = 1, .micro_steps = 2},
          Case{.shards = 2, .stage = 2}, Case{.shards = 4, .stage = 3},
          Case{.shards = 2, .replicas = 2, .stage = 3, .divides_optimizer = true},
          Case{.pipeline = 3, .stage = 1, .micro_steps = 4},
          Case{.shards = 2, .pipeline = 2, .stage = 3, .micro_steps = 3}}) {
      EXPECT_EQ(difference(run(options, each), same_batch(options, each)), "") << name_of(each);
    }
  }
}

TEST(Stability, LookingAtScoresLeavesTrainingAsItIs) {
  for (const ModelForm& form : forms_on_cpus()) {
    engine::TrainingOptions options = tiny_training(form.shape, 0.5f);
    const Outcome without = run(options, {.shards = 2, .stage = 3});
    options.model.max_attention_logit = true;
    EXPECT_EQ(difference(run(options, {.shards = 2, .stage = 3}), without), "") << form.name;
  }
}

TEST(ZLoss, IsApartFromTheLossAndReachesTheWeights) {
  engine::TrainingOptions options = tiny_training(tiny_model(false));
  const Outcome without = run(options, {});
  options.model.z_loss = 0.5;
  const Outcome with = run(options, {});
  EXPECT_EQ(with.losses[0], without.losses[0]);
  EXPECT_NE(with.grad_norms[0], without.grad_norms[0]);
}

// The step's gradient is that of loss + z-loss: along it, their sum falls as fast as the squared norm says.
TEST(ZLoss, HasTheGradientOfWhatItReports) {
  model::ModelShape shape = tiny_model(false);
  shape.dropout = 0.0;
  engine::TrainingOptions options = tiny_training(shape);
  options.optimizer.type = optim::OptimizerType::kSgd;
  options.optimizer.momentum = 0.0f;
  options.optimizer.decay = {};
  options.model.z_loss = 0.5;
  options.lr_schedule.lr = 1e-4;
  const double norm = static_cast<double>(run(options, {}, 1).grad_norms[0]);
  const Steps steps = steps_of(options, {}, 2, true);
  const auto sum = [&](std::size_t step) {
    return steps.losses[step] + *steps.reports[step].z_loss;
  };
  const double fell = sum(0) - sum(1), expected = 1e-4 * norm * norm;
  EXPECT_NEAR(fell, expected, 0.02 * expected);
}

// One layer, so that its input is the same after the clip; no other change of weights.
engine::TrainingOptions clipping(model::ModelShape shape, double largest) {
  shape.num_layers = 1;
  shape.layer_kinds.resize(std::min<std::size_t>(shape.layer_kinds.size(), 1));
  engine::TrainingOptions options = tiny_training(shape);
  options.lr_schedule.lr = 0.0;
  options.model.max_attention_logit = true;
  const float found = steps_of(options, {}, 1).reports[0].largest_logit().value;
  const double scale = static_cast<double>(options.model.attention(0).score_scale());
  options.model.attention_scale = scale * largest / static_cast<double>(found);
  options.qk_clip_threshold = 0.25 * largest;
  return options;
}

std::vector<model::ModelShape> clippable() {
  model::ModelShape biased = tiny_model(false);
  biased.biases.qkv = true;
  return {biased, cuttable_form("llama"), cuttable(biased, 2)};
}

// TRAINING.md C.11: a head with S = 400 has 100 after a clip at 100, and heads below stay.
TEST(QkClip, MakesTheSameBatchsLargestScoreTheThreshold) {
  for (const double alpha : {0.5, 0.0, 1.0, 0.3}) {
    for (const model::ModelShape& shape : clippable()) {
      engine::TrainingOptions options = clipping(shape, 400.0);
      options.qk_clip_alpha = alpha;
      const Steps steps = steps_of(options, {}, 2, true);
      const std::vector<float>& before = steps.reports[0].max_logits[0];
      const std::vector<float>& after = steps.reports[1].max_logits[0];
      EXPECT_NEAR(steps.reports[0].largest_logit().value, 400.0, 0.01);
      EXPECT_NEAR(steps.reports[1].largest_logit().value, 100.0, 0.001);
      EXPECT_GT(steps.clipped[0], 0);
      const std::size_t group = before.size() / static_cast<std::size_t>(shape.kv_heads);
      for (std::size_t head = 0; head < before.size(); ++head) {
        const auto first = before.begin() + static_cast<std::ptrdiff_t>(head / group * group);
        const float most = *std::max_element(first, first + static_cast<std::ptrdiff_t>(group));
        if (most <= 100.0f) {
          EXPECT_EQ(after[head], before[head]) << "head " << head;
        } else {
          const float eta = 100.0f / most;
          EXPECT_NEAR(after[head], eta * before[head], 1e-4 * std::abs(before[head])) << head;
        }
      }
    }
  }
}

// Megatron-LM PR 7382: scores below 0 gave NaN.
TEST(QkClip, LeavesHeadsWithoutAPositiveScoreAndStepsThatArentApplied) {
  engine::TrainingOptions options = clipping(tiny_model(false), 400.0);
  options.qk_clip_threshold = 1000.0;
  EXPECT_EQ(steps_of(options, {}, 1, true).clipped[0], 0);
  options.qk_clip_threshold = 1.0;
  options.bad_steps.max_loss = 1e-3;  // no step is applied
  const Steps steps = steps_of(options, {}, 2, true);
  EXPECT_EQ(steps.clipped[0], 0);
  EXPECT_EQ(steps.reports[1].max_logits, steps.reports[0].max_logits);

  const auto clip = engine::QkClip::of(options);
  StabilityReport report{.max_logits = {std::vector<float>(
                             static_cast<std::size_t>(options.model.query_heads), -5.0f)}};
  EXPECT_EQ(clip->num_clipped(report), 0);
  report.max_logits[0][0] = 5.0f;
  EXPECT_EQ(clip->num_clipped(report), options.model.query_heads / options.model.kv_heads);
}

TEST(QkClip, ScalesCopiesAndPartsOfHeadsAlike) {
  for (const model::ModelShape& shape : {cuttable_form("llama"), cuttable(tiny_model(false), 2)}) {
    const engine::TrainingOptions options = clipping(shape, 400.0);
    const Outcome one = run(options, {}, 1);
    for (const Case& each : {Case{.tensor = 2, .stage = 2}, Case{.tensor = 4, .stage = 0},
                             Case{.tensor = 2, .shards = 1, .stage = 3}}) {
      EXPECT_EQ(run(options, each, 1).parameters, one.parameters) << name_of(each);
    }
  }
}

TEST(QkClip, ReachesTheRoundedCopiesAndTheAverage) {
  engine::TrainingOptions options = clipping(tiny_model(false), 400.0);
  options.model.dtype = DType::kBF16;
  options.precision.parameters = DType::kBF16;
  for (const int stage : {0, 1, 2, 3}) {
    const Steps steps = steps_of(options, {.shards = 1, .stage = stage}, 2, true);
    EXPECT_NEAR(steps.reports[1].largest_logit().value, 100.0, 2.0) << "stage " << stage;
  }
}

}  // namespace
}  // namespace sherd::testing
