// State of a device with its own memory that is in the host's memory between uses: bit for bit the run with
// everything on the device. The device is tests/support/devices/separate_device.h; on the emulated GPU:
// cuda_run_test.cpp.

#include <gtest/gtest.h>

#include <array>
#include <filesystem>

#include "checkpoint/format/manifest.h"
#include "engine/train/units/kept_inputs.h"
#include "tests/equivalence/mesh_case.h"
#include "tests/equivalence/offload_case.h"
#include "tests/support/devices/separate_device.h"
#include "tests/support/models/model_forms.h"
#include "tests/support/random/pairwise.h"
#include "tests/support/runs/small_run.h"

namespace sherd::testing {
namespace {

using optim::OptimizerType;
using Place = RunShape::Place;

engine::TrainingOptions on_host(engine::TrainingOptions options, bool optimizer, bool parameters) {
  return offloaded(std::move(options), optimizer, parameters, true);
}

TEST(HostOffload, RunsAreThoseOfTheDevicesMemoryAtEveryStageWorldPrecisionAndOptimizer) {
  for (const std::vector<int>& row : pairwise_cover({4, 3, 4, 3, 3, 2, 2})) {
    const engine::TrainingOptions options =
        offload_options(kOffloadedTypes[row[2]], kOffloadedComputeTypes[row[3]]);
    RunShape shape{.world_size = row[1] + 1, .num_micro_steps = 1 + row[5], .stage = row[0]};
    shape.place = row[6] == 0 ? Place::kApart : Place::kApartDeferred;
    const Outcome on_device = train(options, shape, 4);
    const bool optimizer = shape.stage < 3 || row[4] != 1,
               parameters = shape.stage == 3 && row[4] > 0;
    shape.delay_seed = 1;
    EXPECT_EQ(difference(train(on_host(options, optimizer, parameters), shape, 4), on_device), "")
        << name_of(shape) << ", optimizer " << row[2] << ", type " << row[3];
  }
}

engine::TrainingOptions host_updated(engine::TrainingOptions options, int stage) {
  const bool has_moments =
      options.optimizer.type != OptimizerType::kSgd || options.optimizer.momentum > 0.0f;
  options = on_host(std::move(options), has_moments, stage == 3);
  options.optimizer.offload.master = options.model.dtype != DType::kF32;
  options.optimizer.offload.host_updates = true;
  return options;
}

TEST(HostOffload, UpdatesByTheHostsCoresAreThoseOfTheDevice) {
  for (const std::vector<int>& row : pairwise_cover({4, 3, 4, 3, 2, 2, 2})) {
    const engine::TrainingOptions options =
        offload_options(kOffloadedTypes[row[2]], kOffloadedComputeTypes[row[3]]);
    RunShape shape{.world_size = row[1] + 1, .num_micro_steps = 1 + row[4], .stage = row[0]};
    // FP32 weights of f32 compute are on the host at stage 3 alone.
    if (options.model.dtype == DType::kF32) shape.stage = 3;
    shape.place = row[5] == 0 ? Place::kApart : Place::kApartDeferred;
    const Outcome on_device = train(options, shape, 4);
    shape.delay_seed = 1;
    engine::TrainingOptions own = host_updated(options, shape.stage);
    if (row[6] == 0) own.optimizer.offload.buffer_bytes = 1 << 16;
    EXPECT_EQ(difference(train(own, shape, 4), on_device), "")
        << name_of(shape) << ", optimizer " << row[2] << ", type " << row[3];
  }
}

// Replicas with copies or with parts of the state, both ends of a tied matrix on two ranks, tensor ranks, routers that
// the device updates among units of the host, and units in which only adapters train.
TEST(HostOffload, UpdatesByTheHostsCoresShareTheirMeshWithReplicasPipelinesExpertsAndAdapters) {
  const engine::TrainingOptions dense = offload_options(OptimizerType::kAdamW, DType::kBF16);
  engine::TrainingOptions experts = dense, adapted = dense, cut = dense;
  cut.model.ffn_width = 40;
  experts.model = all_expert_forms()[0].shape;
  experts.model.dtype = DType::kBF16;
  adapted.model.adapter = {.rank = 3, .scale = 1.5, .targets = {"attention.qkv", "mlp.up"}};
  const std::tuple<const char*, engine::TrainingOptions, MeshCase> cases[] = {
      {"copies", dense, {.shards = 2, .replicas = 2, .stage = 1}},
      {"parts", dense, {.shards = 2, .replicas = 2, .stage = 2, .divides_optimizer = true}},
      {"parts, gathered",
       dense,
       {.shards = 2, .replicas = 2, .stage = 3, .divides_optimizer = true}},
      {"tied ends", dense, {.shards = 1, .pipeline = 2, .stage = 1, .micro_steps = 2}},
      {"tensor ranks", cut, {.tensor = 2, .shards = 2, .stage = 1}},
      {"experts", experts, {.shards = 2, .stage = 1, .micro_steps = 2}},
      {"experts, gathered", experts, {.shards = 2, .stage = 3}},
      {"adapters", adapted, {.shards = 2, .stage = 2}},
      {"adapters, gathered", adapted, {.shards = 2, .stage = 3}}};
  for (const auto& [name, options, mesh] : cases) {
    RunShape shape = setup_of(mesh);
    shape.place = Place::kApartDeferred;
    const Outcome on_device = train(options, shape, 3);
    engine::TrainingOptions own = host_updated(options, mesh.divides_optimizer ? 0 : mesh.stage);
    EXPECT_EQ(difference(train(own, shape, 3), on_device), "") << name;
  }
}

TEST(HostOffload, EachStreamOfHostUpdatesLateInTurnChangesNoBit) {
  engine::TrainingOptions options = offload_options(OptimizerType::kAdamW, DType::kBF16);
  options.model.num_layers = 5;
  for (const int stage : {0, 2, 3}) {
    RunShape shape{.world_size = 2, .num_micro_steps = 2, .stage = stage, .place = Place::kApart};
    const Outcome on_device = train(options, shape, 4);
    const engine::TrainingOptions own = host_updated(options, stage);
    for (const char* late : {"compute", "gather", "reduce", "tokens", "gradients to host",
                             "update on the host", "weights from host"}) {
      shape.late_stream = late;
      EXPECT_EQ(difference(train(own, shape, 4), on_device), "") << name_of(shape);
    }
  }
}

TEST(HostOffload, HostUpdatesKeepTheBitsOfMomentsInFewerBitsAndOfSgdWithoutAny) {
  for (int form = 0; form < 3; ++form) {
    engine::TrainingOptions options = offload_options(OptimizerType::kAdamW, DType::kBF16);
    if (form == 0) options.optimizer.moment_type.in_8_bits = true;
    if (form == 1) options.optimizer.moment_type = {DType::kBF16, true, 7};
    if (form == 2) {
      options.optimizer.type = OptimizerType::kSgd;
      options.optimizer.momentum = 0.0f;
    }
    for (int stage = 0; stage <= 3; ++stage) {
      const RunShape shape{.world_size = 2, .stage = stage, .place = Place::kApart};
      EXPECT_EQ(difference(train(host_updated(options, stage), shape, 4), train(options, shape, 4)),
                "")
          << name_of(shape) << ", form " << form;
    }
  }
}

// A wait that is missing shows, whatever the machine's load.
TEST(HostOffload, EachStreamLateInTurnChangesNoBit) {
  for (const DType compute : {DType::kF32, DType::kBF16}) {
    engine::TrainingOptions options = offload_options(OptimizerType::kAdamW, compute);
    options.model.num_layers = 6;
    options.model.recompute = model::Recompute::kFull;
    for (const int stage : {0, 2, 3}) {
      RunShape shape{.world_size = 2, .num_micro_steps = 2, .stage = stage, .place = Place::kApart};
      const Outcome on_device = train(options, shape, 3);
      engine::TrainingOptions own = on_host(options, true, stage == 3);
      own.model.residual_slots = engine::KeptInputs::slots(6);
      for (const char* late :
           {"compute", "gather", "reduce", "tokens", "state from host", "state to host"}) {
        shape.late_stream = late;
        EXPECT_EQ(difference(train(own, shape, 3), on_device), "") << name_of(shape);
      }
    }
  }
}

TEST(HostOffload, OfActivationsChangesNoBit) {
  for (const int layers : {4, 9}) {
    engine::TrainingOptions options = offload_options(OptimizerType::kAdamW, DType::kBF16);
    options.model.num_layers = layers;
    options.model.recompute = model::Recompute::kFull;
    options.model.dropout = 0.1;
    for (int stage = 0; stage <= 3; ++stage) {
      RunShape shape{.world_size = 1 + stage % 2, .num_micro_steps = 2, .stage = stage};
      shape.place = stage % 2 == 0 ? Place::kApart : Place::kApartDeferred;
      const Outcome on_device = train(options, shape, 3);
      engine::TrainingOptions own = stage > 1 ? on_host(options, true, stage == 3) : options;
      own.model.residual_slots = engine::KeptInputs::slots(layers);
      shape.delay_seed = 5;
      EXPECT_EQ(difference(train(own, shape, 3), on_device), "") << name_of(shape);
    }
  }
}

TEST(HostOffload, KeepsTheBitsOfMomentsInFewerBits) {
  for (const bool in_8_bits : {false, true}) {
    engine::TrainingOptions options = offload_options(OptimizerType::kAdamW, DType::kF32);
    if (in_8_bits) {
      options.optimizer.moment_type.in_8_bits = true;
    } else {
      options.optimizer.moment_type = {DType::kBF16, true, 7};
    }
    for (int stage = 0; stage <= 3; ++stage) {
      const RunShape shape{.world_size = 2, .stage = stage, .place = Place::kApart};
      EXPECT_EQ(
          difference(train(on_host(options, true, stage == 3), shape, 4), train(options, shape, 4)),
          "")
          << name_of(shape);
    }
  }
}

TrainingRun small_run(int number) {
  constexpr const char* kPrecision[] = {"", "mixed_precision: {param_dtype: bf16}"};
  constexpr const char* kOptimizer[] = {"adamw", "lion", "adamw, eight_bit_states: true"};
  return {
      .stage = number % 4,
      .world = 1 + number % 3,
      .precision = kPrecision[number / 4 % 2],
      .optimizer = kOptimizer[number % 3],
      .accumulation = number % 2 == 0 ? "micro_batch_size: 2" : "gradient_accumulation_steps: 1",
      .async = number % 4 != 1};
}

// On this device the recipe's "nvme" is the host's memory, as "cpu" is on a GPU.
TEST(HostOffload, SavesWhatTheDeviceWouldAndGoesOnFromItsCheckpoints) {
  const test::TempFolder folder;
  write_data(folder);
  const std::string last = "checkpoints/" + checkpoint::step_directory_name(kSteps);
  for (int number = 0; number < 8; ++number) {
    TrainingRun run = small_run(number);
    const std::string device = fmt::format("device{}", number),
                      host = fmt::format("host{}", number);
    run.machine = std::make_shared<SeparateDevice>(number % 2 == 0);
    train_in(folder, device, run);
    TrainingRun offloaded = run;
    offloaded.zero = "offload_optimizer: nvme, offload_buffer_mib: 1";
    if (run.stage == 3) offloaded.zero += ", offload_param: nvme";
    train_in(folder, host, offloaded);
    EXPECT_EQ(numbers_of(folder, host), numbers_of(folder, device)) << number;
    const std::vector<std::string> state = final_state(folder, device);
    EXPECT_EQ(final_state(folder, host), state) << number;
    // The second half again, each from the other's checkpoint.
    for (const std::string& output : {host, device}) {
      std::filesystem::remove_all(folder.file(output + "/" + last));
      train_in(folder, output, output == host ? run : offloaded);
      EXPECT_EQ(final_state(folder, output), state) << number << ", " << output << " resumed";
    }
  }
}

}  // namespace
}  // namespace sherd::testing
