// Mixtures of experts on a GPU. Labelled `cuda`: without one each test says so and is skipped.
#include <gtest/gtest.h>

#include <filesystem>
#include <nlohmann/json.hpp>

#include "checkpoint/format/manifest.h"
#include "engine/inference/evaluate.h"
#include "engine/recipe/recipe.h"
#include "engine/run/run.h"
#include "tests/support/models/generated_text.h"
#include "tests/support/models/model_forms.h"
#include "tests/support/runs/small_run.h"
#include "tests/support/runs/training_harness.h"

namespace sherd::testing {
namespace {

using Place = RunShape::Place;

class CudaExpertRun : public ::testing::Test {
 protected:
  void SetUp() override {
    const CudaSystem system = cuda_system();
    if (!system.problem.empty()) GTEST_SKIP() << "no GPU: " << system.problem;
  }
};

engine::TrainingOptions training_of(const model::ModelShape& shape, DType dtype) {
  model::ModelShape own = shape;
  own.dtype = dtype;
  own.dropout = 0.0;
  if (dtype != DType::kF32) {  // what cuDNN's attention takes
    own.query_heads = 3;
    own.kv_heads = 1;
  }
  engine::TrainingOptions options = tiny_training(own, 1.0f);
  options.precision = {dtype, DType::kF32, DType::kF32};
  return options;
}

RunShape on_gpu(int world, int stage) {
  return {.world_size = world, .stage = stage, .place = Place::kGpu};
}

// `train` also compares every phase's memory with the plan, and the arena is all that is taken.
TEST_F(CudaExpertRun, StagesWorldsAndRecomputeAgreeBitForBit) {
  for (const ModelForm& form : all_expert_forms()) {
    SCOPED_TRACE(form.name);
    engine::TrainingOptions options = training_of(form.shape, DType::kF32);
    RunShape alone = on_gpu(1, 0);
    alone.num_micro_steps = 2;
    const Outcome expected = train(options, alone, 3);
    int recompute = 0;
    for (int stage = 0; stage <= 3; ++stage) {
      options.model.recompute = static_cast<model::Recompute>(recompute++ % 3);
      EXPECT_EQ(difference(train(options, on_gpu(2, stage), 3), expected), "") << "stage " << stage;
    }
  }
}

TEST_F(CudaExpertRun, LossesFollowTheCpus) {
  for (const ModelForm& form : all_expert_forms()) {
    SCOPED_TRACE(form.name);
    const engine::TrainingOptions options = training_of(form.shape, DType::kF32);
    const Outcome cpu = train(options, {.world_size = 2, .stage = 2}, 5);
    const Outcome gpu = train(options, on_gpu(2, 2), 5);
    for (std::size_t step = 0; step < cpu.losses.size(); ++step) {
      EXPECT_NEAR(gpu.losses[step], cpu.losses[step], 2e-3) << step;
    }
  }
}

TEST_F(CudaExpertRun, StagesAgreeAndFollowTheCpuIn16Bits) {
  const model::ModelShape shape = shape_named(expert_forms(), "experts");
  for (const auto scope :
       {kernels::BalanceScope::kSequence, kernels::BalanceScope::kPreviousStep}) {
    engine::TrainingOptions options = training_of(shape, DType::kBF16);
    options.model.moe.scope = scope;
    options.model.moe.correction_bias = true;
    options.model.moe.bias_update_rate = 0.01;
    const Outcome cpu = train(options, {.world_size = 2, .stage = 2}, 5);
    const Outcome gpu = train(options, on_gpu(2, 0), 5);
    for (std::size_t step = 0; step < cpu.losses.size(); ++step) {
      EXPECT_NEAR(gpu.losses[step], cpu.losses[step], 5e-2) << step;
    }
    EXPECT_EQ(difference(train(options, on_gpu(2, 3), 5), gpu), "");
  }
}

// Rounds, ranks of a replica and ranks that divide experts have other numbers of rows in a launch.
TEST_F(CudaExpertRun, GroupedProductsHaveTheSameBitsHoweverManyRows) {
  model::ModelShape shape = shape_named(expert_forms(), "experts");
  shape.moe.experts = 8;
  shape.moe.ffn_width = 16;
  shape.moe.grouped = true;
  shape.sequences = 2;
  shape.seq_length = 150;
  engine::TrainingOptions options = training_of(shape, DType::kBF16);
  RunShape alone = on_gpu(1, 0);
  alone.num_micro_steps = 2;
  const Outcome one = train(options, alone, 1);
  options.model.moe.buffer_rows = 512;
  EXPECT_EQ(difference(train(options, alone, 1), one), "");
  EXPECT_EQ(difference(train(options, on_gpu(2, 3), 1), one), "");
  RunShape divided = on_gpu(2, 3);
  divided.axes = {{"expert", 2}, {"shard", 1}};
  for (const std::int64_t rows : {0, 512}) {
    options.model.moe.buffer_rows = rows;
    EXPECT_EQ(difference(train(options, divided, 1), one), "") << rows;
  }
}

// More rows than a round has room for, and all rows at once.
TEST_F(CudaExpertRun, RoundsChangeNoBit) {
  model::ModelShape shape = shape_named(expert_forms(), "experts");
  shape.sequences = 3;
  shape.seq_length = 200;
  engine::TrainingOptions options = training_of(shape, DType::kF32);
  options.model.moe.buffer_rows = 1200;
  const Outcome whole = train(options, on_gpu(1, 0), 2);
  options.model.moe.buffer_rows = 512;
  EXPECT_EQ(difference(train(options, on_gpu(1, 0), 2), whole), "");
}

// In zero-bubble pipelines the gradients of matrices come later, from the rows of other micro-batches' choices.
TEST_F(CudaExpertRun, PipelinesHaveTheBitsOfOneRank) {
  model::ModelShape shape = shape_named(expert_forms(), "sandwich_experts");
  shape.num_layers = 4;
  shape.tied = false;  // ends of a pipeline add the gradients of a tied matrix in another order
  engine::TrainingOptions options = training_of(shape, DType::kF32);
  RunShape setup = on_gpu(1, 0);
  setup.num_micro_steps = 4;
  const Outcome one = train(options, setup, 2);
  setup.world_size = 2;
  setup.axes = {{"pipeline", 2}};
  for (const auto order : {schedule::Order::k1F1B, schedule::Order::kZbH1}) {
    options.pipeline.order = order;
    options.model.recompute =
        order == schedule::Order::kZbH1 ? model::Recompute::kNone : model::Recompute::kFull;
    EXPECT_EQ(difference(train(options, setup, 2), one), "");
  }
}

// Whatever tokens choose, and in rounds.
TEST_F(CudaExpertRun, RanksThatDivideExpertsHaveTheBitsOfOneRank) {
  int stage = 0;
  for (const ModelForm& form : all_expert_forms()) {
    SCOPED_TRACE(form.name);
    model::ModelShape shape = form.shape;
    shape.moe.experts = 8;
    if (shape.moe.groups > 1) shape.moe.groups = 4;
    const engine::TrainingOptions options = training_of(shape, DType::kF32);
    RunShape alone = on_gpu(1, 0);
    alone.num_micro_steps = 4;
    const Outcome one = train(options, alone, 2);
    for (const auto& [expert, shard] : {std::pair(2, 1), {2, 2}, {4, 1}}) {
      RunShape setup = on_gpu(expert * shard, stage++ % 4);
      setup.axes = {{"expert", expert}, {"shard", shard}};
      setup.num_micro_steps = 4 / (expert * shard);
      EXPECT_EQ(difference(train(options, setup, 2), one), "") << name_of(setup);
    }
  }
}

// Tensor ranks have some columns of each expert and some heads, context ranks some positions of each
// sequence. Another order of sums, or a rank that counts another's tokens, would show. Each form is
// divided in one way, each way is some form's.
TEST_F(CudaExpertRun, TensorAndContextRanksFollowTheCpuAndStagesAgree) {
  struct Cut {
    const char* axis;
    model::ContextMethod method;
  };
  constexpr Cut kCuts[] = {{"tensor", model::ContextMethod::kUlysses},
                           {"context", model::ContextMethod::kUlysses},
                           {"context", model::ContextMethod::kAllGather},
                           {"context", model::ContextMethod::kRing},
                           {"tensor", model::ContextMethod::kUlysses}};
  std::size_t run = 0;
  for (const ModelForm& form : all_expert_forms()) {
    const Cut& cut = kCuts[run++ % std::size(kCuts)];
    SCOPED_TRACE(fmt::format("{}, {} {}", form.name, cut.axis, static_cast<int>(cut.method)));
    model::ModelShape shape = cuttable(form.shape, form.shape.latent.active() ? 8 : 2);
    shape.seq_length = 8;
    shape.context.method = cut.method;
    const engine::TrainingOptions options = training_of(shape, DType::kF32);
    RunShape setup = on_gpu(2, 0);
    setup.axes = {{"shard", 1}, {cut.axis, 2}};
    setup.num_micro_steps = 2;
    const Outcome gpu = train(options, setup, 2);
    setup.place = Place::kHost;
    const Outcome cpu = train(options, setup, 2);
    for (std::size_t step = 0; step < cpu.losses.size(); ++step) {
      EXPECT_NEAR(gpu.losses[step], cpu.losses[step], 1e-3) << step;
    }
    setup.place = Place::kGpu;
    setup.world_size = 4;
    setup.axes = {{"shard", 2}, {cut.axis, 2}};
    setup.num_micro_steps = 1;
    setup.stage = 3;
    EXPECT_EQ(difference(train(options, setup, 2), gpu), "");
  }
}

std::vector<double> losses_of(const test::TempFolder& folder, const std::string& output) {
  std::vector<double> losses;
  for (const nlohmann::json& line : metrics_of(folder, output)) {
    for (const char* key : {"loss", "val_loss"}) {
      if (line.contains(key)) losses.push_back(line.at(key).get<double>());
    }
  }
  return losses;
}

// From a recipe, with padding, evaluations, counts in metrics and a biased choice; a checkpoint of the GPU goes on on
// the CPU and generates there and on the GPU.
TEST_F(CudaExpertRun, ARunFromARecipeFollowsTheCpuAndItsCheckpointGoesOnThere) {
  const test::TempFolder folder;
  write_data(folder);
  TrainingRun run{.stage = 3,
                  .world = 2,
                  .precision = "mixed_precision: {param_dtype: f32}",
                  .optimizer = "adamw",
                  .accumulation = "gradient_accumulation_steps: 1",
                  .more =
                      "moe: {num_experts: 6, shared_ffn_hidden_size: 16, score: sigmoid, "
                      "correction_bias: true}",
                  .data = ", documents: separate",
                  .dropout = 0.0};
  train_in(folder, "cpu", run);
  run.machine = engine::cuda_machine(run.world, {.share_device = true});
  train_in(folder, "gpu", run);
  const std::vector<double> cpu = losses_of(folder, "cpu");
  std::filesystem::remove_all(
      folder.file("gpu/checkpoints/" + checkpoint::step_directory_name(kSteps)));
  run.machine = nullptr;
  train_in(folder, "gpu", run);
  const std::vector<double> gpu = losses_of(folder, "gpu");
  ASSERT_EQ(gpu.size(), cpu.size());
  for (std::size_t i = 0; i < cpu.size(); ++i) EXPECT_NEAR(gpu[i], cpu[i], 5e-3) << i;
  engine::TrainedModelRequest request;
  request.checkpoint = folder.file("gpu/checkpoints/" + checkpoint::step_directory_name(kSteps));
  const std::string on_cpu = test::generated_text(request, "the", {.num_tokens = 20});
  request.machine = engine::cuda_machine(2, {.share_device = true});
  EXPECT_EQ(test::generated_text(request, "the", {.num_tokens = 20}), on_cpu);
}

// A GPU caches whole keys and values, a CPU latents. In one recipe latents of queries, too; in the other
// windows, and experts with biases.
TEST_F(CudaExpertRun, TextsOfLatentAttentionAndOfSinksAreThoseOfTheCpu) {
  for (const char* model :
       {"kv_lora_rank: 8, q_lora_rank: 6, qk_nope_head_dim: 6, qk_rope_head_dim: 4, v_head_dim: 5",
        "attention_sinks: true, activation: clamped_swiglu, window: 5, window_layers: '10'"}) {
    const test::TempFolder folder;
    write_data(folder);
    engine::RecipeRequest request;
    request.path = "tiny.yaml";
    request.text = fmt::format(
        "run: {{output_dir: {0}/run, device: cuda, share_device: true}}\n"
        "model: {{num_layers: 2, hidden_size: 16, num_attention_heads: 4, vocab_size: 128, {1}}}\n"
        "data: {{path: {0}/data, format: bytes, validation_fraction: 0}}\n"
        "training: {{seq_length: 24, global_batch_size: 4, max_steps: 12, sample_tokens: 0}}\n"
        "optimizer: {{lr: 0.02}}\n"
        "{2}",
        folder.path(), model,
        std::string(model).starts_with("kv") ? "" : "moe: {num_experts: 4, bias: true}\n");
    engine::train(engine::resolve_recipe(request), engine::cuda_machine(1, {.share_device = true}));
    engine::TrainedModelRequest trained;
    trained.checkpoint = folder.file("run/checkpoints/" + checkpoint::step_directory_name(12));
    const std::string on_cpu = test::generated_text(trained, "the", {.num_tokens = 16});
    trained.machine = engine::cuda_machine(1, {.share_device = true});
    EXPECT_EQ(test::generated_text(trained, "the", {.num_tokens = 16}), on_cpu) << model;
  }
}

}  // namespace
}  // namespace sherd::testing
