// A run with hooks: which events it has, that it never changes, and that no checkpoint goes before it
// has been delivered.
#include <gtest/gtest.h>

#include <filesystem>
#include <nlohmann/json.hpp>
#include <set>

#include "core/error.h"
#include "engine/data/files/run_files.h"
#include "tests/engine/run/small_runs.h"
#include "tests/support/values/error_text.h"

namespace sherd::testing {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using Strings = std::vector<std::string>;

class HooksRun : public SmallRuns {
 protected:
  std::string hook(const char* event, const std::string& command) const {
    return fmt::format("hooks.on_{}={}", event, command);
  }
  std::set<std::string> checkpoints() const {
    std::set<std::string> names;
    for (const auto& entry : fs::directory_iterator(folder_.file("run/checkpoints"))) {
      if (entry.path().filename() != "latest") names.insert(entry.path().filename());
    }
    return names;
  }
  /// Appends the facts to a file.
  std::string note() const { return "cat >> " + folder_.file("events"); }
};

TEST_F(HooksRun, HasItsEventsInOrderAndTheNumbersOfARunWithout) {
  Strings sets = {"hooks.step_interval=3", "checkpoint.async=false"};
  for (const char* event : {"start", "step", "evaluation", "save", "end", "failure"}) {
    sets.push_back(hook(event, note()));
  }
  train("run", sets);
  std::vector<std::pair<std::string, int>> events;
  const std::vector<json> lines = lines_of("events");
  for (const json& line : lines) events.emplace_back(line.at("event"), line.at("step"));
  const std::vector<std::pair<std::string, int>> expected = {
      {"start", 0},      {"evaluation", 2}, {"save", 2}, {"step", 3},
      {"evaluation", 4}, {"save", 4},       {"end", 4}};
  EXPECT_EQ(events, expected);
  EXPECT_EQ(lines[1].at("val_loss"), column("run", "val_loss").at(0));
  EXPECT_EQ(lines[2].at("val_loss"), lines[1].at("val_loss"));
  EXPECT_TRUE(fs::exists(lines[2].at("checkpoint").get<std::string>() + "/manifest.json"));
  EXPECT_EQ(lines[3].at("loss"), column("run", "loss").at(2));
  EXPECT_EQ(lines.back().at("exit_code"), 0);
  EXPECT_EQ(lines.back().at("checkpoint"), lines[5].at("checkpoint"));

  train("plain");
  EXPECT_EQ(column("run", "loss"), column("plain", "loss"));
}

// A later run on a folder that has this one doesn't train on it.
TEST_F(HooksRun, AllFilesOfARunAreKnownAsItsOwn) {
  train("run", {"hooks.on_save=true", "hooks.on_end=echo done", "metrics.tensorboard=true",
                "metrics.trace_steps=[2, 2]", "checkpoint.keep_best=1"});
  int num_files = 0;
  for (const auto& entry : fs::recursive_directory_iterator(folder_.file("run"))) {
    if (!entry.is_regular_file() || entry.path().filename() == ".lock") continue;
    ++num_files;
    EXPECT_TRUE(data::is_run_file(entry.path())) << entry.path();
  }
  EXPECT_GT(num_files, 8);
}

TEST_F(HooksRun, ACheckpointStaysUntilItHasBeenDelivered) {
  const std::string all = folder_.file("run/checkpoints");
  // The first delivery ends when the run has saved for the fourth time.
  const std::string command = fmt::format(
      "while [ ! -e {0}/step-0000000004 ]; do sleep 0.01; done; ls {0} | grep step >> {1}", all,
      folder_.file("listing"));
  train("run", {"checkpoint.interval=1", "checkpoint.keep_last=1", hook("save", command)});
  const std::string listing = folder_.read("listing");
  EXPECT_TRUE(
      listing.starts_with("step-0000000001\nstep-0000000002\nstep-0000000003\n"
                          "step-0000000004\n"))
      << listing;
  EXPECT_EQ(checkpoints(), (std::set<std::string>{"step-0000000004"})) << "and then they go";
}

// The others wait for rank 0, which waits for the command.
TEST_F(HooksRun, ASlowDeliveryAtTheEndDoesntMakeRankZeroLookDead) {
  const std::string said = train(
      "run",
      {"run.peer_timeout=4", "zero_optimization.stage=3", "training.sample_tokens=3",
       hook("save", "test $SHERD_STEP = 2 || { sleep 8; touch " + folder_.file("done") + "; }")},
      2);
  EXPECT_TRUE(fs::exists(folder_.file("done"))) << said;
  EXPECT_EQ(column("run", "loss").size(), 4u);
}

TEST_F(HooksRun, AfterItsLastRetryACheckpointMayGoAndTheRunSucceeds) {
  const std::string said =
      train("run", {"checkpoint.interval=2", "checkpoint.keep_last=1", "hooks.retries=1",
                    hook("save", "echo $SHERD_STEP $SHERD_ATTEMPT >> " + folder_.file("attempts") +
                                     "; test $SHERD_STEP = 4 || { echo no route >&2; exit 7; }")});
  EXPECT_EQ(folder_.read("attempts"), "2 1\n2 2\n4 1\n");
  EXPECT_NE(said.find("warning: hooks.on_save at step 2 ended with code 7: no route; it was tried "
                      "2 times ("),
            std::string::npos)
      << said;
  EXPECT_EQ(checkpoints(), (std::set<std::string>{"step-0000000004"}));
}

TEST_F(HooksRun, WhatWasNotDeliveredIsDeliveredByTheNextStartOnce) {
  train("run", {"training.max_steps=2", "hooks.retries=0", hook("save", "exit 1")});
  const Strings good = {hook("save", "echo $SHERD_STEP >> " + folder_.file("delivered"))};
  train("run", good);
  EXPECT_EQ(folder_.read("delivered"), "2\n4\n");
  train("run", good);
  EXPECT_EQ(folder_.read("delivered"), "2\n4\n") << "a third start has nothing to deliver";
}

TEST_F(HooksRun, AFailureHasItsCodeAndItsReason) {
  const std::string text = test::error_text<TrainingError>([&] {
    train("run", {"optimizer.type=sgd", "optimizer.lr=1e30", hook("end", note()),
                  hook("failure", note())});
  });
  const std::vector<json> events = lines_of("events");
  ASSERT_EQ(events.size(), 1u);
  EXPECT_EQ(events[0].at("event"), "failure");
  EXPECT_EQ(events[0].at("exit_code"), 5);
  EXPECT_EQ(events[0].at("error"), text);
}

TEST_F(HooksRun, ARefusedRunHasNoEvents) {
  EXPECT_THROW(
      train("run", {"checkpoint.init_from=" + folder_.file("nothing"), hook("failure", note())}),
      Error);
  EXPECT_FALSE(fs::exists(folder_.file("events")));
  EXPECT_FALSE(fs::exists(folder_.file("run")));
}

}  // namespace
}  // namespace sherd::testing
