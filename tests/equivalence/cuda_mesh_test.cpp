// Tensor and context ranks on a GPU that they share: losses stay near the CPU's, bits are the same however the state is
// sharded, and each rank's memory is as planned.

#include <gtest/gtest.h>

#include <filesystem>
#include <nlohmann/json.hpp>
#include <sstream>

#include "checkpoint/format/manifest.h"
#include "engine/recipe/recipe.h"
#include "engine/run/run.h"
#include "tests/support/devices/gpu_meshes.h"
#include "tests/support/models/generated_text.h"
#include "tests/support/runs/small_run.h"
#include "tests/support/values/error_text.h"

namespace sherd::testing {
namespace {

using optim::OptimizerType;
using Place = RunShape::Place;

class CudaMesh : public ::testing::Test {
 protected:
  void SetUp() override {
    const CudaSystem system = cuda_system();
    if (!system.problem.empty()) GTEST_SKIP() << "no GPU: " << system.problem;
  }
};

TEST_F(CudaMesh, LossesFollowTheCpusAndBitsAreThoseOfUnshardedRanks) {
  for (const GpuMesh& each : gpu_meshes()) {
    const Outcome gpu = train_on(each, Place::kGpu);
    expect_near_the_cpus(each, gpu);
    EXPECT_EQ(difference(gpu, train_unsharded(each, Place::kGpu)), "") << name_of(each);
  }
}

TEST_F(CudaMesh, RecomputedActivationsHaveTheSameBits) {
  for (GpuMesh each :
       {GpuMesh{.tensor = 2, .sequence_parallel = true},
        GpuMesh{.context = 2, .method = model::ContextMethod::kAllGather}, GpuMesh{.context = 2},
        GpuMesh{.context = 3, .method = model::ContextMethod::kRing}}) {
    const Outcome kept = train_on(each, Place::kGpu);
    for (const auto recompute : {model::Recompute::kSelective, model::Recompute::kFull}) {
      each.recompute = recompute;
      EXPECT_EQ(difference(train_on(each, Place::kGpu), kept), "") << name_of(each);
    }
  }
}

// The mask that cuDNN draws is the same when a block is computed again, and however the state is sharded.
TEST_F(CudaMesh, DropoutInARingsCudnnHasOneMask) {
  GpuMesh each{.context = 2,
               .shards = 2,
               .stage = 3,
               .dtype = DType::kBF16,
               .method = model::ContextMethod::kRing};
  const auto train_with_masks = [](const GpuMesh& mesh) {
    engine::TrainingOptions options = options_of(mesh);
    options.model.dropout = 0.1;
    return train(options, setup_of(mesh, Place::kGpu), mesh.steps);
  };
  const Outcome sharded = train_with_masks(each);
  each.recompute = model::Recompute::kFull;
  EXPECT_EQ(difference(train_with_masks(each), sharded), "");
  each.micro_steps = each.shards;
  each.shards = 1;
  each.stage = 0;
  EXPECT_EQ(difference(train_with_masks(each), sharded), "");
}

TEST_F(CudaMesh, OptimizersThatNeedWholeTensorsAgreeBetweenStagesAndWithTheCpu) {
  for (const OptimizerType type :
       {OptimizerType::kLamb, OptimizerType::kLars, OptimizerType::kMuon}) {
    const GpuMesh each{.tensor = 2, .shards = 2, .stage = 3, .optimizer = type};
    const Outcome gpu = train_on(each, Place::kGpu);
    expect_near_the_cpus(each, gpu);
    EXPECT_EQ(difference(gpu, train_unsharded(each, Place::kGpu)), "") << static_cast<int>(type);
  }
}

TEST_F(CudaMesh, AdaptersOnAQuantisedBaseFollowTheCpusLosses) {
  for (const bool quantised : {false, true}) {
    engine::TrainingOptions options = tiny_training(tiny_model(false), 0.5f);
    options.model.width = 128;
    options.model.query_heads = options.model.kv_heads = 4;
    options.model.ffn_width = 256;
    options.model.num_layers = 2;
    options.model.adapter = {.rank = 3, .scale = 1.5, .dropout = 0.1};
    options.model.adapter.targets = {"attention.qkv", "attention.output", "mlp.down"};
    options.nf4_base = quantised;
    RunShape setup{.world_size = 2, .axes = {{"tensor", 2}}, .stage = 2};
    const Outcome cpu = train(options, setup, 3);
    setup.place = Place::kGpu;
    const Outcome gpu = train(options, setup, 3);
    for (std::size_t step = 0; step < cpu.losses.size(); ++step) {
      EXPECT_NEAR(gpu.losses[step], cpu.losses[step], 2e-3) << step << ", " << quantised;
    }
  }
}

// Evaluations, and a checkpoint that is resumed on CPUs.
TEST_F(CudaMesh, ARunFromARecipeEvaluatesAndGoesOnElsewhere) {
  const test::TempFolder folder;
  write_data(folder);
  TrainingRun run{.stage = 1,
                  .precision = "mixed_precision: {param_dtype: f32}",
                  .optimizer = "adamw",
                  .accumulation = "gradient_accumulation_steps: 1",
                  .mesh =
                      "tensor_parallel_degree: 2, sequence_parallel: true, "
                      "context_parallel_degree: 2, context_parallel_method: ring",
                  .seq_length = 8};
  train_in(folder, "cpu", run);
  run.machine = engine::cuda_machine(4, {.share_device = true});
  train_in(folder, "gpu", run);
  const auto values_of = [&](const std::string& output) {
    std::vector<double> values;
    for (const std::string& line : numbers_of(folder, output)) {
      const auto parsed = nlohmann::json::parse(line);
      for (const char* key : {"loss", "val_loss"}) {
        if (parsed.contains(key)) values.push_back(parsed.at(key).get<double>());
      }
    }
    return values;
  };
  const std::vector<double> whole = values_of("cpu");
  const auto expect_near = [&](const std::vector<double>& values) {
    ASSERT_EQ(values.size(), whole.size());
    for (std::size_t i = 0; i < whole.size(); ++i) EXPECT_NEAR(values[i], whole[i], 5e-3) << i;
  };
  expect_near(values_of("gpu"));
  // As if it had been killed after the checkpoint in the middle; one CPU resumes the run.
  std::filesystem::remove_all(
      folder.file("gpu/checkpoints/" + checkpoint::step_directory_name(kSteps)));
  run.machine = nullptr;
  run.mesh = "";
  train_in(folder, "gpu", run);
  expect_near(values_of("gpu"));
}

engine::ResolvedRecipe recipe_of(const test::TempFolder& folder, const std::string& output,
                                 const std::string& mesh, const std::vector<std::string>& sets) {
  const TrainingRun run{.precision = "mixed_precision: {param_dtype: f32}",
                        .optimizer = "adamw",
                        .accumulation = "gradient_accumulation_steps: 1",
                        .mesh = mesh};
  engine::RecipeRequest request;
  request.path = "mesh.yaml";
  request.text = recipe_text(folder, output, run);
  request.sets = sets;
  return engine::resolve_recipe(request);
}

void train_on_shared_gpu(const engine::ResolvedRecipe& recipe) {
  const auto ranks = static_cast<int>(recipe.values.world_size());
  engine::train(recipe, engine::cuda_machine(ranks, {.share_device = true}));
}

// Logits of a token are put together from parts of the vocabulary, or come from the rank that has it.
TEST_F(CudaMesh, ARunEndsWithTheTextThatItsCheckpointGives) {
  const test::TempFolder folder;
  write_data(folder);
  for (const std::string mesh :
       {"tensor_parallel_degree: 2", "context_parallel_degree: 2, context_parallel_method: ring"}) {
    const std::string output = mesh.substr(0, 3);
    ::testing::internal::CaptureStdout();
    train_on_shared_gpu(recipe_of(folder, output, mesh,
                                  {"training.max_steps=2", "training.global_batch_size=2",
                                   "training.seq_length=8", "training.sample_tokens=6",
                                   "training.sample_prompt=ab", "training.sample_temperature=0"}));
    const std::string printed = ::testing::internal::GetCapturedStdout();
    const std::string checkpoint =
        folder.file(output + "/checkpoints/" + checkpoint::step_directory_name(2));
    const std::string sample = test::generated_text({.checkpoint = checkpoint, .ranks = 1}, "ab",
                                                    {.num_tokens = 6, .temperature = 0.0});
    EXPECT_NE(printed.find("sample:\n" + sample), std::string::npos) << printed << sample;
  }
}

TEST_F(CudaMesh, WhatAGpuCantIsRefusedInOneLine) {
  const test::TempFolder folder;
  write_data(folder);
  const auto refused = [&](const std::string& mesh, const std::vector<std::string>& sets) {
    return test::error_text<UsageError>(
        [&] { train_on_shared_gpu(recipe_of(folder, "refused", mesh, sets)); });
  };
  EXPECT_EQ(refused("tensor_parallel_degree: 2, sum_order: canonical",
                    {"model.head_width=8", "model.ffn_hidden_size=64"}),
            "parallelism.sum_order is canonical, which only CPUs support; use sum_order: rank, or "
            "set run.device: cpu.");
  for (const std::string mesh :
       {"tensor_parallel_degree: 2",
        "context_parallel_degree: 3, context_parallel_method: all_gather"}) {
    EXPECT_EQ(
        refused(mesh, {"run.cuda_graphs=true", "run.peer_timeout=20", "model.dropout=0"}),
        "run.cuda_graphs is true, but graphs can't contain exchanges of tensor or context ranks; "
        "use cuda_graphs: false.");
  }
}

}  // namespace
}  // namespace sherd::testing
