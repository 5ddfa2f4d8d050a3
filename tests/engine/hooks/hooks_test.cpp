// Hooks in the order of their events, with their facts; tests/engine/run/hooks_run_test.cpp has what
// a run does with them.
#include "engine/hooks/hooks.h"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <sstream>

#include "tests/support/values/temp_folder.h"

namespace sherd::engine {
namespace {

using Lines = std::vector<std::string>;

/// Commands by event.
HookKeys keys(const std::map<std::string, std::string>& commands) {
  HookKeys keys;
  std::string* const places[] = {&keys.on_start, &keys.on_step, &keys.on_evaluation,
                                 &keys.on_save,  &keys.on_end,  &keys.on_failure};
  for (const HookEvent event : {HookEvent::kStart, HookEvent::kStep, HookEvent::kEvaluation,
                                HookEvent::kSave, HookEvent::kEnd, HookEvent::kFailure}) {
    const auto found = commands.find(name_of(event));
    if (found != commands.end()) *places[static_cast<std::size_t>(event)] = found->second;
  }
  keys.step_interval = 1;
  keys.timeout = 600;
  return keys;
}

class HooksTest : public ::testing::Test {
 protected:
  HookOptions options(const std::map<std::string, std::string>& commands) {
    HookOptions options;
    options.keys = keys(commands);
    options.facts.run = "mine";
    options.facts.output_dir = folder_.path();
    options.facts.max_steps = 9;
    options.say = [this](const std::string& text) {
      const std::lock_guard lock(mutex_);
      said_.push_back(text);
    };
    return options;
  }
  void wait_for(const std::string& name) const {
    while (!std::filesystem::exists(folder_.file(name))) {
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
    }
  }
  Lines lines(const std::string& name) const {
    Lines lines;
    std::istringstream text(folder_.read(name));
    for (std::string line; std::getline(text, line);) lines.push_back(line);
    return lines;
  }

