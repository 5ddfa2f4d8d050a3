// Ranks in processes are bit-identical to ranks that are threads: losses, norms, and every tensor of the
// last checkpoint. And a run can be resumed in the other form.
#include <filesystem>
#include <nlohmann/json.hpp>

#include "checkpoint/format/manifest.h"
#include "tests/engine/processes/mpi_runs.h"

namespace sherd::testing {
namespace {

constexpr const char* kBF16 = "mixed_precision: {param_dtype: bf16}";

struct Case {
  ProcessWorld world;
  int stage = 0;
  bool bf16 = false;
};

TrainingRun run_of(const Case& of) {
  return {.stage = of.stage,
          .world = of.world.ranks(),
          .precision = of.bf16 ? kBF16 : "",
          .optimizer = "adamw",
          .accumulation = "gradient_accumulation_steps: 1",
          .more = "gradient_clipping: {max_norm: 0.5}"};
}

class Ladder : public ProcessesTest {
 protected:
  void expect_the_bits_of_threads(const Case& of) {
    const TrainingRun run = run_of(of);
    const std::string name = fmt::format("{}-{}-{}", of.world.name(), of.stage, of.bf16);
    SCOPED_TRACE(name);
    const std::string threads = "threads-" + name, processes = "processes-" + name;
    train_in(folder_, threads, run);
    const auto outcome = train_in_processes(folder_, processes, run, of.world);
    ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
    EXPECT_EQ(numbers_of(folder_, processes), numbers_of(folder_, threads));
    EXPECT_EQ(final_state(folder_, processes), final_state(folder_, threads));
  }
};

// Every pair of world and stage, of world and type, and of stage and type.
TEST_F(Ladder, ProcessesHaveTheBitsOfThreads) {
  const Case cases[] = {{{2, 1}, 3, false}, {{2, 1}, 2, true},  {{3, 1}, 2, false},
                        {{3, 1}, 3, true},  {{4, 1}, 1, false}, {{4, 1}, 0, true},
                        {{2, 2}, 0, false}, {{2, 2}, 1, true},  {{2, 2}, 3, false}};
  for (const Case& of : cases) expect_the_bits_of_threads(of);
}

using LadderSlow = Ladder;
TEST_F(LadderSlow, ProcessesHaveTheBitsOfThreadsInEveryWorldAndStage) {
  for (const ProcessWorld world : {ProcessWorld{2, 1}, {3, 1}, {4, 1}, {2, 2}}) {
    for (int stage = 0; stage <= 3; ++stage) {
      for (const bool bf16 : {false, true}) expect_the_bits_of_threads({world, stage, bf16});
    }
  }
}

// Each process is a machine for the gathers: what comes from the other one is passed on to its second rank.
TEST_F(Ladder, GathersThatArePassedOnHaveTheBitsOfThreads) {
  TrainingRun run = run_of({{2, 2}, 3, true});
  train_in(folder_, "threads", run);
  run.mesh = "hierarchical: on";
  const auto outcome = train_in_processes(folder_, "processes", run, {2, 2});
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_EQ(numbers_of(folder_, "processes"), numbers_of(folder_, "threads"));
  EXPECT_EQ(final_state(folder_, "processes"), final_state(folder_, "threads"));
}

// The same numbers are added, machine by machine.
TEST_F(Ladder, SumsThatAreFormedOnMachinesFirstDifferInTheirLastDigits) {
  TrainingRun run = run_of({{2, 2}, 2});
  train_in(folder_, "threads", run);
  run.mesh = "hierarchical: on, sum_order: free";
  const auto outcome = train_in_processes(folder_, "processes", run, {2, 2});
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  const auto losses_of = [&](const std::string& name) {
    std::vector<double> losses;
    for (const std::string& line : numbers_of(folder_, name)) {
      const auto json = nlohmann::json::parse(line);
      if (json.contains("loss")) losses.push_back(json["loss"]);
    }
    return losses;
  };
  const std::vector<double> expected = losses_of("threads"), losses = losses_of("processes");
  ASSERT_EQ(losses.size(), expected.size());
  EXPECT_EQ(losses[0], expected[0]) << "no gradient is in it yet";
  for (std::size_t i = 0; i < losses.size(); ++i) EXPECT_NEAR(losses[i], expected[i], 1e-5);
  EXPECT_NE(final_state(folder_, "processes"), final_state(folder_, "threads"));
}

// Experts' rows travel between processes.
TEST_F(Ladder, ExpertRanksInProcessesHaveTheBitsOfThreadsWithWholeExperts) {
  TrainingRun run = run_of({{2, 2}, 3, true});
  run.model = ", bias: false";
  run.more = "moe: {num_experts: 8, ffn_hidden_size: 16, shared_ffn_hidden_size: 12}";
  train_in(folder_, "threads", run);
  for (const int degree : {2, 4}) {
    run.mesh = fmt::format("expert_parallel_degree: {}", degree);
    const std::string name = fmt::format("processes{}", degree);
    const auto outcome = train_in_processes(folder_, name, run, {2, 2});
    ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
    EXPECT_EQ(numbers_of(folder_, name), numbers_of(folder_, "threads")) << degree;
    EXPECT_EQ(final_state(folder_, name), final_state(folder_, "threads")) << degree;
  }
}

// Two tensor ranks in each process have halves of every expert, and exchange rows with the other process.
TEST_F(Ladder, ExpertRanksOfTensorRanksInProcessesHaveTheBitsOfThreadsWithWholeExperts) {
  TrainingRun run = run_of({{2, 1}, 3, true});
  run.model = ", bias: false";
  run.more = "moe: {num_experts: 8, ffn_hidden_size: 16, shared_ffn_hidden_size: 12}";
  run.mesh = "tensor_parallel_degree: 2, sequence_parallel: true";
  train_in(folder_, "threads", run);
  run.mesh += ", expert_parallel_degree: 2";
  const auto outcome = train_in_processes(folder_, "processes", run, {2, 2},
                                          {"--set", "parallelism.data_parallel_shard_degree=2"});
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_EQ(numbers_of(folder_, "processes"), numbers_of(folder_, "threads"));
  EXPECT_EQ(final_state(folder_, "processes"), final_state(folder_, "threads"));
}

// Muon's owners broadcast, which no other optimizer does.
TEST_F(Ladder, ProcessesHaveTheBitsOfThreadsWithMuon) {
  TrainingRun run = run_of({{2, 1}, 2});
  run.optimizer = "muon";
  train_in(folder_, "threads", run);
  const auto outcome = train_in_processes(folder_, "processes", run, {2, 1});
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_EQ(numbers_of(folder_, "processes"), numbers_of(folder_, "threads"));
  EXPECT_EQ(final_state(folder_, "processes"), final_state(folder_, "threads"));
}

// Each machine's processes as a replica: two of two ranks.
TEST_F(Ladder, ReplicasInProcessesHaveTheBitsOfThreadsWithoutReplicas) {
  TrainingRun run = run_of({{2, 2}, 3});
  run.accumulation = "micro_batch_size: 1";
  run.mesh = "batch_groups: 2";
  run.world = 4;
  train_in(folder_, "threads", run);
  run.mesh = "data_parallel_replicate_degree: 2";
  const auto outcome =
      train_in_processes(folder_, "processes", run, {2, 2},
                         {"--set", "parallelism.data_parallel_shard_degree=2"});  // of a replica
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_EQ(numbers_of(folder_, "processes"), numbers_of(folder_, "threads"));
  EXPECT_EQ(final_state(folder_, "processes"), final_state(folder_, "threads"));
}

// Each process has one part of the layers, on two ranks that share its state.
TEST_F(Ladder, APipelineOfProcessesHasTheBitsOfOneRank) {
  TrainingRun run = run_of({{1, 1}, 0});
  run.accumulation = "micro_batch_size: 1";
  run.zero = "grad_sync: every_micro_step";
  train_in(folder_, "one", run);
  run.stage = 3;
  run.mesh = "pipeline_parallel_degree: 2, pipeline_schedule: zb_h1";
  const auto outcome = train_in_processes(folder_, "processes", run, {2, 2},
                                          {"--set", "parallelism.data_parallel_shard_degree=2"});
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_EQ(numbers_of(folder_, "processes"), numbers_of(folder_, "one"));
  EXPECT_EQ(final_state(folder_, "processes"), final_state(folder_, "one"));
}

// A tensor rank in each process, and two of four tensor ranks in each: they share one key/value head between
// processes, or inside of one. Four share the tokens as well.
TEST_F(Ladder, TensorRanksInProcessesHaveTheBitsOfThreads) {
  for (const auto& [degree, ranks_per_process] : {std::pair(2, 1), std::pair(4, 2)}) {
    TrainingRun run = run_of({{1, 1}, 1});
    run.mesh =
        fmt::format("tensor_parallel_degree: {}, sequence_parallel: {}", degree, degree == 4);
    const std::string threads = fmt::format("threads{}", degree);
    const std::string processes = fmt::format("processes{}", degree);
    train_in(folder_, threads, run);
    const auto outcome = train_in_processes(folder_, processes, run, {2, ranks_per_process},
                                            {"--set", "parallelism.data_parallel_shard_degree=1"});
    ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
    EXPECT_EQ(numbers_of(folder_, processes), numbers_of(folder_, threads));
    EXPECT_EQ(final_state(folder_, processes), final_state(folder_, threads));
  }
}

class Resume : public ProcessesTest {
 protected:
  // As if it had been killed after the checkpoint in the middle.
  void forget_second_half(const std::string& output) {
    std::filesystem::remove_all(
        folder_.file(output + "/checkpoints/" + checkpoint::step_directory_name(kSteps)));
  }
};

TEST_F(Resume, ARunOfThreadsGoesOnInProcessesAndBack) {
  const TrainingRun run = run_of({{2, 1}, 3});
  train_in(folder_, "whole", run);
  const auto numbers = numbers_of(folder_, "whole"), state = final_state(folder_, "whole");

  train_in(folder_, "run", run);
  forget_second_half("run");
  const auto outcome = train_in_processes(folder_, "run", run, {2, 1});
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_NE(outcome.out.find("4 steps done"), std::string::npos) << outcome.out;
  EXPECT_EQ(numbers_of(folder_, "run"), numbers);
  EXPECT_EQ(final_state(folder_, "run"), state);

  forget_second_half("run");
  train_in(folder_, "run", run);
  EXPECT_EQ(numbers_of(folder_, "run"), numbers);
  EXPECT_EQ(final_state(folder_, "run"), state);
}

}  // namespace
}  // namespace sherd::testing
