// What a person meant by a name that doesn't exist.
#include "engine/recipe/suggest.h"

#include <gtest/gtest.h>

#include "engine/recipe/fields.h"
#include "engine/recipe/foreign_names.h"
#include "tests/engine/recipe/recipe_support.h"

namespace sherd::engine {
namespace {

std::string tiny_with(const std::string& lines) {
  return kTinyRecipe + lines;
}  // from line 12 on

TEST(RecipeSuggestions, SuggestsTheKeyThatWasMeant) {
  EXPECT_EQ(error_of(tiny_with("optimizer:\n  eps: 1e-6\n  rate: 0.1\n")),
            "recipes/tiny.yaml:14: unknown key \"optimizer.rate\"; did you mean \"optimizer.lr\"?");
  const auto meant = [](const std::string& key) {
    const std::string error = error_of_set(key + "=1");
    const std::string begin = "--set " + key + "=1: unknown key \"" + key + "\"; did you mean \"";
    EXPECT_TRUE(error.starts_with(begin)) << error;
    return error.starts_with(begin) ? error.substr(begin.size(), error.size() - begin.size() - 2)
                                    : error;
  };
  EXPECT_EQ(meant("model.hiden_size"), "model.hidden_size");
  EXPECT_EQ(meant("model.hidden-size"), "model.hidden_size");
  EXPECT_EQ(meant("training.lr"), "optimizer.lr");
  EXPECT_EQ(meant("optimizer.learning_rate"), "optimizer.lr");
  EXPECT_EQ(meant("learning_rate"), "optimizer.lr");
  EXPECT_EQ(meant("training.batch_size"), "training.global_batch_size");
  EXPECT_EQ(meant("model.n_layer"), "model.num_layers");
  EXPECT_EQ(meant("training.steps"), "training.max_steps");
  EXPECT_EQ(meant("lr_scheduler.warmup"), "lr_scheduler.warmup_steps");
  EXPECT_EQ(meant("optimiser.type"), "optimizer.type");
  EXPECT_EQ(meant("lr_schedule.type"), "lr_scheduler.type");
}

TEST(RecipeSuggestions, PointsToTheListWhenNothingIsNear) {
  EXPECT_EQ(
      error_of_set("model.quux=1"),
      "--set model.quux=1: unknown key \"model.quux\"; `sherd recipe --help-fields` lists all "
      "keys.");
}

TEST(RecipeSuggestions, SayThatListsAreSetAsAWhole) {
  EXPECT_EQ(error_of_set("data.sources[1].weight=2"),
            "--set data.sources[1].weight=2: data.sources is a list, which is set as a whole: "
            "data.sources=[...].");
}

TEST(RecipeSuggestions, PreferTheBlockThatWasWritten) {
  const auto meant = [](const std::string& key) {
    const std::string error = error_of_set(key + "=1");
    const std::string begin = "did you mean \"";
    const std::size_t at = error.find(begin);
    if (at == std::string::npos) return error;
    const std::size_t from = at + begin.size();
    return error.substr(from, error.find('"', from) - from);
  };
  EXPECT_EQ(meant("optimizer.name"), "optimizer.type");
  EXPECT_EQ(meant("training.save_steps"), "checkpoint.interval");
  EXPECT_EQ(meant("lr_scheduler.name"), "lr_scheduler.type");
  EXPECT_EQ(meant("optim.type"), "optimizer.type");
  EXPECT_EQ(meant("zero_optimization.gradient_accumulation_steps"),
            "training.gradient_accumulation_steps");
  EXPECT_EQ(meant("checkpoint.keep_lst"), "checkpoint.keep_last");
  EXPECT_EQ(meant("run.out_dir"), "run.output_dir");
  EXPECT_EQ(meant("training.epochs"), "training.num_epochs");
  EXPECT_EQ(meant("seed"), "run.seed");
  // A general name of another block says nothing.
  EXPECT_EQ(meant("model.name").find("run.name"), std::string::npos);
}

TEST(RecipeSuggestions, EveryOneLettersSlipIsMended) {
  for (const Field& field : recipe_fields()) {
    const std::string key(field.key);
    if (field.name().size() < 5) continue;
    std::string wrong = key;
    wrong.erase(wrong.size() - 2, 1);
    EXPECT_NE(unknown_key(wrong).find("did you mean \"" + key + "\"?"), std::string::npos)
        << unknown_key(wrong);
  }
}

TEST(RecipeSuggestions, SayWhatOfOtherEnginesThereIsnt) {
  const auto starts = [](const std::string& key, const std::string& begin) {
    const std::string error = error_of_set(key + "=1");
    EXPECT_TRUE(error.starts_with("--set " + key + "=1: \"" + key + "\" isn't supported: " + begin))
        << error;
  };
  starts("dynamic_checkpoint", "SIGUSR2, or a file SAVE in run.output_dir, saves");
  starts("training.compile", "there is nothing to compile");
  EXPECT_EQ(error_of(tiny_with("wandb:\n  project: x\n")),
            "recipes/tiny.yaml:12: \"wandb\" isn't supported: hooks.on_evaluation can run "
            "recipes/hooks/wandb_sync.py, which sends metrics.jsonl to W&B.");
  EXPECT_EQ(
      error_of_set("wandb_project=x"),
      "--set wandb_project=x: unknown key \"wandb_project\"; did you mean "
      "\"hooks.on_evaluation\"? The script recipes/hooks/wandb_sync.py sends metrics.jsonl to "
      "W&B.");
  EXPECT_EQ(error_of_set("exit_duration_in_mins=230"),
            "--set exit_duration_in_mins=230: unknown key \"exit_duration_in_mins\"; did you mean "
            "\"checkpoint.max_minutes\"? It is a number of minutes.");
  EXPECT_EQ(error_of_set("training.num_train_epochs=3"),
            "--set training.num_train_epochs=3: unknown key \"training.num_train_epochs\"; did you "
            "mean \"training.num_epochs\"?");
}

TEST(RecipeSuggestions, EveryForeignNameLeadsToAKeyOrASentenceAndIsNoNameOfOurs) {
  for (const ForeignKey& foreign : foreign_keys()) {
    EXPECT_EQ(foreign.key.empty() || field_index(foreign.key) >= 0, true) << foreign.key;
    EXPECT_TRUE(!foreign.key.empty() || foreign.why.ends_with('.')) << foreign.words;
    for_each_word(foreign.words, [](std::string_view word) {
      EXPECT_LT(field_index(word), 0) << word;
      EXPECT_EQ(unknown_key(word).find("lists all keys"), std::string::npos) << word;
    });
  }
  for (const ForeignBlock& foreign : foreign_blocks()) {
    const std::string block(foreign.block);
    EXPECT_TRUE(block.empty() ? foreign.why.ends_with('.')
                              : unknown_block(block + "x").find(block) != std::string::npos)
        << foreign.words;
    for_each_word(foreign.words, [](std::string_view word) {
      EXPECT_EQ(unknown_block(word).find("blocks are"), std::string::npos) << word;
    });
  }
}

TEST(RecipeSuggestions, KnowOtherEnginesWordsForChoices) {
  for (const auto& [set, choice] : {std::pair("run.device=gpu", "cuda"),
                                    std::pair("mixed_precision.param_dtype=bfloat16", "bf16"),
                                    std::pair("optimizer.type=adamw_torch", "adamw"),
                                    std::pair("model.positions=rotary", "rope"),
                                    std::pair("activation_checkpointing.mode=true", "full"),
                                    std::pair("loss_scaling.mode=true", "dynamic")}) {
    EXPECT_TRUE(error_of_set(set).ends_with(std::string("did you mean \"") + choice + "\"?"))
        << error_of_set(set);
  }
}

TEST(EditDistance, CountsSlipsOfThePen) {
  EXPECT_EQ(edit_distance("kitten", "sitting"), 3);
  EXPECT_EQ(edit_distance("rmsnorm", "rmsnrom"), 1);
  EXPECT_EQ(edit_distance("hidden-Size", "hidden_size"), 0);
  EXPECT_EQ(edit_distance("", "abc"), 3);
}

}  // namespace
}  // namespace sherd::engine
