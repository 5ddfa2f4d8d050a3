// Runs on a GPU. Labelled `cuda`: without one each test says so and is skipped.
//
// The ladder runs with dropout 0: attention's dropout inside cuDNN promises the same bits from run
// to run, not between layouts (kernels/attention.h).

#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <sstream>

#include "checkpoint/format/manifest.h"
#include "engine/inference/evaluate.h"
#include "engine/train/units/kept_inputs.h"
#include "sharding/comm/nccl.h"
#include "tests/support/models/generated_text.h"
#include "tests/support/models/model_forms.h"
#include "tests/support/runs/small_run.h"
#include "tests/support/runs/training_harness.h"

namespace sherd::testing {
namespace {

using optim::OptimizerType;
using sharding::GradSync;
using Place = RunShape::Place;

class CudaRun : public ::testing::Test {
 protected:
  void SetUp() override {
    const CudaSystem system = cuda_system();
    if (!system.problem.empty()) GTEST_SKIP() << "no GPU: " << system.problem;
  }
};

constexpr DType kTypes[] = {DType::kF32, DType::kBF16, DType::kF16};

engine::TrainingOptions training_in(DType dtype, bool tied) {
  model::ModelShape shape = tiny_model(tied);
  shape.dtype = dtype;
  shape.dropout = 0.0;
  if (dtype != DType::kF32) {  // what cuDNN's attention and cuBLASLt's GELU take
    shape.query_heads = 3;
    shape.kv_heads = 1;
    shape.ffn_width = 40;
  }
  engine::TrainingOptions options = tiny_training(shape, 1.0f);
  options.precision = {dtype, DType::kF32, DType::kF32};
  if (dtype == DType::kF16) {
    options.loss_scaling.mode = optim::LossScaling::Mode::kDynamic;
    options.loss_scaling.initial_scale_power = 8;
  }
  return options;
}

RunShape on_gpu(int world, int stage) {
  return {.world_size = world, .stage = stage, .place = Place::kGpu};
}

// `train` also compares every phase's memory with the plan, and the arena is all that is taken.
TEST_F(CudaRun, StagesAgreeBitForBitWithTwoAndFourRanksOnOneGpuInEveryType) {
  for (const DType dtype : kTypes) {
    for (const bool tied : {false, true}) {
      const auto options = training_in(dtype, tied);
      for (const int world : {2, 4}) {
        for (const int num_micro_steps : {1, 3}) {
          RunShape setup = on_gpu(world, 0);
          setup.num_micro_steps = num_micro_steps;
          const Outcome stage0 = train(options, setup, 3);
          for (setup.stage = 1; setup.stage <= 3; ++setup.stage) {
            setup.prefetch_depth = setup.stage % 3;
            EXPECT_EQ(difference(train(options, setup, 3), stage0), "")
                << name_of(dtype) << ", " << name_of(setup);
          }
        }
      }
    }
  }
}

TEST_F(CudaRun, EveryOptimizerAgreesBetweenStagesZeroAndThree) {
  for (const auto type : {OptimizerType::kAdam, OptimizerType::kSgd, OptimizerType::kLion,
                          OptimizerType::kLamb, OptimizerType::kLars, OptimizerType::kMuon}) {
    auto options = training_in(DType::kBF16, true);
    options.optimizer.type = type;
    options.optimizer.momentum = 0.9f;
    EXPECT_EQ(difference(train(options, on_gpu(2, 0), 3), train(options, on_gpu(2, 3), 3)), "")
        << static_cast<int>(type);
  }
}

TEST_F(CudaRun, StateInTheHostsMemoryChangesNoBit) {
  for (const DType dtype : kTypes) {
    for (int stage = 0; stage <= 3; ++stage) {
      auto options = training_in(dtype, true);
      options.model.num_layers = 5;
      options.model.recompute = model::Recompute::kFull;
      const Outcome on_gpu_alone = train(options, on_gpu(2, stage), 3);
      options.optimizer.offload = {.moments = true,
                                   .master = dtype != DType::kF32 && stage < 3,
                                   .parameters = stage == 3,
                                   .on_host = true,
                                   .buffer_bytes = 1};
      options.model.residual_slots = engine::KeptInputs::slots(5);
      EXPECT_EQ(difference(train(options, on_gpu(2, stage), 3), on_gpu_alone), "")
          << name_of(dtype) << ", stage " << stage;
      if (dtype == DType::kF32 && stage < 3) continue;
      options.optimizer.offload.host_updates = true;
      EXPECT_EQ(difference(train(options, on_gpu(2, stage), 3), on_gpu_alone), "")
          << "by the host's cores: " << name_of(dtype) << ", stage " << stage;
    }
  }
}

// What a GPU sends in blocks are the CPU's bytes of the same numbers.
TEST_F(CudaRun, NumbersInBlocksAgreeBetweenStagesAndFollowTheCpusLosses) {
  using kernels::BlockFormat;
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    auto options = training_in(dtype, true);
    options.precision.gather_blocks = BlockFormat::kInt8;
    options.precision.reduce_blocks =
        dtype == DType::kF32 ? BlockFormat::kInt4 : BlockFormat::kInt8;
    options.precision.replica_blocks = BlockFormat::kInt4;
    for (const int replicas : {1, 2}) {
      RunShape setup = on_gpu(2, 0);
      setup.axes = {{"replicate", replicas}, {"shard", 2 / replicas}};
      const Outcome stage0 = train(options, setup, 3);
      for (setup.stage = 1; setup.stage <= 3; ++setup.stage) {
        setup.divides_optimizer = replicas > 1 && setup.stage != 2;
        EXPECT_EQ(difference(train(options, setup, 3), stage0), "")
            << name_of(dtype) << ", " << name_of(setup);
      }
      setup.stage = 1;
      setup.place = Place::kHost;
      const Outcome cpu = train(options, setup, 3);
      for (std::size_t step = 0; step < cpu.losses.size(); ++step) {
        EXPECT_NEAR(stage0.losses[step], cpu.losses[step], dtype == DType::kF32 ? 1e-3 : 1e-2);
      }
    }
  }
}

TEST_F(CudaRun, TwoRunsHaveTheSameBitsDropoutIncluded) {
  auto options = training_in(DType::kBF16, true);
  options.model.dropout = 0.1;
  EXPECT_EQ(difference(train(options, on_gpu(1, 0), 5), train(options, on_gpu(1, 0), 5)), "");
}

TEST_F(CudaRun, GraphsChangeNoBit) {
  for (const int stage : {0, 3}) {
    const auto options = training_in(DType::kBF16, false);
    RunShape setup = on_gpu(2, stage);
    const Outcome without = train(options, setup, 6);
    setup.cuda_graphs = true;
    EXPECT_EQ(difference(train(options, setup, 6), without), "") << name_of(setup);
  }
}

// Tolerances as in docs/precision.md: a GPU adds in another order.
TEST_F(CudaRun, LossesFollowTheCpusForTwentySteps) {
  constexpr double kTolerance[] = {2e-3, 5e-2, 2e-2};
  for (int type = 0; type < 3; ++type) {
    for (const bool tied : {false, true}) {
      const auto options = training_in(kTypes[type], tied);
      const Outcome cpu = train(options, {.world_size = 2, .stage = 2}, 20);
      const Outcome gpu = train(options, on_gpu(2, 2), 20);
      for (std::size_t step = 0; step < cpu.losses.size(); ++step) {
        EXPECT_NEAR(gpu.losses[step], cpu.losses[step], kTolerance[type])
            << name_of(kTypes[type]) << ", step " << step;
      }
    }
  }
}

// Norms of heads and projections, windows, caps, scales, every activation and rotary table, in f32, whose
// attention is our own kernels'.
TEST_F(CudaRun, EveryFormOfABlockFollowsTheCpusLossesAndStagesAgree) {
  std::vector<ModelForm> forms = model_forms();
  forms.push_back({"latents", shape_named(latent_forms(), "latents")});
  for (const ModelForm& form : forms) {
    SCOPED_TRACE(form.name);
    engine::TrainingOptions options = tiny_training(form.shape, 1.0f);
    options.model.dropout = 0.0;
    const Outcome cpu = train(options, {.world_size = 2, .stage = 2}, 4);
    const Outcome gpu = train(options, on_gpu(2, 0), 4);
    for (std::size_t step = 0; step < cpu.losses.size(); ++step) {
      EXPECT_NEAR(gpu.losses[step], cpu.losses[step], 2e-3) << step;
    }
    EXPECT_EQ(difference(train(options, on_gpu(2, 3), 4), gpu), "");
  }
}

// Latent attention by cuDNN, which leaves columns of padded values unwritten; 7 of 8 that it computes count.
// Whole, of heads that context ranks deal, and in a ring.
TEST_F(CudaRun, NarrowValuesIn16BitsFollowTheCpusLosses) {
  model::ModelShape shape = cuttable(shape_named(latent_forms(), "latents"), 8);
  shape.layer_kinds = {};
  shape.dropout = 0.0;
  shape.seq_length = 8;
  shape.dtype = DType::kBF16;
  model::set_latent_attention(
      shape, {.kv_rank = 11, .query_rank = 9, .plain = 8, .rotated = 8, .value = 7});
  engine::TrainingOptions options = tiny_training(shape, 1.0f);
  options.precision = {DType::kBF16, DType::kF32, DType::kF32};
  for (const auto& [context, method] : {std::pair(1, model::ContextMethod::kUlysses),
                                        {2, model::ContextMethod::kUlysses},
                                        {2, model::ContextMethod::kRing}}) {
    for (const auto recompute : {model::Recompute::kNone, model::Recompute::kSelective}) {
      options.model.context.method = method;
      options.model.recompute = recompute;
      RunShape setup = on_gpu(context, 0);
      setup.axes = {{"shard", 1}, {"context", context}};
      const Outcome gpu = train(options, setup, 3);
      setup.place = Place::kHost;
      const Outcome cpu = train(options, setup, 3);
      for (std::size_t step = 0; step < cpu.losses.size(); ++step) {
        EXPECT_NEAR(gpu.losses[step], cpu.losses[step], 2e-2) << context << " ranks, step " << step;
      }
    }
  }
}

// Branches that nothing happens to are added by their last matmuls; dropout and a multiplier come in between.
TEST_F(CudaRun, WhatHappensToABranchBeforeItIsAddedFollowsTheCpusLosses) {
  for (const auto form : {model::BlockForm::kSequential, model::BlockForm::kParallel}) {
    for (const auto& [dropout, scale] : {std::pair(0.0, 1.0), {0.3, 1.0}, {0.0, 0.5}}) {
      SCOPED_TRACE(fmt::format("parallel {}, dropout {}, multiplier {}",
                               form == model::BlockForm::kParallel, dropout, scale));
      engine::TrainingOptions options = training_in(DType::kF32, false);
      options.model.block_form = form;
      options.model.dropout = dropout;
      options.model.residual_scale = scale;
      const Outcome cpu = train(options, {.world_size = 2, .stage = 2}, 3);
      const Outcome gpu = train(options, on_gpu(2, 2), 3);
      EXPECT_NEAR(gpu.losses[0], cpu.losses[0], 1e-4);
      for (std::size_t step = 1; step < cpu.losses.size(); ++step) {
        EXPECT_NEAR(gpu.losses[step], cpu.losses[step], 1e-3) << step;
      }
    }
  }
}

TEST_F(CudaRun, AQuantisedBaseFollowsTheCpusLossesAndStagesAgree) {
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    engine::TrainingOptions options = training_in(dtype, true);
    options.model.adapter = {.rank = 3, .scale = 1.5, .dropout = 0.0};
    options.model.adapter.targets = {"attention.qkv", "attention.output", "mlp.down"};
    options.nf4_base = true;
    const Outcome cpu = train(options, {.world_size = 2, .stage = 2}, 4);
    const Outcome gpu = train(options, on_gpu(2, 0), 4);
    for (std::size_t step = 0; step < cpu.losses.size(); ++step) {
      EXPECT_NEAR(gpu.losses[step], cpu.losses[step], dtype == DType::kF32 ? 2e-3 : 5e-2) << step;
    }
    EXPECT_EQ(difference(train(options, on_gpu(2, 3), 4), gpu), "") << name_of(dtype);
  }
}

