// A loss or gradient that isn't finite: what each rank reports, and that nothing was updated.
//
// One row of the token embedding is NaN and one rank alone meets that token, as the last one of its
// batch. So on that rank every weight of the head gets a NaN gradient first of all, and every token
// of the same sequence gets one through attention, whichever rank owns its row.

#include "engine/train/diagnosis.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <limits>

#include "tests/support/models/model_values.h"
#include "tests/support/runs/training_harness.h"
#include "tests/support/values/error_text.h"

namespace sherd::testing {
namespace {

constexpr std::int32_t kPoison = 40;
constexpr int kBadStep = 2;
constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

model::ModelShape model_without_dropout() {
  model::ModelShape shape = tiny_model(false);
  shape.dropout = 0.0;
  return shape;
}

// tokens_for without the poisoned token, except at the end of one rank's batch of the bad step.
class PoisonedBatches {
 public:
  PoisonedBatches(const engine::TrainingOptions& options, const sharding::Rank& rank, int bad_rank,
                  int bad_micro_step)
      : tokens_(options.model.tokens()),
        is_bad_rank_(rank.rank == bad_rank),
        bad_micro_step_(bad_micro_step),
        plain_(tokens_for(options, rank, memory_)) {}

  engine::TokenBatch operator()(std::int64_t step, std::int64_t micro_step) {
    const engine::TokenBatch batch = plain_(step, micro_step);
    std::replace(memory_.begin(), memory_.end(), kPoison, 0);
    if (is_bad_rank_ && step == kBadStep && micro_step == bad_micro_step_) {
      memory_[static_cast<std::size_t>(tokens_ - 1)] = kPoison;
    }
    return batch;
  }
  std::vector<std::int32_t> last_sequence(std::int64_t seq_length) const {
    return {memory_.begin() + tokens_ - seq_length, memory_.begin() + tokens_};
  }

