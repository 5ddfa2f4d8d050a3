// Links between processes are measured, and the file that comes out is one to plan with.

#include <algorithm>

#include "engine/recipe/cluster_file.h"
#include "tests/engine/processes/mpi_runs.h"
#include "tests/where.h"

namespace sherd::testing {
namespace {

using Links = ProcessesTest;

TEST_F(Links, AreMeasuredByTheProcessesOfAWorld) {
  const auto outcome =
      test::run_program(SHERD_PROGRAM, {"launch", "-n", "3", "--", "info", "--links"});
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  const engine::Cluster cluster = engine::cluster_from(outcome.out, "links");
  EXPECT_EQ(cluster.machines, 1);
  EXPECT_EQ(cluster.ranks_per_machine, 3);
  EXPECT_GT(cluster.within.bytes, 1e5);
  EXPECT_GT(cluster.within.latency, 0.0);
}

TEST_F(Links, NeedSeveralProcesses) {
  const auto outcome = test::run_program(SHERD_PROGRAM, {"info", "--links"});
  EXPECT_EQ(outcome.exit_code, 2);
  EXPECT_TRUE(outcome.err.starts_with("sherd: --links needs several processes: ")) << outcome.err;
  EXPECT_EQ(std::count(outcome.err.begin(), outcome.err.end(), '\n'), 1);
}

}  // namespace
}  // namespace sherd::testing
