// Separate documents packed into rows: each is computed as if it were alone, and how rows are cut into
// ranks, stages and micro-steps changes no bit.

#include <gtest/gtest.h>

#include <cmath>
#include <numeric>

#include "engine/model/cut/tensor_cut.h"
#include "engine/model/transformer.h"
#include "kernels/token.h"
#include "sharding/zero/parameter_gather.h"
#include "tests/equivalence/document_training.h"
#include "tests/support/models/model_forms.h"
#include "tests/support/models/model_values.h"
#include "tests/support/runs/training_harness.h"

namespace sherd::testing {
namespace {

using Ids = std::vector<std::int32_t>;

ConstTensor view(const Ids& ids) {
  return {ids.data(), DType::kI32, std::ssize(ids)};
}

/// One row of tokens and its documents.
struct Row {
  Ids inputs, targets, starts, lengths, positions;
  kernels::Documents documents() const { return {view(starts), view(lengths), view(positions)}; }
};

/// Documents of these lengths, padded to `tokens`. No token occurs twice.
Row row_of(const std::vector<std::int32_t>& document_lengths, std::int64_t tokens) {
  Row row;
  for (std::int64_t t = 0; t < tokens; ++t)
    row.inputs.push_back(static_cast<std::int32_t>(t * 7 % tokens));
  row.targets.assign(row.inputs.size(), kernels::kNoTarget);
  row.positions.assign(row.inputs.size(), 0);
  std::int32_t start = 0;
  for (const std::int32_t length : document_lengths) {
    row.starts.push_back(start);
    row.lengths.push_back(length);
    for (std::int32_t i = 0; i < length; ++i) {
      const auto t = static_cast<std::size_t>(start + i);
      row.positions[t] = i;
      if (i + 1 < length) row.targets[t] = row.inputs[t + 1];
    }
    start += length;
  }
  row.starts.push_back(static_cast<std::int32_t>(tokens));
  return row;
}

model::ModelShape one_row(model::ModelShape shape, std::int64_t tokens) {
  shape.dropout = 0.0;
  shape.tied = false;  // so that the gradient of a token's embedding is that token's alone
  shape.sequences = 1;
  shape.seq_length = shape.max_positions = tokens;
  shape.vocab_size = tokens;
  return shape;
}

std::vector<model::ModelShape> shapes_of_rows(std::int64_t tokens) {
  std::vector<model::ModelShape> shapes = {one_row(tiny_model(false), tokens),
                                           one_row(tiny_model(true), tokens)};
  for (const ModelForm& form : model_forms()) shapes.push_back(one_row(form.shape, tokens));
  return shapes;
}

struct Computed {
  std::vector<float> losses, logits, d_embedding;
};

std::vector<float> floats_of(const Tensor& tensor) {
  return {tensor.as<float>(), tensor.as<float>() + tensor.numel};
}

Computed compute(const model::ModelShape& shape, const model::Pass& pass) {
  const engine::TrainingOptions options = tiny_training(shape);
  Computed computed;
  run_ranks({}, [&](sharding::Rank& rank) {
    engine::ShardedModel model(options, rank);
    rank.guard([&] {
      model.parameters().plan(model.evaluation_uses());
      model.forward(pass, kEvaluation);
      SHERD_CHECK(shape.tokens() <= model.transformer().most_logits(), "all logits at once");
      computed.logits = floats_of(model.logits(0, shape.tokens()));
      compute_gradients(model, pass);
      computed.losses = floats_of(model.transformer().losses().part(0, shape.tokens()));
      ValuesByName gradients = empty_parameters(shape);
      collect_gradients(model, gradients);
      computed.d_embedding = gradients.at("embedding.token.weight");
    });
  });
  return computed;
}

// The gradient of a token's embedding is what has come back through all layers to that token, since no
// other token of the row is the same.
TEST(Documents, OfARowHaveTheLossesLogitsAndActivationGradientsThatTheyHaveAlone) {
  constexpr std::int64_t kTokens = 61;
  const std::vector<std::int32_t> lengths = {9, 1, 30, 14};  // and 7 tokens of padding
  const Row row = row_of(lengths, kTokens);
  for (const model::ModelShape& shape : shapes_of_rows(kTokens)) {
    SCOPED_TRACE(model::num_parameters(shape));
    model::Pass pass{.inputs = view(row.inputs),
                     .targets = view(row.targets),
                     .documents = row.documents(),
                     .gradient_scale = 0.01f};
    const Computed packed = compute(shape, pass);
    std::size_t first = 0;
    for (const std::int32_t length : lengths) {
      model::ModelShape alone_shape = shape;
      alone_shape.seq_length = length;
      pass.inputs = view(row.inputs).part(static_cast<std::int64_t>(first), length);
      pass.targets = view(row.targets).part(static_cast<std::int64_t>(first), length);
      pass.documents = {};
      const Computed alone = compute(alone_shape, pass);
      const auto V = static_cast<std::size_t>(shape.vocab_size);
      const auto D = static_cast<std::size_t>(shape.width);
      for (std::size_t t = 0; t < static_cast<std::size_t>(length); ++t) {
        SCOPED_TRACE(first + t);
        EXPECT_EQ(alone.losses[t], packed.losses[first + t]);
        EXPECT_EQ(alone.losses[t] > 0, t + 1 < static_cast<std::size_t>(length));
        for (std::size_t v = 0; v < V; ++v) {
          ASSERT_EQ(alone.logits[t * V + v], packed.logits[(first + t) * V + v]);
        }
        const std::size_t token = static_cast<std::size_t>(row.inputs[first + t]) * D;
        for (std::size_t d = token; d < token + D; ++d) {
          ASSERT_EQ(alone.d_embedding[d], packed.d_embedding[d]);
        }
      }
      first += static_cast<std::size_t>(length);
    }
  }
}

TEST(Documents, WithoutTargetsChangeNoWeightGradientWhateverTheySay) {
  constexpr std::int64_t kTokens = 61;
  Row row = row_of({9, 1, 30, 14}, kTokens);
  std::fill(row.targets.begin() + 10, row.targets.begin() + 40, kernels::kNoTarget);
  for (const model::ModelShape& shape : shapes_of_rows(kTokens)) {
    const engine::TrainingOptions options = tiny_training(shape);
    ValuesByName gradients[2];
    for (ValuesByName& of : gradients) {
      of = empty_parameters(shape);
      run_ranks({}, [&](sharding::Rank& rank) {
        engine::ShardedModel model(options, rank);
        rank.guard([&] {
          compute_gradients(model, {.inputs = view(row.inputs),
                                    .targets = view(row.targets),
                                    .documents = row.documents(),
                                    .gradient_scale = 0.01f});
          collect_gradients(model, of);
        });
      });
      std::rotate(row.inputs.begin() + 10, row.inputs.begin() + 17, row.inputs.begin() + 40);
    }
    EXPECT_EQ(gradients[0], gradients[1]);
  }
}

TEST_F(DocumentTraining, StagesThreadsAndRecomputeChangeNoBit) {
  for (const bool tied : {false, true}) {
    engine::TrainingOptions options = tiny_training(tiny_model(tied), 1.0f);
    for (const int world : {1, 2, 4}) {
      const Outcome expected = train(options, {.world_size = world}, 3);
      for (int stage = 1; stage <= 3; ++stage) {
        const RunShape setup{
            .world_size = world, .stage = stage, .threads_per_rank = 1 + stage % 2};
        EXPECT_EQ(difference(train(options, setup, 3), expected), "") << name_of(setup);
      }
      for (const model::Recompute recompute :
           {model::Recompute::kSelective, model::Recompute::kFull}) {
        engine::TrainingOptions again = options;
        again.model.recompute = recompute;
        EXPECT_EQ(difference(train(again, {.world_size = world, .stage = 3}, 3), expected), "");
      }
    }
  }
}

// Groups of queries count from a document's begin.
TEST_F(DocumentTraining, CanonicalSumsHaveTheBitsOfOneRankOnTensorRanks) {
  model::ModelShape shape = tiny_model(false);
  shape.ffn_width = 40;
  shape.head_size = 8;
  model::sum_canonically(shape);
  const engine::TrainingOptions options = tiny_training(shape, 1.0f);
  const RunShape setup{.world_size = 2, .axes = {{"tensor", 2}}, .stage = 2};
  EXPECT_EQ(difference(train(options, setup, 3), train(options, {.world_size = 1}, 3)), "");
}

TEST_F(DocumentTraining, FourMicroStepsHaveTheBitsOfFourRanks) {
  const engine::TrainingOptions options = tiny_training(tiny_model(false));
  EXPECT_EQ(difference(train(options, {.world_size = 1, .num_micro_steps = 4}, 3),
                       train(options, {.world_size = 4, .stage = 2}, 3)),
            "");
}

// Every epoch's plan is made again from (seed, epoch), so no state has to be saved.
TEST_F(DocumentTraining, AStepInTheMiddleOfAnEpochSeesTheSameRowsHoweverTheRunWasCutBefore) {
  const engine::TrainingOptions options = tiny_training(tiny_model(false));
  const RunShape one{.world_size = 1, .num_micro_steps = 4}, four{.world_size = 4};
  const std::int64_t rows = batcher(options, one).num_windows();
  ASSERT_NE(rows % 8, 0) << "epochs were meant to end inside of steps";
  const auto step = static_cast<int>(rows / 8 + 5);  // of the second epoch
  EXPECT_EQ(difference(train(options, one, 2, step), train(options, four, 2, step)), "");
}

/// A micro-batch of a step, in memory of its own.
struct OwnedBatch {
  OwnedBatch(const data::Batcher& batches, std::int64_t step, std::int64_t micro_step, int rank) {
    const std::int64_t tokens = batches.shape().micro_batch_size * batches.shape().seq_length;
    for (Ids* ids : {&inputs, &targets, &lengths, &positions}) {
      ids->resize(static_cast<std::size_t>(tokens));
    }
    starts.resize(static_cast<std::size_t>(tokens + 1));
    const auto tensor = [](Ids& ids) { return Tensor{ids.data(), DType::kI32, std::ssize(ids)}; };
    batches.fill(
        step, micro_step, rank,
        {tensor(inputs), tensor(targets), tensor(starts), tensor(lengths), tensor(positions)});
  }
  std::int64_t num_targets() const {
    return std::count_if(targets.begin(), targets.end(), [](int target) { return target >= 0; });
  }
  model::Pass pass() const {
    return {.inputs = view(inputs),
            .targets = view(targets),
            .documents = {view(starts), view(lengths), view(positions)}};
  }
  Ids inputs, targets, lengths, positions, starts;
};

// With the divisor of all ranks and micro-steps: what one model makes of the step's rows by hand.
TEST_F(DocumentTraining, TheLossAndTheGradientAreDividedByTheTargetsOfTheWholeStep) {
  engine::TrainingOptions options = tiny_training(tiny_model(false));
  options.model.dropout = 0.0;
  const RunShape setup{.world_size = 2, .num_micro_steps = 2, .stage = 1};
  const data::Batcher batches = batcher(options, setup);
  std::vector<OwnedBatch> of_step;
  int step = -1;
  const auto differ = [&] {
    return std::any_of(of_step.begin(), of_step.end(), [&](const OwnedBatch& batch) {
      return batch.num_targets() != of_step[0].num_targets();
    });
  };
  while (!differ()) {
    ASSERT_LT(++step, 100) << "the ranks were meant to have different numbers of targets";
    of_step.clear();
    for (int i = 0; i < 4; ++i) of_step.emplace_back(batches, step, i / 2, i % 2);
  }
  const Outcome outcome = train(options, setup, 1, step);

  double loss_sum = 0.0, num_targets = 0.0;
  std::map<std::string, std::vector<double>> sums;
  run_ranks({}, [&](sharding::Rank& rank) {
    engine::ShardedModel model(options, rank);
    rank.guard([&] {
      for (const OwnedBatch& batch : of_step) {
        num_targets += static_cast<double>(batch.num_targets());
        loss_sum += compute_loss_sum(model, batch.pass());
        compute_gradients(model, batch.pass());
        ValuesByName gradients = empty_parameters(options.model);
        collect_gradients(model, gradients);
        for (const auto& [name, values] : gradients) {
          auto& sum = sums[name];
          sum.resize(values.size());
          for (std::size_t i = 0; i < values.size(); ++i) sum[i] += values[i];
        }
      }
    });
  });
  EXPECT_EQ(static_cast<double>(batches.num_targets(step)), num_targets);
  EXPECT_NEAR(outcome.losses[0], loss_sum / num_targets, 1e-6);
  double squares = 0.0;
  for (const auto& [name, values] : sums) {
    for (const double value : values) squares += value * value;
  }
  EXPECT_NEAR(outcome.grad_norms[0], std::sqrt(squares) / num_targets, 1e-5);
}

TEST_F(DocumentTraining, AnEvaluationCountsEveryTokenOfTheSplitThatHasATargetOnce) {
  const engine::TrainingOptions options = tiny_training(tiny_model(false));
  std::int64_t expected = 0;  // all but each document's first token
  for (const data::FilePart& document : dataset_->parts(data::Split::kValidation)) {
    expected += document.count - 1;
  }
  for (const int world : {1, 3}) {
    EXPECT_EQ(train(options, {.world_size = world}, 1).losses.back(),
              static_cast<double>(expected));
  }
}

TEST_F(DocumentTraining, AStepWithoutTargetsUpdatesNothing) {
  engine::TrainingOptions options = tiny_training(tiny_model(false));
  for (const int world : {1, 2}) {
    ValuesByName before = empty_parameters(options.model), after = before;
    run_ranks({.world_size = world}, [&](sharding::Rank& rank) {
      engine::ShardedModel model(options, rank);
      engine::TrainingStep step(options, model);
      step.num_targets = [](std::int64_t) { return 0; };
      Ids memory;
      const engine::NextBatch plain = tokens_for(options, rank, memory);
      rank.guard([&] {
        collect_parameters(model, before);
        const engine::StepResult result = step.run(0, [&](std::int64_t s, std::int64_t m) {
          const engine::TokenBatch batch = plain(s, m);
          std::fill_n(memory.begin() + options.model.tokens(), options.model.tokens(),
                      kernels::kNoTarget);
          return batch;
        });
        EXPECT_EQ(result.loss, 0.0);
        EXPECT_EQ(result.grad_norm, 0.0f);
        EXPECT_EQ(result.num_targets, 0);
        EXPECT_EQ(step.counters().num_updates, 0);
        collect_parameters(model, after);
      });
    });
    EXPECT_EQ(before, after);
  }
}

}  // namespace
}  // namespace sherd::testing