std::shared_ptr<const engine::Machine> shared_gpu(int world_size) {
  return engine::cuda_machine(world_size, {.share_device = true});
}

std::vector<double> losses_of(const test::TempFolder& folder, const std::string& output) {
  std::vector<double> losses;
  for (const std::string& line : numbers_of(folder, output)) {
    const auto parsed = nlohmann::json::parse(line);
    if (parsed.contains("loss")) losses.push_back(parsed.at("loss").get<double>());
  }
  return losses;
}

TEST_F(CudaRun, CheckpointsOfAGpuGoOnOnTheCpuAndTheOtherWayRound) {
  const test::TempFolder folder;
  write_data(folder);
  TrainingRun run{.stage = 3,
                  .world = 2,
                  .precision = "mixed_precision: {param_dtype: f32}",
                  .optimizer = "adamw",
                  .accumulation = "gradient_accumulation_steps: 1",
                  .more = "gradient_clipping: {max_norm: 1.0}"};
  train_in(folder, "cpu", run);
  run.machine = shared_gpu(run.world);
  train_in(folder, "gpu", run);
  const std::vector<double> whole = losses_of(folder, "cpu");
  for (const std::string output : {"cpu", "gpu"}) {
    std::filesystem::remove_all(
        folder.file(output + "/checkpoints/" + checkpoint::step_directory_name(kSteps)));
    run.machine = output == "cpu" ? shared_gpu(run.world) : nullptr;
    train_in(folder, output, run);
    const std::vector<double> losses = losses_of(folder, output);
    ASSERT_EQ(losses.size(), whole.size());
    for (std::size_t i = 0; i < losses.size(); ++i) EXPECT_NEAR(losses[i], whole[i], 5e-3) << i;
  }
}

