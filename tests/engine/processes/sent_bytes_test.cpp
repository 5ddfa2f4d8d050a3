// What ranks have sent, by the kind of link: counted at MPI's door, and as `sherd plan` says beforehand.
#include <nlohmann/json.hpp>
#include <random>
#include <sstream>

#include "tests/engine/processes/mpi_runs.h"
#include "tests/where.h"

namespace sherd::testing {
namespace {

struct Form {
  std::string name, mesh, zero;
  int stage = 3;
  std::string optimizer = "adamw";
  ProcessWorld world{2, 2};
  int shards = 4;
};

class SentBytes : public ProcessesTest {
 protected:
  // Each process counts as a machine of its own (`hierarchical: on`). False where the recipe is refused.
  bool compare(const Form& form) {
    TrainingRun run{.stage = form.stage,
                    .world = form.shards,
                    .precision = "",
                    .optimizer = form.optimizer,
                    .accumulation = form.mesh.find("degree") == std::string::npos
                                        ? "gradient_accumulation_steps: 1"
                                        : "micro_batch_size: 1",
                    .interval = 0,
                    .checkpoint = "resume: never",
                    .mesh = form.mesh,
                    .zero = form.zero,
                    .model = ", ffn_hidden_size: 48"};
    const std::string recipe = form.name + "_plan.yaml";
    folder_.write(recipe, recipe_text(folder_, form.name, run));
    const auto plan = test::run_program(
        SHERD_PROGRAM, {"plan", folder_.file(recipe), "--json", "--ranks-per-machine",
                        std::to_string(form.world.ranks_per_process)});
    if (plan.exit_code == 2) return false;
    EXPECT_EQ(plan.exit_code, 0) << plan.err;
    const auto outcome = train_in_processes(
        folder_, form.name, run, form.world,
        {"--set", fmt::format("parallelism.data_parallel_shard_degree={}", form.shards), "--set",
         "training.eval_batches=1"});
    EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
    const auto planned = nlohmann::json::parse(plan.out)["sent_by_machine"]["all_machines"];
    std::istringstream lines(folder_.read(form.name + "/metrics.jsonl"));
    int steps = 0;
    for (std::string text; std::getline(lines, text);) {
      const auto line = nlohmann::json::parse(text);
      if (!line.contains("sent_bytes") || line["step"] == 1) continue;  // with what begins a run
      ++steps;
      EXPECT_EQ(line["sent_bytes"]["within_machines"], planned["within_machine_bytes"]);
      EXPECT_EQ(line["sent_bytes"]["to_other_machines"], planned["to_other_machines_bytes"]);
    }
    EXPECT_EQ(steps, kSteps - 1);
    return true;
  }

  // Machines that cut across groups, too: three of two ranks where a part of a pipeline has three.
  static Form random_form(std::mt19937& random, int number) {
    const auto one_of = [&](std::initializer_list<int> choices) {
      return *(choices.begin() + static_cast<std::ptrdiff_t>(random() % choices.size()));
    };
    while (true) {
      const int pipeline = one_of({1, 2, 2}), replicas = one_of({1, 1, 2});
      const int shards = one_of({1, 2, 3, 4}), tensor = one_of({1, 1, 2}),
                machines = one_of({2, 3, 4});
      const int world = pipeline * replicas * shards * tensor;
      if (world > 8 || world % machines != 0) continue;
      Form form{
          .name = fmt::format("form{}", number),
          .mesh = fmt::format(
              "hierarchical: on, pipeline_parallel_degree: {}, data_parallel_replicate_degree: "
              "{}, tensor_parallel_degree: {}",
              pipeline, replicas, tensor),
          .zero = "",
          .stage = one_of({0, 1, 2, 3}),
          .optimizer = one_of({0, 0, 1}) == 0 ? "adamw" : "lamb",
          .world = {machines, world / machines},
          .shards = shards};
      if (pipeline > 1 && random() % 2 == 0) form.mesh += ", pipeline_schedule: zb_h1";
      if (tensor > 1 && random() % 2 == 0) form.mesh += ", sequence_parallel: true";
      if (random() % 3 == 0) form.mesh += ", sum_order: free";
      return form;
    }
  }

  void compare_random_forms(int count, unsigned seed) {
    std::mt19937 random(seed);
    for (int number = 0, done = 0; done < count; ++number) {
      const Form form = random_form(random, number);
      SCOPED_TRACE(fmt::format("{} x {}, shards {}, stage {}, {}, {}", form.world.num_processes,
                               form.world.ranks_per_process, form.shards, form.stage,
                               form.optimizer, form.mesh));
      if (compare(form)) ++done;
      if (HasFailure()) return;
    }
  }
};

TEST_F(SentBytes, OfEveryStepAreThePlannedOnesOnEachKindOfLink) {
  const std::string on = "hierarchical: on";
  for (const Form& form :
       {Form{"gathers", on, ""}, Form{"stage_0", on, "", 0},
        Form{"free", on + ", sum_order: free", ""},
        Form{"free_stage_0", on + ", sum_order: free", "", 0},
        Form{"replicas", on + ", data_parallel_replicate_degree: 2", "", 3, "adamw", {2, 2}, 2},
        Form{"divided",
             on + ", data_parallel_replicate_degree: 2",
             "shard_optimizer_over_replicas: true",
             3,
             "adamw",
             {2, 2},
             2},
        Form{"pipeline", on + ", pipeline_parallel_degree: 2", "", 2, "lamb", {2, 2}, 2},
        Form{"across", on + ", pipeline_parallel_degree: 2", "", 2, "adamw", {3, 2}, 3},
        Form{"muon", on + ", pipeline_parallel_degree: 2", "", 2, "muon", {3, 2}, 3},
        Form{"tensor", on + ", tensor_parallel_degree: 2", "", 3, "adamw", {2, 2}, 2}}) {
    SCOPED_TRACE(form.name);
    EXPECT_TRUE(compare(form));
  }
}

TEST_F(SentBytes, OfRandomMeshesAreThePlannedOnes) {
  compare_random_forms(4, 11);
}

class SentBytesSlow : public SentBytes {};

TEST_F(SentBytesSlow, OfRandomMeshesAreThePlannedOnes) {
  compare_random_forms(60, 12);
}

}  // namespace
}  // namespace sherd::testing
