#include "engine/launch/memory_nodes.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <thread>
#include <utility>
#include <vector>

#include "engine/launch/launch.h"
#include "engine/launch/system_info.h"
#include "tests/support/values/temp_folder.h"

namespace sherd::engine {
namespace {

using Cores = std::vector<int>;

TEST(MemoryNodes, ReadListsOfCoresAsTheSystemWritesThem) {
  EXPECT_EQ(cores_of_list("0-2,8"), (Cores{0, 1, 2, 8}));
  EXPECT_EQ(cores_of_list("5"), Cores{5});
  EXPECT_EQ(cores_of_list("0,2,4-5"), (Cores{0, 2, 4, 5}));
  EXPECT_EQ(cores_of_list(""), Cores{});  // a node that has memory alone
}

TEST(MemoryNodes, TakeNothingFromWhatIsNoListOfCores) {
  for (const char* text : {"x", "1-", "-1", "3-1", "1 2", "1;2", "0-4000000000", "0-99999"}) {
    EXPECT_EQ(cores_of_list(text), Cores{}) << text;
  }
}

TEST(MemoryNodes, WriteListsOfCoresAsTheSystemDoes) {
  for (const char* text : {"0-2,8", "5", "0,2,4-5", ""}) {
    EXPECT_EQ(list_of_cores(cores_of_list(text)), text);
  }
}

TEST(MemoryNodes, AreThoseWithCoresThatThisProcessMayUseByTheirNumbers) {
  const test::TempFolder folder;
  for (const auto& [name, cores] :
       {std::pair{"node10", "12-15"}, {"node2", "4-7"}, {"node0", "0-3"}, {"node3", ""}}) {
    folder.write(fmt::format("{}/cpulist", name), fmt::format("{}\n", cores));
  }
  folder.write("nodes/cpulist", "0-15\n");
  folder.write("possible", "0-10\n");
  const auto nodes = memory_nodes(folder.path(), {2, 3, 4, 5, 6, 14});
  ASSERT_EQ(nodes.size(), 3u);
  EXPECT_EQ(nodes[0].number, 0);
  EXPECT_EQ(nodes[0].cores, (Cores{2, 3}));
  EXPECT_EQ(nodes[1].number, 2);
  EXPECT_EQ(nodes[1].cores, (Cores{4, 5, 6}));
  EXPECT_EQ(nodes[2].number, 10);
  EXPECT_EQ(nodes[2].cores, Cores{14});
}

TEST(MemoryNodes, AreNoneWhereTheSystemDoesNotSay) {
  EXPECT_TRUE(memory_nodes("/no/such/folder", {0, 1}).empty());
}

TEST(MemoryNodes, OfThisMachineHoldAllCoresOfThisThreadOnceOrAreNone) {
  Cores together;
  for (const MemoryNode& node : memory_nodes()) {
    together.insert(together.end(), node.cores.begin(), node.cores.end());
  }
  std::sort(together.begin(), together.end());
  if (together.empty()) return;  // the system doesn't say
  EXPECT_EQ(together, cores_of_this_thread());
}

std::vector<int> nodes_of_ranks(const std::vector<MemoryNode>& nodes, int num_ranks) {
  std::vector<int> of_rank;
  for (int r = 0; r < num_ranks; ++r) of_rank.push_back(node_of_rank(nodes, r, num_ranks));
  return of_rank;
}

TEST(MemoryNodes, NeighbouringRanksShareANodeAndAllNodesHaveEquallyMany) {
  const std::vector<MemoryNode> two = {{0, {0, 1}}, {1, {2, 3}}};
  EXPECT_EQ(nodes_of_ranks(two, 2), (Cores{0, 1}));
  EXPECT_EQ(nodes_of_ranks(two, 4), (Cores{0, 0, 1, 1}));
}

TEST(MemoryNodes, RanksAreBoundToNoneIfNodesWouldDiffer) {
  const std::vector<MemoryNode> two = {{0, {0, 1}}, {1, {2, 3}}}, unlike = {{0, {0, 1}}, {1, {2}}};
  EXPECT_EQ(nodes_of_ranks(two, 1), Cores{-1});
  EXPECT_EQ(nodes_of_ranks(two, 3), (Cores{-1, -1, -1}));
  EXPECT_EQ(nodes_of_ranks(unlike, 2), (Cores{-1, -1}));
  EXPECT_EQ(nodes_of_ranks({{0, {0, 1}}}, 2), (Cores{-1, -1}));
  EXPECT_EQ(nodes_of_ranks({}, 2), (Cores{-1, -1}));
}

TEST(MemoryNodes, ARanksThreadsStayOnItsNodeAndTheCallersCoresAreAsBefore) {
  const Cores before = cores_of_this_thread();
  ASSERT_FALSE(before.empty());
  // On a machine with one core both are the same.
  const std::vector<MemoryNode> nodes = {{0, {before.front()}}, {1, {before.back()}}};
  const int usable = num_usable_cores();
  LaunchOptions launch;
  launch.mesh = sharding::Mesh::sharded(2);
  launch.threads_per_rank = 1;
  launch.machine = cpu_machine(nodes);
  std::array<Cores, 2> own, of_child, of_stream;
  std::array<int, 2> counted{};
  run_ranks(launch, [&](sharding::Rank& rank) {
    const auto r = static_cast<std::size_t>(rank.rank);
    own[r] = cores_of_this_thread();
    std::thread([&] { of_child[r] = cores_of_this_thread(); }).join();
    rank.gather().run("cores", [&] { of_stream[r] = cores_of_this_thread(); });
    rank.gather().synchronize();
    counted[r] = num_usable_cores();
  });
  for (std::size_t r = 0; r < 2; ++r) {
    EXPECT_EQ(own[r], nodes[r].cores);
    EXPECT_EQ(of_child[r], nodes[r].cores);
    EXPECT_EQ(of_stream[r], nodes[r].cores);
    EXPECT_EQ(counted[r], usable);  // the process's cores, not the rank's
  }
  EXPECT_EQ(cores_of_this_thread(), before);
  EXPECT_NE(launch.machine->description(2, 1).find("; 1 rank on each of 2 memory nodes"),
            std::string::npos)
      << launch.machine->description(2, 1);
}

}  // namespace
}  // namespace sherd::engine
