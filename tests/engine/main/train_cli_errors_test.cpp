// Bad input is refused in one line, with the right exit code, before anything is computed.
#include "tests/engine/main/train_cli_support.h"

namespace sherd::engine {
namespace {

TEST_F(TrainCliTest, RefusesDataThatIsMissingEmptyOrTooShort) {
  const auto data = [&](const std::string& path) {
    return std::vector<std::string>{"--set", "data.path=" + path};
  };
  const std::string missing = folder_.file("nowhere.txt");
  expect_refused(data(missing), 3, {missing, "no such file"});
  const std::string empty = folder_.write("empty.txt", "");
  expect_refused(data(empty), 3, {empty, "is empty", "data.path"});
  std::filesystem::create_directory(folder_.file("folder"));
  expect_refused(data(folder_.file("folder")), 3, {folder_.file("folder")});
  const std::string tiny = folder_.write("short.txt", text(16));
  expect_refused(data(tiny), 3, {tiny, "shorter than one sequence", "training.seq_length 16"});
  // Enough to train on, but a tenth of it is no window.
  const std::string little = folder_.write("little.txt", text(100));
  expect_refused(data(little), 3, {little, "validation text shorter than one sequence"});
}

TEST_F(TrainCliTest, RefusesTokensOutsideTheVocabulary) {
  const std::string high = folder_.write("high.txt", text(2000) + "\xc3\xa9" + text(2000));
  expect_refused({"--set", "data.path=" + high}, 3, {high, "vocab_size"});
  expect_refused({"--set", "data.format=chars"}, 3, {"distinct characters", "vocab_size"});
  std::string ids;
  for (int i = 0; i < 2000; ++i) ids += {static_cast<char>(i % 100), i == 1999 ? '\1' : '\0'};
  const std::string bin = folder_.write("ids.bin", ids);  // its last id is 355
  expect_refused({"--set", "data.format=bin", "--set", "data.path=" + bin}, 3, {bin, "355"});
}

// Below a regular file not even root can make a folder.
TEST_F(TrainCliTest, RefusesAnOutputFolderThatCantBeWritten) {
  const std::string below = folder_.file("text.txt") + "/runs";
  expect_refused({"--set", "run.output_dir=" + below}, 2, {"run.output_dir", below, "--set"});
  const std::string file = folder_.file("text.txt");
  expect_refused({"--set", "run.output_dir=" + file}, 2, {"run.output_dir", file});
  EXPECT_EQ(folder_.read("text.txt"), text(kTextBytes));
}

TEST_F(TrainCliTest, RefusesRecipesThatDontAddUp) {
  expect_refused({"--ranks", "0"}, 2, {"--ranks 0", "expected a whole number"});
  expect_refused({"--ranks", "5"}, 2, {"global_batch_size is 12", "isn't a multiple"});
  expect_refused({"--ranks", "2", "--set", "training.micro_batch_size=5"}, 2,
                 {"global_batch_size is 12", "= 10"});
  expect_refused({"--set", "training.seq_lenght=8"}, 2,
                 {"unknown key \"training.seq_lenght\"", "did you mean \"training.seq_length\"?"});
  expect_refused({"--set", "zero_optimization.stage=4"}, 2, {"stages are 0, 1, 2 and 3"});
  expect_refused({"--set", "parallelism.data_parallel_replicate_degree=5"}, 2,
                 {"global_batch_size is 12", "isn't a multiple"});
}

TEST_F(TrainCliTest, RefusesASamplePromptThatTheVocabularyCantSpell) {
  expect_refused({"--set", "training.sample_prompt=\"\xc3\xa9\""}, 2, {"prompt: byte 195"});
}

TEST_F(TrainCliTest, ARunsFolderAsFirstWeightsIsToldItsNewestCheckpoint) {
  const std::string old = folder_.file("old");
  std::filesystem::create_directories(old + "/checkpoints/step-0000000003");
  std::filesystem::create_directories(old + "/checkpoints/step-0000000012");
  const std::string file = folder_.file("text.txt");
  for (const std::string& from : {old, old + "/", old + "/checkpoints"}) {
    expect_refused(
        {"--set", "checkpoint.init_from=" + from}, 2,
        {"checkpoint.init_from " + from + ": is a directory of checkpoints, not a checkpoint",
         "the newest, " + old + "/checkpoints/step-0000000012."});
  }
  expect_refused({"--set", "checkpoint.init_from=" + file}, 3, {file + ": isn't a directory"});
  // A run that resumes elsewhere doesn't read them: they may be gone.
  EXPECT_EQ(train("first", {"--set", "checkpoint.interval=3"}).exit_code, 0);
  const auto resumed = train(
      "second", {"--set", "checkpoint.resume=" + folder_.file("first/checkpoints/step-0000000003"),
                 "--set", "checkpoint.init_from=" + folder_.file("gone")});
  EXPECT_EQ(resumed.exit_code, 0) << resumed.err;
}

}  // namespace
}  // namespace sherd::engine