// Files are documents; rows hold several, and padding. Two places of a batch take turns, so that a graph which
// didn't know its documents would be replayed with another's.
TEST_F(CudaRun, SeparateDocumentsFollowTheCpusLossesAndStagesAgree) {
  const test::TempFolder folder;
  for (int file = 0; file < 90; ++file) {
    std::string text;
    for (int i = 0; i < 2 + file * 17 % 39; ++i) {
      text += static_cast<char>('a' + (i * i + file * i / 3) % 26);
    }
    folder.write("data/" + std::to_string(file), text);
  }
  folder.write("validation.txt", "the quick brown fox jumps over the lazy dog and runs away");
  for (const std::string precision : {"f32", "bf16"}) {
    TrainingRun run{.stage = 2,
                    .world = 2,
                    .precision = "mixed_precision: {param_dtype: " + precision + "}",
                    .optimizer = "adamw",
                    .accumulation = "gradient_accumulation_steps: 1",
                    .data = ", documents: separate",
                    .dropout = 0.0};
    train_in(folder, "cpu_" + precision, run);
    run.machine = shared_gpu(run.world);
    run.stage = 0;
    train_in(folder, "gpu_" + precision, run);
    run.stage = 3;
    train_in(folder, "sliced_" + precision, run);
    run.machine =
        engine::cuda_machine(run.world, {.share_device = true, .stream = {.graphs = true}});
    train_in(folder, "graphs_" + precision, run);
    EXPECT_EQ(losses_of(folder, "graphs_" + precision), losses_of(folder, "sliced_" + precision));
    const std::vector<double> cpu = losses_of(folder, "cpu_" + precision);
    const std::vector<double> gpu = losses_of(folder, "gpu_" + precision);
    ASSERT_EQ(gpu.size(), cpu.size());
    for (std::size_t i = 0; i < cpu.size(); ++i) {
      EXPECT_NEAR(gpu[i], cpu[i], precision == "f32" ? 2e-3 : 5e-2) << i;
    }
    EXPECT_EQ(losses_of(folder, "sliced_" + precision), gpu);
  }
}

