// Checkpoints that are asked for while training continues, the limit of time, goodput, and training on
// one batch.
#include <gtest/gtest.h>

#include <filesystem>

#include "core/error.h"
#include "engine/launch/process_age.h"
#include "tests/engine/run/small_runs.h"
#include "tests/support/values/error_text.h"

namespace sherd::testing {
namespace {

namespace fs = std::filesystem;
using Values = std::vector<nlohmann::json>;

class SavesOnDemand : public SmallRuns {};

TEST_F(SavesOnDemand, AFileNamedSaveIsOneCheckpointAndTheNumbersStay) {
  train("plain", {}, 2);
  folder_.write("run/SAVE", "");
  const std::string said = train("run", {"metrics.tensorboard=false"}, 2);
  EXPECT_NE(said.find(folder_.file("run/SAVE") + ": saving after step 1\n"), std::string::npos)
      << said;
  EXPECT_EQ(column("run", "saved"), (Values{1, 2, 4}));
  EXPECT_FALSE(fs::exists(folder_.file("run/SAVE")));
  EXPECT_EQ(column("run", "loss"), column("plain", "loss"));
  EXPECT_EQ(column("run", "val_loss"), column("plain", "val_loss"));
}

TEST_F(SavesOnDemand, AFileThatCannotBeRemovedIsReportedOnce) {
  fs::create_directories(folder_.file("run/SAVE/full"));
  const std::string said = train("run");
  const std::string warning = "can't be removed, and is ignored from now on";
  EXPECT_NE(said.find(warning), std::string::npos) << said;
  EXPECT_EQ(said.find(warning), said.rfind(warning)) << said;
  EXPECT_EQ(column("run", "saved"), (Values{2, 4}));
}

TEST_F(SavesOnDemand, ARunWithoutCheckpointsSaysSoAndContinues) {
  folder_.write("run/SAVE", "");
  const std::string said = train("run", {"checkpoint.interval=0"});
  EXPECT_NE(said.find("SAVE: no checkpoint is saved, since checkpoint.interval is 0\n"),
            std::string::npos)
      << said;
  EXPECT_EQ(column("run", "loss").size(), 4u);
}

// This program has run for longer than the limit, so each start does one step.
TEST_F(SavesOnDemand, AtTheLimitOfTimeTheRunSavesAndTheNextStartContinues) {
  train("plain", {}, 2);
  for (int step = 1; step <= 4; ++step) {
    const std::string text =
        test::error_text<Requeue>([&] { train("run", {"checkpoint.max_minutes=1e-9"}, 2); });
    EXPECT_EQ(text, fmt::format("checkpoint.max_minutes is over after step {0} of 4; {1} is "
                                "complete up to it, and the newest checkpoint is of step {0}",
                                step, folder_.file("run/metrics.jsonl")));
  }
  train("run", {}, 2);
  EXPECT_EQ(column("run", "loss"), column("plain", "loss"));
  EXPECT_EQ(column("run", "val_loss"), column("plain", "val_loss"));
  EXPECT_GT(engine::process_age().count(), 0.0);
}

TEST_F(SavesOnDemand, ALimitAloneSavesOnlyThere) {
  EXPECT_THROW(train("run", {"checkpoint.interval=0", "checkpoint.max_minutes=1e-9"}), Requeue);
  EXPECT_EQ(column("run", "saved"), (Values{1}));
  EXPECT_EQ(train("free", {"checkpoint.interval=0"}).find("saved "), std::string::npos);
}

// Steps 3 and 4 are lost with their checkpoint, and done again.
TEST_F(SavesOnDemand, GoodputCountsRepeatedStepsAsWallTimeOnly) {
  train("run");
  const nlohmann::json first = lines_of("run/metrics.jsonl").back();
  EXPECT_EQ(first.at("step"), 4);
  EXPECT_EQ(first.at("repeated_steps"), 0);
  EXPECT_GT(first.at("moved_s"), 0.0);
  EXPECT_GE(first.at("wall_s"), first.at("moved_s"));
  EXPECT_EQ(first.at("goodput").get<double>(),
            first.at("moved_s").get<double>() / first.at("wall_s").get<double>());
  fs::remove_all(folder_.file("run/checkpoints/step-0000000004"));
  const std::string said = train("run");
  const nlohmann::json second = lines_of("run/metrics.jsonl").back();
  EXPECT_EQ(second.at("repeated_steps"), 2);
  EXPECT_EQ(second.at("moved_s"), 0.0);
  EXPECT_NE(said.find("goodput 0.0 %: "), std::string::npos) << said;
  EXPECT_NE(said.find("moved the model; 2 steps had been done before; steps waited"),
            std::string::npos);
  EXPECT_EQ(column("run", "goodput").size(), 2u) << "what the first program reported stays true";
}

TEST_F(SavesOnDemand, GoodputDoesntCountBadSteps) {
  train("bad", {"bad_steps.max_grad_norm=1e-9"});
  EXPECT_EQ(column("bad", "bad_step").size(), 4u);
  EXPECT_EQ(column("bad", "moved_s").back(), 0.0);
}

TEST_F(SavesOnDemand, OneBatchIsThatOfStepZeroInEveryStep) {
  const std::vector<std::string> still = {"optimizer.lr=0", "training.overfit_one_batch=true"};
  train("plain", {"optimizer.lr=0"});
  train("one", still, 2);
  const Values plain = column("plain", "loss"), one = column("one", "loss");
  EXPECT_NE(plain[0], plain[1]) << "other steps have other batches";
  EXPECT_EQ(one, Values(4, plain[0]));
  EXPECT_NE(test::error_text<UsageError>([&] {
              train("one", {"optimizer.lr=0"});
            }).find("training.overfit_one_batch is true in the checkpoint and false in the"),
            std::string::npos);
  train("learns", {"training.overfit_one_batch=true", "lr_scheduler.type=constant"});
  const Values learns = column("learns", "loss");
  EXPECT_EQ(learns[0], plain[0]);
  for (std::size_t i = 1; i < 4; ++i) EXPECT_LT(learns[i], learns[i - 1]);
}

}  // namespace
}  // namespace sherd::testing