 private:
  std::int64_t tokens_;
  bool is_bad_rank_;
  int bad_micro_step_;
  std::vector<std::int32_t> memory_;
  engine::NextBatch plain_;
};

struct Failure {
  std::vector<std::string> messages;  // by rank
  ValuesByName before, after;
  std::vector<std::int32_t> poisoned_sequence;
};

Failure fail(const RunShape& setup, int bad_rank, const optim::LossScaling& scaling = {}) {
  engine::TrainingOptions options = applied(tiny_training(model_without_dropout()), setup);
  options.loss_scaling = scaling;
  Failure failure;
  failure.messages.resize(static_cast<std::size_t>(setup.world_size));
  failure.before = failure.after = empty_parameters(options.model);
  ValuesByName poisoned = empty_parameters(options.model);
  run_ranks({}, [&](sharding::Rank& rank) {
    collect_parameters(engine::ShardedModel(tiny_training(options.model), rank), poisoned);
  });
  std::fill_n(poisoned.at("embedding.token.weight").begin() + kPoison * options.model.width,
              options.model.width, kNaN);

  run_ranks(setup, [&](sharding::Rank& rank) {
    engine::ShardedModel model(options, rank);
    engine::TrainingStep training_step(options, model);
    PoisonedBatches batches(options, rank, bad_rank, setup.num_micro_steps - 1);
    const auto next_batch = [&](std::int64_t s, std::int64_t m) { return batches(s, m); };
    rank.guard([&] {
      set_parameters(model, poisoned);
      for (int step = 0; step < kBadStep; ++step) training_step.run(step, next_batch);
      collect_parameters(model, failure.before);
      failure.messages[rank.rank] =
          test::error_text<TrainingError>([&] { training_step.run(kBadStep, next_batch); });
      collect_parameters(model, failure.after);
      if (rank.rank == bad_rank) {
        failure.poisoned_sequence = batches.last_sequence(options.model.seq_length);
      }
    });
  });
  return failure;
}

bool same_bits(const ValuesByName& a, const ValuesByName& b) {
  return std::all_of(a.begin(), a.end(), [&](const auto& entry) {
    const std::vector<float>& other = b.at(entry.first);
    return std::memcmp(entry.second.data(), other.data(), other.size() * sizeof(float)) == 0;
  });
}

// Which rank's slice holds an element of the embedding, the first parameter of its unit.
std::int64_t owner_of(std::int64_t element, int world) {
  const std::int64_t slice = ((41 * 24 + 63) / 64 * 64 + 64 * world - 1) / (64 * world) * 64;
  return element / slice;
}

TEST(NonFiniteStep, NamesStepTensorUnitOwnerAndRankOfOriginToEveryRank) {
  for (int stage = 0; stage <= 3; ++stage) {
    for (const int num_micro_steps : {1, 2}) {
      const int bad_rank = 1 + (stage + num_micro_steps) % 2;
      const RunShape setup{.world_size = 3, .num_micro_steps = num_micro_steps, .stage = stage};
      const Failure failure = fail(setup, bad_rank);
      const auto& sequence = failure.poisoned_sequence;
      const std::int64_t element = 24 * *std::min_element(sequence.begin(), sequence.end());
      const std::string expected = fmt::format(
          "step 3: loss is nan, gradient norm is nan. The gradient of tensor "
          "\"embedding.token.weight\" (element {}) of unit \"embedding\" is not finite; its slice "
          "belongs to rank {}. A replay of the step found it first on rank {}, in tensor "
          "\"final_norm.weight\" (element 0) of unit \"head\" after a loss that isn't finite. The "
          "parameters are as before this step. Lower optimizer.lr or gradient_clipping.max_norm, "
          "or check the data of this step.",
          element, owner_of(element, 3), bad_rank);
      for (const std::string& message : failure.messages) {
        EXPECT_EQ(message, expected) << name_of(setup);
      }
    }
  }
}

TEST(NonFiniteStep, LeavesTheParametersAsTheyWere) {
  for (int stage = 0; stage <= 3; ++stage) {
    const Failure failure = fail({.world_size = 2, .stage = stage}, 1);
    EXPECT_TRUE(same_bits(failure.before, failure.after)) << "stage " << stage;
    EXPECT_EQ(std::count_if(failure.after.at("embedding.token.weight").begin(),
                            failure.after.at("embedding.token.weight").end(),
                            [](float x) { return std::isnan(x); }),
              24)
        << "stage " << stage;
  }
}

// A gradient that isn't finite is what loss scaling skips, but weights that aren't are no overflow.
TEST(NonFiniteStep, UnderLossScalingWeightsThatArentFiniteAreNamedAndNotSkipped) {
  for (int stage = 0; stage <= 3; ++stage) {
    for (const auto mode :
         {optim::LossScaling::Mode::kStatic, optim::LossScaling::Mode::kDynamic}) {
      const Failure failure = fail({.world_size = 3, .stage = stage}, 1, {.mode = mode});
      for (const std::string& message : failure.messages) {
        EXPECT_EQ(
            message,
            fmt::format("the weights aren't finite, so no loss scale helps: tensor "
                        "\"embedding.token.weight\" (element 960) of unit \"embedding\", slice "
                        "owner rank {}. Resume from an older checkpoint, with a lower "
                        "optimizer.lr or gradient_clipping.max_norm.",
                        owner_of(960, 3)))
            << "stage " << stage;
      }
      EXPECT_TRUE(same_bits(failure.before, failure.after)) << "stage " << stage;
    }
  }
}

// The message of step 0, which all ranks must say alike, after `change`.
std::string message_with(const std::function<void(ValuesByName&)>& change,
                         const engine::TrainingOptions& training, const RunShape& setup) {
  const engine::TrainingOptions options = applied(training, setup);
  ValuesByName values = empty_parameters(options.model);
  run_ranks({}, [&](sharding::Rank& rank) {
    collect_parameters(engine::ShardedModel(tiny_training(options.model), rank), values);
  });
  change(values);
  const auto num_ranks = static_cast<std::size_t>(setup.world_size);
  std::vector<std::string> messages(num_ranks);
  run_ranks(setup, [&](sharding::Rank& rank) {
    engine::ShardedModel model(options, rank);
    engine::TrainingStep training_step(options, model);
    std::vector<std::int32_t> memory;
    rank.guard([&] {
      set_parameters(model, values);
      messages[rank.rank] = test::error_text<TrainingError>(
          [&] { training_step.run(0, tokens_for(options, rank, memory)); });
    });
  });
  EXPECT_EQ(messages, std::vector<std::string>(num_ranks, messages[0]));
  return messages[0];
}

// On three ranks at stage 3.
std::string message_with(const std::function<void(ValuesByName&)>& change) {
  return message_with(change, tiny_training(model_without_dropout()),
                      {.world_size = 3, .stage = 3});
}

// The head's gradient is that of the embedding's unit, too, and comes before the blocks'.
TEST(NonFiniteStep, NamesTheHeadWhereATiedMatrixHasBothEndsOnOneRank) {
  model::ModelShape shape = tiny_model(true);
  shape.dropout = 0.0;
  shape.num_layers = 4;
  engine::TrainingOptions options = tiny_training(shape);
  options.pipeline.order = schedule::Order::kZbV;
  options.pipeline.chunks_per_rank = 2;
  const std::string message = message_with(
      [](ValuesByName& values) {
        for (float& weight : values.at("final_norm.weight")) weight = kNaN;
      },
      options, {.world_size = 2, .axes = {{"pipeline", 2}}, .num_micro_steps = 4});
  EXPECT_NE(message.find("found it first on rank 0, in tensor \"embedding.token.weight\" "),
            std::string::npos)
      << message;
}

TEST(NonFiniteStep, OnEveryRankNamesTheFirst) {
  const std::string message = message_with([](ValuesByName& values) {
    for (float& weight : values.at("final_norm.weight")) weight = kNaN;
  });
  EXPECT_TRUE(message.starts_with("step 1: loss is nan, gradient norm is nan.")) << message;
  EXPECT_NE(message.find("found it first on rank 0, in tensor \"final_norm.weight\" (element 0) of "
                         "unit \"head\" after a loss that isn't finite."),
            std::string::npos)
      << message;
}

// Squares of 1e30 overflow, so the norms divide by infinity: every logit is zero, the loss that of
// guessing evenly, and only the gradient shows that something is wrong.
TEST(NonFiniteStep, NamesAGradientOfAFiniteLoss) {
  const std::string message = message_with([](ValuesByName& values) {
    for (auto& [name, tensor] : values) std::fill(tensor.begin(), tensor.end(), 1e30f);
  });
  EXPECT_TRUE(message.starts_with("step 1: loss is 3.71357")) << message;  // ln 41
  EXPECT_NE(message.find(", gradient norm is nan. The gradient of tensor "), std::string::npos)
      << message;
  EXPECT_NE(message.find("found it first on rank 0, in tensor "), std::string::npos) << message;
  EXPECT_EQ(message.find("after a loss"), std::string::npos) << message;
}

// Logits of up to 3e38 are finite and so are their gradients, but not the loss, their difference. The
// last norm's input is large, so that its gradient, and with it the gradient norm, is small.
TEST(NonFiniteStep, NamesTheRankOfALossThatHasFiniteGradients) {
  const std::string message = message_with([](ValuesByName& values) {
    for (float& weight : values.at("head.weight")) weight = weight > 0 ? 2e37f : -2e37f;
    for (float& weight : values.at("embedding.token.weight")) weight *= 1000.0f;
  });
  EXPECT_TRUE(message.starts_with("step 1: loss is inf, gradient norm is ")) << message;
  EXPECT_EQ(message.find("gradient norm is inf"), std::string::npos)
      << "the loss alone should say it";
  EXPECT_NE(message.find(". Every element of the gradient is finite; token losses (unit "
                         "\"head\") of rank 0 are not. The parameters are as before"),
            std::string::npos)
      << message;
}

TEST(NonFiniteStep, StopsAWholeRunWithItsReason) {
  const RunShape setup{.world_size = 3, .stage = 3};
  engine::TrainingOptions options = applied(tiny_training(tiny_model(true)), setup);
  options.optimizer.type = optim::OptimizerType::kSgd;
  options.lr_schedule.lr = 1e30;  // step 0 ruins the parameters, step 1 finds out
  int last_step = -1;
  const std::string message = test::error_text<TrainingError>([&] {
    run_ranks(setup, [&](sharding::Rank& rank) {
      engine::ShardedModel model(options, rank);
      engine::TrainingStep training_step(options, model);
      std::vector<std::int32_t> memory;
      rank.guard([&] {
        for (int step = 0; step < 5; ++step) {
          if (rank.rank == 0) last_step = step;
          training_step.run(step, tokens_for(options, rank, memory));
        }
      });
    });
  });
  EXPECT_TRUE(message.starts_with(fmt::format("step {}: loss is ", last_step + 1))) << message;
  EXPECT_LE(last_step, 2);
}

// Slices as a reduction would have left them, with a sum that overflowed on rank 1's.
TEST(Diagnosis, SaysSoWhereOnlyTheSumOverRanksIsNotFinite) {
  const RunShape setup{.world_size = 2, .stage = 2};
  const engine::TrainingOptions options = applied(tiny_training(tiny_model(true)), setup);
  std::vector<std::string> messages(2);
  run_ranks(setup, [&](sharding::Rank& rank) {
    engine::ShardedModel model(options, rank);
    engine::Diagnosis::Reports exchange(rank, "diagnosis");
    rank.guard([&] {
      const sharding::UnitState& block = model.units()[2];
      const std::vector<sharding::Piece> pieces = block.layout().pieces(1);
      if (rank.rank == 1) {
        block.gradient(1).as<float>()[pieces.back().position + 3] = -INFINITY;
      }
      engine::Diagnosis diagnosis(model, exchange);
      diagnosis.look_at_slices();
      diagnosis.watch_gradients();
      diagnosis.stop_watching(4.0);
      messages[rank.rank] = diagnosis.explain(9, 4.0, INFINITY);
    });
  });
  EXPECT_EQ(messages[0], messages[1]);
  EXPECT_TRUE(messages[0].starts_with(
      "step 10: loss is 4, gradient norm is inf. The gradient of tensor \"block.1.mlp.down.bias\" "
      "(element 3) of unit \"block.1\" is not finite; its slice belongs to rank 1. In a replay of "
      "the step every rank's own gradient was finite: only their sum is not."))
      << messages[0];
}

}  // namespace
}  // namespace sherd::testing
