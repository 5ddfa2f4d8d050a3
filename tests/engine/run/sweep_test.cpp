// The points of a sweep, by hand.
#include "engine/run/sweep.h"

#include <gtest/gtest.h>

#include "core/error.h"
#include "tests/engine/recipe/recipe_support.h"
#include "tests/support/values/temp_folder.h"

namespace sherd::engine {
namespace {

using Strings = std::vector<std::string>;

Strings names(const Strings& sets) {
  Strings names;
  for (const SweepPoint& point : sweep_points(sets)) names.push_back(point.name);
  return names;
}

TEST(SweepPoints, AreAllCombinationsAndTheLastKeyVariesFastest) {
  const auto points = sweep_points({"optimizer.lr=1,2", "run.device=cpu", "run.seed=3,4"});
  ASSERT_EQ(points.size(), 4u);
  EXPECT_EQ(points[0].sets, (Strings{"optimizer.lr=1", "run.device=cpu", "run.seed=3"}));
  EXPECT_EQ(points[1].sets, (Strings{"optimizer.lr=1", "run.device=cpu", "run.seed=4"}));
  EXPECT_EQ(points[3].name, "lr=2_seed=4");
}

TEST(SweepPoints, CommasInBracketsAndQuotesSeparateNothing) {
  EXPECT_EQ(sweep_points({"optimizer.betas=[0.9,0.95],[0.9, 0.99]"})[1].sets,
            Strings{"optimizer.betas=[0.9, 0.99]"});
  EXPECT_EQ(sweep_points({"data.path=\"a,b\",c"})[0].sets, Strings{"data.path=\"a,b\""});
  EXPECT_EQ(sweep_points({"hooks.on_end='x,y',\"it's\""})[1].sets,
            Strings{"hooks.on_end=\"it's\""});
}

TEST(SweepPoints, HaveNamesThatFoldersCanHaveAndNoTwoAlike) {
  EXPECT_EQ(names({"data.path=/a/b.txt,c d"}), (Strings{"path=a-b.txt", "path=c-d"}));
  EXPECT_EQ(names({"data.path=a/b,a b,a-b"}), (Strings{"path=a-b", "path=a-b-2", "path=a-b-3"}));
  EXPECT_EQ(names({"adapter.dropout=0,0.1", "model.dropout=0,0.2"}).back(),
            "adapter.dropout=0.1_model.dropout=0.2");
  const auto longest =
      names({"data.path=" + std::string(300, 'x') + "," + std::string(300, 'x') + "y"});
  EXPECT_EQ(longest[0].size(), 200u);
  EXPECT_EQ(longest[1].size(), 202u);
}

TEST(SweepIsDone, WithTheFolderAndTheRecipeAndWithNothingElse) {
  const test::TempFolder folder;
  const ResolvedRecipe recipe = resolve(kTinyRecipe);
  folder.write("recipe.yaml", recipe.yaml());
  const auto runs = [](const std::string& of_folder, const std::string& exit_code) {
    return "{\"runs\":[7,{\"folder\":" + of_folder + ",\"exit_code\":" + exit_code + "}]}";
  };
  const std::string own = "\"" + folder.path() + "\"";
  const auto done = [&](const std::string& json) { return is_done(json, folder.path(), recipe); };
  EXPECT_TRUE(done(runs(own, "0")));
  EXPECT_FALSE(done(runs(own, "3")));
  EXPECT_FALSE(done(runs(own, "\"0\"")));
  EXPECT_FALSE(done(runs("5", "0")));
  EXPECT_FALSE(done("{\"runs\":5}"));
  EXPECT_FALSE(done("no JSON"));
  const std::string deep = std::string(400'000, '[') + std::string(400'000, ']');
  EXPECT_FALSE(done(runs(deep, "0")));
  EXPECT_FALSE(done(deep));
}

}  // namespace
}  // namespace sherd::engine
