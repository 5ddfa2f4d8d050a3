// Whole runs that freeze parameters: their checkpoints hold the whole model, and a resume, an evaluation, an export and
// a run that begins with one find it there.

#include <gtest/gtest.h>

#include <algorithm>

#include "checkpoint/reader.h"
#include "checkpoint/store/committed.h"
#include "engine/inference/evaluate.h"
#include "engine/inference/export.h"
#include "engine/run/run.h"
#include "tests/support/runs/small_run.h"
#include "tests/support/values/error_text.h"

namespace sherd::testing {
namespace {

constexpr const char* kFreeze =
    "optimizer.groups=[{parameters: [\"embedding.*\", \"block.0.*\"], frozen: true}]";

class FreezingRun : public ::testing::Test {
 protected:
  FreezingRun() { write_data(folder_); }

  void train(const std::string& output, int max_steps, int ranks, int stage,
             std::vector<std::string> sets) const {
    engine::RecipeRequest request;
    request.path = "freezing.yaml";
    request.text = fmt::format(
        "model: {{num_layers: 2, hidden_size: 32, num_attention_heads: 4, num_kv_heads: 2, "
        "vocab_size: 256, max_seq_length: 16}}\ndata: {{path: {}}}\n"
        "training: {{seq_length: 16, global_batch_size: 4, micro_batch_size: 1, max_steps: {}}}\n"
        "zero_optimization: {{stage: {}, grad_sync: every_micro_step}}\n"
        "lr_scheduler: {{decay_steps: 8}}\n",
        folder_.file("data/*.txt"), max_steps, stage);
    request.ranks = ranks;
    request.sets = std::move(sets);
    request.sets.push_back("run.output_dir=" + folder_.file(output));
    request.sets.push_back("checkpoint.interval=4");
    ::testing::internal::CaptureStdout();
    try {
      engine::train(engine::resolve_recipe(request), engine::cpu_machine());
    } catch (...) {
      printed_ = ::testing::internal::GetCapturedStdout();
      throw;
    }
    printed_ = ::testing::internal::GetCapturedStdout();
  }

  std::string checkpoint(const std::string& output, int step) const {
    return folder_.file(fmt::format("{}/checkpoints/step-{:010}", output, step));
  }
  /// A whole parameter in a checkpoint.
  std::vector<float> values(const std::string& path, const std::string& name) const {
    const checkpoint::Checkpoint saved(checkpoint::posix_disk(), path);
    sharding::State wanted;
    for (const sharding::StateTensor& tensor : saved.manifest().tensors) {
      if (tensor.kind == "param") wanted.tensors.push_back(tensor);
    }
    const auto found = std::ranges::find(wanted.tensors, name, &sharding::StateTensor::name);
    std::vector<float> out(static_cast<std::size_t>(found->numel()));
    std::vector<char> reading(static_cast<std::size_t>(checkpoint::kBlockBytes));
    wanted.pieces = {{static_cast<int>(found - wanted.tensors.begin()),
                      0,
                      std::ssize(out),
                      {out.data(), DType::kF32, std::ssize(out)}}};
    checkpoint::load(saved, wanted, checkpoint::Match::kListedKinds,
                     {reading.data(), DType::kU8, std::ssize(reading)});
    return out;
  }
  double loss_of(const std::string& model, int ranks, int stage) const {
    return engine::evaluate_checkpoint(
               {model,
                {"data.format=bytes", "data.validation_path=" + folder_.file("data/*.txt"),
                 "training.seq_length=16", fmt::format("zero_optimization.stage={}", stage)},
                ranks,
                {}})
        .loss;
  }

