// What ranks have sent, by the kind of link: counted at MPI's door, and as `sherd plan` says beforehand.
#include <nlohmann/json.hpp>
#include <sstream>

#include "tests/engine/processes/mpi_runs.h"
#include "tests/where.h"

namespace sherd::testing {
namespace {

using SentBytes = ProcessesTest;

struct Form {
  std::string name, mesh, zero;
  int stage = 3;
  std::string optimizer = "adamw";
};

// Two processes of two ranks, each a machine of its own for what is counted (`hierarchical: on`).
TEST_F(SentBytes, OfEveryStepAreThePlannedOnesOnEachKindOfLink) {
  for (const Form& form :
       {Form{"gathers", "hierarchical: on", ""}, Form{"stage_0", "hierarchical: on", "", 0},
        Form{"free", "hierarchical: on, sum_order: free", ""},
        Form{"free_stage_0", "hierarchical: on, sum_order: free", "", 0},
        Form{"replicas", "hierarchical: on, data_parallel_replicate_degree: 2", ""},
        Form{"divided", "hierarchical: on, data_parallel_replicate_degree: 2",
             "shard_optimizer_over_replicas: true"},
        Form{"pipeline", "hierarchical: on, pipeline_parallel_degree: 2", "", 2, "lamb"},
        Form{"tensor", "hierarchical: on, tensor_parallel_degree: 2", ""}}) {
    SCOPED_TRACE(form.name);
    const bool plain = form.mesh.find("degree") == std::string::npos;
    TrainingRun run{
        .stage = form.stage,
        .world = plain ? 4 : 2,
        .precision = "",
        .optimizer = form.optimizer,
        .accumulation = plain ? "gradient_accumulation_steps: 1" : "micro_batch_size: 1",
        .interval = 0,
        .checkpoint = "resume: never",
        .mesh = form.mesh,
        .zero = form.zero,
        .model = ", ffn_hidden_size: 48"};
    const std::string shards = std::to_string(run.world);
    const auto outcome =
        train_in_processes(folder_, form.name, run, {2, 2},
                           {"--set", "parallelism.data_parallel_shard_degree=" + shards, "--set",
                            "training.eval_batches=1"});
    ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
    folder_.write(form.name + ".yaml", recipe_text(folder_, form.name, run));
    const auto plan = test::run_program(SHERD_PROGRAM, {"plan", folder_.file(form.name + ".yaml"),
                                                        "--json", "--ranks-per-machine", "2"});
    ASSERT_EQ(plan.exit_code, 0) << plan.err;
    const auto planned = nlohmann::json::parse(plan.out)["sent_by_machine"]["rows"].back();
    ASSERT_EQ(planned["among"], "sum");
    std::istringstream lines(folder_.read(form.name + "/metrics.jsonl"));
    int steps = 0;
    for (std::string text; std::getline(lines, text);) {
      const auto line = nlohmann::json::parse(text);
      if (!line.contains("sent_bytes") || line["step"] == 1) continue;  // with what begins a run
      ++steps;
      for (const auto& [counted, of_plan] :
           {std::pair("within_machines", "within_machine_bytes"),
            std::pair("to_other_machines", "to_other_machines_bytes")}) {
        // Both machines send as much to one another; inside, those of a pipeline have other layers.
        if (form.name == "pipeline" && counted == std::string("within_machines")) continue;
        EXPECT_EQ(line["sent_bytes"][counted].get<double>(), 2 * planned[of_plan].get<double>())
            << counted << ", step " << line["step"];
      }
    }
    EXPECT_EQ(steps, kSteps - 1);
  }
}

}  // namespace
}  // namespace sherd::testing
