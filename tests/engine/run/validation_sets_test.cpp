// Validation sets: each has losses of its own, and no influence on training.
#include <algorithm>
#include <cmath>
#include <filesystem>
#include <set>

#include "checkpoint/store/committed.h"
#include "core/error.h"
#include "engine/run/run_setup.h"
#include "tests/engine/run/mixed_run.h"
#include "tests/support/values/error_text.h"

namespace sherd::testing {
namespace {

class ValidationSets : public MixedRun {
 protected:
  ValidationSets() {
    std::string a, b;
    for (int i = 0; i < 161; ++i) a += static_cast<char>('a' + i * i % 23);
    for (int i = 0; i < 81; ++i) b += static_cast<char>('A' + i * 3 % 20);
    for (const char* folder : {"", "both/"}) {
      folder_.write(std::string(folder) + "a.txt", a);
      folder_.write(std::string(folder) + "b.txt", b);
    }
  }
  std::string sets() const {
    return fmt::format(
        "path: {}, validation_sets: [{{path: {}}}, {{path: {}}}, {{path: {}}}, {{name: few, "
        "path: {}, batches: 1}}]",
        folder_.file("english.txt"), folder_.file("a.txt"), folder_.file("b.txt"),
        folder_.file("both"), folder_.file("both"));
  }
  std::set<std::string> kept() const {
    std::set<std::string> kept;
    for (const auto& entry : std::filesystem::directory_iterator(folder_.file("run/checkpoints"))) {
      if (entry.is_directory()) kept.insert(entry.path().string());
    }
    return kept;
  }
  json saved_losses(const std::string& output, int step) const {
    const checkpoint::Checkpoint found(checkpoint::posix_disk(), saved(output, step));
    const json& global = *found.manifest().global;
    return {global.at("validation_loss"), global.at("best_evaluation"), global.at("validated_on")};
  }
};

// The step, from `first` to `last`, with the lowest loss.
int best_of(const std::vector<json>& lines, int first, int last) {
  const auto loss = [](const json& line) { return line["val_loss"].get<double>(); };
  const auto best =
      std::ranges::min_element(lines.begin() + first - 1, lines.begin() + last, {}, loss);
  return static_cast<int>(best - lines.begin()) + 1;
}

TEST_F(ValidationSets, HaveLossesOfTheirOwn) {
  const std::string said =
      train(recipe_text("run", sets(), "max_steps: 4, eval_interval: 2, best_by: b"));
  const std::vector<json> lines = lines_of("run", "val_loss");
  ASSERT_EQ(lines.size(), 2u);
  for (const json& line : lines) {
    EXPECT_EQ(line["val_loss"], line["val_loss/b"]);
    EXPECT_EQ(line["num_tokens"], 80);
    const double together =
        (160 * line["val_loss/a"].get<double>() + 80 * line["val_loss/b"].get<double>()) / 240;
    EXPECT_NEAR(line["val_loss/both"].get<double>(), together, 1e-14);
    EXPECT_NE(line["val_loss/few"], line["val_loss/both"]);
  }
  EXPECT_NE(said.find("step 4: validation loss "), std::string::npos);
  EXPECT_NE(said.find("; few "), std::string::npos) << said;
}

// Losses over other texts couldn't be compared.
TEST_F(ValidationSets, AreReadAsFarWhateverTheBatchSizeOfAStage) {
  train(recipe_text(
      "run",
      fmt::format("path: {}, stages: [{{steps: 2, global_batch_size: 8}}, {{global_batch_size: "
                  "16}}]",
                  folder_.file("english.txt")),
      "max_steps: 4, eval_interval: 1, eval_batches: 1"));
  const std::vector<json> lines = lines_of("run", "val_loss");
  ASSERT_EQ(lines.size(), 4u);
  for (const json& line : lines) EXPECT_EQ(line["num_tokens"], lines[0]["num_tokens"]);
}

// Shorter sequences have higher losses, since less is known of what comes before.
TEST_F(ValidationSets, EachSequenceLengthKeepsItsBestCheckpoint) {
  train(recipe_text(
      "run",
      fmt::format("path: {}, stages: [{{steps: 4, seq_length: 16}}, {{seq_length: 4}}]",
                  folder_.file("english.txt")),
      "max_steps: 8, eval_interval: 1", "checkpoint: {interval: 1, keep_last: 1, keep_best: 1}\n"));
  const std::vector<json> lines = lines_of("run", "val_loss");
  ASSERT_EQ(lines.size(), 8u);
  // The second stage has evaluated step 4, when the first had saved it.
  EXPECT_EQ(kept(), (std::set<std::string>{saved("run", best_of(lines, 1, 3)),
                                           saved("run", best_of(lines, 5, 8)), saved("run", 8)}));
}

TEST_F(ValidationSets, ABestCheckpointStaysWhenLaterOnesAreEvaluatedOnOtherText) {
  const auto text = [&](int max_steps, int batches) {
    return recipe_text(
        "run",
        fmt::format("path: {}, validation_sets: [{{path: {}}}]", folder_.file("english.txt"),
                    folder_.file("a.txt")),
        fmt::format("max_steps: {}, eval_interval: 1, eval_batches: {}", max_steps, batches),
        "checkpoint: {interval: 1, keep_last: 1, keep_best: 1}\n");
  };
  train(text(4, 2));
  train(text(8, 1));
  const std::vector<json> lines = lines_of("run", "val_loss");
  ASSERT_EQ(lines.size(), 8u);
  ASSERT_NE(lines[0]["num_tokens"], lines[7]["num_tokens"]);
  EXPECT_EQ(kept(), (std::set<std::string>{saved("run", best_of(lines, 1, 4)),
                                           saved("run", best_of(lines, 5, 8)), saved("run", 8)}));
}

TEST_F(ValidationSets, AWholeFinalEvaluationIsComparedByTheBatchesOfTheOthers) {
  const auto text = [&](const std::string& output, const std::string& final_eval) {
    return recipe_text(output,
                       fmt::format("path: {}, validation_sets: [{{path: {}}}]",
                                   folder_.file("english.txt"), folder_.file("a.txt")),
                       "max_steps: 2, eval_interval: 1, eval_batches: 1, final_eval: " + final_eval,
                       "checkpoint: {interval: 1}\n");
  };
  train(text("batches", "batches"));
  train(text("whole", "whole"));
  const json batches = lines_of("batches", "val_loss").back();
  const json whole = lines_of("whole", "val_loss").back();
  EXPECT_LT(batches["num_tokens"], whole["num_tokens"]);
  EXPECT_NE(batches["val_loss"], whole["val_loss"]);
  EXPECT_EQ(saved_losses("whole", 2), saved_losses("batches", 2));
  EXPECT_EQ(saved_losses("whole", 2)[0], batches["val_loss"]);
}

TEST_F(ValidationSets, AnEvaluationOfFewerBatchesThanTheRecipesIsNotKept) {
  const std::string text =
      recipe_text("run",
                  fmt::format("path: {}, validation_sets: [{{path: {}}}]",
                              folder_.file("english.txt"), folder_.file("a.txt")),
                  "max_steps: 2, eval_batches: 0");
  checkpoint::Disk& disk = checkpoint::posix_disk();
  const auto machine = engine::cpu_machine();
  const engine::PreparedRun run = engine::prepare(
      engine::resolve_recipe({.path = "mine.yaml", .text = text, .sets = {}, .ranks = 1}), *machine,
      disk);
  const engine::TrainerOptions options =
      engine::segment_trainer(run, 0, engine::loading_options(run, disk));
  std::filesystem::create_directories(folder_.file("run/checkpoints"));
  run_ranks(engine::planned_launch(run, 0, machine, disk), [&](sharding::Rank& rank) {
    engine::Trainer trainer(options, rank);
    rank.guard([&] {
      trainer.load();
      trainer.step();
      trainer.evaluate(1);
      EXPECT_FALSE(trainer.evaluated());
      EXPECT_FALSE(trainer.best().loss);
      EXPECT_EQ(trainer.evaluate(0).loss, trainer.best().loss);
      EXPECT_TRUE(trainer.evaluated());
    });
  });
}

TEST_F(ValidationSets, AndAnEvaluationAtTheStartLeaveTheTrainingAlone) {
  train(recipe_text("plain",
                    fmt::format("path: {}, validation_fraction: 0", folder_.file("english.txt")),
                    "max_steps: 6"));
  train(recipe_text("run", sets(), "max_steps: 6, eval_interval: 2, eval_at_start: true"));
  EXPECT_EQ(steps_of("run"), steps_of("plain"));
  const std::vector<json> lines = lines_of("run", "val_loss");
  ASSERT_EQ(lines.size(), 4u);
  EXPECT_EQ(lines[0]["step"], 0);
  EXPECT_NEAR(lines[0]["val_loss/both"].get<double>(), std::log(256.0), 0.2)
      << "nothing is known yet";
}

TEST_F(ValidationSets, MustNotBeTrainedOn) {
  const std::string data = fmt::format("path: {}, validation_sets: [{{path: {}}}]",
                                       folder_.file("english.txt"), folder_.file("english.txt"));
  EXPECT_EQ(test::error_text<DataError>([&] { train(recipe_text("run", data, "max_steps: 2")); }),
            folder_.file("english.txt") +
                ": is in the validation set \"english\" and is trained on; validate with files "
                "that aren't trained on.");
}

TEST_F(ValidationSets, ThatAreMissingAreNamedByTheirKey) {
  const std::string data = fmt::format("path: {}, validation_sets: [{{path: {}}}]",
                                       folder_.file("english.txt"), folder_.file("nothing"));
  const std::string error =
      test::error_text<DataError>([&] { train(recipe_text("run", data, "max_steps: 2")); });
  EXPECT_NE(error.find("data.validation_sets[0].path"), std::string::npos) << error;
}

}  // namespace
}  // namespace sherd::testing
