// A run is bit-identical on every instruction set of the processor (kernels/isa.h; except AMX, whose bf16
// matmuls give other bits): in every precision, in forms that between them use every kernel with loops
// or tiles of its own for 512 bits, at sizes that fill no tile.

#include <gtest/gtest.h>

#include "kernels/isa.h"
#include "tests/support/runs/training_harness.h"

namespace sherd::testing {
namespace {

using kernels::Isa;

// Some positions more than attention's strips and one of its pieces of depth, rows of every width modulo 16.
model::ModelShape gpt_model() {
  model::ModelShape shape = tiny_model(true);
  shape.width = 68;
  shape.query_heads = shape.kv_heads = 4;
  shape.ffn_width = 199;
  shape.vocab_size = 173;
  shape.num_layers = 2;
  shape.sequences = 1;
  shape.seq_length = 277;
  shape.max_positions = 280;
  return shape;
}

model::ModelShape llama_model() {
  model::ModelShape shape = tiny_model(false);
  shape.width = 72;
  shape.query_heads = 6;
  shape.kv_heads = 2;
  shape.ffn_width = 133;
  shape.vocab_size = 97;
  shape.num_layers = 2;
  shape.seq_length = 83;
  shape.max_positions = 90;
  shape.qk_norm = model::QkNorm::kHead;
  return shape;
}

engine::TrainingOptions training_in(const model::ModelShape& shape, DType dtype) {
  engine::TrainingOptions options = tiny_training(shape, 0.5f);
  options.precision = {dtype, DType::kF32, DType::kF32};
  options.model.dtype = dtype;
  if (dtype == DType::kF16) {
    options.loss_scaling.mode = optim::LossScaling::Mode::kDynamic;
    options.loss_scaling.initial_scale_power = 8;
  }
  return options;
}

Outcome on(Isa isa, const engine::TrainingOptions& options, const RunShape& setup) {
  const kernels::ForcedIsa forced(isa);
  return train(options, setup, 3);
}

TEST(IsaLadder, RunsHaveTheSameBitsOnEveryInstructionSetInEveryPrecision) {
  for (const model::ModelShape& shape : {gpt_model(), llama_model()}) {
    for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF16}) {
      const engine::TrainingOptions options = training_in(shape, dtype);
      RunShape setup{.world_size = 2, .num_micro_steps = 2, .stage = 3};
      const Outcome baseline = on(Isa::kAvx2, options, setup);
      setup.threads_per_rank = 2;
      for (const Isa isa : kernels::available_isas()) {
        if (isa == Isa::kAvx2 || isa == Isa::kAmx) continue;
        EXPECT_EQ(difference(baseline, on(isa, options, setup)), "")
            << kernels::name_of(isa) << ", " << name_of(dtype) << ", "
            << (shape.tied ? "GPT-2's form" : "Llama's form");
      }
    }
  }
}

}  // namespace
}  // namespace sherd::testing
