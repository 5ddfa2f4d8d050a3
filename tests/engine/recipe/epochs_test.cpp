// Runs that are counted in epochs: what is known before the data are open, and after.
#include <gtest/gtest.h>

#include "engine/recipe/fields.h"
#include "tests/engine/recipe/recipe_support.h"
#include "tests/support/values/error_text.h"

namespace sherd::engine {
namespace {

using Kind = Origin::Kind;

std::string in_epochs() {
  std::string text = kTinyRecipe;
  text.replace(text.find("max_steps: 100"), 14, "num_epochs: 3");
  return text;
}

std::string refusal(const ResolvedRecipe& recipe, std::int64_t steps) {
  return test::error_text<RecipeErrors>([&] { with_epoch_steps(recipe, steps); });
}

TEST(Epochs, GiveTheNumberOfStepsAndWhatFollowsFromItOnceTheDataAreOpen) {
  const ResolvedRecipe before = resolve(in_epochs(), {"lr_scheduler.warmup_ratio=0.1"});
  EXPECT_EQ(before.values.training.max_steps, 0);
  EXPECT_EQ(before.origin("training.max_steps").kind, Kind::kNotYet);
  const ResolvedRecipe after = with_epoch_steps(before, 42);
  EXPECT_EQ(after.values.training.max_steps, 42);
  EXPECT_EQ(after.values.lr_scheduler.warmup_steps, 5) << "a tenth, up to the next whole step";
  EXPECT_EQ(after.values.lr_scheduler.decay_steps, 42);
  EXPECT_EQ(after.origin("training.max_steps").kind, Kind::kDerived);
  const ResolvedRecipe set =
      with_epoch_steps(resolve(in_epochs(), {"lr_scheduler.decay_steps=7"}), 42);
  EXPECT_EQ(set.values.lr_scheduler.decay_steps, 7) << "a person said so";
}

TEST(Epochs, LeaveARecipeThatCountsStepsAsItIs) {
  EXPECT_EQ(with_epoch_steps(resolve(kTinyRecipe), 0).yaml(), resolve(kTinyRecipe).yaml());
}

TEST(Epochs, ARecipeIsPrintedWithWhatIsKnownAndResolvesToTheSameBeforeAndAfter) {
  const ResolvedRecipe before = resolve(in_epochs(), {"lr_scheduler.warmup_ratio=0.1"});
  EXPECT_NE(before.yaml().find("\n  # max_steps: from the data\n"), std::string::npos);
  const ResolvedRecipe read = resolve(before.yaml());
  EXPECT_EQ(with_epoch_steps(read, 42).values.lr_scheduler.warmup_steps, 5);
  const ResolvedRecipe after = with_epoch_steps(before, 42);
  EXPECT_NE(after.yaml().find("\n  max_steps: 42"), std::string::npos);
  const ResolvedRecipe again = resolve(after.yaml());
  EXPECT_EQ(again.values.training.num_epochs, 3);
  EXPECT_EQ(with_epoch_steps(again, 42).values.training.max_steps, 42);
}

TEST(Epochs, WithAnotherNumberOfStepsAreRefusedInOneLine) {
  const ResolvedRecipe both = resolve(kTinyRecipe, {"training.num_epochs=3"});
  EXPECT_EQ(refusal(both, 100), "(no error)");
  EXPECT_EQ(refusal(both, 42),
            "--set: training.num_epochs 3 is 42 steps of these data, but training.max_steps is "
            "100. Leave one of them out, or set num_epochs: 0.");
}

TEST(Epochs, RulesAboutStepsWaitForTheData) {
  const ResolvedRecipe recipe = resolve(in_epochs(), {"lr_scheduler.warmup_steps=43"});
  EXPECT_EQ(refusal(recipe, 43), "(no error)");
  EXPECT_EQ(refusal(recipe, 42),
            "--set: lr_scheduler.warmup_steps is 43, more than training.max_steps 42. Lower it to "
            "42 or less.");
  EXPECT_EQ(refusal(resolve(in_epochs(), {"metrics.trace_steps=[1, 50]"}), 42),
            "--set: metrics.trace_steps is [1, 50], but with training.max_steps 42 the last step "
            "is 42.");
}

TEST(Epochs, OrStepsMustBeGiven) {
  std::string neither = kTinyRecipe;
  neither.erase(neither.find("  max_steps: 100\n"), 17);
  EXPECT_TRUE(error_of(neither).starts_with("recipes/tiny.yaml: training.max_steps is missing: "))
      << error_of(neither);
  EXPECT_EQ(error_of(neither), error_of(neither, {"training.num_epochs=0"}));
  EXPECT_EQ(error_of(neither, {"training.num_epochs=-1"}),
            "--set training.num_epochs=-1: training.num_epochs is -1; expected a whole number from "
            "0 to 1000000.");
}

TEST(EarlyStopping, NeedsEvaluationsAndSomethingToEvaluateOn) {
  EXPECT_EQ(error_of(kTinyRecipe, {"training.early_stopping_patience=2"}),
            "--set training.early_stopping_patience=2: training.early_stopping_patience is 2, but "
            "training.eval_interval is 0: nothing is evaluated before the end. Set eval_interval.");
  EXPECT_EQ(error_of(kTinyRecipe, {"training.early_stopping_patience=2", "training.eval_interval=5",
                                   "data.validation_fraction=0"}),
            "--set training.early_stopping_patience=2: training.early_stopping_patience is 2, but "
            "data.validation_fraction is 0: there is nothing to evaluate on. Set it, or "
            "data.validation_path.");
}

}  // namespace
}  // namespace sherd::engine
