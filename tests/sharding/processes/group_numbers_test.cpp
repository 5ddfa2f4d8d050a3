#include "sharding/processes/group_numbers.h"

#include <gtest/gtest.h>

#include "core/error.h"

namespace sherd::sharding {
namespace {

// There is one number only, so all groups have it.
TEST(GroupNumbers, MayBeTheSameForGroupsWithOneRankInCommon) {
  GroupNumbers numbers;
  const Group tensor{"tensor", {4, 5, 6, 7}, 1}, data{"data", {1, 5, 9}, 1};
  EXPECT_EQ(numbers.number_of(tensor, 1), numbers.number_of(data, 1));
  EXPECT_EQ(numbers.number_of(tensor, 1), 0u) << "which its rank joins again";
  EXPECT_EQ(numbers.number_of({"others", {2, 3}, 0}, 1), 0u);
}

TEST(GroupNumbersDeathTest, AreNeverTheSameForTwoRanksInCommon) {
  GroupNumbers numbers;
  numbers.number_of({"gather", {4, 5, 6}, 1}, 1);
  EXPECT_DEATH(numbers.number_of({"reduce", {5, 6}, 0}, 1),
               "groups \"reduce\" and \"gather\" have the same number");
}

TEST(GroupNumbers, AreTheSameOnEveryProcess) {
  GroupNumbers here, there;
  const std::uint32_t number = here.number_of({"shard", {0, 1, 2}, 0}, 1 << 18);
  EXPECT_EQ(there.number_of({"shard", {0, 1, 2}, 2}, 1 << 18), number);
}

}  // namespace
}  // namespace sherd::sharding
