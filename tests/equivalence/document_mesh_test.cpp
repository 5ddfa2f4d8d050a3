// Separate documents in rows that are cut over context ranks: the losses of one rank, however the ranks' state is sharded.

#include "tests/equivalence/distance.h"
#include "tests/equivalence/document_training.h"
#include "tests/support/models/model_forms.h"

namespace sherd::testing {
namespace {

// Three ranks have three positions of each row, in which documents begin and end.
RunShape on_context_ranks(int context, int shards, int stage, int pipeline = 1) {
  return {.world_size = context * shards * pipeline,
          .axes = {{"pipeline", pipeline}, {"shard", shards}, {"context", context}},
          .num_micro_steps = 4 / shards,
          .stage = stage};
}

TEST_F(DocumentTraining, OnContextRanksHasTheLossOfOneAndTrainsNearIt) {
  for (const auto method : {model::ContextMethod::kUlysses, model::ContextMethod::kAllGather}) {
    for (const bool tied : {false, true}) {
      engine::TrainingOptions options = tiny_training(tiny_model(tied), 1.0f);
      options.model.query_heads = options.model.kv_heads = 6;
      options.model.context.method = method;
      options.model.recompute = tied ? model::Recompute::kFull : model::Recompute::kNone;
      options.optimizer.type = optim::OptimizerType::kSgd;
      const Outcome one = train(options, {.world_size = 1, .num_micro_steps = 4}, 3);
      for (const auto& [context, stage] : {std::pair(3, 0), std::pair(3, 3)}) {
        const Outcome cut = train(options, on_context_ranks(context, 1, stage), 3);
        EXPECT_EQ(cut.losses[0], one.losses[0]);
        EXPECT_EQ(cut.losses.back(), one.losses.back()) << "tokens of the evaluation";
        for (std::size_t i = 0; i < one.losses.size(); ++i) {
          EXPECT_NEAR(cut.losses[i], one.losses[i], 1e-5 * one.losses[i]) << i;
        }
        for (const auto& [name, values] : one.parameters) {
          EXPECT_LE(distance(cut.parameters.at(name), values), 1e-5 * length(values)) << name;
        }
      }
    }
  }
}

// Padding is where it is in whole rows: no expert counts it.
TEST_F(DocumentTraining, OnContextRanksExpertsGetTheSameTokens) {
  for (const auto method : {model::ContextMethod::kAllGather, model::ContextMethod::kUlysses}) {
    engine::TrainingOptions options = tiny_training(shape_named(expert_forms(), "experts"), 1.0f);
    options.model.query_heads = options.model.kv_heads = 6;
    options.model.context.method = method;
    options.model.moe.balance = 2.0;
    options.optimizer.type = optim::OptimizerType::kSgd;
    const Outcome one = train(options, {.world_size = 1, .num_micro_steps = 4}, 3);
    const Outcome cut = train(options, on_context_ranks(3, 1, 3), 3);
    EXPECT_EQ(cut.losses[0], one.losses[0]);
    for (std::size_t i = 0; i < one.losses.size(); ++i) {
      EXPECT_NEAR(cut.losses[i], one.losses[i], 1e-5 * one.losses[i]) << i;
      EXPECT_NEAR(cut.grad_norms[i], one.grad_norms[i], 1e-5 * one.grad_norms[i]) << i;
    }
    for (const auto& [name, values] : one.parameters) {
      EXPECT_LE(distance(cut.parameters.at(name), values), 1e-5 * length(values)) << name;
    }
  }
}

TEST_F(DocumentTraining, OnContextRanksKeepsItsBitsHoweverItsStateIsSharded) {
  for (const auto method : {model::ContextMethod::kUlysses, model::ContextMethod::kAllGather}) {
    engine::TrainingOptions options = tiny_training(tiny_model(false), 1.0f);
    options.model.query_heads = options.model.kv_heads = 6;
    options.model.context.method = method;
    const Outcome alone = train(options, on_context_ranks(3, 1, 0), 3);
    for (const auto& [shards, stage, pipeline] :
         {std::tuple(2, 3, 1), std::tuple(2, 1, 1), std::tuple(1, 2, 2)}) {
      EXPECT_EQ(difference(train(options, on_context_ranks(3, shards, stage, pipeline), 3), alone),
                "");
    }
  }
}

}  // namespace
}  // namespace sherd::testing
