// Training on Parquet and Arrow files, as a user sees it.
#include <signal.h>

#include <cstdlib>
#include <filesystem>

#include "tests/engine/main/train_cli_support.h"
#include "tests/support/models/tables.h"

namespace sherd::engine {
namespace {

using Strings = std::vector<std::string>;

class TablesCliTest : public TrainCliTest {
 protected:
  Strings options(const std::string& path, const std::string& field) const {
    return {"--set", "data.path=" + path,
            "--set", "data.field=" + field,
            "--set", "model.vocab_size=256",
            "--set", "training.seq_length=8",
            "--set", "training.global_batch_size=4",
            "--set", "data.validation_fraction=0.3"};
  }
};

TEST_F(TablesCliTest, LossesAreThoseOfTheSameTextsAsLines) {
  if (!test::has_arrow()) GTEST_SKIP() << test::kNoArrow;
  const std::string lines = folder_.write("a.jsonl", test::texts_as_lines("body"));
  const test::ProgramOutcome expected = train("lines", options(lines, "body"));
  ASSERT_EQ(expected.exit_code, 0) << expected.err;
  for (const char* name : {"zstd.parquet", "lz4_stream.arrow"}) {
    const std::string path = test::write_table(folder_, "files", name);
    const std::string run = "run-" + std::string(name);
    const test::ProgramOutcome outcome = train(run, options(path, "text"));
    ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
    EXPECT_EQ(column(run, "loss"), column("lines", "loss"));
    EXPECT_EQ(column(run, "val_loss"), column("lines", "val_loss"));
    EXPECT_NE(outcome.out.find("skipped 2 documents whose text is null"), std::string::npos)
        << outcome.out;
  }
}

TEST_F(TablesCliTest, ARunOnLinesResumesOnATable) {
  if (!test::has_arrow()) GTEST_SKIP() << test::kNoArrow;
  const auto long_run = [this](const std::string& path, const std::string& field) {
    Strings all = options(path, field);
    all.insert(all.end(), {"--set", "training.max_steps=400", "--set", "training.eval_interval=0",
                           "--set", "metrics.log_interval=1"});
    return all;
  };
  const Strings on_lines = long_run(folder_.write("a.jsonl", test::texts_as_lines("body")), "body");
  const Strings on_table = long_run(test::write_table(folder_, "files", "zstd.parquet"), "text");
  ASSERT_EQ(train("whole", on_lines).exit_code, 0);
  const auto stop = [](pid_t program, const std::string& line) {
    if (line.starts_with("step 3/")) ::kill(program, SIGTERM);
  };
  ASSERT_EQ(train("resumed", on_lines, stop).exit_code, 75);
  const test::ProgramOutcome rest = train("resumed", on_table);
  ASSERT_EQ(rest.exit_code, 0) << rest.err;
  EXPECT_NE(rest.out.find(" steps done"), std::string::npos) << rest.out;
  EXPECT_EQ(column("resumed", "loss"), column("whole", "loss"));
}

TEST_F(TablesCliTest, DataShowsTheRows) {
  if (!test::has_arrow()) GTEST_SKIP() << test::kNoArrow;
  Strings arguments = {"data", folder_.file("tiny.yaml"), "--show", "1"};
  for (const std::string& word : options(test::write_table(folder_, "files", "lz4.arrow"), "text"))
    arguments.push_back(word);
  const test::ProgramOutcome outcome = test::run_program(SHERD_PROGRAM, arguments);
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_NE(outcome.out.find("1 file of 9 documents"), std::string::npos) << outcome.out;
}

TEST_F(TablesCliTest, WithoutTheLibraryASentenceSaysWhatToInstall) {
  ::setenv("SHERD_ARROW_MODULE", "/none/libsherd_arrow.so", 1);
  const std::string path = test::write_table(folder_, "files", "zstd.parquet");
  expect_refused(
      options(path, "text"), 3,
      {path + ": needs libsherd_arrow.so, which this build of sherd lacks; run ./dev deps arrow, "
              "and build again."});
  const test::ProgramOutcome outcome = train("plain");
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  const test::ProgramOutcome info = test::run_program(SHERD_PROGRAM, {"info"});
  EXPECT_NE(info.out.find("\ntables     Parquet and Arrow files: needs libsherd_arrow.so, "),
            std::string::npos)
      << info.out;
  ::unsetenv("SHERD_ARROW_MODULE");
}

TEST_F(TablesCliTest, AWrongColumnIsASentenceWithTheColumns) {
  if (!test::has_arrow()) GTEST_SKIP() << test::kNoArrow;
  const std::string path = test::write_table(folder_, "files", "snappy.parquet");
  expect_refused(options(path, "body"), 3,
                 {path + ": has no column \"body\"; its columns are meta, text, count."});
}

}  // namespace
}  // namespace sherd::engine
