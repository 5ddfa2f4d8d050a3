// What is measured of links is a cluster's file, as sherd plan reads it.

#include "engine/launch/link_rates.h"

#include <gtest/gtest.h>

#include "engine/recipe/cluster_file.h"

namespace sherd::engine {
namespace {

TEST(LinkRates, AreAClustersFile) {
  const LinkRates rates{.machines = 4,
                        .ranks_per_machine = 2,
                        .memory_bytes = std::int64_t{3} << 30,
                        .within = LinkRate{2, 2.34e9, 12.3e-6},
                        .between = LinkRate{4, 5.91e6, 0.0081}};
  const Cluster cluster = cluster_from(cluster_text(rates), "links");
  EXPECT_EQ(cluster.machines, 4);
  EXPECT_EQ(cluster.ranks_per_machine, 2);
  EXPECT_TRUE(cluster.on_cpus());
  EXPECT_EQ(cluster.memory_bytes, std::int64_t{3} << 30);
  EXPECT_EQ(cluster.within.bytes, 2.34e9);
  EXPECT_NEAR(cluster.within.latency, 12.3e-6, 1e-12);
  EXPECT_EQ(cluster.between.bytes, 5.91e6);
  EXPECT_NEAR(cluster.between.latency, 0.0081, 1e-9);
}

TEST(LinkRates, OfOneMachineHaveNoneBetweenMachines) {
  const LinkRates rates{
      .ranks_per_machine = 2, .memory_bytes = 1 << 30, .within = LinkRate{2, 1e9, 1e-5}};
  const Cluster cluster = cluster_from(cluster_text(rates), "links");
  EXPECT_TRUE(cluster.within.is_given());
  EXPECT_FALSE(cluster.between.is_given());
}

}  // namespace
}  // namespace sherd::engine
