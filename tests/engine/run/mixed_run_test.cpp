// Runs with several sources and stages, and steps that aren't applied.
#include "tests/engine/run/mixed_run.h"

#include <cmath>

#include "core/error.h"
#include "engine/inference/evaluate.h"
#include "engine/run/show_data.h"
#include "tests/support/values/error_text.h"

namespace sherd::testing {
namespace {

constexpr const char* kStages = "[{steps: 17}, {steps: 23, weights: [1, 3]}, {weights: [5, 2]}]";

// Three stages, two sources, accumulation, an average and skipped steps: stopped after each of 60
// steps, and continued on 1, 2, 3 and 4 ranks in turn.
TEST_F(MixedRun, StoppedAtEveryStepOnAnyRanksComputesTheSameBits) {
  folder_.write("held.txt", "what nobody trains on, and which is long enough to be evaluated");
  const std::string data = fmt::format("{}, stages: {}, validation_sets: [{{path: {}}}]", sources(),
                                       kStages, folder_.file("held.txt"));
  const auto text = [&](const std::string& output, int max_steps) {
    return recipe_text(output, data, fmt::format("max_steps: {}", max_steps),
                       "checkpoint: {interval: 1000}\n"
                       "averages: {type: ema, decay: 0.9, start_step: 5, evaluate: true}\n");
  };
  train(text("whole", 60));
  for (int step = 1; step <= 60; ++step) train(text("cut", step), 1 + step % 4);
  const std::vector<json> whole = steps_of("whole"), cut = steps_of("cut");
  ASSERT_EQ(whole.size(), 60u);
  EXPECT_EQ(whole, cut);
  const json last = lines_of("whole", "val_loss").back();
  EXPECT_EQ(lines_of("cut", "val_loss").back(), last);
  EXPECT_NE(last["val_loss"], last["val_loss_average"]);
  EXPECT_EQ(digests("cut", 60), digests("whole", 60)) << "of weights, moments and the average";
  const auto is_bad = [](const json& step) { return step[4] != ""; };
  EXPECT_GT(std::count_if(whole.begin(), whole.end(), is_bad), 0);
  EXPECT_LT(std::count_if(whole.begin(), whole.end(), is_bad), 30);
  EXPECT_EQ(whole[59][5]["english"].get<int>() + whole[59][5]["code"].get<int>(), 60 * 12 * 8);
}

// The same with stages of other sequence lengths and batch sizes, and a rate that follows them.
TEST_F(MixedRun, StagesOfOtherShapesAreCrossedWithTheSameBits) {
  folder_.write("held.txt", "what nobody trains on, and which is long enough to be evaluated");
  const std::string data = fmt::format(
      "{}, stages: [{{steps: 5}}, {{tokens: 1344, weights: [1, 3], seq_length: 16}}, "
      "{{steps: 4, weights: [5, 2], seq_length: 16, global_batch_size: 24, micro_batch_size: 2}}, "
      "{{steps: 5, global_batch_size: 24}}, {{seq_length: 4}}], validation_sets: [{{path: {}}}]",
      sources(), folder_.file("held.txt"));
  const auto text = [&](const std::string& output, int max_steps) {
    std::string recipe =
        recipe_text(output, data, fmt::format("max_steps: {}, eval_interval: 4", max_steps),
                    "checkpoint: {interval: 1000}\n"
                    "averages: {type: ema, decay: 0.9, start_step: 5, evaluate: true}\n");
    return recipe.replace(recipe.find("wsd_decay_steps: 20"), 19,
                          "wsd_decay_steps: 20, batch_size_scaling: sqrt");
  };
  train(text("whole", 28));
  for (int step = 1; step <= 28; ++step) train(text("cut", step), 1 + step % 4);
  const std::vector<json> whole = steps_of("whole"), cut = steps_of("cut");
  ASSERT_EQ(whole.size(), 28u);
  EXPECT_EQ(whole, cut);
  EXPECT_EQ(digests("cut", 28), digests("whole", 28)) << "of weights, moments and the average";
  // 5 x 96, 7 x 192, 4 x 384, 5 x 192 and 7 x 48 tokens.
  EXPECT_EQ(whole[27][5]["english"].get<int>() + whole[27][5]["code"].get<int>(),
            480 + 1344 + 1536 + 960 + 336);
  // On ranks whose number doesn't divide the stages' batches.
  const auto loss =
      engine::evaluate_checkpoint({.checkpoint = folder_.file("whole/checkpoints/step-0000000028"),
                                   .ranks = 3,
                                   .machine = engine::cpu_machine()});
  EXPECT_TRUE(std::isfinite(loss.loss));
  EXPECT_FALSE(loss.is_of_other_data);
}

// Rows of different work are in an order of their own, which follows from micro-batches and groups.
TEST_F(MixedRun, SeparateDocumentsHaveTheSameBitsOnAnyRanksAndReplicas) {
  std::string lines;
  for (int i = 0; i < 200; ++i) {
    lines += fmt::format("{{\"text\": \"{}\"}}\n", std::string(2 + i * 5 % 7, 'a' + i % 23));
  }
  folder_.write("lines.jsonl", lines);
  const auto run = [&](const std::string& output, int ranks, const std::string& parallelism) {
    std::string text =
        recipe_text(output,
                    fmt::format("sources: [{{path: {}, documents: separate}}, {{path: {}}}], "
                                "validation_fraction: 0",
                                folder_.file("lines.jsonl"), folder_.file("code.txt")),
                    "max_steps: 4", fmt::format("parallelism: {{{}}}\n", parallelism));
    train(text.replace(text.find("micro_batch_size: 1"), 19, "micro_batch_size: 2"), ranks);
    return steps_of(output);
  };
  const std::vector<json> one = run("one", 1, "batch_groups: 1");
  EXPECT_EQ(run("three", 3, "batch_groups: 1"), one);
  EXPECT_EQ(run("replicas", 1, "data_parallel_replicate_degree: 2"),
            run("groups", 1, "batch_groups: 2"));
}

// A run with one text, which begins with short sequences.
TEST_F(MixedRun, AStageWithAShapeIsARunOfThatShape) {
  const std::string plain =
      fmt::format("path: {}, validation_fraction: 0", folder_.file("english.txt"));
  const std::string saves = "checkpoint: {interval: 100}\n";
  train(recipe_text("staged", plain + ", stages: [{steps: 3, seq_length: 4}, {}]", "max_steps: 6",
                    saves));
  std::string shorter = recipe_text("shorter", plain, "max_steps: 3", saves);
  shorter.replace(shorter.find("seq_length: 8"), 13, "seq_length: 4");
  train(shorter);
  const std::vector<json> staged = steps_of("staged"), first = steps_of("shorter");
  for (std::size_t i = 0; i < 3; ++i) EXPECT_EQ(staged[i][1], first[i][1]) << i;
  ASSERT_EQ(staged.size(), 6u);
}

TEST_F(MixedRun, SaysWhichShapesItsStagesHave) {
  const std::string text = recipe_text(
      "run", sources() + ", stages: [{steps: 5}, {seq_length: 16, global_batch_size: 6}]",
      "max_steps: 9", "checkpoint: {interval: 100}\n");
  const std::string said = train(text);
  for (const char* line :
       {"\nsteps 1 to 5: 12 sequences of 8 tokens\n", "\nsteps 6 to 9: 6 sequences of 16 tokens\n",
        " tokens of english were used before, cut differently\n",
        "\nenglish: 576 tokens in 9 steps, "}) {
    EXPECT_NE(said.find(line), std::string::npos) << line << "\n" << said;
  }
}

// Documents of training are packed for a step's size. Those of validation don't change its order.
TEST_F(MixedRun, ALargerBatchPacksDocumentsAnewButNotJoinedTexts) {
  std::string lines;
  for (int i = 0; i < 200; ++i) {
    lines += fmt::format("{{\"text\": \"{}\"}}\n", std::string(2 + i * 5 % 7, 'a' + i % 23));
  }
  folder_.write("lines.jsonl", lines);
  const std::string documents =
      fmt::format("[{{path: {}, documents: separate}}]", folder_.file("lines.jsonl"));
  const auto said = [&](const std::string& output, const std::string& data) {
    return train(recipe_text(output, data + ", stages: [{steps: 3}, {global_batch_size: 24}]",
                             "max_steps: 5", "checkpoint: {interval: 100}\n"));
  };
  const std::string anew = " were used before, cut differently\n";
  EXPECT_NE(said("packed", "sources: " + documents + ", validation_fraction: 0").find(anew),
            std::string::npos);
  const std::string joined = said("joined", sources() + ", validation_sets: " + documents);
  EXPECT_EQ(joined.find(anew), std::string::npos) << joined;
}

TEST_F(MixedRun, AStageByEpochsEndsWithTheStepOfTheLastSequenceOfARareSource) {
  // Code has 1 of 1,024 sequences. The first is needed, and it isn't the last of them.
  const std::string data = sources() +
                           ", stages: [{epochs: 0.001, epochs_of: code, weights: [1023, 1]}, "
                           "{weights: [1, 0]}]";
  train(recipe_text("rare", data, "max_steps: 60"));
  std::size_t first = 0;  // step that code is first in
  for (const json& step : lines_of("rare", "grad_norm")) {
    if (first == 0 && step["source_tokens"]["code"] > 0) first = step["step"];
  }
  EXPECT_LT(first, 60u);
  EXPECT_NE(folder_.read("rare/recipe.yaml").find(fmt::format("{{steps: {},", first)),
            std::string::npos)
      << folder_.read("rare/recipe.yaml");
}

TEST_F(MixedRun, RefusesShapesThatItCantHave) {
  const auto refusal = [&](const std::string& stages, const std::string& more) {
    return test::error_text<UsageError>([&] {
      train(recipe_text("run", sources() + ", stages: " + stages, "max_steps: 9", more));
    });
  };
  const std::string saves = "checkpoint: {interval: 100}\n";
  EXPECT_EQ(refusal("[{steps: 5}, {seq_length: 16}]", "checkpoint: {interval: 0}\n"),
            "mine.yaml:3: data.stages change the sequence length or batch size, and a run does "
            "that through a checkpoint, but checkpoint.interval is 0. Set it.");
  EXPECT_EQ(refusal("[{steps: 5}, {global_batch_size: 9, micro_batch_size: 2}]", saves),
            "data.stages[1]: a global_batch_size of 9 isn't a multiple of micro_batch_size 2 x 1 "
            "ranks = 2.");
  EXPECT_NE(test::error_text<DataError>([&] {
              train(recipe_text("run", sources() + ", stages: [{steps: 5, seq_length: 900}, {}]",
                                "max_steps: 9", saves));
            }).find("text shorter than one sequence: training.seq_length 900 needs 901 tokens"),
            std::string::npos);
}

// The second stage's text is another one, whose losses are far above those of the window.
TEST_F(MixedRun, AStageOfOtherDataIsNoBadStep) {
  for (const char* shape : {"", ", seq_length: 4"}) {
    const std::string name = fmt::format("run{}", *shape == 0 ? 1 : 2);
    train(recipe_text(name,
                      fmt::format("{}, stages: [{{steps: 40, weights: [1, 0]}}, "
                                  "{{weights: [0, 1]{}}}]",
                                  sources(), shape),
                      "max_steps: 44", "checkpoint: {interval: 100}\n"));
    const std::vector<json> steps = steps_of(name);
    ASSERT_EQ(steps.size(), 44u);
    EXPECT_GT(steps[40][1].get<double>(), steps[39][1].get<double>() + 1.0);
    for (std::size_t i = 40; i < 44; ++i) EXPECT_EQ(steps[i][4], "") << i;
  }
}

TEST_F(MixedRun, SaysWhatItIsMadeOf) {
  const std::string text = recipe_text("run", sources() + ", stages: " + kStages, "max_steps: 60");
  const std::string shown = engine::shown_data(
      engine::resolve_recipe({.path = "mine.yaml", .text = text, .sets = {}, .ranks = {}}),
      {.samples = 2});
  for (const char* line : {"english: 1 file, 900 tokens train, 0 tokens validation",
                           "\nsteps 1 to 17: in 1024 sequences, 683 of english, 341 of code\n",
                           "\nsteps 18 to 40: in 1024 sequences, 256 of english, 768 of code\n",
                           "\nsteps 41 to 60: in 1024 sequences, 731 of english, 293 of code\n",
                           " sequences in 60 steps, ", "\nsequence 1 of step 1, of english: 8 "}) {
    EXPECT_NE(shown.find(line), std::string::npos) << line << "\n" << shown;
  }
  const std::string shorter =
      recipe_text("run", sources() + ", stages: " + kStages, "max_steps: 30");
  EXPECT_NE(engine::shown_data(engine::resolve_recipe(
                                   {.path = "mine.yaml", .text = shorter, .sets = {}, .ranks = {}}),
                               {.samples = 0})
                .find("\ndata.stages[2] begins with step 41, after the run's end\n"),
            std::string::npos);
}

TEST_F(MixedRun, SaysWhichParametersAreInWhichGroup) {
  const std::string data =
      fmt::format("path: {}, validation_fraction: 0", folder_.file("english.txt"));
  std::string text = recipe_text("run", data, "max_steps: 1");
  const auto at = text.find("optimizer");
  text.replace(at, text.find('\n', at) - at,
               "optimizer: {groups: [{parameters: [\"embedding.*\", \"head.*\"], lr_factor: 0.5, "
               "weight_decay: 0}, {parameters: [\"*\"], eps: 1e-6}]}");
  const std::string said = train(text);
  EXPECT_NE(said.find("group 1 (embedding.*, head.*): 2 tensors, 8192 parameters, 0.5 x lr, decay "
                      "0\ngroup 2 (*): "),
            std::string::npos)
      << said;
  EXPECT_NE(said.find(" parameters, eps 1e-06\nno group: 0 tensors, 0 parameters\n"),
            std::string::npos)
      << said;
}

TEST_F(MixedRun, RepeatingASourceTooOftenIsRefused) {
  std::string data = sources();
  data.replace(data.find("weight: 2"), 9, "weight: 2, max_epochs: 3");
  EXPECT_EQ(test::error_text<DataError>([&] { train(recipe_text("run", data, "max_steps: 60")); }),
            "data.sources: \"english\" would be repeated 4.32 times in 60 steps, and its "
            "max_epochs is 3. Lower its weight, or give it more text.");
}

TEST_F(MixedRun, ResumesWithOtherStagesToComeButNotWithOthersThatHaveBegun) {
  const auto text = [&](const std::string& stages, int max_steps) {
    return recipe_text("run", sources() + ", stages: " + stages,
                       fmt::format("max_steps: {}", max_steps));
  };
  train(text("[{steps: 4}, {steps: 6, weights: [1, 3]}, {}]", 6));
  const std::string error = test::error_text<UsageError>(
      [&] { train(text("[{steps: 4, weights: [1, 1]}, {steps: 6, weights: [1, 3]}, {}]", 12)); });
  EXPECT_NE(error.find("data (fingerprint) is "), std::string::npos) << error;
  EXPECT_NE(test::error_text<UsageError>([&] {
              train(text("[{steps: 4}, {steps: 1, weights: [1, 3]}, {}]", 12));
            }).find("data (fingerprint)"),
            std::string::npos)
      << "the second stage has had two steps";
  train(text("[{steps: 4}, {steps: 2, weights: [1, 3]}, {steps: 2, weights: [0, 1]}, {}]", 12));
  EXPECT_EQ(steps_of("run").size(), 12u);
}

// A run of one text that later gets another source.
TEST_F(MixedRun, APlainRunContinuesAsAFirstStage) {
  const std::string plain =
      fmt::format("path: {}, validation_fraction: 0", folder_.file("english.txt"));
  train(recipe_text("run", plain, "max_steps: 5"));
  train(recipe_text("run", sources() + ", stages: [{steps: 5, weights: [1, 0]}, {}]",
                    "max_steps: 8"));
  train(recipe_text("whole", sources() + ", stages: [{steps: 5, weights: [1, 0]}, {}]",
                    "max_steps: 8"));
  const std::vector<json> run = steps_of("run"), whole = steps_of("whole");
  ASSERT_EQ(run.size(), 8u);
  for (std::size_t i = 0; i < 8; ++i) EXPECT_EQ(run[i][1], whole[i][1]) << i;
}

TEST_F(MixedRun, KeepsAnAverageThatCommandsCanUse) {
  const std::string plain =
      fmt::format("path: {}, validation_fraction: 0.2", folder_.file("english.txt"));
  const auto train_with = [&](const std::string& output, const std::string& averages) {
    train(recipe_text(output, plain, "max_steps: 12, eval_interval: 4",
                      "checkpoint: {interval: 12}\n" + averages));
  };
  train_with("run", "averages: {type: mean, start_step: 6, evaluate: true}\n");
  train_with("without", "");
  EXPECT_EQ(steps_of("run"), steps_of("without")) << "evaluating the average changed nothing";
  const std::string checkpoint = folder_.file("run/checkpoints/step-0000000012");
  const json last = lines_of("run", "val_loss").back();
  const auto loss = [&](bool average) {
    return engine::evaluate_checkpoint({.checkpoint = checkpoint,
                                        .ranks = 2,
                                        .machine = engine::cpu_machine(),
                                        .average = average})
        .loss;
  };
  EXPECT_EQ(loss(false), last["val_loss"]);
  EXPECT_EQ(loss(true), last["val_loss_average"]);
  EXPECT_NE(loss(true), loss(false));
  EXPECT_NE(test::error_text<DataError>([&] {
              engine::evaluate_checkpoint(
                  {.checkpoint = folder_.file("without/checkpoints/step-0000000012"),
                   .ranks = 1,
                   .average = true});
            }).find("has no average of the weights"),
            std::string::npos);
}

// With every stage and type, in a pipeline, with experts, and while a save is being written.
TEST_F(MixedRun, EvaluatingTheAverageNeverChangesTheTraining) {
  const std::string plain =
      fmt::format("path: {}, validation_fraction: 0.2", folder_.file("english.txt"));
  const auto losses = [&](const std::string& output, const std::string& how, bool evaluates) {
    std::string text =
        recipe_text(output, plain, "max_steps: 6, eval_interval: 1",
                    fmt::format("checkpoint: {{interval: 1, staging_mib: 4}}\n"
                                "averages: {{type: ema, decay: 0.8, evaluate: {}}}\n",
                                evaluates));
    const auto at = text.find("zero_optimization");
    text.replace(at, text.find('\n', at) - at, how);
    const auto layers = text.find("num_layers: 1");
    text.replace(layers, 13, "num_layers: 2");
    train(text, how.find("pipeline") == std::string::npos ? 2 : 1);
    return std::pair(steps_of(output), digests(output, 6));
  };
  int number = 0;
  for (const std::string& how :
       {std::string("zero_optimization: {stage: 0}"), std::string("zero_optimization: {stage: 1}"),
        std::string("zero_optimization: {stage: 3}"),
        std::string("zero_optimization: {stage: 1}\nmixed_precision: {param_dtype: bf16}"),
        std::string("zero_optimization: {stage: 3}\nmixed_precision: {param_dtype: bf16}"),
        std::string("zero_optimization: {stage: 2}\nmoe: {num_experts: 4, ffn_hidden_size: 8, "
                    "correction_bias: true}"),
        std::string("parallelism: {pipeline_parallel_degree: 2}")}) {
    SCOPED_TRACE(how);
    const std::string with = fmt::format("with{}", ++number);
    EXPECT_EQ(losses(with, how, true), losses(fmt::format("without{}", number), how, false));
    for (const json& line : lines_of(with, "val_loss")) {
      EXPECT_TRUE(line["val_loss_average"].is_number());
      if (line["step"] == 1) continue;  // the average begins as the weights are
      EXPECT_NE(line["val_loss_average"], line["val_loss"]) << line;
    }
  }
}

TEST_F(MixedRun, EndsAfterTooManyBadStepsAndHasChangedNothing) {
  const std::string data =
      fmt::format("path: {}, validation_fraction: 0", folder_.file("english.txt"));
  std::string text = recipe_text("run", data, "max_steps: 9", "checkpoint: {interval: 1}\n");
  const auto at = text.find("bad_steps");
  text.replace(at, text.find('\n', at) - at, "bad_steps: {max_loss: 0.5, max_in_a_row: 3}");
  const std::string error = test::error_text<TrainingError>([&] { train(text); });
  EXPECT_TRUE(error.find("3 steps in a row weren't applied (bad_steps.max_in_a_row); the last: "
                         "loss 5.") != std::string::npos)
      << error;
  const std::vector<json> steps = steps_of("run");
  ASSERT_EQ(steps.size(), 2u) << "the third ended the run";
  EXPECT_NE(steps[0][4], "");
  EXPECT_NE(train(recipe_text("run", data, "max_steps: 3")).find("step 2"), std::string::npos)
      << "a resume with other limits continues";
  EXPECT_EQ(steps_of("run").size(), 3u);
}

}  // namespace
}  // namespace sherd::testing
