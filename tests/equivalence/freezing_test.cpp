// Runs in which optimizer.groups freezes parameters: these keep their bits, the others move as if the frozen ones had a
// rate of zero, and every mesh and stage trains alike. Memory as planned in every run.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "engine/model/adapter.h"
#include "engine/model/parameters.h"
#include "tests/equivalence/near_one_rank.h"
#include "tests/support/models/model_forms.h"

namespace sherd::testing {
namespace {

using Case = MeshCase;
using IsFrozen = std::function<bool(const std::string& name)>;

std::vector<std::string> names_of(const model::ModelShape& shape, const IsFrozen& is_frozen) {
  std::vector<std::string> names;
  for (const UnitSpec& unit : model::parameter_table(shape)) {
    for (const ParameterSpec& parameter : unit.parameters) {
      if (is_frozen(parameter.name)) names.push_back(parameter.name);
    }
  }
  std::ranges::sort(names);
  return names;
}

engine::TrainingOptions frozen(engine::TrainingOptions options, const IsFrozen& is_frozen) {
  options.model.frozen = names_of(options.model, is_frozen);
  return options;
}

// SGD without momentum, whose update of a parameter depends on its gradient alone.
engine::TrainingOptions plain(bool tied) {
  model::ModelShape shape = cuttable(tiny_model(tied), 4);
  shape.seq_length = 12;
  shape.max_positions = 13;
  engine::TrainingOptions options = tiny_training(shape);
  options.optimizer.type = optim::OptimizerType::kSgd;
  options.optimizer.momentum = 0.0f;
  options.optimizer.decay.rate = 0.0f;
  options.lr_schedule.lr = 0.05;
  return options;
}

bool is_of_embedding(const std::string& name) {
  return name.starts_with("embedding.");
}
bool is_below_block_1(const std::string& name) {
  return is_of_embedding(name) || name.starts_with("block.0.");
}
bool is_matrix_of_mlp(const std::string& name) {
  return name.find(".mlp.") != std::string::npos;
}
bool is_norm(const std::string& name) {
  return name.find("norm") != std::string::npos;
}
// Layers that differ: of block 0 the attention is trained, of the others everything but it.
bool is_alternating(const std::string& name) {
  const bool attention = name.find(".attention.") != std::string::npos;
  return is_of_embedding(name) || (name.starts_with("block.0.") ? !attention : attention);
}
// Only the head is left.
bool is_before_head(const std::string& name) {
  return is_of_embedding(name) || name.starts_with("block.");
}

struct Choice {
  const char* name;
  bool (*is_frozen)(const std::string& name);
};
constexpr Choice kChoices[] = {
    {"embedding", is_of_embedding},  {"below block 1", is_below_block_1},
    {"MLPs", is_matrix_of_mlp},      {"norms", is_norm},
    {"alternating", is_alternating}, {"all but the head", is_before_head}};

TEST(Freezing, KeepsBitsAndTrainsTheRestAsIfTheFrozenHadARateOfZero) {
  for (const Choice& choice : kChoices) {
    const engine::TrainingOptions options = plain(false);
    engine::TrainingOptions still = options;
    still.optimizer.groups = {
        {.patterns = names_of(options.model, choice.is_frozen), .lr_factor = 0.0f}};
    const Outcome start = start_of(options, {}), expected = run(still, {});
    const Outcome outcome = run(frozen(options, choice.is_frozen), {});
    EXPECT_EQ(outcome.losses, expected.losses) << choice.name;
    for (const auto& [name, values] : expected.parameters) {
      if (choice.is_frozen(name)) {
        EXPECT_EQ(values, start.parameters.at(name)) << name;
        continue;  // the rank that saves them is asked in tests/engine/run/freezing_run_test.cpp
      }
      EXPECT_EQ(outcome.parameters.at(name), values) << name << ", frozen: " << choice.name;
      EXPECT_NE(values, start.parameters.at(name)) << name;
    }
  }
}

// The squares of the norms of two parts add up to that of the whole.
TEST(Freezing, LeavesTheGradientsOfFrozenParametersOutOfTheNorm) {
  const engine::TrainingOptions options = plain(false);
  const float all = run(options, {}, 1).grad_norms[0];
  for (const Choice& choice : kChoices) {
    const float one = run(frozen(options, choice.is_frozen), {}, 1).grad_norms[0];
    const auto is_other = [&](const std::string& name) { return !choice.is_frozen(name); };
    const float other = run(frozen(options, is_other), {}, 1).grad_norms[0];
    EXPECT_NEAR(std::hypot(one, other), all, 1e-5f * all) << choice.name;
    EXPECT_LT(one, all) << choice.name;
  }
}

TEST(Freezing, StagesShardsReplicasAndPipelinesKeepTheBitsOfTheSameRanksAlone) {
  for (const Choice& choice : kChoices) {
    for (const bool tied : {false, true}) {
      engine::TrainingOptions options = plain(tied);
      options.optimizer.type = optim::OptimizerType::kAdamW;
      options.optimizer.decay.rate = 0.1f;
      options.max_norm = 0.05f;
      options.model.part.sequence_parallel = !tied;
      options = frozen(options, choice.is_frozen);
      for (const Case& each :
           {Case{.shards = 2, .stage = 1}, Case{.shards = 2, .replicas = 2, .stage = 2},
            Case{.shards = 3, .stage = 3}, Case{.tensor = 2, .shards = 2, .stage = 3},
            Case{.pipeline = 2, .stage = 3, .micro_steps = 3},
            Case{.tensor = 2, .pipeline = 2, .stage = 1, .micro_steps = 2}}) {
        // A trained matrix at both ends is the sum of two gradients (docs/parallelism.md).
        if (tied && each.pipeline > 1 && !choice.is_frozen("embedding.token.weight")) continue;
        const Case alone{.tensor = each.tensor};
        EXPECT_EQ(difference(run(options, each), same_batch(options, each, alone)), "")
            << name_of(each) << ", frozen: " << choice.name << ", tied " << tied;
      }
    }
  }
}

TEST(Freezing, IsTheSameHoweverBlocksAreRecomputedAndInBf16) {
  for (const Choice& choice : kChoices) {
    for (const DType dtype : {DType::kF32, DType::kBF16}) {
      engine::TrainingOptions options = plain(false);
      options.model.dtype = dtype;
      options.precision.parameters = dtype;
      options = frozen(options, choice.is_frozen);
      const Outcome expected = same_batch(options, {.shards = 2}, {}, 2);
      for (const auto recompute : {model::Recompute::kSelective, model::Recompute::kFull}) {
        options.model.recompute = recompute;
        EXPECT_EQ(difference(run(options, {.shards = 2, .stage = 3}, 2), expected), "")
            << choice.name;
      }
    }
  }
}

TEST(Freezing, TensorAndContextRanksTrainAsOneRankDoesNearly) {
  for (const Choice& choice : kChoices) {
    const engine::TrainingOptions options = frozen(plain(false), choice.is_frozen);
    const Outcome one = run(options, {.micro_steps = 2});
    for (const Case& each : {Case{.tensor = 2, .stage = 1, .micro_steps = 2},
                             Case{.context = 2, .stage = 2, .micro_steps = 2}}) {
      engine::TrainingOptions cut = options;
      cut.model.part.sequence_parallel = true;
      const Outcome outcome = run(cut, each);
      for (std::size_t step = 0; step < one.losses.size(); ++step) {
        EXPECT_NEAR(outcome.losses[step], one.losses[step], 1e-4 * one.losses[step])
            << choice.name << ", " << name_of(each);
        EXPECT_NEAR(outcome.grad_norms[step], one.grad_norms[step], 1e-3 * one.grad_norms[step]);
      }
    }
  }
}

TEST(Freezing, RunsNoBackwardBelowTheLowestTrainedBlock) {
  model::ModelShape shape = plain(false).model;
  const auto lowest = [&](const IsFrozen& is_frozen) {
    model::ModelShape own = shape;
    own.frozen = names_of(shape, is_frozen);
    return model::lowest_trained_block(own);
  };
  EXPECT_EQ(lowest([](const std::string&) { return false; }), 0);
  EXPECT_EQ(lowest([](const std::string& name) { return name.starts_with("block.0."); }), 0)
      << "the embedding is trained";
  EXPECT_EQ(lowest(is_below_block_1), 1);
  EXPECT_EQ(lowest(is_before_head), shape.num_layers);
}

}  // namespace
}  // namespace sherd::testing
