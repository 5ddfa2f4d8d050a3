// Runs that end early and are resumed, and the commands that use a checkpoint, as a user sees them.

#include <signal.h>

#include <cmath>
#include <filesystem>
#include <set>

#include "tests/engine/main/train_cli_support.h"
#include "tests/support/models/packed_text.h"
#include "tests/where.h"

namespace sherd::engine {
namespace {

using Strings = std::vector<std::string>;

class CheckpointCliTest : public TrainCliTest {
 protected:
  std::set<std::string> checkpoints(const std::string& name) const {
    std::set<std::string> steps;
    for (const auto& entry :
         std::filesystem::directory_iterator(folder_.file(name + "/checkpoints"))) {
      const std::string file = entry.path().filename();
      if (file != "latest") steps.insert(file);
    }
    return steps;
  }
  std::string checkpoint(const std::string& name, int step) const {
    return folder_.file(fmt::format("{}/checkpoints/step-{:010}", name, step));
  }
  static test::ProgramOutcome sherd(const Strings& arguments) {
    return test::run_program(SHERD_PROGRAM, arguments);
  }
  /// Sends `signal` when the line of step 3 is printed.
  test::ProgramOutcome train_until(int signal, const std::string& name, Strings arguments) const {
    arguments.insert(arguments.end(), {"--set", "metrics.log_interval=1"});
    return train(name, arguments, [signal](pid_t program, const std::string& line) {
      if (line.starts_with("step 3/")) ::kill(program, signal);
    });
  }
};

const Strings kManySteps = {"--ranks", "2",
                            "--set",   "zero_optimization.stage=3",
                            "--set",   "training.max_steps=400",
                            "--set",   "training.eval_interval=0"};

TEST_F(CheckpointCliTest, ASchedulersSignalSavesAndTheSameCommandGoesOn) {
  const test::ProgramOutcome whole = train("whole", kManySteps);
  ASSERT_EQ(whole.exit_code, 0) << whole.err;
  for (const int signal : {SIGTERM, SIGUSR1, SIGHUP}) {
    ::signal(SIGHUP, SIG_DFL);  // whoever runs this may have been told to outlive its terminal
    const std::string name = fmt::format("run{}", signal);
    const test::ProgramOutcome stopped = train_until(signal, name, kManySteps);
    ASSERT_EQ(stopped.exit_code, 75) << stopped.err;
    EXPECT_EQ(lines_of(stopped.err).size(), 1u) << stopped.err;
    const std::size_t steps = column(name, "loss").size();
    EXPECT_NE(stopped.err.find(
                  fmt::format("SIG{} after step {} of 400; ", ::sigabbrev_np(signal), steps)),
              std::string::npos)
        << stopped.err;
    EXPECT_NE(stopped.err.find(fmt::format("the newest checkpoint is of step {}", steps)),
              std::string::npos)
        << stopped.err;
    EXPECT_EQ(checkpoints(name), (std::set<std::string>{fmt::format("step-{:010}", steps)}));

    const test::ProgramOutcome again = train(name, kManySteps);
    ASSERT_EQ(again.exit_code, 0) << again.err;
    EXPECT_NE(again.out.find(fmt::format(": {} steps done", steps)), std::string::npos);
    EXPECT_EQ(column(name, "loss"), column("whole", "loss"));
  }
}

TEST_F(CheckpointCliTest, AStopInAnEvaluationSavesAndTheNextStartEvaluates) {
  folder_.write("validation.txt", text(300000));
  Strings arguments = {"--set", "data.validation_path=" + folder_.file("validation.txt"),
                       "--set", "data.validation_fraction=0",
                       "--set", "training.eval_batches=0"};
  ASSERT_EQ(train("whole", arguments).exit_code, 0);
  const test::ProgramOutcome stopped = train_until(SIGTERM, "run", arguments);
  ASSERT_EQ(stopped.exit_code, 75) << stopped.err;
  EXPECT_NE(stopped.err.find("after step 3 of 6"), std::string::npos) << stopped.err;
  EXPECT_EQ(column("run", "val_loss").size(), 0u) << "the evaluation was over too soon to be hit";
  ASSERT_EQ(train("run", arguments).exit_code, 0);
  EXPECT_EQ(column("run", "val_loss"), column("whole", "val_loss"));
  EXPECT_EQ(column("run", "loss"), column("whole", "loss"));
}

TEST_F(CheckpointCliTest, WithoutCheckpointsSigtermKills) {
  Strings arguments = kManySteps;
  arguments.insert(arguments.end(), {"--set", "checkpoint.interval=0"});
  EXPECT_EQ(train_until(SIGTERM, "run", arguments).exit_code, -1);
  EXPECT_FALSE(std::filesystem::exists(folder_.file("run/checkpoints")));
}

// By default where there are checkpoints at all; whatever is asked for holds with and without them.
TEST_F(CheckpointCliTest, CtrlCSavesUnlessCheckpointsOrThisOneAreTurnedOff) {
  struct Case {
    const char* name;
    Strings settings;
    bool saves;
  };
  const Case cases[] = {
      {"default", {}, true},
      {"none", {"--set", "checkpoint.interval=0"}, false},
      {"off", {"--set", "checkpoint.on_interrupt=false"}, false},
      {"asked", {"--set", "checkpoint.interval=0", "--set", "checkpoint.on_interrupt=true"}, true}};
  for (const auto& [name, settings, saves] : cases) {
    Strings arguments = kManySteps;
    arguments.insert(arguments.end(), settings.begin(), settings.end());
    const test::ProgramOutcome outcome = train_until(SIGINT, name, arguments);
    EXPECT_EQ(outcome.exit_code, 130) << outcome.err;
    const std::size_t steps = column(name, "loss").size();
    const std::string end = saves ? fmt::format("the newest checkpoint is of step {}", steps)
                                  : "there is no checkpoint";
    EXPECT_NE(outcome.err.find(end), std::string::npos) << name << ": " << outcome.err;
    EXPECT_EQ(outcome.out.find("a second Ctrl-C ends the run immediately") != std::string::npos,
              saves);
    EXPECT_EQ(std::filesystem::exists(checkpoint(name, static_cast<int>(steps))), saves) << name;
  }
}

// The evaluation after step 3 is stopped. The next start makes up for it, and is killed before any
// checkpoint knows of that; so does the one after it.
TEST_F(CheckpointCliTest, AnEvaluationThatWasPutOffStandsInTheMetricsOnce) {
  folder_.write("validation.txt", text(300000));
  const Strings arguments = {"--set", "data.validation_path=" + folder_.file("validation.txt"),
                             "--set", "data.validation_fraction=0",
                             "--set", "training.eval_batches=0",
                             "--set", "metrics.log_interval=1"};
  ASSERT_EQ(train("whole", arguments).exit_code, 0);
  ASSERT_EQ(train_until(SIGTERM, "run", arguments).exit_code, 75);
  ASSERT_EQ(column("run", "val_loss").size(), 0u) << "the evaluation was over too soon to be hit";
  for (int i = 0; i < 2; ++i) {
    train("run", arguments, [](pid_t program, const std::string& line) {
      if (line.starts_with("step 4/")) ::kill(program, SIGKILL);
    });
  }
  ASSERT_EQ(train("run", arguments).exit_code, 0);
  EXPECT_EQ(column("run", "val_loss"), column("whole", "val_loss"));
}

TEST_F(CheckpointCliTest, ASecondRunInTheSameFolderNamesTheFirst) {
  test::ProgramOutcome second;
  pid_t first_process = 0;
  const test::ProgramOutcome first =
      train("run", {"--set", "metrics.log_interval=1", "--set", "training.max_steps=2000"},
            [&](pid_t program, const std::string& line) {
              if (!line.starts_with("step 2/")) return;
              first_process = program;
              second = train("run");
              ::kill(program, SIGINT);
            });
  EXPECT_EQ(first.exit_code, 130) << first.err;
  EXPECT_EQ(second.exit_code, 2) << second.err;
  EXPECT_NE(second.err.find(fmt::format("in use by process {} on ", first_process)),
            std::string::npos)
      << second.err;
}

TEST_F(CheckpointCliTest, KeepsTheLastTheRegularAndTheBest) {
  ASSERT_EQ(train("run", {"--set", "checkpoint.interval=1", "--set", "training.eval_interval=1",
                          "--set", "checkpoint.keep_last=1", "--set", "checkpoint.keep_every=4",
                          "--set", "checkpoint.keep_best=1"})
                .exit_code,
            0);
  const std::vector<double> losses = column("run", "val_loss");
  ASSERT_EQ(losses.size(), 6u);
  const auto best = std::min_element(losses.begin(), losses.end()) - losses.begin() + 1;
  EXPECT_EQ(checkpoints("run"),
            (std::set<std::string>{"step-0000000004", fmt::format("step-{:010}", best),
                                   "step-0000000006"}));
  for (const char* name : {"run/best", "run/checkpoints/best"}) {
    const test::ProgramOutcome found = sherd({"eval", folder_.file(name), "--json"});
    ASSERT_EQ(found.exit_code, 0) << found.err;
    EXPECT_EQ(nlohmann::json::parse(found.out).at("step"), best);
  }
  ASSERT_EQ(train("blind", {"--set", "checkpoint.interval=2", "--set", "training.eval_interval=0",
                            "--set", "data.validation_fraction=0"})
                .exit_code,
            0);
  const test::ProgramOutcome none = sherd({"eval", folder_.file("blind/best")});
  EXPECT_EQ(none.exit_code, 3);
  EXPECT_NE(none.err.find("no checkpoint has a validation loss"), std::string::npos) << none.err;
  expect_refused({"--set", "checkpoint.interval=2", "--set", "training.eval_interval=3", "--set",
                  "checkpoint.keep_best=1"},
                 2, {"checkpoint.keep_best", "interval 2 isn't a multiple", "3"});
}

TEST_F(CheckpointCliTest, ASavesLineTellsItsRateAndItsStall) {
  ASSERT_EQ(train("run", {"--set", "checkpoint.interval=3", "--set", "checkpoint.staging_mib=4"})
                .exit_code,
            0);
  EXPECT_EQ(column("run", "saved"), (std::vector<double>{3, 6}));
  for (const char* key : {"bytes", "write_mib_per_s", "save_s"}) {
    for (const double value : column("run", key)) EXPECT_GT(value, 0.0) << key;
  }
  for (const double value : column("run", "stalled_ms")) EXPECT_GE(value, 0.0);
}

TEST_F(CheckpointCliTest, ARefusedResumeLeavesTheRecipeThatWasThere) {
  ASSERT_EQ(train("run").exit_code, 0);
  const std::string recipe = folder_.read("run/recipe.yaml");
  const std::string metrics = folder_.read("run/metrics.jsonl");
  const test::ProgramOutcome refused = train("run", {"--set", "run.seed=99"});
  EXPECT_EQ(refused.exit_code, 2);
  EXPECT_NE(refused.err.find("run.seed"), std::string::npos) << refused.err;
  EXPECT_EQ(folder_.read("run/recipe.yaml"), recipe);
  EXPECT_EQ(folder_.read("run/metrics.jsonl"), metrics);
}

TEST_F(CheckpointCliTest, VerifyOfARunNamesANewestThatDoesntOpen) {
  ASSERT_EQ(train("run", {"--set", "checkpoint.interval=3"}).exit_code, 0);
  std::filesystem::resize_file(checkpoint("run", kSteps) + "/manifest.json", 100);
  const test::ProgramOutcome verified = sherd({"verify", folder_.file("run")});
  EXPECT_EQ(verified.exit_code, 3);
  EXPECT_NE(verified.err.find("1 of its checkpoints is refused"), std::string::npos)
      << verified.err;
  const test::ProgramOutcome inspected = sherd({"inspect", folder_.file("run")});
  EXPECT_EQ(inspected.exit_code, 0);
  EXPECT_TRUE(inspected.err.starts_with("note: " + checkpoint("run", kSteps) + " is refused: "))
      << inspected.err;
}

TEST_F(CheckpointCliTest, EvalPrintsTheLossThatTheRunEndedWith) {
  for (const int stage : {0, 3}) {
    for (const std::string type : {"f32", "bf16"}) {
      const std::string name = fmt::format("run{}{}", stage, type);
      ASSERT_EQ(
          train(name, {"--ranks", "2", "--set", fmt::format("zero_optimization.stage={}", stage),
                       "--set", "mixed_precision.param_dtype=" + type})
              .exit_code,
          0);
      const test::ProgramOutcome same = sherd({"eval", checkpoint(name, kSteps), "--json"});
      ASSERT_EQ(same.exit_code, 0) << same.err;
      const double loss = column(name, "val_loss").back();
      EXPECT_EQ(nlohmann::json::parse(same.out).at("val_loss"), loss);
      const test::ProgramOutcome alone =
          sherd({"eval", checkpoint(name, kSteps), "--json", "--ranks", "1"});
      ASSERT_EQ(alone.exit_code, 0) << alone.err;
      EXPECT_NEAR(nlohmann::json::parse(alone.out).at("val_loss"), loss, 1e-6);
    }
  }
}

// What eval and score print from `begin` on: a loss, its perplexity, and its bits per byte, where a token is a byte.
std::string expect_figures(const std::string& printed, const char* begin, const char* format) {
  double loss = 0.0, perplexity = 0.0, bits = 0.0;
  const char* said = std::strstr(printed.c_str(), begin);
  if (!said || std::sscanf(said, format, &loss, &perplexity, &bits) != 3) {
    ADD_FAILURE() << printed;
    return "";
  }
  EXPECT_NEAR(perplexity, std::exp(loss), 1e-3 * perplexity);
  EXPECT_NEAR(bits, loss / std::log(2.0), 1e-3 * bits);
  return said;
}

TEST_F(CheckpointCliTest, EvalAndSampleNeedTheVocabularyButNotTheTrainingText) {
  const std::string all = "abcdefghijklmnopqrstuvwxyz .\n";
  folder_.write("text.txt", text(kTextBytes) + all);
  const std::set<char> distinct = [&] {
    const std::string read = folder_.read("text.txt");
    return std::set<char>(read.begin(), read.end());
  }();
  ASSERT_EQ(train("run", {"--set", "data.format=chars", "--set",
                          fmt::format("model.vocab_size={}", distinct.size())})
                .exit_code,
            0);
  std::filesystem::remove(folder_.file("text.txt"));
  folder_.write("some.txt", std::string(40, 'z') + std::string(40, 'a'));
  const std::string path = checkpoint("run", kSteps);
  const auto eval = [&] {
    return sherd({"eval", path, "--set", "data.validation_path=" + folder_.file("some.txt")});
  };
  const test::ProgramOutcome known = eval();
  EXPECT_EQ(known.exit_code, 0) << known.err;
  expect_figures(known.out, "validation loss ",
                 "validation loss %lf over 64 tokens, perplexity %lf, %lf bits");
  folder_.write("some.txt", std::string(80, 'z') + "!");
  const test::ProgramOutcome unknown = eval();
  EXPECT_EQ(unknown.exit_code, 3);
  EXPECT_NE(unknown.err.find("U+0021"), std::string::npos) << unknown.err;

  const Strings ask = {"sample", path, "--prompt", "the ", "--tokens", "30"};
  const test::ProgramOutcome sample = sherd(ask);
  ASSERT_EQ(sample.exit_code, 0) << sample.err;
  EXPECT_EQ(sample.out.size(), 4u + 30u + 1u) << sample.out;
  EXPECT_TRUE(sample.out.starts_with("the ")) << sample.out;
  EXPECT_EQ(sherd(ask).out, sample.out);
  const test::ProgramOutcome score =
      sherd({"score", path, "--text", folder_.file("some.txt"), "--context", "16"});
  EXPECT_EQ(score.exit_code, 2) << "an exclamation mark has no id";
  EXPECT_NE(score.err.find("U+0021"), std::string::npos) << score.err;
  folder_.write("some.txt", std::string(50, 'a'));
  const test::ProgramOutcome scored = sherd({"score", path, "--text", folder_.file("some.txt")});
  ASSERT_EQ(scored.exit_code, 0) << scored.err;
  const std::string figures = expect_figures(
      scored.out,
      "50 tokens, 50 bytes: ", "50 tokens, 50 bytes: loss %lf, perplexity %lf, %lf bits");
  // The same text packed, as lines, and twice as lines.
  const std::string as = std::string(50, 'a'), line = "{\"text\": \"" + as + "\"}\n";
  folder_.write("some.txt.gz", test::gzip(as));
  folder_.write("some.jsonl", line);
  folder_.write("some.jsonl.gz", test::gzip(line));
  folder_.write("other.jsonl", "{\"words\": \"" + as + "\"}\n");
  for (const char* name : {"some.txt.gz", "some.jsonl", "some.jsonl.gz"}) {
    const test::ProgramOutcome same = sherd({"score", path, "--text", folder_.file(name)});
    EXPECT_EQ(same.out, folder_.file(name) + ": " + figures) << same.err;
  }
  folder_.write("some.jsonl", line + line);
  const test::ProgramOutcome both = sherd(
      {"score", path, "--text", folder_.file("some.jsonl"), "--text", folder_.file("some.txt")});
  EXPECT_EQ(both.out, folder_.file("some.jsonl") + ": " + "100 tokens, 100 bytes" +
                          figures.substr(figures.find(": loss")) + folder_.file("some.txt") + ": " +
                          figures)
      << both.err;
  const test::ProgramOutcome unnamed =
      sherd({"score", path, "--text", folder_.file("other.jsonl")});
  EXPECT_EQ(unnamed.exit_code, 3);
  EXPECT_NE(unnamed.err.find("other.jsonl:1: "), std::string::npos) << unnamed.err;
  folder_.write("some.txt.xz", "x");
  EXPECT_EQ(sherd({"score", path, "--text", folder_.file("some.txt.xz")}).exit_code, 3);

  Strings another = ask;
  another.insert(another.end(), {"--seed", "1"});
  EXPECT_NE(sherd(another).out, sample.out);
}

// A save at each step, of which one stays: whatever a command has chosen is there as long as it reads it.
TEST_F(CheckpointCliTest, CommandsReadARunThatSavesAndRemoves) {
  const std::string run = folder_.file("run");
  int calls = 0;
  const test::ProgramOutcome trained =
      train("run",
            {"--set", "metrics.log_interval=5", "--set", "checkpoint.interval=1", "--set",
             "checkpoint.keep_last=1", "--set", "training.max_steps=100000", "--set",
             "training.eval_interval=0"},
            [&](pid_t program, const std::string& line) {
              if (!line.starts_with("step 5/")) return;
              for (int i = 0; i < 5; ++i) {
                for (const Strings& command :
                     {Strings{"inspect", run, "--json"}, Strings{"verify", run, "--deep"},
                      Strings{"eval", run},
                      Strings{"export", run, "--to", folder_.file(fmt::format("out{}.h5", i))}}) {
                  const test::ProgramOutcome read = sherd(command);
                  EXPECT_EQ(read.exit_code, 0) << command[0] << ": " << read.err;
                  ++calls;
                }
              }
              ::kill(program, SIGTERM);
            });
  EXPECT_EQ(trained.exit_code, 75) << trained.err;
  EXPECT_EQ(calls, 20);
}

// What a merge computes: tests/engine/inference/merge_test.cpp.
TEST_F(CheckpointCliTest, MergeTakesRunsAndSaysWhatItHasWritten) {
  ASSERT_EQ(train("a").exit_code, 0);
  ASSERT_EQ(train("b", {"--set", "run.seed=5", "--ranks", "2"}).exit_code, 0);
  const std::string a = folder_.file("a"), b = folder_.file("b"), out = folder_.file("out");
  const test::ProgramOutcome merged =
      sherd({"merge", "--weights", "3,1", a, b, "--output", out, "--dtype", "bf16"});
  ASSERT_EQ(merged.exit_code, 0) << merged.err;
  EXPECT_NE(merged.out.find("tensors as bf16 in 1 file, "), std::string::npos) << merged.out;
  const std::string step = "/checkpoints/step-0000000006\n";
  EXPECT_NE(merged.out.find("the sum of\n  0.75 x " + a + step + "  0.25 x " + b + step),
            std::string::npos)
      << merged.out;
  EXPECT_EQ(sherd({"merge", out, a, "--output", folder_.file("again")}).exit_code, 0);
  for (const Strings& refused :
       {Strings{"merge", a, b, "--output", out}, Strings{"merge", a, "--output", out + "2"},
        Strings{"merge", a, b, "--weights", "1,x", "--output", out + "2"},
        Strings{"merge", a, b, "--weights", "1", "--output", out + "2"}}) {
    const test::ProgramOutcome outcome = sherd(refused);
    EXPECT_EQ(outcome.exit_code, 2) << outcome.err;
    EXPECT_EQ(lines_of(outcome.err).size(), 1u) << outcome.err;
  }
}

TEST_F(CheckpointCliTest, AStepThatItsRunHasRemovedIsSaidToBe) {
  ASSERT_EQ(
      train("run", {"--set", "checkpoint.interval=2", "--set", "checkpoint.keep_last=1"}).exit_code,
      0);
  const std::string steps = folder_.file("run/checkpoints");
  for (const char* command : {"inspect", "verify", "eval"}) {
    const test::ProgramOutcome read = sherd({command, steps + "/step-0000000002"});
    EXPECT_EQ(read.exit_code, 3);
    EXPECT_EQ(lines_of(read.err).size(), 1u) << read.err;
    EXPECT_TRUE(read.err.starts_with(
        "sherd: " + steps +
        "/step-0000000002: isn't there; a run removes older checkpoints (checkpoint.keep_last). "
        "The newest there is step-"))
        << read.err;
  }
}

}  // namespace
}  // namespace sherd::engine
