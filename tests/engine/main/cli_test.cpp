// The program itself: what it prints where, and its exit codes.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <fstream>
#include <sstream>
#include <string>

#include "core/cuda_device.h"
#include "tests/where.h"

namespace sherd::engine {
namespace {

struct Outcome {
  int exit_code = -1;
  std::string out, err;
};

std::string read_and_remove(const std::string& path) {
  std::ifstream file(path);
  std::ostringstream text;
  text << file.rdbuf();
  std::remove(path.c_str());
  return text.str();
}

Outcome sherd(const std::string& arguments) {
  const std::string errors = testing::TempDir() + "sherd_cli_test_" + std::to_string(getpid());
  const std::string command =
      "cd '" SHERD_SOURCE_DIR "' && '" SHERD_PROGRAM "' " + arguments + " 2>'" + errors + "'";
  Outcome outcome;
  FILE* pipe = popen(command.c_str(), "r");
  if (!pipe) return outcome;
  char chunk[4096];
  while (const std::size_t size = std::fread(chunk, 1, sizeof chunk, pipe)) {
    outcome.out.append(chunk, size);
  }
  const int status = pclose(pipe);
  if (WIFEXITED(status)) outcome.exit_code = WEXITSTATUS(status);
  outcome.err = read_and_remove(errors);
  return outcome;
}

void expect_usage_error(const std::string& arguments, const std::string& message) {
  const Outcome outcome = sherd(arguments);
  EXPECT_EQ(outcome.exit_code, 2) << arguments;
  EXPECT_EQ(outcome.out, "") << arguments;
  EXPECT_EQ(outcome.err, "sherd: " + message + "\n") << arguments;
}

TEST(Cli, NumbersThatAreNoneAreRefused) {
  for (const char* option : {"--temperature", "--top-p"}) {
    const Outcome outcome = sherd("sample tests " + std::string(option) + " nan");
    EXPECT_EQ(outcome.exit_code, 2);
    EXPECT_EQ(outcome.err.find("sherd: " + std::string(option) + ": Value nan not in range"), 0u)
        << outcome.err;
  }
}

TEST(Cli, AFolderWhereAFileIsReadIsRefusedByItsOption) {
  expect_usage_error("sample tests --prompts docs", "--prompts docs: is a folder; name a file.");
  expect_usage_error("score tests --text docs", "--text docs: is a folder; name a file.");
  expect_usage_error("score tests --questions docs", "--questions docs: is a folder; name a file.");
}

TEST(Cli, PrintsTheResolvedRecipe) {
  const Outcome outcome = sherd("recipe recipes/quickstart.yaml --ranks 4 --set run.seed=7");
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_EQ(outcome.err, "");
  EXPECT_NE(outcome.out.find("\n  seed: 7 "), std::string::npos) << outcome.out;
  EXPECT_NE(outcome.out.find("\n  data_parallel_shard_degree: 4 "), std::string::npos);
  EXPECT_NE(outcome.out.find(" # recipes/quickstart.yaml:"), std::string::npos);
}

TEST(Cli, SetMayBeRepeatedAndStandAnywhere) {
  const Outcome outcome =
      sherd("recipe --set run.seed=7 --set 'optimizer.betas=[0.5, 0.6]' recipes/quickstart.yaml");
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_NE(outcome.out.find("\n  seed: 7 "), std::string::npos) << outcome.out;
  EXPECT_NE(outcome.out.find("\n  betas: [0.5, 0.6] "), std::string::npos) << outcome.out;
}

TEST(Cli, PrintsTheFieldTable) {
  const Outcome help = sherd("recipe --help-fields");
  EXPECT_EQ(help.exit_code, 0);
  EXPECT_NE(help.out.find("\n  num_layers  (whole number, from 1 to 10000; required)\n"),
            std::string::npos)
      << help.out;
  EXPECT_EQ(sherd("recipe --markdown").out.substr(0, 9), "# Recipes");
}

TEST(Cli, PrintsVersionHelpAndTheMachine) {
  EXPECT_TRUE(sherd("--version").out.starts_with("sherd "));
  EXPECT_NE(sherd("--help").out.find("train"), std::string::npos);
  const Outcome info = sherd("info");
  EXPECT_EQ(info.exit_code, 0);
  for (const char* word : {"version", "avx2", "Eigen 3.", "usable by this process", "GiB"}) {
    EXPECT_NE(info.out.find(word), std::string::npos) << word << "\n" << info.out;
  }
}

TEST(Cli, BadRecipesExitWith2InOneLine) {
  expect_usage_error("train recipes/quickstart.yaml --set optimizer.rate=1",
                     "--set optimizer.rate=1: unknown key \"optimizer.rate\"; did you mean "
                     "\"optimizer.lr\"?");
  expect_usage_error("train recipes/quickstart.yaml --ranks 0",
                     "--ranks 0: parallelism.data_parallel_shard_degree is 0; expected a whole "
                     "number from 1 to 65536.");
  const CudaSystem gpus = cuda_system();
  if (!gpus.problem.empty()) {
    expect_usage_error("train recipes/quickstart.yaml --set run.device=cuda",
                       "run.device is cuda, but " + gpus.problem + "; set run.device: cpu");
  }
  expect_usage_error("train recipes/none.yaml",
                     "recipes/none.yaml: can't read the recipe: No such file or directory.");
  expect_usage_error("recipe 'a\nb.yaml'",
                     "a b.yaml: can't read the recipe: No such file or directory.");
}

TEST(Cli, BadCommandLinesExitWith2InOneLine) {
  for (const char* arguments :
       {"", "fly", "train", "train a b", "train recipes/quickstart.yaml --ranks many",
        "train recipes/quickstart.yaml --rank 2", "recipe", "info extra", "recipe x --set"}) {
    const Outcome outcome = sherd(arguments);
    EXPECT_EQ(outcome.exit_code, 2) << arguments;
    EXPECT_TRUE(outcome.err.starts_with("sherd: ")) << outcome.err;
    EXPECT_EQ(std::count(outcome.err.begin(), outcome.err.end(), '\n'), 1) << outcome.err;
  }
}

}  // namespace
}  // namespace sherd::engine
