// Whole trainings with one late stream (tests/support/devices/late_streams.h) are bit-identical to a plain run. A
// wait between streams that is missing anywhere in a step shows here, whatever the machine's load.

#include <gtest/gtest.h>

#include "tests/support/runs/training_harness.h"

namespace sherd::testing {
namespace {

using optim::OptimizerType;
using sharding::GradSync;
using Place = RunShape::Place;

struct Example {
  OptimizerType type;
  DType dtype;
  RunShape shape;
};

// Every stage; updates that exchange norms or matrices; memory shared between phases.
std::vector<Example> runs() {
  std::vector<Example> runs;
  for (int stage = 0; stage <= 3; ++stage) {
    const RunShape alone{.world_size = 1, .num_micro_steps = 2, .stage = stage};
    RunShape ranks{.world_size = 2, .num_micro_steps = 2, .stage = stage};
    runs.push_back({OptimizerType::kMuon, DType::kF32, ranks});
    ranks.grad_sync = GradSync::kBoundary;
    ranks.prefetch_depth = 0;
    runs.push_back({OptimizerType::kLamb, DType::kBF16, ranks});
    runs.push_back({OptimizerType::kAdamW, DType::kF32, alone});
  }
  return runs;
}

TEST(LateStreamsLadder, EachStreamLateInTurnChangesNoBit) {
  for (const Example& run : runs()) {
    model::ModelShape model = tiny_model(run.shape.stage % 2 == 0);
    model.dtype = run.dtype;
    engine::TrainingOptions options = tiny_training(model, 0.5f);
    options.precision.parameters = run.dtype;
    options.optimizer.type = run.type;
    options.optimizer.momentum = 0.9f;
    const Outcome plain = train(options, run.shape, 3);
    for (const char* late : {"compute", "gather", "reduce", "tokens"}) {
      RunShape shape = run.shape;
      shape.late_stream = late;
      shape.place = Place::kApart;
      EXPECT_EQ(difference(plain, train(options, shape, 3)), "") << name_of(shape);
      // In a host's memory what is computed may be read at once, and there are no copies.
      if (shape.late_stream == "compute" || shape.late_stream == "tokens") continue;
      shape.place = Place::kHost;
      EXPECT_EQ(difference(plain, train(options, shape, 3)), "") << name_of(shape);
    }
  }
}

// Ranks that have parts of a layer exchange inside of it, on the compute stream.
TEST(LateStreamsLadder, ChangesNoBitOfTensorAndContextRanksOnADeviceOfTheirOwn) {
  for (const auto method : {model::ContextMethod::kUlysses, model::ContextMethod::kAllGather}) {
    model::ModelShape model = tiny_model(false);
    model.ffn_width = 36;
    model.kv_heads = 4;
    model.seq_length = 8;
    model.part.sequence_parallel = true;
    model.context.method = method;
    engine::TrainingOptions options = tiny_training(model, 0.5f);
    options.optimizer.type = OptimizerType::kMuon;
    options.optimizer.momentum = 0.9f;
    RunShape shape{
        .world_size = 4, .axes = {{"context", 2}, {"tensor", 2}}, .num_micro_steps = 2, .stage = 3};
    const Outcome plain = train(options, shape, 3);
    shape.place = Place::kApart;
    for (const char* late : {"compute", "gather", "reduce", "tokens"}) {
      shape.late_stream = late;
      EXPECT_EQ(difference(plain, train(options, shape, 3)), "") << name_of(shape);
    }
    shape.late_stream = "";
    shape.place = Place::kApartDeferred;
    EXPECT_EQ(difference(plain, train(options, shape, 3)), "") << name_of(shape);
  }
}

}  // namespace
}  // namespace sherd::testing
