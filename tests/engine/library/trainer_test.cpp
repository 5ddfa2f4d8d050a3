// The library's trainer, compared with runs of the program.
#include "sherd/trainer.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <nlohmann/json.hpp>
#include <sstream>
#include <thread>

#include "sherd/error.h"
#include "tests/engine/trainer/process_state.h"
#include "tests/support/runs/small_run.h"
#include "tests/support/values/error_text.h"

namespace sherd::testing {
namespace {

namespace fs = std::filesystem;

const TrainingRun kSharded{.stage = 3,
                           .world = 2,
                           .precision = "mixed_precision: {param_dtype: bf16}",
                           .optimizer = "adamw",
                           .accumulation = "micro_batch_size: 3"};
const TrainingRun kReplicated{.stage = 1,
                              .world = 3,
                              .precision = "mixed_precision: {param_dtype: f32}",
                              .optimizer = "muon",
                              .accumulation = "micro_batch_size: 2"};

v0::Recipe recipe_of(const test::TempFolder& folder, const std::string& output,
                     const TrainingRun& run) {
  return v0::Recipe::parse(recipe_text(folder, output, run), "library.yaml");
}

/// Losses of steps and evaluations, in order, with every bit.
struct Losses {
  std::vector<double> steps{}, evaluations{};
  bool operator==(const Losses&) const = default;
};

Losses losses_in_metrics(const test::TempFolder& folder, const std::string& output) {
  Losses losses;
  std::istringstream in(folder.read(output + "/metrics.jsonl"));
  for (std::string line; std::getline(in, line);) {
    const nlohmann::json parsed = nlohmann::json::parse(line);
    if (parsed.contains("loss")) losses.steps.push_back(parsed["loss"].get<double>());
    if (parsed.contains("val_loss")) losses.evaluations.push_back(parsed["val_loss"].get<double>());
  }
  return losses;
}

v0::TrainCallbacks noting(Losses& losses) {
  return {.on_step =
              [&losses](const v0::StepMetrics& step) {
                losses.steps.push_back(step.loss);
                return true;
              },
          .on_evaluation =
              [&losses](const v0::Evaluation& evaluation) {
                losses.evaluations.push_back(evaluation.loss);
              }};
}

TEST(LibraryTrainer, SeveralEvaluationsOfAStepAreOne) {
  const test::TempFolder folder;
  write_data(folder);
  {
    v0::Trainer trainer(recipe_of(folder, "run", kSharded));
    trainer.step();
    for (int i = 0; i < 4; ++i) trainer.evaluate();
    trainer.save();
  }
  v0::Trainer again(recipe_of(folder, "run", kSharded));
  EXPECT_EQ(again.steps_done(), 1);
}

TEST(LibraryTrainer, HasTheBitsOfTheProgram) {
  for (const TrainingRun& run : {kSharded, kReplicated}) {
    const test::TempFolder folder;
    write_data(folder);
    train_in(folder, "program", run);
    Losses losses;
    v0::Trainer trainer(recipe_of(folder, "library", run));
    EXPECT_EQ(trainer.num_ranks(), run.world);
    trainer.train(noting(losses));
    EXPECT_EQ(losses, losses_in_metrics(folder, "program"));
    EXPECT_EQ(final_state(folder, "library"), final_state(folder, "program"));
  }
}

TEST(LibraryTrainer, HasTheBitsOfTheProgramWhenItsUserHasTheLoop) {
  const test::TempFolder folder;
  write_data(folder);
  train_in(folder, "program", kSharded);
  v0::Trainer trainer(recipe_of(folder, "library", kSharded));
  Losses losses;
  while (trainer.steps_done() < trainer.max_steps()) {
    losses.steps.push_back(trainer.step().loss);
    if (trainer.evaluation_is_due()) losses.evaluations.push_back(trainer.evaluate().loss);
    trainer.save_if_due();
  }
  trainer.finish();
  EXPECT_EQ(losses, losses_in_metrics(folder, "program"));
  EXPECT_EQ(final_state(folder, "library"), final_state(folder, "program"));
}

TEST(LibraryTrainer, BeginsARunThatTheProgramContinues) {
  const test::TempFolder folder;
  write_data(folder);
  train_in(folder, "program", kSharded);
  {
    v0::Trainer trainer(recipe_of(folder, "both", kSharded));
    trainer.step();
    trainer.step();
    const std::string saved = trainer.save();
    EXPECT_EQ(saved, trainer.newest_checkpoint());
  }
  train_in(folder, "both", kSharded);
  EXPECT_EQ(final_state(folder, "both"), final_state(folder, "program"));
}

TEST(LibraryTrainer, ContinuesARunOnOtherRanks) {
  const test::TempFolder folder;
  write_data(folder);
  train_in(folder, "program", kSharded);
  {
    v0::Trainer trainer(recipe_of(folder, "both", kSharded));
    while (trainer.steps_done() < 5) trainer.step();
    trainer.save();
  }
  std::vector<std::string> messages;
  v0::Recipe recipe = recipe_of(folder, "both", kSharded);
  v0::Trainer trainer(recipe.set_ranks(1),
                      {.on_message = [&](const std::string& text) { messages.push_back(text); }});
  EXPECT_EQ(trainer.steps_done(), 5);
  EXPECT_FALSE(messages.empty());
  trainer.train();
  EXPECT_EQ(final_state(folder, "both"), final_state(folder, "program"));
}

TEST(LibraryTrainer, TrainsStagesWithShapesOfTheirOwn) {
  const test::TempFolder folder;
  write_data(folder);
  TrainingRun run = kSharded;
  run.data = ", stages: [{steps: 3}, {seq_length: 6, global_batch_size: 6}]";
  train_in(folder, "program", run);
  Losses losses;
  v0::Trainer trainer(recipe_of(folder, "library", run));
  trainer.train(noting(losses));
  EXPECT_EQ(losses, losses_in_metrics(folder, "program"));
  EXPECT_EQ(final_state(folder, "library"), final_state(folder, "program"));
}

TEST(LibraryTrainer, TwoTrainAtOnceInOneProcess) {
  const test::TempFolder folder;
  write_data(folder);
  train_in(folder, "a", kSharded);
  train_in(folder, "b", kReplicated);
  const auto train = [&](const std::string& output, const TrainingRun& run) {
    v0::Trainer(recipe_of(folder, output, run)).train();
  };
  std::thread other([&] { train("b2", kReplicated); });
  train("a2", kSharded);
  other.join();
  EXPECT_EQ(final_state(folder, "a2"), final_state(folder, "a"));
  EXPECT_EQ(final_state(folder, "b2"), final_state(folder, "b"));
}

TEST(LibraryTrainer, LeavesTheProcessAsItIs) {
  const test::TempFolder folder;
  write_data(folder);
  const ProcessState before = process_state();
  ::testing::internal::CaptureStdout();
  ::testing::internal::CaptureStderr();
  {
    v0::Trainer trainer(recipe_of(folder, "library", kSharded));
    trainer.step();
    trainer.evaluate(1);
    EXPECT_EQ(process_state(), before);
    trainer.save();
  }
  EXPECT_EQ(::testing::internal::GetCapturedStdout(), "");
  EXPECT_EQ(::testing::internal::GetCapturedStderr(), "");
  EXPECT_EQ(process_state(), before);
}

TEST(LibraryTrainer, WritesNothingIfTheRecipeSavesNothing) {
  const test::TempFolder folder;
  write_data(folder);
  TrainingRun run = kSharded;
  run.interval = 0;
  run.checkpoint = "on_interrupt: false";
  v0::Trainer trainer(recipe_of(folder, "library", run));
  trainer.step();
  trainer.save_if_due();
  EXPECT_FALSE(fs::exists(folder.file("library")));
  EXPECT_EQ(trainer.newest_checkpoint(), "");
  EXPECT_EQ(test::error_text<v0::UsageError>([&] { trainer.save(); }),
            "save: the recipe saves nothing; set checkpoint.interval, or checkpoint.on_interrupt: "
            "true.");
  EXPECT_EQ(trainer.steps_done(), 1);
  trainer.step();  // a refused call changes nothing
}

TEST(LibraryTrainer, ACallbackEndsATraining) {
  const test::TempFolder folder;
  write_data(folder);
  v0::Recipe recipe = recipe_of(folder, "library", kSharded);
  v0::Trainer trainer(recipe.set("checkpoint.on_interrupt", "true"));
  trainer.train({.on_step = [](const v0::StepMetrics& step) { return step.step < 3; }});
  EXPECT_EQ(trainer.steps_done(), 3);
  EXPECT_TRUE(trainer.newest_checkpoint().ends_with("step-0000000003"));
}

// What a callback does counts as its trainer's thread.
TEST(LibraryTrainer, ServesOneThreadAtATime) {
  const test::TempFolder folder;
  write_data(folder);
  v0::Trainer trainer(recipe_of(folder, "library", kSharded));
  std::string refused;
  trainer.train({.on_step = [&](const v0::StepMetrics&) {
    std::thread([&] {
      refused = test::error_text<v0::UsageError>([&] { trainer.sample("a", {.num_tokens = 1}); });
    }).join();
    trainer.sample("a", {.num_tokens = 1});
    return false;
  }});
  EXPECT_EQ(refused, "trainer: another thread uses it; wait until its call has returned.");
  std::thread([&] { trainer.sample("a", {.num_tokens = 1}); }).join();
}

TEST(LibraryTrainer, PassesOnWhatACallbackThrows) {
  const test::TempFolder folder;
  write_data(folder);
  v0::Trainer trainer(recipe_of(folder, "library", kSharded));
  const auto refuse = [](const v0::StepMetrics&) -> bool { throw std::out_of_range("mine"); };
  EXPECT_THROW(trainer.train({.on_step = refuse}), std::out_of_range);
  EXPECT_EQ(trainer.steps_done(), 1);
  trainer.step();
}

TEST(LibraryTrainer, RefusesWhatTheProgramRefusesWithItsSentence) {
  const test::TempFolder folder;
  write_data(folder);
  const auto refusal = [&](const std::string& key, const std::string& value) {
    v0::Recipe recipe = recipe_of(folder, "library", kSharded);
    return test::error_text<v0::UsageError>([&] { v0::Trainer trainer(recipe.set(key, value)); });
  };
  EXPECT_EQ(refusal("zero_optimization.stag", "1").substr(0, 35),
            "--set zero_optimization.stag=1: unk");
  EXPECT_EQ(refusal("hooks.on_save", "true").substr(0, 46),
            "hooks: only the program runs commands (sherd t");
  v0::Recipe no_data = recipe_of(folder, "library", kSharded);
  EXPECT_THROW(v0::Trainer(no_data.set("data.path", folder.file("none"))), v0::Error);
  EXPECT_FALSE(fs::exists(folder.file("library")));
}

TEST(LibraryTrainer, RefusesAFolderThatAnotherTrainerHas) {
  const test::TempFolder folder;
  write_data(folder);
  const v0::Recipe recipe = recipe_of(folder, "library", kSharded);
  const v0::Trainer first(recipe);
  EXPECT_THROW(v0::Trainer second(recipe), v0::UsageError);
}

TEST(LibraryTrainer, ReportsTheErrorThatEndedItAgain) {
  const test::TempFolder folder;
  write_data(folder);
  v0::Recipe recipe = recipe_of(folder, "library", kSharded);
  recipe.set("optimizer.lr", "1e30").set("lr_scheduler.warmup_steps", "0");
  v0::Trainer trainer(recipe);
  const std::string first = test::error_text<v0::TrainingError>([&] { trainer.train(); });
  EXPECT_NE(first, "(no error)");
  EXPECT_EQ(test::error_text<v0::TrainingError>([&] { trainer.step(); }), first);
}

TEST(LibraryTrainer, RefusesStepsAfterTheLast) {
  const test::TempFolder folder;
  write_data(folder);
  v0::Trainer trainer(recipe_of(folder, "library", kSharded));
  trainer.train();
  EXPECT_TRUE(trainer.is_done());
  EXPECT_THROW(trainer.step(), v0::UsageError);
}

TEST(LibraryTrainer, SamplesFromTheWeightsAsTheyAre) {
  const test::TempFolder folder;
  write_data(folder);
  v0::Trainer trainer(recipe_of(folder, "library", kSharded));
  trainer.step();
  const std::string text = trainer.sample("ab", {.num_tokens = 5, .seed = 3});
  EXPECT_EQ(trainer.sample("ab", {.num_tokens = 5, .seed = 3}), text);
  EXPECT_GE(text.size(), 5u);  // a token is a byte
  EXPECT_THROW(trainer.sample("ab", {.top_p = 2.0}), v0::UsageError);
}

}  // namespace
}  // namespace sherd::testing
