// What the ledger says that a step launches, beside what it launches on the emulated GPU.
#include <gtest/gtest.h>

#include "engine/plan/ledger/step_ledger.h"
#include "engine/schedule/order.h"
#include "tests/emulated_gpu/launch_counts.h"
#include "tests/support/gpu_meshes.h"
#include "tests/support/model_forms.h"
#include "tests/support/training_harness.h"

namespace sherd::testing {
namespace {

using emulated::LaunchCounts;
using optim::OptimizerType;

RunShape one_gpu(int micro_steps) {
  return {.num_micro_steps = micro_steps, .place = RunShape::Place::kGpu};
}

LaunchCounts launched_by(const engine::TrainingOptions& options, const RunShape& setup, int steps) {
  const LaunchCounts before = emulated::launch_counts();
  train(options, setup, steps);
  LaunchCounts after = emulated::launch_counts();
  for (const auto& [kernel, count] : before) after[kernel] -= count;
  return after;
}

// One step's: whatever a run does once is in both runs.
LaunchCounts launched_in_a_step(const engine::TrainingOptions& options, const RunShape& setup) {
  const LaunchCounts one = launched_by(options, setup, 1);
  LaunchCounts counts = launched_by(options, setup, 2);
  for (const auto& [kernel, count] : one) counts[kernel] -= count;
  std::erase_if(counts, [](const auto& row) { return row.second == 0; });
  return counts;
}

// Of all ranks.
LaunchCounts in_the_ledger(const engine::TrainingOptions& options, const RunShape& setup) {
  LaunchCounts counts;
  for (int rank = 0; rank < mesh_of(setup).world_size(); ++rank) {
    const engine::StepLedger step = engine::step_ledger(
        {applied(options, setup), mesh_of(setup), {}, rank}, engine::h100_rates());
    for (const engine::LedgerRow& row : step.rows) {
      if (row.of != engine::LedgerRow::Class::kExchange) counts[row.name] += row.launches;
    }
  }
  // Matmuls are a library's, these two the driver's.
  for (const char* other :
       {"linear_forward", "linear_backward_input", "linear_backward_weight", "fill_zero", "copy"}) {
    counts.erase(other);
  }
  return counts;
}

std::string text(const LaunchCounts& counts) {
  std::string text;
  for (const auto& [kernel, count] : counts) text += fmt::format("{} {}\n", kernel, count);
  return text;
}

void expect_alike(const engine::TrainingOptions& options, const RunShape& setup) {
  const LaunchCounts launched = launched_in_a_step(options, setup);
  EXPECT_GT(launched.size(), 8u);
  EXPECT_EQ(text(in_the_ledger(options, setup)), text(launched));
}

TEST(Launches, OfAStepAreThoseInTheLedgerForEveryFormOfAModel) {
  for (const ModelForm& form : model_forms()) {
    SCOPED_TRACE(form.name);
    expect_alike(tiny_training(form.shape, 1.0f), one_gpu(1));
  }
}

TEST(Launches, OfAStepAreThoseInTheLedgerForEveryOptimizer) {
  for (const OptimizerType type :
       {OptimizerType::kAdam, OptimizerType::kAdamW, OptimizerType::kSgd, OptimizerType::kLion,
        OptimizerType::kLamb, OptimizerType::kLars, OptimizerType::kMuon}) {
    SCOPED_TRACE(static_cast<int>(type));
    engine::TrainingOptions options = tiny_training(tiny_model(type == OptimizerType::kLamb), 1.0f);
    options.optimizer.type = type;
    expect_alike(options, one_gpu(2));
  }
}

TEST(Launches, OfAStepIn16BitsAreThoseInTheLedger) {
  for (const DType dtype : {DType::kBF16, DType::kF16}) {
    SCOPED_TRACE(name_of(dtype));
    model::ModelShape shape = tiny_model(false);
    shape.dtype = dtype;
    engine::TrainingOptions options = tiny_training(shape, 1.0f);
    options.precision = {dtype, DType::kF32, DType::kF32};
    if (dtype == DType::kF16) {
      options.loss_scaling.mode = optim::LossScaling::Mode::kDynamic;
      options.loss_scaling.initial_scale_power = 8;
    }
    expect_alike(options, one_gpu(1));
  }
}

// What stands behind collectives, and the kernels around a ring's blocks. In 16 bits attention itself is a library's.
TEST(Launches, OfMeshesAreThoseInTheLedger) {
  constexpr auto kRing = model::ContextMethod::kRing;
  const std::vector<GpuMesh> meshes = {
      {.tensor = 2, .stage = 2, .micro_steps = 2},
      {.shards = 2, .stage = 3, .dtype = DType::kBF16},
      {.context = 2, .stage = 1, .method = kRing},
      {.context = 2, .stage = 1, .dtype = DType::kBF16, .method = kRing}};
  for (const GpuMesh& each : meshes) {
    SCOPED_TRACE(name_of(each));
    LaunchCounts ledger = in_the_ledger(options_of(each), setup_of(each, RunShape::Place::kGpus));
    LaunchCounts launched =
        launched_in_a_step(options_of(each), setup_of(each, RunShape::Place::kGpus));
    for (LaunchCounts* counts : {&ledger, &launched}) {
      std::erase_if(*counts, [&](const auto& row) {
        return each.dtype != DType::kF32 &&
               (row.first.starts_with("attention_") || row.first == "set_pair");
      });
    }
    EXPECT_EQ(text(ledger), text(launched));
  }
}

// The emulated matmul forms its sum from zero before it adds it, as cuBLASLt needn't.
TEST(AddingInMatmuls, GivesTheBitsOfAddingBehindThem) {
  for (const bool tied : {false, true}) {
    for (const int world : {1, 2}) {
      SCOPED_TRACE(fmt::format("tied {}, {} ranks", tied, world));
      model::ModelShape shape = tiny_model(tied);
      shape.dropout = 0.0;
      engine::TrainingOptions options = tiny_training(shape, 1.0f);
      RunShape setup = one_gpu(3);
      setup.world_size = world;
      setup.stage = world - 1;
      setup.grad_sync = sharding::GradSync::kBoundary;
      const Outcome apart = train(options, setup, 3);
      options.adds_in_matmuls = true;
      const Outcome added = train(options, setup, 3);
      EXPECT_EQ(difference(apart, added), "");
    }
  }
}

// Each form has its own gaps between what matmuls form and what not; a zero-bubble pipeline forms weights' gradients apart;
// a graph of the first micro-step isn't that of the second.
TEST(AddingInMatmuls, GivesTheBitsOfAddingBehindThemInEveryForm) {
  std::vector<std::pair<std::string, engine::TrainingOptions>> trainings;
  for (const ModelForm& form : model_forms()) {
    trainings.emplace_back(form.name, tiny_training(form.shape, 1.0f));
  }
  RunShape setup = one_gpu(2);
  setup.grad_sync = sharding::GradSync::kBoundary;
  for (auto& [name, options] : trainings) {
    SCOPED_TRACE(name);
    options.model.dropout = 0.0;
    const Outcome apart = train(options, setup, 2);
    options.adds_in_matmuls = true;
    EXPECT_EQ(difference(apart, train(options, setup, 2)), "");
    RunShape graphs = setup;
    graphs.cuda_graphs = true;
    EXPECT_EQ(difference(apart, train(options, graphs, 2)), "") << "with graphs";
  }
}

TEST(AddingInMatmuls, GivesTheBitsOfAddingBehindThemInAPipelineWithoutBubbles) {
  model::ModelShape shape = tiny_model(true);
  shape.num_layers = 4;
  engine::TrainingOptions options = tiny_training(shape, 1.0f);
  options.pipeline.order = schedule::Order::kZbH1;
  RunShape setup = one_gpu(4);
  setup.axes = {{"pipeline", 2}};
  setup.grad_sync = sharding::GradSync::kBoundary;
  const Outcome apart = train(options, setup, 2);
  options.adds_in_matmuls = true;
  EXPECT_EQ(difference(apart, train(options, setup, 2)), "");
}

TEST(AddingInMatmuls, LaunchesWhatTheLedgerSays) {
  engine::TrainingOptions options = tiny_training(tiny_model(false), 1.0f);
  RunShape setup = one_gpu(3);
  setup.grad_sync = sharding::GradSync::kBoundary;
  const auto ledger = [&] {
    return engine::step_ledger({applied(options, setup), mesh_of(setup), {}, 0},
                               engine::h100_rates());
  };
  const auto added_bytes = [](const engine::StepLedger& step) {
    std::int64_t bytes = 0;
    for (const engine::LedgerRow& row : step.rows) bytes += row.name == "add" ? row.read : 0;
    return bytes;
  };
  const std::int64_t apart = added_bytes(ledger());
  options.adds_in_matmuls = true;
  expect_alike(options, setup);
  EXPECT_LT(added_bytes(ledger()), apart / 4);  // norms and the embedding are left
}

}  // namespace
}  // namespace sherd::testing
