#include "sharding/mesh/mesh.h"

#include <gtest/gtest.h>

#include <map>

#include "sharding/comm/rendezvous.h"
#include "sharding/mesh/process_groups.h"

namespace sherd::sharding {
namespace {

// Every mesh of up to three axes with degrees 1 to 4.
std::vector<Mesh> small_meshes() {
  std::vector<Mesh> meshes;
  for (int a = 1; a <= 4; ++a) {
    for (int b = 1; b <= 4; ++b) {
      for (int c = 1; c <= 4; ++c) {
        meshes.push_back(Mesh({{"replicate", a}, {"shard", b}, {"tensor", c}}));
      }
    }
  }
  return meshes;
}

std::vector<AxisSet> subsets() {
  const std::vector<std::string> names = {"replicate", "shard", "tensor"};
  std::vector<AxisSet> sets;
  for (unsigned bits = 0; bits < 8; ++bits) {
    AxisSet set;
    for (unsigned i = 0; i < 3; ++i) {
      if ((bits >> i) & 1u) set.insert(names[i]);
    }
    sets.push_back(set);
  }
  return sets;
}

// An odometer whose last wheel turns fastest counts the ranks.
TEST(Mesh, TheLastAxisVariesFastest) {
  for (const Mesh& mesh : small_meshes()) {
    std::vector<int> wheels(3, 0);
    for (int rank = 0; rank < mesh.world_size(); ++rank) {
      for (std::size_t i = 0; i < 3; ++i) {
        EXPECT_EQ(mesh.coordinate(rank, mesh.axes()[i].name), wheels[i]) << mesh.text();
      }
      for (std::size_t i = 3; i-- > 0;) {
        if (++wheels[i] < mesh.axes()[i].degree) break;
        wheels[i] = 0;
      }
    }
    EXPECT_EQ(wheels, std::vector<int>(3, 0)) << mesh.text();
  }
}

// By definition: all ranks that agree with it in every other coordinate.
TEST(Mesh, AGroupIsAllRanksThatAgreeInTheOtherCoordinates) {
  for (const Mesh& mesh : small_meshes()) {
    for (const AxisSet& axes : subsets()) {
      for (int rank = 0; rank < mesh.world_size(); ++rank) {
        std::vector<int> expected;
        for (int other = 0; other < mesh.world_size(); ++other) {
          bool agrees = true;
          for (const MeshAxis& axis : mesh.axes()) {
            agrees &= axes.contains(axis.name) ||
                      mesh.coordinate(other, axis.name) == mesh.coordinate(rank, axis.name);
          }
          if (agrees) expected.push_back(other);
        }
        const std::vector<int> group = mesh.group(rank, axes);
        ASSERT_EQ(group, expected) << mesh.text() << ", rank " << rank;
        EXPECT_EQ(std::ssize(group), mesh.degree(axes));
        EXPECT_EQ(group[static_cast<std::size_t>(mesh.index_in_group(rank, axes))], rank);
      }
    }
  }
}

TEST(Mesh, GroupsAlongTheSameAxesCutTheWorldIntoEqualParts) {
  for (const Mesh& mesh : small_meshes()) {
    for (const AxisSet& axes : subsets()) {
      std::map<std::vector<int>, int> members;
      for (int rank = 0; rank < mesh.world_size(); ++rank) ++members[mesh.group(rank, axes)];
      EXPECT_EQ(std::ssize(members) * mesh.degree(axes), mesh.world_size());
      for (const auto& [group, count] : members) EXPECT_EQ(std::ssize(group), count);
    }
  }
}

TEST(Mesh, AnAxisThatItDoesNotHaveIsOneOfDegreeOne) {
  const Mesh mesh({{"shard", 3}});
  EXPECT_EQ(mesh.degree("tensor"), 1);
  EXPECT_EQ(mesh.coordinate(2, "tensor"), 0);
  EXPECT_EQ(mesh.degree(AxisSet{"shard", "context"}), 3);
  EXPECT_EQ(mesh.group(1, AxisSet{"context"}), std::vector<int>{1});
}

TEST(Mesh, IsSaidWithoutAxesOfOneRank) {
  EXPECT_EQ(Mesh({{"replicate", 2}, {"shard", 1}, {"tensor", 4}}).text(), "replicate 2 x tensor 4");
  EXPECT_EQ(Mesh().text(), "1 rank");
}

TEST(MeshDeathTest, ADegreeBelowOneAndAnAxisTwiceAreOurBugs) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_DEATH(Mesh({{"shard", 0}}), "axis shard of degree 0");
  EXPECT_DEATH(Mesh({{"shard", 2}, {"shard", 2}}), "axis shard twice");
  EXPECT_DEATH(Mesh({{"shard", 2}}).coordinate(2, "shard"), "rank 2 in a world of 2");
}

TEST(ProcessGroups, MembersOfAGroupCallItTheSameAndNoOtherGroupHasItsName) {
  for (const Mesh& mesh : small_meshes()) {
    std::map<std::string, std::vector<int>> ranks_by_name;
    for (int rank = 0; rank < mesh.world_size(); ++rank) {
      for (const AxisSet& axes : subsets()) {
        for (const Purpose purpose : {Purpose::kGather, Purpose::kReduce}) {
          const Group group = group_of(mesh, rank, axes, purpose);
          EXPECT_EQ(group.world_rank(), rank);
          const auto [at, is_new] = ranks_by_name.emplace(group.name, group.ranks);
          EXPECT_EQ(at->second, group.ranks) << group.name << " of " << mesh.text();
        }
      }
    }
  }
}

TEST(Owners, AreTheLastRanksInGroupsOfTheirOwnAndOfTheWorld) {
  const Mesh mesh({{"replicate", 1}, {"shard", 3}}, 2);
  EXPECT_EQ(mesh.world_size(), 5);
  EXPECT_EQ(mesh.num_workers(), 3);
  EXPECT_EQ(mesh.group(1, {"shard"}), (std::vector{0, 1, 2}));
  EXPECT_EQ(mesh.group(4, {"shard"}), (std::vector{4})) << "it has no place in the grid";
  EXPECT_EQ(mesh.group(4, {"owner"}), (std::vector{3, 4}));
  EXPECT_EQ(mesh.group(1, {"owner"}), (std::vector{1}));
  for (int rank = 0; rank < 5; ++rank) {
    EXPECT_EQ(mesh.group(rank, mesh.all_axes()), (std::vector{0, 1, 2, 3, 4}));
    EXPECT_EQ(mesh.index_in_group(rank, mesh.all_axes()), rank);
    EXPECT_EQ(mesh.is_owner(rank), rank >= 3);
  }
  EXPECT_EQ(mesh.index_in_group(4, {"owner"}), 1);
  EXPECT_EQ(mesh.degree(AxisSet{"owner"}), 2);
  EXPECT_EQ(mesh.degree(AxisSet{"shard"}), 3);
  EXPECT_EQ(mesh.degree(mesh.all_axes()), 5);
  EXPECT_EQ(mesh.other_axes({"shard"}), AxisSet{"replicate"}) << "of the grid";
  EXPECT_EQ(mesh.text(), "shard 3 + owner 2");
}

// Also where a grid or the owners are one rank.
TEST(Owners, ShareNoNameOfAGroupWithWorkers) {
  for (const auto& [workers, owners] : {std::pair(1, 1), {1, 3}, {3, 1}, {2, 2}}) {
    const Mesh mesh({{"shard", workers}}, owners);
    std::map<std::string, std::vector<int>> ranks_by_name;
    for (int rank = 0; rank < mesh.world_size(); ++rank) {
      for (const AxisSet& axes : {AxisSet{}, AxisSet{"shard"}, AxisSet{"owner"}, mesh.all_axes()}) {
        const Group group = group_of(mesh, rank, axes, Purpose::kGather);
        EXPECT_EQ(group.world_rank(), rank);
        const auto [at, is_new] = ranks_by_name.emplace(group.name, group.ranks);
        EXPECT_EQ(at->second, group.ranks) << group.name << " of " << mesh.text();
      }
    }
  }
}

TEST(ProcessGroups, GroupsOfTheSameRanksAndPurposeAreOneCommunicator) {
  const Mesh mesh({{"replicate", 1}, {"shard", 4}, {"context", 1}});
  EXPECT_EQ(group_of(mesh, 1, {"shard"}, Purpose::kReduce).name,
            group_of(mesh, 1, zero_axes(), Purpose::kReduce).name);
  EXPECT_EQ(group_of(mesh, 1, mesh.all_axes(), Purpose::kReduce).name,
            group_of(mesh, 1, zero_axes(), Purpose::kReduce).name);
  EXPECT_NE(group_of(mesh, 1, zero_axes(), Purpose::kGather).name,
            group_of(mesh, 1, zero_axes(), Purpose::kReduce).name);
}

}  // namespace
}  // namespace sherd::sharding
