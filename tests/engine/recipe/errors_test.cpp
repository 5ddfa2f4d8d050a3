// What a bad recipe gets: one line that says where, what was expected and found, and what to do.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "tests/engine/recipe/recipe_support.h"

namespace sherd::engine {
namespace {

std::string tiny_with(const std::string& lines) {
  return kTinyRecipe + lines;
}  // from line 12 on

TEST(RecipeErrors, UnknownBlocks) {
  EXPECT_EQ(error_of(tiny_with("optimiser:\n  lr: 1\n")),
            "recipes/tiny.yaml:12: unknown block \"optimiser\"; did you mean \"optimizer\"?");
  EXPECT_EQ(error_of(tiny_with("scheduler:\n  type: wsd\n")),
            "recipes/tiny.yaml:12: unknown block \"scheduler\"; did you mean \"lr_scheduler\"?");
  EXPECT_EQ(
      error_of(tiny_with("quux:\n  a: 1\n")),
      "recipes/tiny.yaml:12: unknown block \"quux\"; blocks are run, model, moe, adapter, data, "
      "training, "
      "parallelism, zero_optimization, mixed_precision, loss_scaling, "
      "activation_checkpointing, optimizer, lr_scheduler, gradient_clipping, bad_steps, averages, "
      "checkpoint, "
      "memory, metrics, hooks, preference, distillation, diloco, powersgd, dgc and mtp.");
  EXPECT_EQ(error_of(tiny_with("learning_rate: 1\n")),
            "recipes/tiny.yaml:12: unknown key \"learning_rate\"; did you mean \"optimizer.lr\"?");
}

TEST(RecipeErrors, BlocksAndValuesInEachOthersPlace) {
  EXPECT_EQ(
      error_of(tiny_with("optimizer: adamw\n")),
      "recipes/tiny.yaml:12: \"optimizer\" is a block of keys, but holds \"adamw\". Write its "
      "keys below it, indented.");
  EXPECT_EQ(error_of(tiny_with("optimizer:\n  type:\n    name: adamw\n")),
            "recipes/tiny.yaml:13: optimizer.type is a block of keys; expected adamw, adam, "
            "sgd, lion, lamb, lars, muon, adafactor or dion.");
  EXPECT_EQ(error_of(tiny_with("optimizer.lr: 1\n")),
            "recipes/tiny.yaml:12: \"optimizer.lr\" is written as one key. Write \"lr:\" below "
            "\"optimizer:\", indented.");
  EXPECT_EQ(
      error_of_set("optimizer={lr: 1}"),
      "--set optimizer={lr: 1}: \"optimizer\" is a block of keys. Set one of them, as in --set "
      "optimizer.KEY=VALUE.");
  EXPECT_EQ(error_of_set("optimizer.lr"),
            "--set optimizer.lr: expected key=value, such as --set training.max_steps=100.");
}

TEST(RecipeErrors, RepeatedKeysAndBlocks) {
  EXPECT_EQ(error_of(tiny_with("optimizer:\n  lr: 1\n  lr: 2\n")),
            "recipes/tiny.yaml:14: \"optimizer.lr\" is written twice, first in line 13. Keep one.");
  EXPECT_EQ(error_of(tiny_with("data:\n  format: bin\n")),
            "recipes/tiny.yaml:12: \"data\" is written twice, first in line 6. Keep one.");
}

TEST(RecipeErrors, WrongTypes) {
  EXPECT_EQ(error_of(tiny_with("optimizer:\n  lr: fast\n")),
            "recipes/tiny.yaml:13: optimizer.lr is \"fast\"; expected a number of at least 0.");
  EXPECT_EQ(error_of_set("optimizer.lr='1'"),
            "--set optimizer.lr='1': optimizer.lr is \"1\"; expected a number of at least 0.");
  EXPECT_EQ(error_of_set("model.bias=yes"),
            "--set model.bias=yes: model.bias is \"yes\"; expected true or false.");
  EXPECT_EQ(
      error_of_set("training.max_steps=1.5"),
      "--set training.max_steps=1.5: training.max_steps is 1.5; expected a whole number from 1 "
      "to 1000000000000.");
  EXPECT_EQ(
      error_of_set("optimizer.betas=0.9"),
      "--set optimizer.betas=0.9: optimizer.betas is 0.9; expected a list of two numbers from "
      "0 to below 1.");
  EXPECT_EQ(error_of_set("optimizer.no_decay=bias"),
            "--set optimizer.no_decay=bias: optimizer.no_decay is \"bias\"; expected a list of "
            "texts, such as [\"a\", \"b\"].");
  EXPECT_EQ(error_of_set("run.seed="),
            "--set run.seed=: run.seed is empty; expected a whole number below 2^64.");
  EXPECT_EQ(error_of_set("run.seed=-1"),
            "--set run.seed=-1: run.seed is -1; expected a whole number below 2^64.");
  EXPECT_EQ(error_of(tiny_with("run:\n  name: [a]\n")),
            "recipes/tiny.yaml:13: run.name is [\"a\"]; expected text.");
  EXPECT_EQ(error_of(tiny_with("run:\n  name:\n")),
            "recipes/tiny.yaml:13: run.name is empty; expected text.");
}

TEST(RecipeErrors, OutOfRange) {
  EXPECT_EQ(error_of(tiny_with("zero_optimization:\n  stage: 4\n")),
            "recipes/tiny.yaml:13: zero_optimization.stage is 4; stages are 0, 1, 2 and 3.");
  EXPECT_EQ(error_of_set("model.num_layers=0"),
            "--set model.num_layers=0: model.num_layers is 0; expected a whole number from 1 to "
            "10000.");
  EXPECT_EQ(
      error_of_set("model.num_layers=99999999999999999999"),
      "--set model.num_layers=99999999999999999999: model.num_layers is 99999999999999999999; "
      "expected a whole number from 1 to 10000.");
  EXPECT_EQ(
      error_of_set("model.num_layers=1e300"),
      "--set model.num_layers=1e300: model.num_layers is 1e300; expected a whole number from 1 "
      "to 10000.");
  EXPECT_EQ(error_of_set("run.seed=18446744073709551616"),
            "--set run.seed=18446744073709551616: run.seed is 18446744073709551616; expected a "
            "whole number below 2^64.");
  EXPECT_EQ(error_of_set("model.dropout=1"),
            "--set model.dropout=1: model.dropout is 1; expected a number from 0 to below 1.");
  EXPECT_EQ(error_of_set("optimizer.eps=0"),
            "--set optimizer.eps=0: optimizer.eps is 0; expected a number above 0.");
  EXPECT_EQ(
      error_of_set("optimizer.betas=[0.9, 1.0]"),
      "--set optimizer.betas=[0.9, 1.0]: optimizer.betas is [0.9, 1.0]; expected a list of two "
      "numbers from 0 to below 1.");
  for (const char* steps : {"[5, 3]", "[0, 3]"}) {  // counted from 1, as on the screen
    EXPECT_EQ(error_of_set(fmt::format("metrics.trace_steps={}", steps)),
              fmt::format("--set metrics.trace_steps={0}: metrics.trace_steps is {0}; expected "
                          "[first, last] with 1 <= first <= last, or [].",
                          steps));
  }
  for (const char* not_finite : {".inf", ".nan", "nan", "inf", "-inf", "1e999"}) {
    const std::string set = std::string("optimizer.lr=") + not_finite;
    EXPECT_TRUE(error_of_set(set).ends_with("; expected a number of at least 0.")) << set;
  }
}

TEST(RecipeErrors, BadChoices) {
  EXPECT_EQ(
      error_of_set("model.norm=rmsnrom"),
      "--set model.norm=rmsnrom: model.norm is \"rmsnrom\"; expected layernorm or rmsnorm; did "
      "you mean \"rmsnorm\"?");
  EXPECT_EQ(
      error_of_set("lr_scheduler.type=step"),
      "--set lr_scheduler.type=step: lr_scheduler.type is \"step\"; expected constant, linear, "
      "cosine, wsd or "
      "inverse_sqrt.");
  EXPECT_EQ(error_of_set("run.device=gpu"),
            "--set run.device=gpu: run.device is \"gpu\"; expected auto, cpu or cuda; did "
            "you mean \"cuda\"?");
}

TEST(RecipeErrors, MissingKeys) {
  std::string text = kTinyRecipe;
  text.replace(text.find("  path: text.txt"), 16, "  # path");
  EXPECT_EQ(
      error_of(text),
      "recipes/tiny.yaml: data.path is missing: a file, a folder (the text files below it) or "
      "a glob such as texts/*.txt. Files written by training runs are skipped. With formats "
      "bytes, chars and text, each line of a .jsonl file and each row of a .parquet or .arrow file "
      "is one text, and so is any other file; .gz and .zst are unpacked. Texts shorter than a "
      "sequence are joined in the order of their "
      "names, and the run prints how many. Write it "
      "below \"data:\" or pass --set data.path=VALUE.");
  EXPECT_EQ(error_of("run:\n  seed: 1\n"),
            "recipes/tiny.yaml: model.num_layers, model.hidden_size, model.num_attention_heads, "
            "model.vocab_size, data.path, training.seq_length and training.max_steps are missing. "
            "Write them in the recipe or pass --set KEY=VALUE.");
  EXPECT_EQ(error_of_set("data.path="), "--set data.path=: data.path is \"\"; expected a name.");
  EXPECT_EQ(error_of_set("checkpoint.resume="),
            "--set checkpoint.resume=: checkpoint.resume is \"\"; expected auto, never or a "
            "checkpoint's folder.");
}

TEST(RecipeErrors, MalformedYaml) {
  EXPECT_EQ(error_of("model:\n  norm: [a\n  b: 2\n"),
            "recipes/tiny.yaml:3: malformed YAML: end of sequence flow not found.");
  EXPECT_EQ(error_of("model:\n\tnorm: a\n"),
            "recipes/tiny.yaml:2: the line is indented with a tab; YAML takes spaces only.");
  const std::string anchor = error_of("data:\n  path: *.txt\n");  // yaml-cpp 0.8 adds its name
  EXPECT_TRUE(anchor.starts_with(
      "recipes/tiny.yaml:2: malformed YAML: the referenced anchor is not defined"))
      << anchor;
  EXPECT_TRUE(anchor.ends_with(". Quote text that begins with * or &.")) << anchor;
  EXPECT_EQ(error_of_set("optimizer.betas=[0.9"),
            "--set optimizer.betas=[0.9: malformed YAML: end of sequence flow not found.");
  EXPECT_EQ(error_of(""), "recipes/tiny.yaml: the recipe is empty. docs/recipe.md lists its keys.");
  EXPECT_EQ(error_of("# nothing\n"),
            "recipes/tiny.yaml: the recipe is empty. docs/recipe.md lists its keys.");
  EXPECT_EQ(error_of("- a\n- b\n"),
            "recipes/tiny.yaml: the recipe is a list; expected blocks of keys.");
  EXPECT_EQ(error_of("a: 1\n---\nb: 2\n"),
            "recipes/tiny.yaml: holds several YAML documents; expected one.");
  EXPECT_NE(error_of("...\n,"), "no error") << "yaml-cpp alone never comes back from this";
  EXPECT_EQ(error_of(kTinyRecipe + std::string("? [1, 2]\n: 3\n")),
            "recipes/tiny.yaml:12: the name of a block is a list; expected a word.");
  EXPECT_TRUE(error_of(std::string(20000, '[')).starts_with("recipes/tiny.yaml"))
      << "nested deeply";
}

TEST(RecipeErrors, TheModelsShape) {
  EXPECT_EQ(
      error_of_set("model.num_attention_heads=5"),
      "--set model.num_attention_heads=5: model.hidden_size is 64, which 5 heads don't divide. "
      "Nearest multiples are 60 and 65; or set model.head_width.");
  EXPECT_EQ(error_of_set("model.num_kv_heads=3"),
            "--set model.num_kv_heads=3: model.num_kv_heads is 3, which doesn't divide "
            "num_attention_heads 4.");
  EXPECT_EQ(
      error_of_set("model.hidden_size=12"),
      "--set model.hidden_size=12: a head is 3 wide (hidden_size 12 / num_attention_heads 4), "
      "but positions: rope turns pairs. Make it even, or use positions: learned.");
  EXPECT_EQ(error_of(kTinyRecipe, {"model.hidden_size=12", "model.positions=learned"}), "no error");
  EXPECT_EQ(error_of_set("model.max_seq_length=8"),
            "--set model.max_seq_length=8: training.seq_length is 16, longer than "
            "model.max_seq_length 8. Raise the latter or leave it out.");
}

TEST(RecipeErrors, StepsInTheWrongOrder) {
  EXPECT_EQ(error_of(tiny_with("lr_scheduler:\n  warmup_steps: 101\n")),
            "recipes/tiny.yaml:13: lr_scheduler.warmup_steps is 101, more than training.max_steps "
            "100. Lower it to 100 or less.");
  EXPECT_EQ(error_of(kTinyRecipe, {"lr_scheduler.warmup_steps=50", "lr_scheduler.decay_steps=40"}),
            "--set lr_scheduler.warmup_steps=50: lr_scheduler.warmup_steps is 50, more than "
            "decay_steps 40, at which the rate is lowest.");
  EXPECT_EQ(error_of_set("metrics.trace_steps=[90, 101]"),
            "--set metrics.trace_steps=[90, 101]: metrics.trace_steps is [90, 101], but with "
            "training.max_steps 100 the last step is 100.");
}

TEST(RecipeErrors, BrokenBatchIdentity) {
  EXPECT_EQ(error_of(kTinyRecipe,
                     {"training.micro_batch_size=2", "training.gradient_accumulation_steps=3"}),
            "--set training.micro_batch_size=2: training.global_batch_size is 8, but "
            "micro_batch_size 2 x gradient_accumulation_steps 3 x 1 ranks = 6. Leave one of the "
            "three out, or write global_batch_size: 6.");
  EXPECT_EQ(error_of(kTinyRecipe, {}, 3),
            "--ranks 3: training.global_batch_size is 8, which isn't a multiple of "
            "gradient_accumulation_steps 1 x 3 ranks = 3. global_batch_size: 6 would be.");
  EXPECT_EQ(error_of(kTinyRecipe, {"training.micro_batch_size=16"}),
            "--set training.micro_batch_size=16: training.global_batch_size is 8, which isn't a "
            "multiple of micro_batch_size 16 x 1 ranks = 16. global_batch_size: 16 would be.");
  std::string text = kTinyRecipe;
  text.replace(text.find("global_batch_size"), 17, "gradient_accumulation_steps");
  EXPECT_EQ(error_of(text),
            "recipes/tiny.yaml:10: the batch size is missing. Give training.global_batch_size "
            "(sequences per step), training.micro_batch_size (sequences per rank at a time) or "
            "both.");
}

TEST(RecipeErrors, Ranks) {
  EXPECT_EQ(
      error_of(kTinyRecipe, {}, 0),
      "--ranks 0: parallelism.data_parallel_shard_degree is 0; expected a whole number from 1 "
      "to 65536.");
  EXPECT_EQ(
      error_of(kTinyRecipe, {"parallelism.data_parallel_shard_degree=2"}, 3),
      "--ranks 3: parallelism.data_parallel_shard_degree is also given with --set, and all degrees "
      "together make 2 ranks. Keep one of the two.");
  // As a search prints a layout's degrees.
  EXPECT_EQ(
      error_of(kTinyRecipe,
               {"parallelism.data_parallel_shard_degree=2", "parallelism.tensor_parallel_degree=2"},
               4),
      "no error");
}

TEST(RecipeErrors, RewindsComeBeforeTheRunEndsAndNotWithATeacher) {
  const std::vector<std::string> sets = {"bad_steps.max_loss=9", "bad_steps.rewind_after=3",
                                         "checkpoint.interval=1"};
  const auto with = [&](const std::string& more) {
    std::vector<std::string> all = sets;
    all.push_back(more);
    return all;
  };
  EXPECT_NO_THROW(resolve(kTinyRecipe, with("bad_steps.max_in_a_row=4")));
  EXPECT_NE(error_of(kTinyRecipe, with("bad_steps.max_in_a_row=3"))
                .find("bad_steps.rewind_after is 3, but the run ends after bad_steps.max_in_a_row "
                      "3 bad steps. Lower it."),
            std::string::npos);
  EXPECT_NE(error_of(kTinyRecipe, with("distillation.teacher=teacher.safetensors"))
                .find("distillation.teacher can't be combined with bad_steps.rewind_after."),
            std::string::npos);
}

TEST(RecipeErrors, AStepWhoseTokensAreCountedForTheNextHasFewerThanTwoToThe31) {
  const std::vector<std::string> sets = {"moe.num_experts=2", "moe.experts_per_token=1",
                                         "moe.balance_loss=0.01", "moe.balance_scope=previous_step",
                                         "training.micro_batch_size=1"};
  const auto with = [&](std::int64_t batch) {
    std::vector<std::string> all = sets;
    all.push_back(fmt::format("training.global_batch_size={}", batch));
    return all;
  };
  const std::int64_t most =
      ((std::int64_t{1} << 31) - 1) / resolve(kTinyRecipe, sets).values.training.seq_length;
  EXPECT_EQ(error_of(kTinyRecipe, with(most)), "no error");
  EXPECT_NE(error_of(kTinyRecipe, with(most + 1))
                .find("moe.balance_scope is previous_step, which counts at most 2147483647 tokens "
                      "in a step"),
            std::string::npos);
}

TEST(RecipeErrors, WeightsThatAreHeldOnceHaveNothingToBeComparedWith) {
  const std::string key = "training.weight_hash_interval=9";
  EXPECT_EQ(error_of(kTinyRecipe, {key}),
            "--set " + key +
                ": training.weight_hash_interval is 9, but with 1 rank at stage 0 each weight is "
                "held once, so nothing can be compared. Use 0.");
  const std::string two = "parallelism.data_parallel_shard_degree=2";
  EXPECT_NE(error_of(kTinyRecipe, {key, two, "zero_optimization.stage=3"})
                .find("with 2 ranks at stage 3 each weight is held once"),
            std::string::npos);
  EXPECT_NO_THROW(resolve(kTinyRecipe, {key, two, "zero_optimization.stage=2"}));
  EXPECT_NO_THROW(resolve(kTinyRecipe, {key, "parallelism.data_parallel_replicate_degree=2",
                                        "zero_optimization.stage=3"}));
}

TEST(RecipeErrors, PipelineRanksHoldDifferentWeightsAndExpertRanksTheirSlices) {
  const std::string key = "training.weight_hash_interval=9";
  const std::string pipeline = "parallelism.pipeline_parallel_degree=2";
  EXPECT_NE(error_of(kTinyRecipe, {key, pipeline}).find("each weight is held once"),
            std::string::npos);
  EXPECT_NO_THROW(resolve(kTinyRecipe, {key, pipeline, "model.tie_embeddings=true"}));
  EXPECT_NE(
      error_of(kTinyRecipe, {key, "moe.num_experts=4", "moe.experts_per_token=2",
                             "parallelism.data_parallel_shard_degree=2",
                             "parallelism.expert_parallel_degree=2", "zero_optimization.stage=3"})
          .find("each weight is held once"),
      std::string::npos);
}

TEST(RecipeErrors, ThereIsAMostNumberOfRanks) {
  EXPECT_EQ(error_of(kTinyRecipe, {"parallelism.data_parallel_replicate_degree=65536",
                                   "parallelism.data_parallel_shard_degree=65536"}),
            "--set parallelism.data_parallel_shard_degree=65536: the degrees of parallelism make "
            "4294967296 ranks; at most 65536 are supported.");
}

TEST(RecipeErrors, BatchGroups) {
  EXPECT_EQ(
      error_of(kTinyRecipe,
               {"parallelism.data_parallel_replicate_degree=2", "parallelism.batch_groups=4"}),
      "--set parallelism.batch_groups=4: parallelism.batch_groups is 4, but each of 2 replicas "
      "has one group. Use parallelism.batch_groups: 2, or leave it out.");
  EXPECT_EQ(
      error_of(kTinyRecipe, {"parallelism.batch_groups=2", "zero_optimization.grad_sync=boundary",
                             "training.gradient_accumulation_steps=2"}),
      "--set parallelism.batch_groups=2: parallelism.batch_groups is 2, whose sums are formed in "
      "every micro-step, and grad_sync is boundary. Use grad_sync: every_micro_step, or leave it "
      "out.");
  EXPECT_EQ(
      error_of(kTinyRecipe,
               {"parallelism.batch_groups=5", "training.gradient_accumulation_steps=4"}),
      "--set parallelism.batch_groups=5: parallelism.batch_groups is 5, but a step has 4 "
      "micro-batches, which this number of groups can't divide. parallelism.batch_groups: 4 would "
      "work.");
}

TEST(RecipeErrors, ReplicasThatDivideTheOptimizer) {
  const std::string key = "zero_optimization.shard_optimizer_over_replicas";
  EXPECT_EQ(error_of(kTinyRecipe, {key + "=true", "zero_optimization.stage=0"}),
            "--set " + key + "=true: " + key +
                " is true, but at stage 0 every rank holds the whole optimizer's state. Use stage: "
                "1, 2 or 3, or leave it out.");
  EXPECT_EQ(
      error_of(kTinyRecipe, {key + "=true", "zero_optimization.stage=1", "optimizer.type=muon"}),
      "--set " + key + "=true: " + key +
          " is true, but muon forms whole matrices out of their slices in every step, within "
          "a replica. Use another optimizer, or leave it out.");
}

TEST(RecipeErrors, TwoSourcesOfValidationData) {
  EXPECT_EQ(error_of(kTinyRecipe, {"data.validation_path=v", "data.validation_fraction=0.2"}),
            "--set data.validation_fraction=0.2: data.validation_fraction is 0.2, but "
            "data.validation_path is set too. Keep one.");
}

TEST(RecipeErrors, UnreadableFiles) {
  const auto error = [](const std::string& path) -> std::string {
    try {
      resolve_recipe({.path = path, .text = {}, .sets = {}, .ranks = {}});
    } catch (const UsageError& usage) {
      return usage.what();
    }
    return "no error";
  };
  const std::string folder = testing::TempDir();
  EXPECT_EQ(error(folder + "none.yaml"),
            folder + "none.yaml: can't read the recipe: No such file or directory.");
  EXPECT_EQ(error(folder), folder + ": is a folder; expected a recipe, a YAML file.");
  const std::string large = folder + "large.yaml";
  std::ofstream(large) << std::string((1 << 20) + 1, ' ');
  EXPECT_EQ(error(large),
            large + ": can't read the recipe: it has 1048577 bytes; at most 1048576 are allowed.");
  EXPECT_EQ(error("/dev/zero"), "/dev/zero: can't read the recipe: it isn't a regular file.");
  std::filesystem::remove(large);
}

}  // namespace
}  // namespace sherd::engine
