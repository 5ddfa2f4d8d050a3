#include "engine/run/inference.h"

#include "engine/data/dataset.h"
#include "engine/plan/memory_plan.h"
#include "engine/plan/memory_report.h"
#include "engine/report/progress.h"
#include "engine/run/trained_model.h"
#include "engine/train/from_recipe.h"

namespace sherd::engine {
namespace {

/// As a run is checked, by what this machine has: what the checkpoint's recipe says of memory was
/// meant for another one. A person may still say --set memory.device_memory or memory.on_exceed.
void check_fits(const TrainedModel& trained, const MemoryRequest& request) {
  const DeviceLimit limit = device_limit(trained.recipe);
  const std::int64_t of_rank = plan_memory_of_use(trained.options, request).arena_bytes();
  std::int64_t needed = of_rank;
  const bool overflows =
      limit.shared && __builtin_mul_overflow(of_rank, request.mesh.world_size(), &needed);
  if (!overflows && needed <= limit.bytes) return;
  if (trained.recipe.memory.on_exceed == OnExceed::kWarn) return;
  throw UsageError(
      "{}: using it on {} rank{} needs {} per rank; {} has {}. Use another number of --ranks (at "
      "stage 3 each rank holds less), or a machine with more memory.",
      trained.path, request.mesh.world_size(), request.mesh.world_size() == 1 ? "" : "s",
      human_bytes(of_rank), limit.shared ? "this machine" : "the device", human_bytes(limit.bytes));
}

/// Runs `use(rank, model)` on every rank, with the weights in the model.
template <class Use>
void with_weights(const TrainedModel& trained, std::shared_ptr<const Machine> machine,
                  const Use& use) {
  if (!machine) machine = choose_machine(trained.recipe);
  LaunchOptions launch = launch_options(trained.recipe, machine);
  MemoryRequest request{.mesh = launch.mesh,
                        .num_threads = launch.compute_threads(),
                        .device = machine->traits().kind,
                        .deterministic = trained.recipe.run.deterministic,
                        .separate_memory = machine->traits().separate_memory};
  const auto of_rank = [&request](int r) {
    MemoryRequest of_rank = request;
    of_rank.rank = r;
    return of_rank;
  };
  check_fits(trained, request);
  launch.plan = [&](int r) { return plan_memory_of_use(trained.options, of_rank(r)); };
  launch.host_plan = [&](int r) { return plan_host_memory_of_use(trained.options, of_rank(r)); };
  install_stop_handlers();
  run_ranks(launch, [&](sharding::Rank& rank) {
    ShardedModel model(trained.options, rank);
    rank.guard([&] {
      load_weights(trained, model);
      use(rank, model);
    });
  });
}

}  // namespace

EvaluationResult evaluate_checkpoint(const TrainedModelRequest& request) {
  const TrainedModel trained = trained_model(request);
  data::DataOptions data = data_options(trained.recipe);
  data.only_validate = true;
  data.vocabulary = trained.vocabulary;
  const data::Batcher batcher(data::open_dataset(data), batch_shape(trained.recipe));
  if (batcher.num_validation_windows() == 0) {
    throw DataError("{}: nothing to validate with; give text with --set data.validation_path=...",
                    data.path);
  }
  EvaluationResult result;
  with_weights(trained, request.machine, [&](sharding::Rank& rank, ShardedModel& model) {
    Evaluation evaluation(trained.options, model, batcher, trained.batch_size);
    const EvaluationResult of_rank = evaluation.run(0);
    if (rank.rank == 0) result = of_rank;
  });
  if (result.stop != StopRequest::kNone) throw_stopped(result.stop, "during the evaluation");
  return result;
}

std::string sample_checkpoint(const TrainedModelRequest& request, const std::string& prompt,
                              const SamplingOptions& options) {
  const TrainedModel trained = trained_model(request);
  data::DataOptions data = data_options(trained.recipe);
  data.vocabulary = trained.vocabulary;
  const std::unique_ptr<const data::TokenText> text = data::make_token_text(data);
  std::vector<std::int32_t> ids = text->ids(prompt);
  if (ids.empty()) ids = {0};
  std::vector<std::int32_t> tokens;
  with_weights(trained, request.machine, [&](sharding::Rank& rank, ShardedModel& model) {
    const auto buffers = evaluation_buffers(trained.options, rank.world_size());
    const sharding::MirroredBuffer inputs(rank, buffers[0]);
    const auto of_rank = sample(model, ids, options, inputs);
    if (rank.rank == 0) tokens = of_rank;
  });
  return text->text(tokens);
}

}  // namespace sherd::engine
