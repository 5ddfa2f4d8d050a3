// `sherd schedule`: what it prints, writes and refuses.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "tests/support/runs/program.h"
#include "tests/support/values/temp_folder.h"
#include "tests/where.h"

namespace sherd::main {
namespace {

test::ProgramOutcome schedule(const std::vector<std::string>& more) {
  std::vector<std::string> words = {"schedule", "--pipeline", "4", "--micro-batches", "8"};
  words.insert(words.end(), more.begin(), more.end());
  return test::run_program(SHERD_PROGRAM, words);
}

// 1F1B of equal times is idle for (p - 1) of (m + p - 1) forwards and backwards.
TEST(ScheduleCli, SaysHowLongAStepTakesAndRanksAreIdle) {
  const test::ProgramOutcome outcome = schedule({"--schedule", "1f1b", "--times", "2,2,1"});
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_NE(outcome.out.find("a step takes 55 ms; ranks are idle for 27.3 % of it\n"),
            std::string::npos)
      << outcome.out;
}

// One rank at a time: eight times the sum of all chunks.
TEST(ScheduleCli, TakesTimesOfEachChunk) {
  const test::ProgramOutcome outcome =
      schedule({"--schedule", "layer_parallel", "--times", "1,1,1,2,1,1,3,1,1,4,1,1"});
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_NE(outcome.out.find("a step takes 144 ms; "), std::string::npos) << outcome.out;
}

TEST(ScheduleCli, ComparesAllAndSaysWhyOneIsNotThere) {
  const test::ProgramOutcome outcome =
      test::run_program(SHERD_PROGRAM, {"schedule", "--pipeline", "4", "--micro-batches", "6"});
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  for (const char* text : {"\nlayer_parallel ", "\ngpipe ", "\n1f1b ", "\nzb_h1 ", "\nzb_v ",
                           "\ninterleaved_1f1b takes micro-batches in multiples",
                           "\ndualpipe_v takes at least 2 micro-batches per rank"}) {
    EXPECT_NE(outcome.out.find(text), std::string::npos) << text << "\n" << outcome.out;
  }
}

TEST(ScheduleCli, WritesATraceInWhichEachRankComputes) {
  const test::TempFolder folder;
  const test::ProgramOutcome outcome =
      schedule({"--schedule", "gpipe", "--trace", folder.file("trace.json")});
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  int spans = 0;
  for (const auto& event : nlohmann::json::parse(folder.read("trace.json"))) {
    spans += event.at("ph") == "X" &&
             event.at("name").get<std::string>().find("RECV") == std::string::npos;
  }
  EXPECT_EQ(spans, 4 * 8 * 2);
}

// 1F1B on p ranks takes m + p - 1 forwards and as many backwards of twice the time.
TEST(ScheduleCli, DrawsAThousandRanksWithFourThousandMicroBatches) {
  const test::ProgramOutcome outcome = test::run_program(
      SHERD_PROGRAM,
      {"schedule", "--pipeline", "1024", "--micro-batches", "4096", "--schedule", "1f1b"});
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_NE(outcome.out.find("a step takes 1.536e+04 ms; ranks are idle for 20.0 % of it\n"),
            std::string::npos)
      << outcome.out.substr(outcome.out.size() - 200);
}

TEST(ScheduleCli, RefusesMoreForwardsThanAnyScheduleMayHave) {
  const test::ProgramOutcome outcome = test::run_program(
      SHERD_PROGRAM, {"schedule", "--pipeline", "1024", "--micro-batches", "4096", "--schedule",
                      "interleaved_1f1b", "--chunks-per-rank", "8"});
  EXPECT_EQ(outcome.exit_code, 2);
  EXPECT_EQ(outcome.err,
            "sherd: interleaved_1f1b has 33554432 forwards here (ranks x chunks per rank x "
            "micro-batches); 16777216 are the most.\n");
}

struct Refusal {
  std::vector<std::string> words;
  const char* text;
};

TEST(ScheduleCli, RefusesWhatCannotBeInOneLine) {
  const Refusal refusals[] = {
      {{"--schedule", "1f1b", "--times", "1,1,1,2,2,2"},
       "1f1b on 4 ranks has 4 chunks, and times are given for 2."},
      {{"--schedule", "1f1b", "--times", "1,1,1,2"},
       "--times has 4 numbers; it takes three, or three of each chunk."},
      {{"--times", "1,1,1,2,2,2"}, "name it with --schedule"},
      {{"--schedule", "2f2b"}, "there is no pipeline schedule \"2f2b\""},
      {{"--schedule", "zb_v", "--chunks-per-rank", "3"}, "zb_v takes 2 chunks per rank, not 3"},
      {{"--lists"}, "--lists and --trace need one schedule: name it with --schedule."},
      {{"--times", "1,1"}, "--times"},
      {{"--times", "1,1,0"}, "--times: 0 isn't a number from 0.001 to 1000000"},
      {{"--overlap", "nan"}, "--overlap: nan isn't a number from 0 to 1"},
      {{"--schedule", "1f1b", "--trace", "/nowhere/trace.json"}, "can't be written"},
  };
  for (const Refusal& refusal : refusals) {
    const test::ProgramOutcome outcome = schedule(refusal.words);
    EXPECT_EQ(outcome.exit_code, 2) << refusal.text;
    EXPECT_EQ(outcome.out, "") << refusal.text;
    EXPECT_NE(outcome.err.find(refusal.text), std::string::npos) << outcome.err;
    EXPECT_EQ(std::count(outcome.err.begin(), outcome.err.end(), '\n'), 1) << outcome.err;
  }
}

}  // namespace
}  // namespace sherd::main