TEST_F(CudaRun, EvaluationOfACheckpointIsTheLastOneOfItsRun) {
  const test::TempFolder folder;
  write_data(folder);
  TrainingRun run{.precision = "mixed_precision: {param_dtype: bf16}",
                  .optimizer = "adamw",
                  .accumulation = "gradient_accumulation_steps: 1"};
  run.machine = shared_gpu(run.world);
  train_in(folder, "run", run);
  engine::TrainedModelRequest request;
  request.checkpoint = folder.file("run/checkpoints/" + checkpoint::step_directory_name(kSteps));
  request.machine = shared_gpu(run.world);
  const auto lines = numbers_of(folder, "run");
  EXPECT_EQ(engine::evaluate_checkpoint(request).loss,
            nlohmann::json::parse(lines.back()).at("val_loss").get<double>());
  // More tokens than the context holds, so every length of a pass occurs.
  const std::string text = test::generated_text(request, "the", {.num_tokens = 20});
  EXPECT_EQ(test::generated_text(request, "the", {.num_tokens = 20}), text);
}

// What a machine with one GPU can show of NCCL: that calls arrive, and that an abort is heard.
TEST_F(CudaRun, NcclOnOneGpuGathersReducesAndHearsAnAbort) {
  if (cuda_system().devices[0].name == "emulated") GTEST_SKIP() << "NCCL wants a real GPU";
  const auto communicator = sharding::make_nccl_rendezvous({0})->join({"test", {0}, 0});
  const auto stream = make_cuda_stream({.name = "reduce",
                                        .rank = 0,
                                        .num_threads = 1,
                                        .may_spin = false,
                                        .hook = {},
                                        .trace = nullptr},
                                       {});
  const auto memory = cuda_arena_memory(8 * 4);
  const std::vector<float> sent = {1, 2, 3, 4};
  std::vector<float> received(4);
  const Tensor full{memory->data(), DType::kF32, 4};
  const Tensor out{memory->data() + 16, DType::kF32, 4};
  stream->copy(sent.data(), full.data, 16);
  communicator->all_gather(*stream, "test", full);
  communicator->reduce_scatter(*stream, "test", full, out);
  communicator->all_reduce(*stream, "test", out);
  communicator->broadcast(*stream, "test", out, 0);
  communicator->barrier(*stream, "test");
  stream->copy(out.data, received.data(), 16);
  stream->synchronize();
  communicator->check_alive();
  EXPECT_EQ(received, sent);
  communicator->abort("enough");
  EXPECT_THROW(communicator->check_alive(), PeerError);
  EXPECT_THROW(communicator->all_gather(*stream, "test", full), PeerError);
}

TEST_F(CudaRun, ThePlanIsWhatTheDriverGaveToTheByteInWholePages) {
  const auto options = applied(training_in(DType::kBF16, true), {.stage = 3});
  const engine::MemoryRequest request{
      .saves = true, .device = DeviceKind::kCuda, .separate_memory = true};
  use_cuda_device(0);
  cuda_arena_memory(1);  // whatever the first allocation sets up
  const MemoryPlan plan = engine::plan_memory(options, request);
  const std::int64_t before = cuda_bytes_in_use(0);
  const auto memory = cuda_arena_memory(plan.arena_bytes());
  EXPECT_EQ(memory->bytes(), cuda_arena_bytes(plan.arena_bytes()));
  EXPECT_EQ(cuda_bytes_in_use(0) - before, memory->bytes());
}

}  // namespace
}  // namespace sherd::testing
