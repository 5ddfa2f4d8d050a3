// Times on CPUs from rates that are given, and comparisons with measured steps.

#include <cstdlib>

#include "engine/plan/time/from_recipe.h"
#include "engine/plan/time/step_comparison.h"
#include "tests/engine/plan/plan_support.h"

namespace sherd::engine {
namespace {

CpuRates rates_of(int cores) {
  const CpuKernelRates kernels{.matmul = {1e11, 1e11, 1e11, 1e11, 1e11},
                               .attention_forward = 1e11,
                               .attention_backward = 1e11,
                               .elements = 1e10,
                               .norm_backward = 1e10};
  return {.processor = "a processor",
          .isa = "avx2",
          .cores = cores,
          .f32 = kernels,
          .bf16 = kernels,
          .update = 1e10,
          .add = 1e10,
          .exchange = 1e10,
          .call = 0.0,
          .scaling = 1.0,
          .memory_scaling = 0.5};
}

double matmul_seconds(const CpuStepRates& rates) {
  return rates.seconds(Launch{.kernel = "matmul", .kind = LaunchKind::kMatmul, .flops = 1e12});
}
double memory_seconds(const CpuStepRates& rates) {
  return rates.seconds(Launch{.kernel = "memory", .read = 1'000'000'000});
}

TEST(CpuTime, MatmulsScaleWithCoresAndMemoryAsMeasured) {
  const CpuStepRates one(rates_of(4), {.here = 1, .threads = 1});
  const CpuStepRates all(rates_of(4), {.here = 1, .threads = 4});
  EXPECT_DOUBLE_EQ(matmul_seconds(one) / matmul_seconds(all), 4.0);
  EXPECT_DOUBLE_EQ(memory_seconds(one) / memory_seconds(all), 2.0);
}

TEST(CpuTime, RanksShareTheCores) {
  const CpuStepRates two(rates_of(4), {.here = 2, .threads = 2});
  const CpuStepRates eight(rates_of(4), {.here = 8, .threads = 1});
  EXPECT_DOUBLE_EQ(matmul_seconds(eight) / matmul_seconds(two), 4.0);
}

TEST(CpuTime, LinksOfAClusterAreItsFiles) {
  const GroupExchange gather{"all_gather", 1e9, 4.0, 4.0};
  const CpuStepRates usual(rates_of(4), {.here = 1, .threads = 4});
  const CpuStepRates slow(rates_of(4), {.here = 1, .threads = 4},
                          {.between = {.bytes = 1e8, .latency = 1e-3}});
  EXPECT_NEAR(slow.seconds(gather), 3e-3 + 0.75e9 / 1e8, 1e-9);
  EXPECT_LT(usual.seconds(gather), slow.seconds(gather));
}

// Eight ranks on two machines: to four ranks elsewhere, or to the other machine once.
TEST(CpuTime, WhatCrossesBetweenMachinesFollowsFromTheRecipe) {
  const Cluster cluster =
      cluster_from("machines: 2\nranks_per_machine: 4\ndevice: cpu\nbetween: {bandwidth: 1MB}\n",
                   "cluster.yaml");
  const auto slices = [&](const std::string& collective, HierarchicalChoice hierarchical,
                          SumOrderChoice order, const std::string& more = "", double ranks = 8.0) {
    Recipe recipe = resolved(kSmallRecipe + more).values;
    recipe.parallelism.hierarchical = hierarchical;
    recipe.parallelism.sum_order = order;
    return cpu_rates_of(rates_of(4), recipe, cluster)
               ->seconds(GroupExchange{collective, ranks * 1e9, ranks, 2.0}) /
           1e3;
  };
  using enum HierarchicalChoice;
  using enum SumOrderChoice;
  EXPECT_NEAR(slices("all_gather", kAuto, kRank), 1.0, 0.01);
  EXPECT_NEAR(slices("reduce_scatter", kAuto, kRank), 4.0, 0.01);
  EXPECT_NEAR(slices("all_reduce", kAuto, kRank), 5.0, 0.01);
  EXPECT_NEAR(slices("all_gather", kOff, kFree), 4.0, 0.01);
  EXPECT_NEAR(slices("reduce_scatter", kOff, kFree), 4.0, 0.01);
  EXPECT_NEAR(slices("reduce_scatter", kAuto, kFree), 1.0, 0.01);
  EXPECT_NEAR(slices("all_reduce", kAuto, kFree), 2.0, 0.01);
  // Sums cross as f32.
  const std::string bf16 = "mixed_precision: {param_dtype: bf16, reduce_dtype: bf16}\n";
  EXPECT_NEAR(slices("reduce_scatter", kAuto, kFree, bf16), 2.0, 0.01);
  // Nothing is added: rows of experts, blocks, which their owner decodes, and one rank on each machine.
  EXPECT_NEAR(slices("all_to_all", kAuto, kFree), 4.0, 0.01);
  const std::string blocks = "mixed_precision: {reduce_dtype: int8_block64}\n";
  EXPECT_NEAR(slices("reduce_scatter", kAuto, kFree, blocks), 4.0, 0.01);
  EXPECT_NEAR(slices("reduce_scatter", kAuto, kFree, bf16, 2.0), 1.0, 0.01);
}

// docs/parameter_server.md: a push takes as long as the slower of a worker's and a server's link.
TEST(CpuTime, APushWaitsForTheSlowerLink) {
  const CpuStepRates far(rates_of(4), {.here = 1, .threads = 4},
                         {.servers_elsewhere = true,
                          .between = {.bytes = 1e8, .latency = 1e-3},
                          .servers = {.bytes = 4e8, .latency = 2e-3}});
  // Eight workers send 1 GB each to N servers.
  const auto push = [&](double servers) {
    return far.seconds(
        ServerExchange{.bytes = 1e9, .bytes_of_a_server = 8e9 / servers, .partners = 8.0});
  };
  EXPECT_NEAR(push(1.0), 8.0 * 2e-3 + 8e9 / 4e8, 1e-9);
  EXPECT_NEAR(push(2.0), 8.0 * 2e-3 + 1e9 / 1e8, 1e-9);
  EXPECT_NEAR(push(4.0), push(2.0), 1e-9);
}

TEST(CpuTime, ServersInTheSameMachineNeedNoLink) {
  const ServerExchange push{.bytes = 1e9, .bytes_of_a_server = 2e9, .partners = 2.0};
  const CpuStepRates here(rates_of(4), {.here = 1, .threads = 4});
  EXPECT_NEAR(here.seconds(push), 2e9 / 1e10, 1e-4);
}

// Between machines without a link for servers in the file, they have the workers' links.
TEST(CpuTime, ServersHaveTheWorkersLinksUnlessTheFileSaysOtherwise) {
  const ServerExchange push{.bytes = 1e9, .bytes_of_a_server = 2e9, .partners = 2.0};
  const Recipe recipe = resolved(kSmallRecipe).values;
  const auto seconds = [&](const std::string& servers) {
    const Cluster cluster = cluster_from(
        "machines: 2\nranks_per_machine: 1\ndevice: cpu\nbetween: {bandwidth: 100MB, "
        "latency_us: 50}\n" +
            servers,
        "cluster.yaml");
    return cpu_rates_of(rates_of(4), recipe, cluster)->seconds(push);
  };
  EXPECT_NEAR(seconds(""), 2.0 * 50e-6 + 2e9 / 1e8, 1e-6);
  EXPECT_NEAR(seconds("servers: {bandwidth: 1GB}\n"), 2.0 * 50e-6 + 1e9 / 1e8, 1e-6);
}

// One machine of workers, with servers elsewhere: what the file leaves out is said.
TEST(CpuTime, LinksOfServersThatAreAssumedAreNamed) {
  const Recipe recipe =
      resolved(kSmallRecipe, {"parallelism.parameter_servers=1", "zero_optimization.stage=1"})
          .values;
  const std::string here = "machines: 1\nranks_per_machine: 1\ndevice: cpu\n";
  const auto assumed = [&](const std::string& more) {
    return cpu_rates_of(rates_of(4), recipe, cluster_from(here + more, "cluster.yaml"))->assumed;
  };
  const std::string latency = "servers: {latency_us: 5}\n";
  EXPECT_EQ(assumed("").size(), 1u);
  EXPECT_EQ(assumed(latency).size(), 3u);
  EXPECT_EQ(assumed("between: {bandwidth: 1GB}\nservers: {bandwidth: 1GB}\n").size(), 1u);
}

TEST(CpuTime, LatePublishingHidesTheServersUpdate) {
  const auto time = [](const char* delay) {
    const Recipe recipe = resolved(kSmallRecipe, {"parallelism.data_parallel_shard_degree=2",
                                                  "parallelism.parameter_servers=1",
                                                  "zero_optimization.stage=1", delay})
                              .values;
    const CpuStepRates rates(rates_of(4), {.here = 2, .threads = 1});
    return StepTimes(rates, 2).of(step_shape(recipe));
  };
  const StepTime now = time("parallelism.publish_delay=0"),
                 late = time("parallelism.publish_delay=1");
  EXPECT_GT(now.update, 0.0);
  EXPECT_EQ(late.update, 0.0);
  EXPECT_EQ(late.gathers, now.gathers);
  EXPECT_EQ(late.reductions, now.reductions);
}

TEST(StepComparison, SaysHowMuchLongerAStepTook) {
  const StepComparison step{0.2, 0.25};
  EXPECT_EQ(step.text(), "a step took 0.25 s (median), predicted 0.2 s: 1.25 times");
  const auto again = StepComparison::from_json(step.json());
  ASSERT_TRUE(again);
  EXPECT_EQ(again->measured_s, 0.25);
  EXPECT_FALSE(StepComparison::from_json("{}"));
  EXPECT_FALSE(StepComparison::from_json("nothing"));
}

TEST(StepComparison, NeedsRatesThatAreKnown) {
  ::setenv("SHERD_RATES", "/nonexistent/rates.json", 1);
  EXPECT_FALSE(predicted_step(resolved(kSmallRecipe).values));
  ::unsetenv("SHERD_RATES");
}

// Of a cluster's file, over those that are usual.
TEST(GpuLinks, OfAClusterAreThoseOfItsFile) {
  const auto seconds = [](const Cluster& cluster, double machines) {
    return gpu_rates_of(cluster, false)->seconds(GroupExchange{"all_gather", 1e9, 16.0, machines});
  };
  const Cluster usual{.machines = 2, .ranks_per_machine = 8, .device = "H100"};
  Cluster slow = usual;
  slow.within.bytes = 45e9;
  EXPECT_NEAR(seconds(slow, 1.0) / seconds(usual, 1.0), 10.0, 0.5);
  slow = usual;
  slow.between.bytes = 5e9;
  EXPECT_GT(seconds(slow, 2.0), 2.0 * seconds(usual, 2.0));
  EXPECT_EQ(gpu_rates_of(usual, false)->assumed.size(), 2u);
}

}  // namespace
}  // namespace sherd::engine
