// Resuming from a checkpoint with the same recipe and with another, and the end of a run.
#include <filesystem>

#include "tests/engine/main/train_cli_support.h"
#include "tests/support/models/small_tokenizer.h"
#include "tests/where.h"

namespace sherd::engine {
namespace {

using Strings = std::vector<std::string>;

class ResumeCliTest : public TrainCliTest {
 protected:
  void expect_said(const test::ProgramOutcome& outcome, const std::string& text) const {
    EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
    EXPECT_NE(outcome.out.find(text), std::string::npos) << text << " in\n" << outcome.out;
  }
};

TEST_F(ResumeCliTest, AnotherRunIsRefusedAndSmallerChangesAreSaid) {
  ASSERT_EQ(train("run", {"--set", "training.max_steps=3"}).exit_code, 0);
  for (const auto& [set, said] :
       {std::pair("model.num_attention_heads=8",
                  "model.num_attention_heads is 4 in the checkpoint and 8 in the recipe"),
        std::pair("model.norm=layernorm", "model.norm is rmsnorm in the checkpoint"),
        std::pair("model.norm_eps=1e-6", "model.norm_eps is 1e-05 in the checkpoint"),
        std::pair("model.rope_theta=5e5", "model.rope_theta is 10000 in the checkpoint")}) {
    const test::ProgramOutcome refused = train("run", {"--set", set});
    EXPECT_EQ(refused.exit_code, 2) << set << refused.out;
    EXPECT_EQ(lines_of(refused.err).size(), 1u) << refused.err;
    EXPECT_NE(refused.err.find(said), std::string::npos) << refused.err;
    EXPECT_NE(refused.err.find("Resume with the recipe of the checkpoint"), std::string::npos);
  }
  const test::ProgramOutcome changed =
      train("run", {"--set", "optimizer.lr=5e-3", "--set", "optimizer.betas=[0.8, 0.9]", "--set",
                    "training.gradient_accumulation_steps=2", "--set", "metrics.log_interval=1"});
  expect_said(changed, "unlike the checkpoint's run:\n");
  for (const char* line : {"  optimizer.lr: 0.005 (checkpoint: 0.01)",
                           "  optimizer.betas: [0.8, 0.9] (checkpoint: [0.9, 0.95])",
                           "  training.gradient_accumulation_steps: 2 (checkpoint: 1)",
                           "  training.micro_batch_size: 6 (checkpoint: 12)",
                           "  training.max_steps: 6 (checkpoint: 3)",
                           "  lr_scheduler.decay_steps: 6 (checkpoint: 3)"}) {
    expect_said(changed, line);
  }
  EXPECT_EQ(changed.out.find("log_interval"), std::string::npos) << changed.out;
}

// Keys that are free to change, and yet say what is trained on: the data's fingerprint has them.
TEST_F(ResumeCliTest, OtherTokensFromTheSameFilesAreAnotherRun) {
  const auto refuses = [&](const char* run, Strings first, Strings second) {
    first.insert(first.end(), {"--set", "training.max_steps=3"});
    ASSERT_EQ(train(run, first).exit_code, 0);
    const test::ProgramOutcome refused = train(run, second);
    EXPECT_EQ(refused.exit_code, 2) << refused.out;
    EXPECT_NE(refused.err.find("data (fingerprint) is "), std::string::npos) << refused.err;
    EXPECT_NE(refused.err.find("(texts were added, removed or changed, or "), std::string::npos)
        << refused.err;
    EXPECT_EQ(train(run, first).exit_code, 0);
  };
  const Strings no_sample = {"--set", "training.sample_tokens=0", "--set", "model.vocab_size=300"};
  const auto with = [&](const Strings& more) {
    Strings all = no_sample;
    for (const std::string& set : more) all.insert(all.end(), {"--set", set});
    return all;
  };
  std::string numbers;
  for (int i = 0; i < 2000; ++i) numbers += {static_cast<char>(1 + i % 200), '\0', '\1', '\0'};
  const std::string path = "data.path=" + folder_.write("tokens.bin", numbers);
  refuses("width", with({path, "data.format=bin", "data.token_bytes=2"}),
          with({path, "data.format=bin", "data.token_bytes=1"}));

  nlohmann::json tokenizer = test::small_tokenizer();
  folder_.write("one/tokenizer.json", tokenizer.dump());
  std::swap(tokenizer["model"]["vocab"]["a"], tokenizer["model"]["vocab"]["e"]);
  folder_.write("two/tokenizer.json", tokenizer.dump());
  refuses("tokenizer", with({"data.format=text", "data.tokenizer=" + folder_.file("one")}),
          with({"data.format=text", "data.tokenizer=" + folder_.file("two")}));
}

TEST_F(ResumeCliTest, TheSameRecipeSaysNothing) {
  ASSERT_EQ(train("run").exit_code, 0);
  const test::ProgramOutcome again = train("run");
  expect_said(again, "steps done");
  EXPECT_EQ(again.out.find("unlike"), std::string::npos) << again.out;
}

TEST_F(ResumeCliTest, AFinishedRunSaysSoAndAShorterOneThatNothingIsTrained) {
  ASSERT_EQ(train("run").exit_code, 0);
  const std::vector<double> losses = column("run", "loss");
  const test::ProgramOutcome again = train("run");
  expect_said(again, "this run is finished: all of its 6 steps are done, so nothing is trained.");
  EXPECT_EQ(column("run", "loss"), losses);
  const test::ProgramOutcome shorter = train("run", {"--set", "training.max_steps=4"});
  expect_said(shorter,
              "nothing is trained: the checkpoint has 6 steps, and training.max_steps is 4.");
  EXPECT_EQ(column("run", "loss"), losses);
}

TEST_F(ResumeCliTest, AChangedLossScalingIsObeyed) {
  const Strings f16 = {"--set", "mixed_precision.param_dtype=f16"};
  Strings first = f16, second = f16;
  first.insert(first.end(), {"--set", "training.max_steps=3"});
  second.insert(second.end(), {"--set", "loss_scaling.mode=static", "--set",
                               "loss_scaling.initial_scale_power=5"});
  ASSERT_EQ(train("run", first).exit_code, 0);
  const test::ProgramOutcome changed = train("run", second);
  expect_said(changed, "  loss_scaling.mode: static (checkpoint: dynamic)");
  EXPECT_EQ(column("run", "loss_scale"), (std::vector<double>{65536, 65536, 65536, 32, 32, 32}));
}

TEST_F(ResumeCliTest, TheLastEvaluationTakesTheBatchesOfTheOthersOrAllOfTheSplit) {
  ASSERT_EQ(train("batches", {"--set", "training.final_eval=batches"}).exit_code, 0);
  EXPECT_EQ(column("batches", "num_tokens"), (std::vector<double>{2 * 12 * 16, 2 * 12 * 16}));
  ASSERT_EQ(train("whole", {"--set", "training.final_eval=whole"}).exit_code, 0);
  EXPECT_EQ(column("whole", "num_tokens"), (std::vector<double>{2 * 12 * 16, 25 * 16}));
}

TEST_F(ResumeCliTest, EvalAndSampleTakeARunAndFindItsTextFromAnyFolder) {
  // A relative data.path, from a folder that isn't the one that eval is started in.
  const std::string home = folder_.file("");
  const test::ProgramOutcome trained = test::run_program(
      "/bin/sh", {"-c", "cd '" + home +
                            "' && exec '" SHERD_PROGRAM
                            "' train tiny.yaml --set data.path=text.txt --set run.output_dir=run"});
  ASSERT_EQ(trained.exit_code, 0) << trained.err;
  const double loss = column("run", "val_loss").back();
  const std::string run = folder_.file("run");
  for (const std::string& path :
       {run, run + "/", run + "/checkpoints", run + "/checkpoints/latest",
        run + "/checkpoints/latest/", run + "/checkpoints/step-0000000006"}) {
    const test::ProgramOutcome eval = test::run_program(SHERD_PROGRAM, {"eval", path, "--json"});
    ASSERT_EQ(eval.exit_code, 0) << path << eval.err;
    EXPECT_EQ(nlohmann::json::parse(eval.out).at("val_loss"), loss) << path;
    EXPECT_EQ(test::run_program(SHERD_PROGRAM, {"verify", path}).exit_code, 0) << path;
  }
  const test::ProgramOutcome sample =
      test::run_program(SHERD_PROGRAM, {"sample", run, "--tokens", "5"});
  EXPECT_EQ(sample.exit_code, 0) << sample.err;
  std::filesystem::create_directories(folder_.file("empty/checkpoints"));
  const test::ProgramOutcome none =
      test::run_program(SHERD_PROGRAM, {"eval", folder_.file("empty")});
  EXPECT_EQ(none.exit_code, 3);
  EXPECT_NE(none.err.find("contains no checkpoint"), std::string::npos) << none.err;
}

}  // namespace
}  // namespace sherd::engine