  test::TempFolder folder_{test::memory_folder()};
  mutable std::string printed_;
};

TEST_F(FreezingRun, GoesOnBitForBitAtAnotherStageAndWorldAndMesh) {
  for (const char* type : {"f32", "bf16"}) {
    const std::vector<std::string> sets = {kFreeze,
                                           fmt::format("mixed_precision.param_dtype={}", type)};
    const std::string whole = std::string("whole ") + type, parts = std::string("parts ") + type;
    train(whole, 8, 1, 0, sets);
    EXPECT_NE(printed_.find("frozen"), std::string::npos) << printed_;
    train(parts, 4, 2, 3, sets);
    std::vector<std::string> pipelined = sets;
    pipelined.push_back("parallelism.pipeline_parallel_degree=2");
    train(parts, 8, 2, 1, pipelined);
    EXPECT_EQ(final_state(folder_, parts), final_state(folder_, whole)) << type;
  }
}

TEST_F(FreezingRun, HoldsTheFrozenParametersWithTheirFirstBitsAndWithoutMoments) {
  train("all", 4, 1, 0, {"optimizer.lr=0"});
  for (const char* type : {"f32", "bf16"}) {
    const std::string run = std::string("run ") + type;
    train(run, 4, 2, 2, {kFreeze, fmt::format("mixed_precision.param_dtype={}", type)});
    const checkpoint::Checkpoint saved(checkpoint::posix_disk(), checkpoint(run, 4));
    for (const sharding::StateTensor& tensor : saved.manifest().tensors) {
      const bool frozen =
          tensor.name.starts_with("embedding.") || tensor.name.starts_with("block.0.");
      EXPECT_TRUE(!frozen || tensor.kind == "param") << tensor.name << " " << tensor.kind;
    }
    for (const char* name : {"embedding.token.weight", "block.0.mlp.up.weight"}) {
      std::vector<float> first = values(checkpoint("all", 4), name);
      if (type == std::string("bf16")) {
        for (float& value : first) value = static_cast<float>(BFloat16(value));
      }
      EXPECT_EQ(values(checkpoint(run, 4), name), first) << name;
    }
    EXPECT_NE(values(checkpoint(run, 4), "block.1.mlp.up.weight"),
              values(checkpoint("all", 4), "block.1.mlp.up.weight"));
  }
}

TEST_F(FreezingRun, IsEvaluatedExportedAndContinuedAsAWholeModel) {
  train("first", 4, 1, 0, {});
  const std::string from = "checkpoint.init_from=" + checkpoint("first", 4);
  train("run", 4, 2, 3, {kFreeze, from, "averages.type=ema"});
  EXPECT_EQ(values(checkpoint("run", 4), "block.0.norm1.weight"),
            values(checkpoint("first", 4), "block.0.norm1.weight"));
  const double loss = loss_of(checkpoint("run", 4), 1, 0);
  EXPECT_EQ(loss_of(checkpoint("run", 4), 2, 3), loss);
  EXPECT_NE(loss, loss_of(checkpoint("first", 4), 1, 0));
  engine::export_checkpoint({checkpoint("run", 4), folder_.file("exported"), DType::kF32});
  EXPECT_NEAR(loss_of(folder_.file("exported"), 1, 0), loss, 2e-6);
  EXPECT_GT(
      engine::evaluate_checkpoint({.checkpoint = checkpoint("run", 4), .ranks = 1, .average = true})
          .loss,
      0.0);
  // From a folder, and then with everything trained.
  train("of folder", 4, 2, 2, {kFreeze, "checkpoint.init_from=" + folder_.file("exported")});
  EXPECT_EQ(values(checkpoint("of folder", 4), "block.0.norm1.weight"),
            values(checkpoint("first", 4), "block.0.norm1.weight"));
  train("all of it", 4, 1, 0, {"checkpoint.init_from=" + checkpoint("run", 4)});
  EXPECT_NE(values(checkpoint("all of it", 4), "block.0.norm1.weight"),
            values(checkpoint("first", 4), "block.0.norm1.weight"));
}

TEST_F(FreezingRun, RefusesWhatCantBeInOneLine) {
  const auto error = [&](const std::string& groups, std::vector<std::string> more = {}) {
    more.push_back("optimizer.groups=" + groups);
    const std::string text = test::error_text<UsageError>([&] { train("none", 4, 1, 0, more); });
    EXPECT_EQ(std::ranges::count(text, '\n'), 0) << text;
    return text;
  };
  const auto has = [](const std::string& text, const std::string& part) {
    return text.find(part) != std::string::npos;
  };
  EXPECT_TRUE(has(error("[{parameters: [\"*\"], frozen: true}]"),
                  "freezes every parameter, so nothing would be trained"));
  EXPECT_TRUE(has(error("[{parameters: [\"*.lora_a\"], frozen: true}]"), "matches no parameter"));
  EXPECT_TRUE(has(error("[{parameters: [\"head.*\"], frozen: true, lr_factor: 2}]"),
                  "is frozen, so its other keys have no effect"));
  EXPECT_TRUE(has(error("[{parameters: [\"*.bias\"], frozen: true}]", {"model.qkv_bias=true"}),
                  "can only be frozen together"));
  EXPECT_TRUE(has(error("[{parameters: [\"*.lora_a\"], frozen: true}]",
                        {"adapter.type=lora", "checkpoint.init_from=x"}),
                  "with adapter.type lora"));
  EXPECT_TRUE(has(
      error("[{parameters: [\"embedding.token.*\"], frozen: true}]", {"model.positions=learned"}),
      "can only be frozen together"));
}

}  // namespace
}  // namespace sherd::testing