  test::TempFolder folder_;
  std::mutex mutex_;
  Lines said_;
};

TEST_F(HooksTest, RunInTheOrderOfTheEventsWithTheirFacts) {
  const std::string command = fmt::format(
      "cat >> {0}/json; echo \"$SHERD_EVENT $SHERD_STEP $SHERD_RUN\" >> {0}/words", folder_.path());
  HookOptions with = options({{"start", command},
                              {"step", command},
                              {"evaluation", command},
                              {"end", command},
                              {"failure", command}});
  with.keys.step_interval = 2;
  Hooks hooks(std::move(with));
  hooks.begin(0);
  for (int step = 1; step <= 4; ++step) hooks.step(step, 1.0 / step);
  hooks.evaluation(4, 2.5);
  hooks.end(0, "");
  const Lines words = lines("words");
  ASSERT_GE(words.size(), 4u);  // a slow machine leaves out step 2
  EXPECT_EQ(words.front(), "start 0 mine");
  EXPECT_EQ((Lines{words.end() - 3, words.end()}),
            (Lines{"step 4 mine", "evaluation 4 mine", "end 4 mine"}));
  const auto last = nlohmann::json::parse(lines("json").back());
  EXPECT_EQ(last, nlohmann::json({{"event", "end"},
                                  {"run", "mine"},
                                  {"output_dir", folder_.path()},
                                  {"step", 4},
                                  {"max_steps", 9},
                                  {"loss", 0.25},
                                  {"val_loss", 2.5},
                                  {"exit_code", 0}}));
}

TEST_F(HooksTest, AFailureIsOneWarningAndTheNextCommandRuns) {
  Hooks hooks(options(
      {{"start", "echo the server is away >&2; exit 4"},
       {"failure", "echo \"$SHERD_EXIT_CODE $SHERD_ERROR\" > " + folder_.file("failure")}}));
  hooks.begin(3);
  hooks.end(5, "the loss is nan");
  EXPECT_EQ(said_, (Lines{fmt::format("warning: hooks.on_start at step 3 ended with code 4: the "
                                      "server is away ({})",
                                      folder_.file("hooks.log"))}));
  EXPECT_EQ(folder_.read("failure"), "5 the loss is nan\n");
  const std::string log = folder_.read("hooks.log");
  EXPECT_NE(log.find("UTC] on_start at step 3: echo the server"), std::string::npos) << log;
  EXPECT_NE(log.find("\nthe server is away\n"), std::string::npos) << log;
  EXPECT_NE(log.find("UTC] it ended with code 4"), std::string::npos) << log;
}

TEST_F(HooksTest, AStoppedRunEndsAndDoesntFail) {
  for (const int code : {75, 130}) {
    Hooks hooks(options({{"end", "echo $SHERD_EXIT_CODE >> " + folder_.file("ends")},
                         {"failure", "echo failure >> " + folder_.file("ends")}}));
    hooks.begin(0);
    hooks.end(code, "stopped");
    hooks.end(1, "a second end only waits");
  }
  EXPECT_EQ(lines("ends"), (Lines{"75", "130"}));
}

TEST_F(HooksTest, AStepThatStillWaitsIsReplacedByTheNewest) {
  const std::string command = fmt::format(
      "touch {0}/began; while [ ! -e {0}/go ]; do sleep 0.01; done; echo $SHERD_STEP >> {0}/steps",
      folder_.path());
  Hooks hooks(options({{"step", command}}));
  hooks.begin(0);
  hooks.step(1, 1.0);
  wait_for("began");
  for (int step = 2; step <= 4; ++step) hooks.step(step, 1.0);
  folder_.write("go", "");
  hooks.end(0, "");
  EXPECT_EQ(lines("steps"), (Lines{"1", "4"}));
  ASSERT_EQ(said_.size(), 1u);
  EXPECT_EQ(said_[0],
            "hooks.on_step was left out 2 times: commands took longer than the steps between them");
}

TEST_F(HooksTest, AtTheDeadlineWhatRunsIsKilledAndTheRestIsNamed) {
  HookOptions with = options(
      {{"start", fmt::format("touch {}; sleep 1000", folder_.file("began"))}, {"end", "true"}});
  with.deadline = [] { return HookOptions::Clock::now(); };
  Hooks hooks(std::move(with));
  hooks.begin(0);
  wait_for("began");
  EXPECT_TRUE(said_.empty()) << "while training goes on, there is no deadline";
  hooks.end(75, "SIGTERM after step 0");
  std::erase_if(said_, [](const std::string& text) { return text.starts_with("waiting for"); });
  ASSERT_EQ(said_.size(), 2u);
  EXPECT_NE(said_[0].find("hooks.on_start at step 0 was killed, since the run has to end"),
            std::string::npos)
      << said_[0];
  EXPECT_EQ(said_[1], "warning: hooks: 1 command was not run, since the run has to end");
}

// A rewind waits for saves, and then training continues.
TEST_F(HooksTest, AskForTheDeadlineOnlyWhileTheRunWaitsForThem) {
  HookOptions options = this->options({{"save", "true"}, {"step", "sleep 0.3"}});
  std::atomic<bool> training{false};
  std::atomic<int> asked{0};
  options.deadline = [&]() -> std::optional<HookOptions::Clock::time_point> {
    asked += training ? 1 : 0;
    return {};
  };
  Hooks hooks(std::move(options));
  hooks.saved(1);
  hooks.wait_for_saves();
  training = true;
  hooks.step(2, 1.0);
  std::this_thread::sleep_for(std::chrono::milliseconds(200));
  EXPECT_EQ(asked, 0);
  training = false;
  hooks.end(0, "");
}

TEST_F(HooksTest, AreKilledByADestructorThatComesBeforeTheirEnd) {
  Hooks hooks(options({{"start", fmt::format("touch {}; sleep 1000", folder_.file("began"))}}));
  hooks.begin(0);
  wait_for("began");
}

TEST(HookEventTest, ALossThatIsNoNumberIsNullInJsonAndATextInTheEnvironment) {
  HookFacts facts;
  facts.run = "caf\xe9";
  facts.output_dir = "/x";
  facts.step = 1;
  facts.loss = std::nan("");
  EXPECT_EQ(json_of(HookEvent::kStep, facts),
            "{\"event\":\"step\",\"run\":\"caf\xef\xbf\xbd\",\"output_dir\":\"/x\",\"step\":1,"
            "\"loss\":null}\n");
  const auto variables = environment_of(HookEvent::kStep, facts);
  EXPECT_NE(std::ranges::find(variables, "SHERD_LOSS=nan"), variables.end());
  EXPECT_NE(std::ranges::find(variables, "SHERD_RUN=caf\xe9"), variables.end());
}

TEST(HookEventTest, TheEnvironmentHasOwnVariablesButNoneOfALauncherAndEachFactOnce) {
  ::setenv("SHERD_STEP", "old", 1);
  ::setenv("OMPI_COMM_WORLD_RANK", "0", 1);
  ::setenv("RANK", "0", 1);
  ::setenv("RANKING", "mine", 1);
  HookFacts facts;
  facts.step = 12;
  const auto variables = environment_of(HookEvent::kEnd, facts);
  for (const char* name : {"SHERD_STEP", "OMPI_COMM_WORLD_RANK", "RANK", "RANKING"}) {
    ::unsetenv(name);
  }
  const auto count = [&](const std::string& beginning) {
    return std::ranges::count_if(
        variables, [&](const std::string& variable) { return variable.starts_with(beginning); });
  };
  EXPECT_EQ(count("SHERD_STEP="), 1);
  EXPECT_EQ(count("SHERD_STEP=12"), 1);
  EXPECT_EQ(count("OMPI_"), 0);
  EXPECT_EQ(count("RANK="), 0);
  EXPECT_EQ(count("RANKING=mine"), 1);
  EXPECT_EQ(count("PATH="), 1);
}

}  // namespace
}  // namespace sherd::engine
