// A cluster's file: what it says, and what is refused.

#include "engine/recipe/cluster_file.h"

#include <gtest/gtest.h>

#include "core/error.h"

namespace sherd::engine {
namespace {

Cluster cluster(const std::string& yaml) {
  return cluster_from(yaml, "cluster.yaml");
}

std::string error_of(const std::string& yaml) {
  try {
    cluster(yaml);
  } catch (const UsageError& error) {
    return error.what();
  }
  return "no error";
}

TEST(ClusterFile, SaysMachinesDevicesMemoryAndLinks) {
  const Cluster all = cluster(R"(machines: 4
ranks_per_machine: 8
device: H100
memory: 80GiB
within: {bandwidth: 450GB, latency_us: 13}
between: {bandwidth: 50GB, latency_us: 6}
)");
  EXPECT_EQ(all.ranks(), 32);
  EXPECT_EQ(all.device, "H100");
  EXPECT_EQ(all.memory_bytes, std::int64_t{80} << 30);
  EXPECT_EQ(all.within.bytes, 450e9);
  EXPECT_DOUBLE_EQ(all.between.latency, 6e-6);
}

TEST(ClusterFile, NeedsNoLinks) {
  const Cluster few = cluster("{machines: 2, ranks_per_machine: 2, device: cpu}");
  EXPECT_TRUE(few.on_cpus());
  EXPECT_EQ(few.memory_bytes, 0);
  EXPECT_EQ(few.between.bytes, 0.0);
}

TEST(ClusterFile, RefusesWhatCantBePlanned) {
  const std::string start = "ranks_per_machine: 8\n";
  EXPECT_EQ(error_of("device: H100\n" + start),
            "cluster.yaml: machines is missing. Give a number, such as machines: 8.");
  EXPECT_EQ(error_of("machines: 0\ndevice: H100\n" + start),
            "cluster.yaml: machines is 0; expected a whole number from 1 to 65536.");
  EXPECT_EQ(error_of("machines: 1\ndevice: [H100, A100]\n" + start),
            "cluster.yaml: device is a list, but one plan has one kind of device: all ranks wait "
            "for the slowest. Name that one.");
  EXPECT_EQ(error_of("machines: [1, 2]\ndevice: H100\n" + start),
            "cluster.yaml: machines is a list, but one plan has one kind of machine: all ranks "
            "wait for the slowest. Give the number of machines that are alike.");
  EXPECT_EQ(error_of("machines: 1\ndevice: TPU\n" + start),
            "cluster.yaml: device is \"TPU\"; known are A100, H100, H200 and cpu.");
  EXPECT_EQ(error_of("machine: 1\ndevice: H100\n" + start),
            "cluster.yaml: unknown key \"machine\"; did you mean \"machines\"?");
  EXPECT_EQ(error_of("machines: 10000\ndevice: H100\n" + start),
            "cluster.yaml: 10000 machines of 8 ranks are 80000 ranks; at most 65536 are "
            "supported.");
  EXPECT_EQ(error_of("machines: 1\ndevice: H100\nwithin: {latency_us: 0}\n" + start),
            "cluster.yaml: within.latency_us is 0; expected microseconds above 0, such as 6.");
}

}  // namespace
}  // namespace sherd::engine
