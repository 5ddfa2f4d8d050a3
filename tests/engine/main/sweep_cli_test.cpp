// `sherd sweep`: every combination once, each in its folder; what failed, and what was done before.
#include <signal.h>

#include <filesystem>

#include "tests/engine/main/train_cli_support.h"

namespace sherd::engine {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using Strings = std::vector<std::string>;

class SweepCliTest : public TrainCliTest {
 protected:
  test::ProgramOutcome sweep(
      const Strings& extra,
      const std::function<void(pid_t, const std::string&)>& on_line = {}) const {
    Strings words = arguments("sweep", extra);
    words[0] = "sweep";
    return test::run_program(SHERD_PROGRAM, words, on_line);
  }
  std::vector<json> runs() const {
    return json::parse(folder_.read("sweep/sweep.json")).at("runs");
  }
  static bool has(const std::string& text, const std::string& part) {
    return text.find(part) != std::string::npos;
  }
};

TEST_F(SweepCliTest, TrainsEveryCombinationAndSaysWhatEachCameTo) {
  const test::ProgramOutcome outcome =
      sweep({"--set", "optimizer.lr=1e-2,1e-4", "--set", "optimizer.betas=[0.9,0.95],[0.8,0.9]",
             "--ranks", "2"});
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  const Strings names = {"lr=1e-2_betas=0.9-0.95", "lr=1e-2_betas=0.8-0.9",
                         "lr=1e-4_betas=0.9-0.95", "lr=1e-4_betas=0.8-0.9"};
  const auto all = runs();
  ASSERT_EQ(all.size(), names.size());
  for (std::size_t i = 0; i < names.size(); ++i) {
    const std::string run = "sweep/" + names[i];
    EXPECT_EQ(all[i].at("name"), names[i]);
    EXPECT_EQ(all[i].at("folder"), folder_.file(run));
    EXPECT_EQ(all[i].at("exit_code"), 0);
    EXPECT_EQ(all[i].at("step"), kSteps);
    EXPECT_EQ(all[i].at("val_loss"), column(run, "val_loss").back());
    EXPECT_TRUE(has(outcome.out, fmt::format("run {} of 4: {}\n", i + 1, names[i])));
  }
  EXPECT_NE(all[0].at("val_loss"), all[2].at("val_loss"));
  EXPECT_TRUE(has(folder_.read("sweep/lr=1e-4_betas=0.8-0.9/recipe.yaml"), "betas: [0.8, 0.9]"));
  // A run of the sweep has the numbers of the same run alone.
  ASSERT_EQ(train("alone", {"--ranks", "2", "--set", "optimizer.lr=1e-4", "--set",
                            "optimizer.betas=[0.8,0.9]"})
                .exit_code,
            0);
  EXPECT_EQ(column("alone", "loss"), column("sweep/" + names[3], "loss"));
  EXPECT_TRUE(has(outcome.out, "lowest validation loss: ")) << outcome.out;
}

TEST_F(SweepCliTest, WhatWasDoneIsSkippedUnlessItsRecipeHasChanged) {
  const Strings two = {"--set", "run.seed=1,2"};
  ASSERT_EQ(sweep(two).exit_code, 0);
  const auto first = fs::last_write_time(folder_.file("sweep/seed=1/metrics.jsonl"));
  const test::ProgramOutcome again = sweep({"--set", "run.seed=1,2,3"});
  ASSERT_EQ(again.exit_code, 0) << again.err;
  EXPECT_TRUE(has(again.out, "run 1 of 3: seed=1, done before\n")) << again.out;
  EXPECT_TRUE(has(again.out, "run 3 of 3: seed=3\n")) << again.out;
  EXPECT_EQ(fs::last_write_time(folder_.file("sweep/seed=1/metrics.jsonl")), first);
  const test::ProgramOutcome longer =
      sweep({"--set", "run.seed=1,2", "--set", "training.max_steps=8"});
  ASSERT_EQ(longer.exit_code, 0) << longer.err;
  EXPECT_EQ(column("sweep/seed=1", "loss").size(), 8u) << "it continues";
}

TEST_F(SweepCliTest, WhatWasDoneStaysDoneIfASweepWithAnotherFirstValueIsStopped) {
  const auto of_seeds = [](const std::string& seeds) {
    return Strings{"--set", "run.seed=" + seeds,        "--set", "training.max_steps=400",
                   "--set", "training.eval_interval=0", "--set", "metrics.log_interval=1"};
  };
  ASSERT_EQ(sweep(of_seeds("1,2")).exit_code, 0);
  const test::ProgramOutcome stopped =
      sweep(of_seeds("3,1,2"), [](pid_t program, const std::string& line) {
        if (line.starts_with("step 3/")) ::kill(program, SIGTERM);
      });
  EXPECT_EQ(stopped.exit_code, 75) << stopped.err;
  for (const json& run : runs()) {
    EXPECT_EQ(run.value("exit_code", 1) == 0, run.at("name") != "seed=3") << run;
  }
}

TEST_F(SweepCliTest, AFailedRunIsNamedAndTheSweepContinues) {
  const test::ProgramOutcome outcome =
      sweep({"--set", "optimizer.type=sgd", "--set", "optimizer.lr=1e30,1e-2", "--set",
             "gradient_clipping.max_norm=0", "--set", "lr_scheduler.type=constant"});
  EXPECT_EQ(outcome.exit_code, 5);
  EXPECT_TRUE(outcome.err.ends_with("sherd: 1 of 2 runs failed: lr=1e30 (code 5)\n"))
      << outcome.err;
  EXPECT_EQ(runs()[0].at("exit_code"), 5);
  EXPECT_EQ(runs()[1].at("exit_code"), 0);
}

TEST_F(SweepCliTest, ACombinationThatTheRulesRefuseFailsAlone) {
  const test::ProgramOutcome outcome =
      sweep({"--set", "model.num_attention_heads=5,4", "--set", "training.max_steps=2"});
  EXPECT_EQ(outcome.exit_code, 2) << outcome.err;
  EXPECT_TRUE(has(outcome.err, "1 of 2 runs failed: num_attention_heads=5 (code 2)"))
      << outcome.err;
  EXPECT_EQ(column("sweep/num_attention_heads=4", "loss").size(), 2u);
}

TEST_F(SweepCliTest, ASweepThatCannotBeIsRefusedBeforeItsFirstRun) {
  const auto refused = [&](const Strings& sets, const std::string& part) {
    Strings extra;
    for (const std::string& set : sets) extra.insert(extra.end(), {"--set", set});
    const test::ProgramOutcome outcome = sweep(extra);
    EXPECT_EQ(outcome.exit_code, 2) << outcome.err;
    EXPECT_TRUE(has(outcome.err, part)) << outcome.err;
    EXPECT_EQ(outcome.out, "");
    EXPECT_FALSE(fs::exists(folder_.file("sweep")));
  };
  refused({"optimizer.lr=1"}, "a sweep needs a key with several values");
  refused({"optimizer.lr=1,"}, "a value is empty");
  refused({"optimizer.lr=1,2,1"}, "1 is there twice");
  refused({"optimizer.lr=1", "optimizer.lr=2,3"}, "optimizer.lr is set twice");
  refused({"run.name=a,b"}, "a sweep names its runs itself");
  refused({"optimizer.rate=1,2"}, "optimizer.rate");
}

TEST_F(SweepCliTest, ASignalEndsTheSweepAndTheSameCommandContinuesIt) {
  const Strings words = {"--set", "run.seed=1,2",
                         "--set", "training.max_steps=400",
                         "--set", "training.eval_interval=0",
                         "--set", "metrics.log_interval=1"};
  const test::ProgramOutcome stopped = sweep(words, [](pid_t program, const std::string& line) {
    if (line.starts_with("step 3/")) ::kill(program, SIGTERM);
  });
  EXPECT_EQ(stopped.exit_code, 75) << stopped.err;
  EXPECT_TRUE(stopped.err.ends_with("sherd: the sweep was stopped; start it again\n"))
      << stopped.err;
  EXPECT_FALSE(fs::exists(folder_.file("sweep/seed=2")));
  const test::ProgramOutcome outcome = sweep(words);
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_EQ(column("sweep/seed=1", "loss").size(), 400u);
  EXPECT_EQ(column("sweep/seed=2", "loss").size(), 400u);
}

}  // namespace
}  // namespace sherd::engine
