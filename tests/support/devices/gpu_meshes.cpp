#include "tests/support/devices/gpu_meshes.h"

#include <gtest/gtest.h>

namespace sherd::testing {

namespace {

const char* name_of(model::ContextMethod method) {
  switch (method) {
    case model::ContextMethod::kUlysses:
      return "";
    case model::ContextMethod::kAllGather:
      return " all_gather";
    case model::ContextMethod::kRing:
      return " ring";
  }
  return "";
}

}  // namespace

std::string name_of(const GpuMesh& each) {
  return fmt::format(
      "{} tensor {}{} context {}{} shard {} replicate {} pipeline {} stage {} micro-steps {} {} {}",
      each.tied ? "tied" : "untied", each.tensor, each.sequence_parallel ? " sharing tokens" : "",
      each.context, name_of(each.method), each.shards, each.replicas, each.pipeline, each.stage,
      each.micro_steps, sherd::name_of(each.dtype), static_cast<int>(each.recompute));
}

std::vector<GpuMesh> gpu_meshes() {
  constexpr DType kBF16 = DType::kBF16, kF16 = DType::kF16;
  constexpr auto kMuon = optim::OptimizerType::kMuon;
  constexpr auto kGathers = model::ContextMethod::kAllGather, kRing = model::ContextMethod::kRing;
  return {
      {.tensor = 2, .replicas = 2, .stage = 1, .tied = true},
      {.tensor = 4, .stage = 3, .micro_steps = 2},  // copies of key/value heads
      {.tensor = 2, .shards = 2, .stage = 3, .dtype = kBF16},
      {.tensor = 4, .stage = 2, .dtype = kF16, .tied = true, .own_heads = true},
      {.tensor = 2, .shards = 2, .stage = 2, .sequence_parallel = true, .optimizer = kMuon},
      {.tensor = 4, .stage = 0, .dtype = kBF16, .tied = true, .sequence_parallel = true},
      {.context = 2, .shards = 2, .stage = 3, .tied = true},
      {.context = 2, .stage = 1, .micro_steps = 2, .dtype = kBF16, .own_heads = true},
      {.context = 2, .shards = 2, .stage = 0, .method = kGathers},
      {.context = 4, .stage = 2, .dtype = kF16, .tied = true, .method = kGathers},
      {.tensor = 2, .context = 2, .stage = 3, .sequence_parallel = true, .method = kGathers},
      {.tensor = 2, .context = 2, .stage = 1, .dtype = kBF16, .sequence_parallel = true},
      {.tensor = 2, .pipeline = 2, .stage = 2, .micro_steps = 3, .sequence_parallel = true},
      {.context = 2, .pipeline = 2, .stage = 1, .micro_steps = 2},
      {.context = 2, .shards = 2, .stage = 1, .tied = true, .method = kRing},
      {.context = 3, .stage = 3, .dtype = kBF16, .method = kRing},
      {.context = 4, .stage = 2, .dtype = kF16, .tied = true, .method = kRing},
      {.tensor = 2, .context = 2, .stage = 0, .sequence_parallel = true, .method = kRing},
      {.context = 2, .pipeline = 2, .stage = 3, .micro_steps = 2, .method = kRing},
  };
}

engine::TrainingOptions options_of(const GpuMesh& each) {
  model::ModelShape shape = tiny_model(each.tied);
  shape.width = each.own_heads ? 24 : 32;  // heads of 6, or of 8, which cuDNN takes
  shape.ffn_width = 40;
  // Ulysses cuts what tensor ranks have: two heads of each on two of them.
  if (each.context > 1 && each.method == model::ContextMethod::kUlysses) shape.kv_heads = 4;
  shape.seq_length = each.context == 3 ? 12 : each.context > 1 ? 8 : 9;
  shape.dtype = each.dtype;
  // In 16 bits attention's mask is cuDNN's own.
  shape.dropout = each.dtype == DType::kF32 || each.own_heads ? 0.1 : 0.0;
  shape.recompute = each.recompute;
  shape.part.sequence_parallel = each.sequence_parallel;
  shape.context.method = each.method;
  engine::TrainingOptions options = tiny_training(shape, 0.5f);  // clips
  options.precision = {each.dtype, DType::kF32, DType::kF32};
  options.optimizer.type = each.optimizer;
  options.optimizer.momentum = 0.9f;
  if (each.dtype == DType::kF16) {
    options.loss_scaling.mode = optim::LossScaling::Mode::kDynamic;
    options.loss_scaling.initial_scale_power = 8;
  }
  return options;
}

RunShape setup_of(const GpuMesh& each, RunShape::Place place) {
  return {.world_size = each.world_size(),
          .axes = {{"pipeline", each.pipeline},
                   {"replicate", each.replicas},
                   {"shard", each.shards},
                   {"context", each.context},
                   {"tensor", each.tensor}},
          .num_micro_steps = each.micro_steps,
          .stage = each.stage,
          .prefetch_depth = each.stage % 3,
          .place = place};
}

Outcome train_on(const GpuMesh& each, RunShape::Place place) {
  return train(options_of(each), setup_of(each, place), each.steps);
}

Outcome train_unsharded(GpuMesh each, RunShape::Place place) {
  const int groups = each.replicas;
  each.micro_steps *= each.shards * each.replicas;
  each.shards = each.pipeline = each.replicas = 1;
  each.stage = 0;
  RunShape setup = setup_of(each, place);
  setup.batch_groups = groups;
  return train(options_of(each), setup, each.steps);
}

void expect_near_the_cpus(const GpuMesh& each, const Outcome& gpu) {
  const double tolerance = each.dtype == DType::kF32   ? 2e-3
                           : each.dtype == DType::kF16 ? 2e-2
                                                       : 5e-2;
  const Outcome cpu = train_on(each, RunShape::Place::kHost);
  ASSERT_EQ(gpu.losses.size(), cpu.losses.size()) << name_of(each);
  for (std::size_t step = 0; step < cpu.losses.size(); ++step) {
    EXPECT_NEAR(gpu.losses[step], cpu.losses[step], tolerance)
        << name_of(each) << ", step " << step;
  }
}

}  // namespace sherd::testing
