// Recipes, plans, checkpoints, model folders, tokenizers and generation through the library.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "sherd/sherd.h"
#include "tests/support/models/small_tokenizer.h"
#include "tests/support/runs/program.h"
#include "tests/support/runs/small_run.h"
#include "tests/support/values/error_text.h"
#include "tests/where.h"

namespace sherd::testing {
namespace {

const TrainingRun kRun{.stage = 2,
                       .world = 2,
                       .precision = "mixed_precision: {param_dtype: bf16}",
                       .optimizer = "adamw",
                       .accumulation = "micro_batch_size: 3",
                       .model =
                           ", positions: rope, norm: rmsnorm, activation: swiglu, bias: false, "
                           "tie_embeddings: false",
                       .dropout = 0.0};

/// A finished run, made once.
class LibraryFiles : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    folder_ = new test::TempFolder;
    write_data(*folder_);
    recipe_ = new v0::Recipe(v0::Recipe::parse(recipe_text(*folder_, "run", kRun)));
    v0::Trainer(*recipe_).train();
  }
  static void TearDownTestSuite() {
    delete recipe_;
    delete folder_;
  }
  static const test::TempFolder& folder() { return *folder_; }
  static const v0::Recipe& recipe() { return *recipe_; }
  static std::string run() { return folder_->file("run"); }

  static inline test::TempFolder* folder_ = nullptr;
  static inline v0::Recipe* recipe_ = nullptr;
};

std::string output_of(const std::vector<std::string>& arguments) {
  const test::ProgramOutcome outcome = test::run_program(SHERD_PROGRAM, arguments);
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  return outcome.out;
}

TEST_F(LibraryFiles, ARecipeHasEveryValue) {
  v0::Recipe changed = recipe();
  changed.set("zero_optimization.stage", "3").set_ranks(4);
  EXPECT_EQ(changed.get("zero_optimization.stage"), "3");
  EXPECT_EQ(changed.get("parallelism.data_parallel_shard_degree"), "4");
  EXPECT_EQ(recipe().get("zero_optimization.stage"), "2");
  EXPECT_EQ(recipe().get("model.activation"), "swiglu");
  EXPECT_NE(changed.yaml().find("stage: 3"), std::string::npos);
  EXPECT_EQ(test::error_text<v0::UsageError>([&] { changed.get("optimizer.lrr"); }).substr(0, 43),
            "unknown key \"optimizer.lrr\"; did you mean \"");
}

TEST_F(LibraryFiles, ARecipesProblemsComeTogether) {
  v0::Recipe wrong = recipe();
  wrong.set("training.seq_length", "-1").set("optimizer.type", "adamx");
  const std::string text = test::error_text<v0::Error>([&] { wrong.check(); });
  EXPECT_EQ(std::ranges::count(text, '\n'), 1) << text;
}

TEST_F(LibraryFiles, APlanHasTheFiguresOfTheProgram) {
  const v0::Plan plan = v0::plan(recipe(), {.device_memory_bytes = 1 << 30});
  const std::string path = folder().write("plan.yaml", recipe_text(folder(), "run", kRun));
  const std::string json = output_of({"plan", path, "--json", "--device-memory", "1GiB"});
  const nlohmann::json theirs = nlohmann::json::parse(json),
                       ours = nlohmann::json::parse(plan.json);
  ASSERT_EQ(plan.ranks.size(), 2u);
  EXPECT_EQ(ours, theirs);
  EXPECT_EQ(plan.text, output_of({"plan", path, "--device-memory", "1GiB"}));
  std::int64_t most = 0;
  for (const v0::RankMemory& rank : plan.ranks) most = std::max(most, rank.device_bytes);
  EXPECT_EQ(most, plan.ranks[static_cast<std::size_t>(plan.worst_rank)].device_bytes);
  EXPECT_NE(json.find(fmt::format("\"arena_bytes\": {}", most)), std::string::npos);
  EXPECT_TRUE(plan.fits);
  EXPECT_FALSE(v0::plan(recipe(), {.device_memory_bytes = 1000}).fits);
}

TEST_F(LibraryFiles, APlanHasThePredictedStepOnceThisProcessorsRatesAreKnown) {
  const char* const before = std::getenv("SHERD_RATES");
  const std::string kept = before ? before : "";
  ::setenv("SHERD_RATES", folder().file("rates.json").c_str(), 1);
  output_of({"info", "--rates"});
  const std::string path = folder().write("plan.yaml", recipe_text(folder(), "run", kRun));
  const v0::Plan plan = v0::plan(recipe(), {.device_memory_bytes = 1 << 30});
  EXPECT_NE(plan.text.find("\npredicted on this processor: "), std::string::npos);
  EXPECT_EQ(plan.text, output_of({"plan", path, "--device-memory", "1GiB"}));
  EXPECT_GT(nlohmann::json::parse(plan.json).at("predicted_step_s"), 0.0);
  EXPECT_EQ(plan.json, output_of({"plan", path, "--device-memory", "1GiB", "--json"}));
  before ? ::setenv("SHERD_RATES", kept.c_str(), 1) : ::unsetenv("SHERD_RATES");
}

