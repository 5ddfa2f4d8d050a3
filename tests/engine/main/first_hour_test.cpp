// What a new user types wrong, sees and writes: command lines, errors, progress, a first recipe.
#include <algorithm>

#include "engine/recipe/recipe.h"
#include "engine/recipe/stored.h"
#include "engine/run/starter_recipe.h"
#include "tests/engine/main/train_cli_support.h"
#include "tests/where.h"

namespace sherd::engine {
namespace {

using Strings = std::vector<std::string>;

class FirstHourTest : public TrainCliTest {
 protected:
  static test::ProgramOutcome sherd(const Strings& arguments) {
    return test::run_program(SHERD_PROGRAM, arguments);
  }
  static void expect_error(const Strings& arguments, const std::string& error) {
    const test::ProgramOutcome outcome = sherd(arguments);
    EXPECT_EQ(outcome.exit_code, 2) << outcome.out;
    EXPECT_EQ(outcome.err, "sherd: " + error + "\n");
  }
  std::string recipe() const { return folder_.file("tiny.yaml"); }
};

TEST_F(FirstHourTest, MisspeltCommandsAndOptionsAreGuessed) {
  const std::string commands =
      " Commands are train, sweep, recipe, plan, tune, data, inspect, verify, export, merge, eval, "
      "sample, "
      "chat, serve, score, "
      "runs, report, schedule, mup-check, "
      "init, tokenize, launch, info, completion and man.";
  expect_error({"trian", "x.yaml"}, "\"trian\" isn't a command. Did you mean train?" + commands);
  expect_error({"xyzzy"}, "\"xyzzy\" isn't a command." + commands);
  expect_error({"mine.yaml"}, "mine.yaml: no command. Write sherd train mine.yaml.");
  expect_error({"train", recipe(), "--rank", "2"},
               "train has no option --rank. Did you mean --ranks?");
  expect_error({"train", recipe(), "--set", "run.seed=1", "run.name=x"},
               "run.name=x has no option; each KEY=VALUE needs its own --set: --set run.name=x");
  expect_error({"sample", "x", "--prompt", "a.b=c", "--rank", "2"},
               "sample has no option --rank. Did you mean --ranks?");
  expect_error({"eval", "x", "--sets=a=b"}, "eval has no option --sets. Did you mean --set?");
}

TEST_F(FirstHourTest, EmptyValuesAreNamed) {
  const std::string empty = " is empty; give it a value, or omit it.";
  expect_error({"train", recipe(), "--ranks", ""}, "--ranks" + empty);
  expect_error({"train", recipe(), "--ranks="}, "--ranks" + empty);
  expect_error({"plan", recipe(), "--device-memory", ""}, "--device-memory" + empty);
  expect_error({"plan", recipe(), "--html", ""}, "--html" + empty);
  expect_error({"sample", "x", "--tokens", ""}, "--tokens" + empty);
  expect_error({"export", "x", "--to="}, "--to" + empty);
  expect_error({"train", recipe(), "--ranks", "many"},
               "--ranks is \"many\"; expected a whole number from 1 to 65536.");
  expect_error({"train", recipe(), "--ranks", "2.5"},
               "--ranks is \"2.5\"; expected a whole number from 1 to 65536.");
  expect_error({"train", recipe(), "--set", "checkpoint.resume="},
               "--set checkpoint.resume=: checkpoint.resume is \"\"; expected auto, never or a "
               "checkpoint's folder.");
}

TEST_F(FirstHourTest, AllErrorsOfARecipeComeAtOnceALineEach) {
  const test::ProgramOutcome outcome =
      sherd({"train", recipe(), "--set", "optimizer.rate=1", "--set", "model.norm=rms", "--set",
             "run.name=a\nb=c", "--set", "no\nequals"});
  EXPECT_EQ(outcome.exit_code, 2);
  const Strings lines = lines_of(outcome.err);
  ASSERT_EQ(lines.size(), 3u) << outcome.err;
  for (const std::string& line : lines) EXPECT_TRUE(line.starts_with("sherd: --set ")) << line;
  EXPECT_NE(outcome.err.find("did you mean \"rmsnorm\"?"), std::string::npos) << outcome.err;
}

TEST_F(FirstHourTest, TheFirstStepHasALineAndTablesFitEightyColumns) {
  const test::ProgramOutcome outcome = train(
      "run",
      {"--ranks", "2", "--set", "metrics.log_interval=5", "--set", "training.sample_tokens=0"});
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  const Strings lines = lines_of(outcome.out);
  Strings steps;
  for (const std::string& line : lines) {
    if (line.starts_with("step ") && line.find('/') < 10) steps.push_back(line.substr(0, 8));
  }
  EXPECT_EQ(steps, (Strings{"step 1/6", "step 5/6", "step 6/6"})) << outcome.out;
  EXPECT_EQ(outcome.out.find("% of peak"), std::string::npos) << outcome.out;
  const auto table = std::find_if(lines.begin(), lines.end(), [](const std::string& line) {
    return line.find("at rest") != std::string::npos;
  });
  ASSERT_NE(table, lines.end()) << outcome.out;
  for (auto line = table; line != lines.end() && !line->starts_with("peak: "); ++line) {
    EXPECT_LE(line->size(), 80u) << *line;
  }
}

TEST_F(FirstHourTest, InitWritesARecipeThatTrains) {
  for (const std::string format : {"bytes", "chars"}) {
    const std::string file = folder_.file(format + ".yaml");
    const test::ProgramOutcome outcome =
        sherd({"init", folder_.file("text.txt"), "--to", file, "--format", format});
    ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
    EXPECT_EQ(outcome.out, file + ": written. Read it, then: sherd train " + file + "\n");
    const Recipe written =
        resolve_recipe({.path = file, .text = {}, .sets = {}, .ranks = {}}).values;
    EXPECT_EQ(written.data.path, folder_.file("text.txt"));
    EXPECT_EQ(written.training.seq_length, 256);
    const std::string text = folder_.read("text.txt");
    const std::set<char> distinct(text.begin(), text.end());
    EXPECT_EQ(written.model.vocab_size,
              format == "bytes" ? 256 : static_cast<std::int64_t>(distinct.size()));
    const test::ProgramOutcome trained =
        sherd({"train", file, "--set", "run.output_dir=" + folder_.file(format), "--set",
               "training.max_steps=1", "--set", "lr_scheduler.warmup_steps=0", "--set",
               "model.num_layers=1", "--set", "model.hidden_size=32", "--set",
               "training.sample_tokens=0"});
    EXPECT_EQ(trained.exit_code, 0) << trained.err;
  }
  expect_error({"init", folder_.file("text.txt"), "--to", folder_.file("bytes.yaml")},
               folder_.file("bytes.yaml") + ": exists. Name another file with --to.");
  const test::ProgramOutcome missing = sherd({"init", folder_.file("none")});
  EXPECT_EQ(missing.exit_code, 3) << missing.err;
}

TEST_F(FirstHourTest, InitShortensSequencesForLittleText) {
  folder_.write("short.txt", text(500));  // 50 bytes are held out
  const std::string file = folder_.file("short.yaml");
  ASSERT_EQ(sherd({"init", folder_.file("short.txt"), "--to", file}).exit_code, 0);
  EXPECT_EQ(resolve_recipe({.path = file, .text = {}, .sets = {}, .ranks = {}})
                .values.training.seq_length,
            32);
}

// In the build's folder lies what packages carry.
TEST_F(FirstHourTest, InitWritesTheQuickstartOfThePackage) {
  const std::string file = folder_.file("quickstart.yaml");
  ASSERT_EQ(sherd({"init", "--quickstart", "--to", file}).exit_code, 0);
  const std::string text =
      resolve_recipe({.path = file, .text = {}, .sets = {}, .ranks = {}}).values.data.path;
  EXPECT_LE(std::filesystem::file_size(text), 2'000'000u);
  EXPECT_GE(std::filesystem::file_size(text), 1'000'000u);
  const auto values = [](const std::string& path) {
    const RecipeRequest request{.path = path, .text = {}, .sets = {"data.path=x"}, .ranks = {}};
    return printed_values(resolve_recipe(request).yaml());
  };
  EXPECT_EQ(values(file), values(SHERD_SOURCE_DIR "/recipes/quickstart.yaml"));
}

TEST_F(FirstHourTest, InitNeedsTextsOrThePackage) {
  expect_error({"init"}, "init needs TEXTS: a folder of texts, a file or a glob.");
  expect_error({"init", "--quickstart", "mine.txt"},
               "--quickstart has a text of its own; omit mine.txt.");
  folder_.write("packaged/recipe.yaml", "data: {path: text.txt}");  // without its text
  EXPECT_THROW(packaged_quickstart(folder_.file("packaged")), DataError);
}

}  // namespace
}  // namespace sherd::engine
