// Runs that end because their validation loss gets no better. With optimizer.lr 0 it never does: of
// evaluations after steps 2, 4, 6, ... the first is the best.
#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>
#include <sstream>

#include "core/error.h"
#include "engine/launch/device.h"
#include "engine/run/run.h"
#include "engine/saving/saved_counters.h"
#include "tests/checkpoint/support/manifest_editor.h"
#include "tests/support/runs/small_run.h"
#include "tests/support/values/error_text.h"
#include "tests/support/values/temp_folder.h"

namespace sherd::testing {
namespace {

using engine::BestEvaluation;
using nlohmann::ordered_json;

class EarlyStopping : public ::testing::Test {
 protected:
  EarlyStopping() {
    std::string text;
    for (int i = 0; i < 400; ++i) text += static_cast<char>('a' + i * i % 23);
    folder_.write("text", text);
  }

  /// Trains or goes on in `run`; returns what it said.
  std::string train(int patience, int max_steps = 40, int ranks = 1,
                    const std::string& data = "validation_fraction: 0.1",
                    const std::string& best_by = "''") const {
    const std::string text = fmt::format(
        "run: {{output_dir: {}}}\n"
        "model: {{num_layers: 1, hidden_size: 16, num_attention_heads: 2, "
        "vocab_size: 256}}\n"
        "data: {{path: {}, {}}}\n"
        "training: {{seq_length: 8, global_batch_size: 4, micro_batch_size: 1, "
        "max_steps: {}, eval_interval: 2, early_stopping_patience: {}, best_by: {}}}\n"
        "optimizer: {{lr: 0}}\n"
        "checkpoint: {{interval: 4}}\n",
        folder_.file("run"), folder_.file("text"), data, max_steps, patience, best_by);
    return said_by_run(text, ranks);
  }

  /// Every value of a key in metrics.jsonl.
  std::vector<nlohmann::json> column(const char* key) const {
    std::istringstream lines(folder_.read("run/metrics.jsonl"));
    std::vector<nlohmann::json> values;
    for (std::string text; std::getline(lines, text);) {
      const auto line = nlohmann::json::parse(text);
      if (line.contains(key)) values.push_back(line.at(key));
    }
    return values;
  }
  std::size_t steps() const { return column("loss").size(); }

  void edit_manifest(int step, const std::function<void(ordered_json& global)>& edit) const {
    const std::string file = fmt::format("run/checkpoints/step-{:010}/manifest.json", step);
    ordered_json manifest = test::unframed(folder_.read(file));
    edit(manifest["global"]);
    folder_.write(file, test::framed(manifest));
  }