TEST_F(LibraryFiles, ACheckpointListsItsTensors) {
  const v0::Checkpoint checkpoint(run());
  EXPECT_EQ(checkpoint.step(), kSteps);
  EXPECT_EQ(checkpoint.json() + "\n", output_of({"inspect", run(), "--json"}));
  EXPECT_EQ(nlohmann::json::parse(checkpoint.counters_json()),
            nlohmann::json::parse(checkpoint.json())["global"]);
  const auto& tensors = checkpoint.tensors();
  EXPECT_TRUE(std::ranges::any_of(tensors, [](const v0::TensorInfo& tensor) {
    return tensor.kind == "exp_avg" && tensor.dtype == "f32";
  }));
  EXPECT_EQ(v0::Recipe::parse(checkpoint.recipe()).get("optimizer.type"), "adamw");
}

TEST_F(LibraryFiles, ATensorIsReadInBothPrecisions) {
  const v0::Checkpoint checkpoint(run());
  for (const v0::TensorInfo& tensor : checkpoint.tensors()) {
    const std::vector<float> floats = checkpoint.read_floats(tensor.name, tensor.kind);
    const std::vector<double> doubles = checkpoint.read_doubles(tensor.name, tensor.kind);
    EXPECT_EQ(std::ssize(floats), tensor.num_elements());
    EXPECT_TRUE(std::ranges::equal(floats, doubles));
  }
  EXPECT_THROW(checkpoint.read_floats("no.such"), v0::UsageError);
  float little[1];
  EXPECT_THROW(checkpoint.read_floats(checkpoint.tensors()[0].name, "param", little, 1),
               v0::UsageError);
}

TEST_F(LibraryFiles, WhatIsNoCheckpointIsADataError) {
  EXPECT_THROW(v0::Checkpoint(folder().file("data")), v0::DataError);
}

TEST_F(LibraryFiles, GeneratesTheTextOfTheProgram) {
  const v0::GeneratedText text = v0::generate(run(), "ab", {.num_tokens = 5, .seed = 4});
  EXPECT_EQ(text.num_tokens, 5);
  EXPECT_EQ(text.end, "length");
  const std::string prompts = folder().write("prompts.jsonl", "\"ab\"\n");
  const nlohmann::json line = nlohmann::json::parse(
      output_of({"sample", run(), "--prompts", prompts, "--tokens", "5", "--seed", "4"}));
  EXPECT_EQ(text.text, line["text"].get<std::string>());
  std::string pieces;
  v0::generate(run(), "ab", {.num_tokens = 5, .seed = 4},
               [&](std::string_view piece) { pieces += piece; });
  EXPECT_EQ(pieces, text.text);
  const auto texts = v0::generate(run(), std::vector<std::string>{"ab", "b", "ab"},
                                  {.num_tokens = 5, .seed = 4, .ranks = 2});
  EXPECT_EQ(texts[0].text, text.text);
  EXPECT_EQ(texts[2].text, text.text);
  EXPECT_THROW(v0::generate(run(), "ab", {.temperature = -1.0}), v0::UsageError);
}

TEST_F(LibraryFiles, AModelFolderIsWrittenAndRead) {
  const std::string to = folder().file("exported");
  const v0::ExportedModel exported = v0::export_model(run(), to, {.dtype = "f32"});
  EXPECT_EQ(exported.dtype, "f32");
  EXPECT_EQ(exported.num_files, 1);
  const v0::ModelInfo info = v0::read_model_folder(to);
  EXPECT_EQ(info.num_parameters, v0::plan(recipe()).num_parameters);
  EXPECT_EQ(info.dtype, "f32");
  EXPECT_TRUE(std::ranges::any_of(info.recipe_values, [](const auto& value) {
    return value.first == "model.num_layers" && value.second == "2";
  }));
  EXPECT_THROW(v0::export_model(run(), to), v0::UsageError);
  EXPECT_EQ(test::error_text<v0::UsageError>(
                [&] { v0::export_model(run(), folder().file("other"), {.dtype = "f64"}); }),
            "export: dtype is \"f64\"; expected f32, bf16 or f16.");
}

// The ids follow from the tokenizer's own definition: small_tokenizer.h.
TEST(LibraryTokenizer, EncodesAndDecodes) {
  const test::TempFolder folder;
  folder.write("tokenizer.json", test::small_tokenizer().dump());
  const v0::Tokenizer tokenizer(folder.path());
  EXPECT_EQ(tokenizer.encode("the<|end|>"), (std::vector<std::int32_t>{257, 258}));
  EXPECT_EQ(tokenizer.encode("the<|end|>", {.special_tokens = false}).size(), 8u);
  EXPECT_EQ(tokenizer.decode({257, 258}), "the");
  EXPECT_EQ(tokenizer.decode({257, 258}, false), "the<|end|>");
  EXPECT_EQ(tokenizer.id_of("<|end|>"), 258);
  EXPECT_EQ(tokenizer.vocab_size(), 259);
  EXPECT_THROW(tokenizer.encode("\xff"), v0::DataError);
}

TEST(LibraryTokenizer, AFolderWithoutOneIsADataError) {
  const test::TempFolder folder;
  EXPECT_THROW(v0::Tokenizer(folder.path()), v0::DataError);
}

TEST(LibraryErrors, EachKindIsAnError) {
  const auto kind_of = [](const v0::Error& error) { return error.kind(); };
  EXPECT_EQ(kind_of(v0::UsageError("x")), v0::ErrorKind::kUsage);
  EXPECT_EQ(kind_of(v0::PeerError("x")), v0::ErrorKind::kPeer);
  EXPECT_EQ(test::error_text<v0::Error>([] { v0::Recipe::load("no/such.yaml"); }).substr(0, 12),
            "no/such.yaml");
}

}  // namespace
}  // namespace sherd::testing
