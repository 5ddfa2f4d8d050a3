// State of a GPU in its host's memory, in whole runs from recipes: their metrics and checkpoints are those of state on
// the GPU.

#include <gtest/gtest.h>

#include <filesystem>

#include "checkpoint/format/manifest.h"
#include "core/offload_home.h"
#include "engine/offload/host_home.h"
#include "engine/train/sharded_model.h"
#include "optim/elementwise.h"
#include "optim/host_update.h"
#include "tests/support/runs/small_run.h"
#include "tests/support/runs/training_harness.h"

namespace sherd::testing {
namespace {

struct Form {
  int stage, world;
  const char* precision;
  const char* optimizer;
  bool async;
};

TEST(CudaOffload, HostUpdatesSaveWhatTheGpuWouldAndGoOnFromItsCheckpoints) {
  const CudaSystem system = cuda_system();
  if (!system.problem.empty()) GTEST_SKIP() << "no GPU: " << system.problem;
  const test::TempFolder folder;
  write_data(folder);
  const std::string last = "checkpoints/" + checkpoint::step_directory_name(kSteps);
  int number = 0;
  for (const Form& form :
       {Form{2, 2, "mixed_precision: {param_dtype: bf16}", "adamw, eight_bit_states: true", true},
        Form{3, 1, "", "lion", false}}) {
    const std::string device = fmt::format("device{}", number),
                      host = fmt::format("host{}", number);
    ++number;
    TrainingRun run{.stage = form.stage,
                    .world = form.world,
                    .precision = form.precision,
                    .optimizer = form.optimizer,
                    .accumulation = "micro_batch_size: 2",
                    .async = form.async,
                    .model = ", head_width: 8",
                    .dropout = 0.0};
    run.machine = engine::cuda_machine(run.world, {.share_device = true});
    TrainingRun by_cores = run;
    by_cores.host_updates = true;
    train_in(folder, device, run);
    train_in(folder, host, by_cores);
    EXPECT_EQ(numbers_of(folder, host), numbers_of(folder, device)) << number;
    const std::vector<std::string> state = final_state(folder, device);
    EXPECT_EQ(final_state(folder, host), state) << number;
    // The second half again, from the other's checkpoint.
    const std::string& again = form.stage == 3 ? device : host;
    std::filesystem::remove_all(folder.file(again + "/" + last));
    train_in(folder, again, again == host ? run : by_cores);
    EXPECT_EQ(final_state(folder, again), state) << number << ", " << again << " resumed";
  }
}

// A GPU's events carry no errors: later work would go on with what isn't there.
TEST(CudaOffload, AnErrorOfAHostUpdateEndsTheRunBeforeTheNextUpdateAndBeforeASave) {
  const CudaSystem system = cuda_system();
  if (!system.problem.empty()) GTEST_SKIP() << "no GPU: " << system.problem;
  engine::TrainingOptions options = tiny_training(tiny_model(true), 0.5f);
  options.model.dtype = DType::kBF16;
  options.precision = {DType::kBF16, DType::kF32, DType::kF32};
  options.optimizer.offload = {
      .moments = true, .master = true, .on_host = true, .host_updates = true, .buffer_bytes = 1};
  const RunShape setup{.place = RunShape::Place::kGpu};
  engine::LaunchOptions launch;
  launch.mesh = mesh_of(setup);
  place_training(launch, setup, options);
  launch.offload_home = [&](const sharding::Rank& rank) {
    return engine::make_host_home(
        engine::plan_offload(options, {.mesh = rank.mesh, .rank = rank.rank}), rank);
  };
  engine::run_ranks(launch, [&](sharding::Rank& rank) {
    const engine::ShardedModel model(options, rank);
    optim::HostUpdate update(rank, model.units(), optim::offload_block(options.optimizer));
    const sharding::UnitState& unit = model.units()[0];
    const auto fail = [&] {
      update.begin_step();
      update.add({.gradient = unit.gradient(unit.updated_slices()[0]).part(0, 8),
                  .rounded = {},
                  .moves = {},
                  .update = [](Stream&, const ConstTensor&, const Tensor&) {
                    throw TrainingError("no update");
                  }});
    };
    fail();
    EXPECT_THROW(rank.offload_home->begin_snapshot(), TrainingError);
    EXPECT_THROW(update.begin_step(), TrainingError);
  });
}

}  // namespace
}  // namespace sherd::testing
