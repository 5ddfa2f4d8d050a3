// All that is wrong with a recipe at once, and texts that aren't YAML.
#include <gtest/gtest.h>

#include "tests/engine/recipe/recipe_support.h"

namespace sherd::engine {
namespace {

std::vector<std::string> errors_of(const std::string& text,
                                   const std::vector<std::string>& sets = {},
                                   std::optional<std::int64_t> ranks = {}) {
  try {
    resolve(text, sets, ranks);
  } catch (const RecipeErrors& errors) {
    return errors.lines();
  }
  return {};
}

using Lines = std::vector<std::string>;

TEST(RecipeProblems, OfSingleKeysAreAllThere) {
  EXPECT_EQ(
      errors_of("model:\n  num_layers: two\n  num_layers: 3\n  hiden_size: 64\n"
                "  num_attention_heads: 0\nquux:\n  a: 1\ndata: text\n"
                "training: {seq_length: 16, max_steps: 10}\n",
                {"optimizer.lr=fast", "nothing"}, 0),
      (Lines{
          "recipes/tiny.yaml:3: \"model.num_layers\" is written twice, first in line 2. Keep one.",
          "recipes/tiny.yaml:4: unknown key \"model.hiden_size\"; did you mean "
          "\"model.hidden_size\"?",
          "recipes/tiny.yaml:6: unknown block \"quux\"; blocks are run, model, moe, adapter, data, "
          "training, "
          "parallelism, zero_optimization, mixed_precision, loss_scaling, "
          "activation_checkpointing, optimizer, lr_scheduler, gradient_clipping, bad_steps, "
          "averages, checkpoint, "
          "memory, metrics, hooks, preference, distillation, diloco, powersgd, dgc and mtp.",
          "recipes/tiny.yaml:8: \"data\" is a block of keys, but holds \"text\". Write its keys "
          "below it, indented.",
          "recipes/tiny.yaml:2: model.num_layers is \"two\"; expected a whole number from 1 to "
          "10000.",
          "recipes/tiny.yaml:5: model.num_attention_heads is 0; expected a whole number from 1 "
          "to 16384.",
          "--set optimizer.lr=fast: optimizer.lr is \"fast\"; expected a number of at least 0.",
          "--set nothing: expected key=value, such as --set training.max_steps=100.",
          "--ranks 0: parallelism.data_parallel_shard_degree is 0; expected a whole number from 1 "
          "to 65536.",
          "recipes/tiny.yaml: model.hidden_size, model.vocab_size and data.path are missing. "
          "Write them in the recipe or pass --set KEY=VALUE."}));
}

TEST(RecipeProblems, BetweenKeysAreAllThere) {
  EXPECT_EQ(
      errors_of(kTinyRecipe, {"model.num_kv_heads=3", "training.micro_batch_size=3",
                              "lr_scheduler.warmup_steps=200",
                              "mixed_precision.stochastic_rounding=true", "run.name="}),
      (Lines{"--set training.micro_batch_size=3: training.global_batch_size is 8, which isn't a "
             "multiple of micro_batch_size 3 x 1 ranks = 3. global_batch_size: 6 would be.",
             "--set model.num_kv_heads=3: model.num_kv_heads is 3, which doesn't divide "
             "num_attention_heads 4.",
             "--set lr_scheduler.warmup_steps=200: lr_scheduler.warmup_steps is 200, more than "
             "training.max_steps 100. Lower it to 100 or less.",
             "--set run.name=: run.name is \"\"; expected a name.",
             "--set mixed_precision.stochastic_rounding=true: "
             "mixed_precision.stochastic_rounding is for optimizer_state_dtype: bf16. Set that, "
             "or leave this out."}));
}

TEST(RecipeProblems, AWrongValueBringsNoErrorsAboutValuesThatFollowFromIt) {
  EXPECT_EQ(errors_of(kTinyRecipe, {"model.num_attention_heads=none"}).size(), 1u);
  EXPECT_EQ(errors_of(kTinyRecipe, {"model.num_attention_heads=5"}).size(), 1u);
  EXPECT_EQ(errors_of(kTinyRecipe, {"training.max_steps=0", "lr_scheduler.warmup_steps=5"}).size(),
            1u);
}

TEST(RecipeProblems, OtherLanguagesAreNamed) {
  EXPECT_EQ(
      error_of("[model]\nnum_layers = 2\n\n[training]\nsteps = 10\n"),
      "recipes/tiny.yaml:1: \"[model]\" is TOML; a recipe is YAML. Write \"model:\", and below "
      "it, indented, \"key: value\".");
  EXPECT_EQ(
      error_of("# nanoGPT\nout_dir = 'out'\nn_layer = 6\n"),
      "recipes/tiny.yaml:2: \"out_dir =\" isn't YAML. Write \"out_dir:\" and the value, below "
      "the name of its block.");
  EXPECT_EQ(error_of("model:\n  norm: rmsnorm\n\tbias: true\n"),
            "recipes/tiny.yaml:3: the line is indented with a tab; YAML takes spaces only.");
}

}  // namespace
}  // namespace sherd::engine
