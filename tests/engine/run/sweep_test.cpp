// The points of a sweep, by hand.
#include "engine/run/sweep.h"

#include <gtest/gtest.h>

#include "core/error.h"

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

}  // namespace
}  // namespace sherd::engine