  test::TempFolder folder_;
};

TEST_F(EarlyStopping, EndsTheRunAfterSoManyEvaluationsSavesAndSaysWhy) {
  const std::string said = train(2);
  EXPECT_EQ(steps(), 6u);
  const double best = column("val_loss").front();
  EXPECT_NE(said.find(fmt::format("step 6: the run ends: the validation loss hasn't been below "
                                  "{:.4f}, that of step 2, in 2 evaluations "
                                  "(training.early_stopping_patience)\n",
                                  best)),
            std::string::npos)
      << said;
  EXPECT_EQ(column("saved"), (std::vector<nlohmann::json>{4, 6}));
  EXPECT_EQ(column("stopped_early").size(), 1u);
  EXPECT_EQ(column("best_step"), (std::vector<nlohmann::json>{2}));
  EXPECT_EQ(column("best_val_loss"), (std::vector<nlohmann::json>{best}));
}

TEST_F(EarlyStopping, StartedAgainTrainsNothingAndWithMorePatienceGoesOn) {
  train(2);
  const std::string again = train(2);
  EXPECT_NE(again.find("this run ended early, after step 6 of 40, so nothing is trained: "),
            std::string::npos)
      << again;
  EXPECT_EQ(steps(), 6u);
  train(4);
  EXPECT_EQ(steps(), 10u);
}

TEST_F(EarlyStopping, CountsOnAcrossAResumeOnOtherRanks) {
  train(2, 4);
  train(2, 40, 2);
  EXPECT_EQ(steps(), 6u);
}

TEST_F(EarlyStopping, BeginsACountWhenAnotherValidationSetCounts) {
  const std::string sets = fmt::format(
      "validation_fraction: 0.2, validation_sets: [{{name: a, path: {0}.a}}, {{name: b, path: "
      "{0}.b}}]",
      folder_.file("text"));
  folder_.write("text.a", "abcdefghijklmnopqrstuvwxyz, abcdefghijklmnopqrstuvwxyz");
  folder_.write("text.b", "0123456789, 0123456789, 0123456789, 0123456789");
  train(2, 4, 1, sets, "a");
  train(2, 40, 1, sets, "b");
  EXPECT_EQ(steps(), 10u) << "the first evaluation of b, after step 6, is its best";
}

TEST_F(EarlyStopping, BeginsACountWhenTheValidationSetHasAnotherText) {
  const auto sets = [&](const char* file) {
    return fmt::format("validation_fraction: 0, validation_sets: [{{name: a, path: {}}}]",
                       folder_.file(file));
  };
  folder_.write("text.a", "abcdefghijklmnopqrstuvwxyz, abcdefghijklmnopqrstuvwxyz");
  folder_.write("text.b", "0123456789, 0123456789, 0123456789, 0123456789");
  train(2, 4, 1, sets("text.a"));
  train(2, 40, 1, sets("text.b"));
  EXPECT_EQ(steps(), 10u) << "the first evaluation of the other text, after step 6, is its best";
}

TEST_F(EarlyStopping, BeginsACountWhereACheckpointOfAnOlderProgramHasNone) {
  train(2, 4);
  edit_manifest(4, [](ordered_json& global) { EXPECT_EQ(global.erase("best_evaluation"), 1u); });
  train(2);
  EXPECT_EQ(steps(), 8u) << "step 4's own loss is the lowest known";
}

TEST_F(EarlyStopping, ACountThatNoRunHasIsRefusedByName) {
  train(2, 4);
  for (const char* key : {"loss", "step", "evaluations_since"}) {
    for (const ordered_json& value : std::vector<ordered_json>{5e300, nullptr, "2"}) {
      if (key == std::string("loss") && value.is_number()) continue;
      ordered_json good;
      edit_manifest(4, [&](ordered_json& global) {
        good = global;
        global["best_evaluation"][key] = value;
      });
      const std::string text = test::error_text<DataError>([&] { train(2); });
      EXPECT_NE(text.find(fmt::format("best_evaluation.{} is {}", key, value.dump())),
                std::string::npos)
          << text;
      edit_manifest(4, [&](ordered_json& global) { global = good; });
    }
  }
}

// A caller may have evaluated more often than it took steps.
TEST_F(EarlyStopping, ACountAboveTheStepsIsRead) {
  train(2, 4);
  edit_manifest(4,
                [](ordered_json& global) { global["best_evaluation"]["evaluations_since"] = 9; });
  EXPECT_NE(train(2).find("this run ended early"), std::string::npos);
}

TEST_F(EarlyStopping, TheBestCheckpointIsTheOneWithTheLowestLossAndOfEqualOnesTheNewest) {
  train(2);
  auto& disk = checkpoint::posix_disk();
  const std::string folder = folder_.file("run/checkpoints");
  const auto best = [&] { return engine::best_checkpoint(disk, folder); };
  EXPECT_EQ(best(), folder + "/step-0000000006");
  edit_manifest(4, [](ordered_json& global) { global["validation_loss"] = 0.5; });
  EXPECT_EQ(best(), folder + "/step-0000000004");
  ordered_json on;
  for (const auto& [key, other] : {std::pair<const char*, ordered_json>{"best_by", "b"},
                                   {"seq_length", 16},
                                   {"data", "00000000000000ab"}}) {
    edit_manifest(4, [&, key = key, other = other](ordered_json& global) {
      on = global["validated_on"];
      EXPECT_EQ(on["best_by"], "");
      EXPECT_EQ(on["seq_length"], 8);
      global["validated_on"][key] = other;
    });
    EXPECT_EQ(best(), folder + "/step-0000000006") << other;
    edit_manifest(4, [&](ordered_json& global) { global["validated_on"] = on; });
  }
  for (const int step : {4, 6}) {
    edit_manifest(step, [](ordered_json& global) { global.erase("validation_loss"); });
  }
  EXPECT_EQ(test::error_text<DataError>(best),
            folder +
                ": no checkpoint has a validation loss; checkpoint.keep_best measures one "
                "for each.");
}

TEST(BestEvaluationTest, IsTheLowestLossAndCountsThoseSince) {
  BestEvaluation best;
  best.add(1, std::nan(""));
  EXPECT_EQ(best, (BestEvaluation{{}, 0, 1}));
  best.add(2, 3.0);
  EXPECT_EQ(best, (BestEvaluation{3.0, 2, 0}));
  best.add(3, 3.0);
  best.add(4, std::nan(""));
  EXPECT_EQ(best, (BestEvaluation{3.0, 2, 2})) << "neither is below it";
  best.add(5, 2.5);
  EXPECT_EQ(best, (BestEvaluation{2.5, 5, 0}));
}

}  // namespace
}  // namespace sherd::testing
