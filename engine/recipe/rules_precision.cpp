// Rules about types: which may be narrower than others, and what f16 needs.
#include <cmath>
#include <string_view>
#include <utility>

#include "engine/recipe/resolution.h"

namespace sherd::engine {
namespace {

void check_gradient_types(Resolution& recipe) {
  const Recipe& values = recipe.values();
  const auto& precision = values.mixed_precision;
  const FloatType formed = formed_in(precision.reduce_dtype);
  if (precision.param_dtype == FloatType::kF32 && formed != FloatType::kF32) {
    recipe.refuse(
        {"mixed_precision.reduce_dtype", "mixed_precision.param_dtype"},
        "mixed_precision.reduce_dtype is narrower than param_dtype f32, which would throw away "
        "what was computed. Use reduce_dtype: f32, or a 16-bit param_dtype too.");
  }
  if (formed != FloatType::kF32 && precision.param_dtype != FloatType::kF32 &&
      formed != precision.param_dtype) {
    recipe.refuse(
        {"mixed_precision.reduce_dtype", "mixed_precision.param_dtype"},
        "mixed_precision.reduce_dtype and param_dtype are two different 16-bit types, of which "
        "neither holds the other. Use reduce_dtype: f32, or param_dtype's own.");
  }
  if (precision.replica_reduce_dtype != ReplicaReduceType::kGradAccumDType &&
      precision.grad_accum_dtype != FloatType::kF32 &&
      recipe.values().parallelism.batch_groups > 1) {
    recipe.refuse(
        {"mixed_precision.grad_accum_dtype", "mixed_precision.replica_reduce_dtype",
         "mixed_precision.reduce_dtype", "parallelism.batch_groups"},
        "mixed_precision.grad_accum_dtype isn't f32, but with replica_reduce_dtype in blocks the "
        "sums of {} groups of the batch are made into blocks. Use grad_accum_dtype: f32.",
        recipe.values().parallelism.batch_groups);
  }
  if (precision.grad_accum_dtype != formed &&
      values.zero_optimization.grad_sync == GradSync::kBoundary) {
    recipe.refuse({"mixed_precision.grad_accum_dtype", "mixed_precision.reduce_dtype",
                   "zero_optimization.grad_sync"},
                  "mixed_precision.grad_accum_dtype differs from reduce_dtype, but with grad_sync: "
                  "boundary it is the accumulated gradient that is reduced. {}, or use grad_sync: "
                  "every_micro_step.",
                  in_blocks(precision.reduce_dtype)
                      ? "Use grad_accum_dtype: f32, from which blocks are made"
                      : "Make them equal");
  }
}

// What gathers in blocks don't serve.
void check_gathers(Resolution& recipe) {
  constexpr std::string_view kKey = "mixed_precision.gather_dtype";
  const Recipe& values = recipe.values();
  if (values.mixed_precision.gather_dtype == GatherType::kParamDType) return;
  const auto& zero = values.zero_optimization;
  if (values.adapter.type != AdapterChoice::kNone) {
    recipe.refuse({kKey, "adapter.type"},
                  "{} sends trained parameters in blocks, and an adapter's base is frozen. Use "
                  "gather_dtype: param_dtype; adapter.base_dtype: nf4 makes the base smaller.",
                  kKey);
  }
  for (const auto& [offload, device] :
       {std::pair<std::string_view, OffloadDevice>("zero_optimization.offload_optimizer",
                                                   zero.offload_optimizer),
        {"zero_optimization.offload_param", zero.offload_param}}) {
    if (device == OffloadDevice::kNone) continue;
    recipe.refuse({kKey, offload},
                  "{} sends parameters in blocks, which aren't made from offloaded ones yet. Use "
                  "gather_dtype: param_dtype, or {}: none.",
                  kKey, offload);
  }
}

void check_moments(Resolution& recipe) {
  const auto& precision = recipe.values().mixed_precision;
  if (precision.optimizer_state_dtype == FloatType::kF16) {
    return recipe.refuse(
        {"mixed_precision.optimizer_state_dtype"},
        "mixed_precision.optimizer_state_dtype is f16, in which squares of small gradients are "
        "0. Use f32, or bf16, which has the same range.");
  }
  using enum optim::OptimizerType;
  const auto& optimizer = recipe.values().optimizer;
  if (optimizer.eight_bit_states && optimizer.type != kAdamW && optimizer.type != kAdam &&
      optimizer.type != kLion) {
    return recipe.refuse({"optimizer.eight_bit_states", "optimizer.type"},
                         "optimizer.eight_bit_states is true, but only adamw, adam and lion keep "
                         "moments in 8 bits. Use one of them, or leave it out.");
  }
  if ((optimizer.type == kAdafactor || optimizer.type == kDion) &&
      precision.optimizer_state_dtype != FloatType::kF32) {
    return recipe.refuse({"mixed_precision.optimizer_state_dtype", "optimizer.type"},
                         "mixed_precision.optimizer_state_dtype is bf16, but {} always f32. Leave "
                         "it out.",
                         optimizer.type == kAdafactor ? "adafactor's few numbers are"
                                                      : "dion's momentum and basis are");
  }
  if (optimizer.eight_bit_states && precision.optimizer_state_dtype != FloatType::kF32) {
    return recipe.refuse({"optimizer.eight_bit_states", "mixed_precision.optimizer_state_dtype"},
                         "optimizer.eight_bit_states is true, and "
                         "mixed_precision.optimizer_state_dtype is bf16. Leave "
                         "one of them out.");
  }
  if (precision.stochastic_rounding && precision.optimizer_state_dtype != FloatType::kBF16) {
    recipe.refuse(
        {"mixed_precision.stochastic_rounding", "mixed_precision.optimizer_state_dtype"},
        "mixed_precision.stochastic_rounding is for optimizer_state_dtype: bf16. Set that, or "
        "leave this out.");
  }
}

void check_loss_scaling(Resolution& recipe) {
  const Recipe& values = recipe.values();
  if (const std::string_view f16_key = first_f16_key(values);
      !f16_key.empty() && values.loss_scaling.mode == LossScaling::Mode::kNone) {
    recipe.refuse({"loss_scaling.mode", f16_key},
                  "{} is f16 and loss_scaling.mode is none: gradients below 6e-8 would vanish. Use "
                  "loss_scaling.mode: dynamic, or bf16, which needs none.",
                  f16_key);
  }
  const double initial_scale =
      std::ldexp(1.0, static_cast<int>(values.loss_scaling.initial_scale_power));
  if (values.loss_scaling.mode != LossScaling::Mode::kNone &&
      values.loss_scaling.min_scale > initial_scale) {
    recipe.refuse(
        {"loss_scaling.min_scale", "loss_scaling.initial_scale_power"},
        "loss_scaling.min_scale is {}, more than the first scale, 2^{} = {}. Lower it to {} or "
        "less.",
        values.loss_scaling.min_scale, values.loss_scaling.initial_scale_power, initial_scale,
        initial_scale);
  }
}

}  // namespace

void check_precision(Resolution& recipe) {
  check_gradient_types(recipe);
  check_gathers(recipe);
  check_moments(recipe);
  check_loss_scaling(recipe);
}

}  // namespace sherd::engine
