// Which of a step's bytes cross from machine to machine.
#include "engine/plan/machine_traffic.h"

#include <map>

#include "engine/train/from_recipe.h"
#include "engine/train/training_step.h"
#include "tests/engine/plan/plan_support.h"

namespace sherd::engine {
namespace {

MachineTraffic traffic_of(const Strings& sets, int ranks_per_machine) {
  Strings all = {"training.micro_batch_size=4"};
  all.insert(all.end(), sets.begin(), sets.end());
  return machine_traffic(resolved(kSmallRecipe, all).values, ranks_per_machine);
}

LinkBytes row_of(const MachineTraffic& traffic, const std::string& callers) {
  LinkBytes sum;
  for (const MachineTraffic::Row& row : traffic.rows) {
    if (row.callers == callers) sum += row.bytes;
  }
  EXPECT_GT(sum.total(), 0) << "no row of " << callers;
  return sum;
}

// What one rank's slices come to, of 4 ranks that each send one to each of the 3 others.
std::int64_t sent_by_a_rank(const Strings& sets) {
  Strings all = {"training.micro_batch_size=4"};
  all.insert(all.end(), sets.begin(), sets.end());
  const Recipe recipe = resolved(kSmallRecipe, all).values;
  return TrainingStep::traffic(training_options(recipe), mesh_of(recipe), 0, DeviceKind::kCpu)
      .total_bytes();
}

TEST(MachineTraffic, StraightToEveryRankTwoOfThreePeersAreElsewhere) {
  const Strings sets = {"zero_optimization.stage=3", "parallelism.hierarchical=off"};
  const MachineTraffic traffic = traffic_of(sets, 2);
  EXPECT_FALSE(traffic.passed_on);
  const std::int64_t each = sent_by_a_rank(sets);
  EXPECT_EQ(traffic.sum, (LinkBytes{2 * each / 3, 2 * 2 * each / 3}));
}

// In a gather, a rank sends its slice to its neighbour and to one rank elsewhere, and passes one slice on.
TEST(MachineTraffic, GathersThatArePassedOnCrossOnce) {
  const Strings sets = {"zero_optimization.stage=3"};
  const MachineTraffic direct = traffic_of({sets[0], "parallelism.hierarchical=off"}, 2);
  const MachineTraffic passed_on = traffic_of(sets, 2);
  EXPECT_TRUE(passed_on.passed_on);
  EXPECT_EQ(passed_on.sum.total(), direct.sum.total()) << "all have as much to send";
  std::int64_t gathered = 0;
  const Recipe recipe =
      resolved(kSmallRecipe, {"training.micro_batch_size=4", "zero_optimization.stage=3"}).values;
  const auto whole =
      TrainingStep::traffic(training_options(recipe), mesh_of(recipe), 0, DeviceKind::kCpu);
  for (const sharding::Sent& sent : whole.sent()) {
    if (sent.collective == sharding::Collective::kAllGather) gathered += sent.bytes;
  }
  ASSERT_GT(gathered, 0);
  EXPECT_EQ(direct.sum.across - passed_on.sum.across, 2 * gathered / 3);
}

// Two of three peers are elsewhere: of its first half both get a contribution, of its second one gets the sum.
TEST(MachineTraffic, OfAnAllReduceTheSecondHalfIsAGather) {
  const auto across = [](const char* how) {
    LinkBytes sum;
    for (const MachineTraffic::Row& row :
         traffic_of({"zero_optimization.stage=0", std::string("parallelism.hierarchical=") + how},
                    2)
             .rows) {
      if (row.what == "gradients, all_reduce") sum += row.bytes;
    }
    return sum.across;
  };
  EXPECT_GT(across("auto"), 0);
  EXPECT_EQ(4 * across("auto"), 3 * across("off"));
}

// Two ranks of a machine have one sum for each owner elsewhere, instead of two contributions; in f32.
TEST(MachineTraffic, SumsThatAreFormedOnMachinesCrossOnce) {
  const Strings sets = {"zero_optimization.stage=2", "parallelism.hierarchical=auto"};
  const auto across = [&](const Strings& more) {
    Strings all = sets;
    all.insert(all.end(), more.begin(), more.end());
    LinkBytes sum;
    for (const MachineTraffic::Row& row : traffic_of(all, 2).rows) {
      if (row.what.starts_with("gradients")) sum += row.bytes;
    }
    return sum.across;
  };
  const std::string free = "parallelism.sum_order=free", bf16 = "mixed_precision.param_dtype=bf16",
                    reduced = "mixed_precision.reduce_dtype=bf16";
  EXPECT_EQ(2 * across({free}), across({}));
  EXPECT_EQ(across({free, bf16, reduced}), across({bf16, reduced})) << "f32 instead of bf16";
  EXPECT_EQ(across({free, "parallelism.hierarchical=off"}), across({}));
}

TEST(MachineTraffic, OneMachineSendsNothingToOthersAndMachinesOfOneRankKeepNothing) {
  const Strings sets = {"zero_optimization.stage=2"};
  EXPECT_EQ(traffic_of(sets, 4).sum, (LinkBytes{4 * sent_by_a_rank(sets), 0}));
  EXPECT_EQ(traffic_of(sets, 1).sum, (LinkBytes{0, sent_by_a_rank(sets)}));
}

TEST(MachineTraffic, OfReplicasOnlyTheirOwnSumsCross) {
  for (const char* over : {"false", "true"}) {
    const MachineTraffic traffic =
        traffic_of({"zero_optimization.stage=3", "parallelism.data_parallel_shard_degree=2",
                    "parallelism.data_parallel_replicate_degree=2",
                    std::string("zero_optimization.shard_optimizer_over_replicas=") + over},
                   2);
    EXPECT_EQ(row_of(traffic, "shard").across, 0);
    EXPECT_EQ(row_of(traffic, "replicate").within, 0);
    EXPECT_GT(row_of(traffic, "replicate").across, 0);
    EXPECT_GT(row_of(traffic, "all ranks").across, 0) << "losses and norms";
  }
}

TEST(MachineTraffic, OfAPipelineAcrossMachinesMessagesCross) {
  const Strings sets = {"parallelism.data_parallel_shard_degree=2",
                        "parallelism.pipeline_parallel_degree=2", "zero_optimization.stage=1"};
  const MachineTraffic across = traffic_of(sets, 2), within = traffic_of(sets, 4);
  EXPECT_EQ(row_of(across, "pipeline neighbours").within, 0);
  EXPECT_EQ(row_of(within, "pipeline neighbours").across, 0);
  EXPECT_GT(row_of(across, "pipeline neighbours").across, 0);
  EXPECT_EQ(row_of(across, "shard").across, 0);
}

// Three machines of two ranks where a part of the layers is on three: the one in the middle has both parts, and sends
// most. Its ranks talk to one another along the pipeline's neighbours of neither.
TEST(MachineTraffic, MachinesThatCutAcrossGroupsAreAllLookedAt) {
  const Strings sets = {"parallelism.data_parallel_shard_degree=3",
                        "parallelism.pipeline_parallel_degree=2",
                        "training.global_batch_size=12",
                        "training.micro_batch_size=2",
                        "zero_optimization.stage=2",
                        "parallelism.hierarchical=off"};
  const MachineTraffic traffic = machine_traffic(resolved(kSmallRecipe, sets).values, 2);
  EXPECT_EQ(traffic.machine, 1);
  EXPECT_EQ(row_of(traffic, "shard").within, 0);
  // Without passing on, what is sent doesn't depend on machines: all together send what all ranks do.
  const Recipe recipe = resolved(kSmallRecipe, sets).values;
  std::int64_t all = 0;
  for (int rank = 0; rank < 6; ++rank) {
    all += TrainingStep::traffic(training_options(recipe), mesh_of(recipe), rank, DeviceKind::kCpu)
               .total_bytes();
  }
  EXPECT_EQ(traffic.all.total(), all);
}

TEST(MachineTraffic, OfARingIsSaidOfItsNeighbours) {
  const Strings sets = {"parallelism.data_parallel_shard_degree=1",
                        "parallelism.context_parallel_degree=4",
                        "parallelism.context_parallel_method=ring"};
  const MachineTraffic traffic = traffic_of(sets, 2);
  EXPECT_GT(row_of(traffic, "context neighbours").within, 0);
  EXPECT_EQ(row_of(traffic, "context neighbours").within,
            row_of(traffic, "context neighbours").across);
}

// 16,384 ranks, without a noticeable delay.
TEST(MachineTraffic, OfATrillionParametersIsFoundOutAsWell) {
  const MachineTraffic traffic = machine_traffic(resolved(kTrillionRecipe).values, 8);
  EXPECT_GT(traffic.sum.across, traffic.sum.within);
  std::string text = machine_traffic_text(traffic);
  for (std::size_t at = 0; at < text.size(); at = text.find('\n', at) + 1) {
    EXPECT_LE(text.find('\n', at) - at, 80u) << text;
  }
}

TEST(MachineTraffic, NeedsMachinesWithEquallyManyRanksAndNoGpus) {
  EXPECT_EQ(
      usage_error_of([] { traffic_of({}, 3); }),
      "--ranks-per-machine 3: 4 ranks can't be divided evenly among such machines. 2 would work.");
  EXPECT_EQ(usage_error_of([] { traffic_of({"run.device=cuda"}, 2); }),
            "--ranks-per-machine is for CPUs: between GPUs NCCL chooses the routes. Leave it out.");
}

}  // namespace
}  // namespace sherd::engine
