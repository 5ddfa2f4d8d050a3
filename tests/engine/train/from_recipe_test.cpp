#include "engine/train/from_recipe.h"

#include <gtest/gtest.h>

#include "engine/model/parameters.h"
#include "tests/engine/recipe/recipe_support.h"
#include "tests/where.h"

namespace sherd::engine {
namespace {

ResolvedRecipe shipped(const std::string& name, std::vector<std::string> sets = {}) {
  return resolve_recipe({.path = std::string(SHERD_SOURCE_DIR) + "/recipes/" + name + ".yaml",
                         .text = {},
                         .sets = std::move(sets),
                         .ranks = {}});
}

TEST(TrainingOptions, OfQuickstartAreALlamaShapeOnTwoRanksAtStage3) {
  const Recipe recipe = shipped("quickstart").values;
  const TrainingOptions options = training_options(recipe);
  const model::ModelShape& model = options.model;
  EXPECT_EQ(model.num_layers, 4);
  EXPECT_EQ(model.width, 256);
  EXPECT_EQ(model.query_heads, 4);
  EXPECT_EQ(model.kv_heads, 2);
  EXPECT_EQ(model.ffn_width, 704);
  EXPECT_EQ(model.vocab_size, 256);
  EXPECT_EQ(model.max_positions, 256);
  EXPECT_EQ(model.norm, kernels::NormKind::kRmsNorm);
  EXPECT_EQ(model.positions, model::Positions::kRope);
  EXPECT_EQ(model.activation, kernels::ActivationKind::kSwiGlu);
  EXPECT_FALSE(model.biases.qkv);
  EXPECT_FALSE(model.tied);
  EXPECT_EQ(model.dropout, 0.0);
  EXPECT_EQ(model.sequences, 4);  // 8 rows on 2 ranks
  EXPECT_EQ(model.seq_length, 256);
  EXPECT_NEAR(static_cast<double>(model::num_parameters(model)), 3.1e6, 0.1e6);

  EXPECT_TRUE(options.placement.parameters_sharded());
  EXPECT_TRUE(options.placement.gradients_sharded());
  EXPECT_TRUE(options.placement.optimizer_sharded());
  EXPECT_EQ(options.placement.grad_sync, GradSync::kEveryMicroStep);
  EXPECT_EQ(options.gather.prefetch_depth, 1);
  EXPECT_TRUE(options.gather.reshard_after_forward);
  EXPECT_EQ(options.num_micro_steps, 1);
  EXPECT_EQ(options.tokens_per_step(2), 2048);
  EXPECT_EQ(options.optimizer.type, OptimizerType::kAdamW);
  EXPECT_EQ(options.optimizer.beta2, 0.95f);
  EXPECT_EQ(options.optimizer.decay.rate, 0.1f);
  EXPECT_EQ(options.max_norm, 1.0f);
  EXPECT_EQ(options.lr_schedule.type, optim::ScheduleType::kCosine);
  EXPECT_EQ(options.lr_schedule.lr, 2e-3);
  EXPECT_EQ(options.lr_schedule.warmup_steps, 20);
  EXPECT_EQ(options.lr_schedule.decay_steps, 300);

  const data::DataOptions data = data_options(recipe);
  EXPECT_EQ(data.path, "/usr/include/eigen3");
  EXPECT_EQ(data.format, data::Format::kBytes);
  EXPECT_EQ(data.validation_fraction, 0.01);
  EXPECT_EQ(data.vocab_size, 256);
  const data::BatchShape batch = batch_shape(recipe);
  EXPECT_EQ(batch.world, 2);
  EXPECT_EQ(batch.global_batch_size(), 8);
  EXPECT_EQ(batch.seed, 1u);
}

TEST(TrainingOptions, OfShakespeareAreNanoGptsModelOnOneRankAtStage0) {
  const Recipe recipe = shipped("shakespeare_char_cpu", {"data.path=x"}).values;
  const TrainingOptions options = training_options(recipe);
  const model::ModelShape& model = options.model;
  EXPECT_EQ(model.norm, kernels::NormKind::kLayerNorm);
  EXPECT_EQ(model.positions, model::Positions::kLearned);
  EXPECT_EQ(model.activation, kernels::ActivationKind::kGelu);
  EXPECT_EQ(model.ffn_width, 512);
  EXPECT_EQ(model.kv_heads, 4);
  EXPECT_EQ(model.max_positions, 64);
  EXPECT_TRUE(model.tied);
  EXPECT_FALSE(model.biases.qkv);
  EXPECT_FALSE(options.placement.optimizer_sharded());
  EXPECT_EQ(options.placement.grad_sync, GradSync::kBoundary);
  EXPECT_EQ(options.optimizer.beta2, 0.99f);
  EXPECT_EQ(options.seed, 1337u);
  EXPECT_EQ(data_options(recipe).format, data::Format::kChars);
  EXPECT_EQ(model::num_parameters(model), 804'096);
}

TEST(TrainingOptions, OfGpt2AccumulateToHalfAMillionTokens) {
  const TrainingOptions options = training_options(shipped("gpt2_124m").values);
  EXPECT_EQ(options.num_micro_steps, 5);  // 480 rows = 12 x 5 x 8 ranks
  EXPECT_EQ(options.tokens_per_step(8), 491'520);
  // 124,439,808 with 50,257 tokens; 47 more rows pad the vocabulary to 50,304.
  EXPECT_EQ(model::num_parameters(options.model), 124'439'808 + 47 * 768);
  EXPECT_TRUE(options.model.biases.qkv);
}

TEST(TrainingOptions, OfLlama1bHaveGroupedHeadsAndItsRope) {
  const TrainingOptions options = training_options(shipped("llama_1b").values);
  EXPECT_EQ(options.model.kv_heads, 8);
  EXPECT_EQ(options.model.ffn_width, 8192);
  EXPECT_EQ(options.model.rotary[0].theta, 500'000.0);
  EXPECT_EQ(options.model.norm_eps, 1e-5);
  EXPECT_EQ(options.lr_schedule.type, optim::ScheduleType::kWsd);
  EXPECT_EQ(options.num_micro_steps, 8);
  // Llama 3.2 1B has 1,235,814,400, of which 128,256 x 2,048 are its one (tied) table; here are two
  // of 32,000 rows.
  EXPECT_EQ(model::num_parameters(options.model),
            1'235'814'400 - 128'256LL * 2048 + 2 * 32'000LL * 2048);
}

TEST(TrainingOptions, TakeEveryChoiceOfARecipe) {
  const Recipe recipe =
      resolve(kTinyRecipe,
              {"model.norm=layernorm", "model.positions=learned", "model.activation=gelu",
               "model.bias=true", "model.dropout=0.25", "model.init_std=0.5", "model.norm_eps=0.5",
               "model.max_seq_length=32", "zero_optimization.stage=1",
               "zero_optimization.grad_sync=every_micro_step", "zero_optimization.prefetch_depth=3",
               "zero_optimization.reshard_after_forward=false", "optimizer.type=sgd",
               "optimizer.momentum=0.5", "optimizer.no_decay=[\"*.bias\"]",
               "gradient_clipping.max_norm=0", "data.format=bin", "data.validation_path=v.bin",
               "run.seed=9"})
          .values;
  const TrainingOptions options = training_options(recipe);
  EXPECT_EQ(options.model.dropout, 0.25);
  EXPECT_EQ(options.model.init_std, 0.5);
  EXPECT_EQ(options.model.norm_eps, 0.5);
  EXPECT_EQ(options.model.max_positions, 32);
  EXPECT_EQ(options.model.seq_length, 16);
  EXPECT_TRUE(options.model.biases.qkv);
  EXPECT_TRUE(options.placement.optimizer_sharded());
  EXPECT_FALSE(options.placement.gradients_sharded());
  EXPECT_EQ(options.placement.grad_sync, GradSync::kEveryMicroStep);
  EXPECT_EQ(options.gather.prefetch_depth, 3);
  EXPECT_FALSE(options.gather.reshard_after_forward);
  EXPECT_EQ(options.optimizer.type, OptimizerType::kSgd);
  EXPECT_EQ(options.optimizer.momentum, 0.5f);
  EXPECT_EQ(options.optimizer.decay.no_decay, std::vector<std::string>{"*.bias"});
  EXPECT_EQ(options.max_norm, 0.0f);
  EXPECT_EQ(options.seed, 9u);
  EXPECT_EQ(data_options(recipe).format, data::Format::kBin);
  EXPECT_EQ(data_options(recipe).validation_path, "v.bin");
  EXPECT_EQ(data_options(recipe).validation_fraction, 0.0);
}

// By hand, D = 8, H = 4, G = 2, K = 2, F = 12, V = 11, S = 5, L = 3: a block multiplies
// qkv 16 x 8, output 8 x 8, up 24 x 8 and down 8 x 12 weights, which is 480; the head 11 x 8.
TEST(FlopsPerToken, IsSixPerMultipliedWeightAndAttentionsTwoCausalProducts) {
  model::ModelShape shape;
  shape.num_layers = 3;
  shape.width = 8;
  shape.query_heads = 4;
  shape.kv_heads = 2;
  shape.ffn_width = 12;
  shape.vocab_size = 11;
  shape.seq_length = 5;
  shape.activation = kernels::ActivationKind::kSwiGlu;
  EXPECT_EQ(flops_per_token(shape), 6.0 * (3 * 480 + 88) + 6.0 * 3 * 5 * 8);
}

}  // namespace
}  // namespace sherd::engine
