// Validation sets: each has losses of its own, and no influence on training.
#include <algorithm>
#include <cmath>
#include <filesystem>
#include <set>

#include "core/error.h"
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
};

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
TEST_F(ValidationSets, TheBestCheckpointIsOfThoseWithTheNewestSequenceLength) {
  train(recipe_text(
      "run",
      fmt::format("path: {}, stages: [{{steps: 4, seq_length: 16}}, {{seq_length: 4}}]",
                  folder_.file("english.txt")),
      "max_steps: 8, eval_interval: 1", "checkpoint: {interval: 1, keep_last: 1, keep_best: 1}\n"));
  std::vector<double> losses;
  for (const json& line : lines_of("run", "val_loss")) losses.push_back(line["val_loss"]);
  ASSERT_EQ(losses.size(), 8u);
  const auto best = std::min_element(losses.begin() + 4, losses.end()) - losses.begin() + 1;
  std::set<std::string> kept;
  for (const auto& entry : std::filesystem::directory_iterator(folder_.file("run/checkpoints"))) {
    if (entry.is_directory()) kept.insert(entry.path().string());
  }
  EXPECT_EQ(kept, (std::set<std::string>{saved("run", static_cast<int>(best)), saved("run", 8)}));
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
