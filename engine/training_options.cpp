#include "engine/training_options.h"

#include "engine/model/parameters.h"

namespace sherd::engine {
namespace {

DType dtype_of(FloatType type) {
  switch (type) {
    case FloatType::kF32:
      return DType::kF32;
    case FloatType::kBF16:
      return DType::kBF16;
    case FloatType::kF16:
      return DType::kF16;
  }
  CHECK(false, "unknown float type");
  __builtin_unreachable();
}

model::ModelShape model_shape(const Recipe& recipe) {
  const Recipe::Model& m = recipe.model;
  model::ModelShape shape;
  shape.num_layers = m.num_layers;
  shape.width = m.hidden_size;
  shape.query_heads = m.num_attention_heads;
  shape.kv_heads = m.num_kv_heads;
  shape.ffn_width = m.ffn_hidden_size;
  shape.vocab_size = m.vocab_size;
  shape.max_positions = m.max_seq_length;
  shape.norm = m.norm == NormChoice::kLayerNorm ? kernels::NormKind::kLayerNorm
                                                : kernels::NormKind::kRmsNorm;
  shape.positions = m.positions == PositionChoice::kLearned ? model::Positions::kLearned
                                                            : model::Positions::kRope;
  shape.activation = m.activation == ActivationChoice::kGelu ? kernels::ActivationKind::kGelu
                                                             : kernels::ActivationKind::kSwiGlu;
  shape.bias = m.bias;
  shape.tied = m.tie_embeddings;
  shape.dropout = m.dropout;
  shape.rope_theta = m.rope_theta;
  shape.norm_eps = m.norm_eps;
  shape.init_std = m.init_std;
  shape.sequences = recipe.training.micro_batch_size;
  shape.seq_length = recipe.training.seq_length;
  shape.dtype = dtype_of(recipe.mixed_precision.param_dtype);
  shape.recompute = recipe.activation_checkpointing.mode;
  return shape;
}

data::Format data_format(DataFormat format) {
  switch (format) {
    case DataFormat::kBytes:
      return data::Format::kBytes;
    case DataFormat::kChars:
      return data::Format::kChars;
    case DataFormat::kBin:
      return data::Format::kBin;
  }
  CHECK(false, "unknown data format");
  __builtin_unreachable();
}

}  // namespace

TrainingOptions training_options(const Recipe& recipe) {
  TrainingOptions options;
  options.model = model_shape(recipe);
  const Recipe::ZeroOptimization& zero = recipe.zero_optimization;
  options.placement = sharding::placement_of(static_cast<int>(zero.stage), zero.grad_sync);
  const Recipe::MixedPrecision& precision = recipe.mixed_precision;
  options.precision = {dtype_of(precision.param_dtype), dtype_of(precision.reduce_dtype),
                       dtype_of(precision.grad_accum_dtype)};
  options.loss_scaling = recipe.loss_scaling;
  options.gather = {static_cast<int>(zero.prefetch_depth), zero.reshard_after_forward};
  options.num_micro_steps = static_cast<int>(recipe.training.gradient_accumulation_steps);
  options.seed = recipe.run.seed;

  const Recipe::Optimizer& optimizer = recipe.optimizer;
  options.optimizer = {.type = optimizer.type,
                       .beta1 = static_cast<float>(optimizer.betas[0]),
                       .beta2 = static_cast<float>(optimizer.betas[1]),
                       .eps = static_cast<float>(optimizer.eps),
                       .momentum = static_cast<float>(optimizer.momentum),
                       .trust_coefficient = static_cast<float>(optimizer.trust_coefficient),
                       .adamw_lr_ratio = optimizer.lr > 0.0
                                             ? static_cast<float>(optimizer.adamw_lr / optimizer.lr)
                                             : 0.0f,
                       .decay = {static_cast<float>(optimizer.weight_decay), optimizer.no_decay},
                       .moments = {dtype_of(precision.optimizer_state_dtype),
                                   precision.stochastic_rounding, recipe.run.seed}};
  options.lr_schedule = recipe.lr_schedule();
  options.staging_bytes = recipe.checkpoint.staging_mib << 20;
  options.max_norm = static_cast<float>(recipe.gradient_clipping.max_norm);
  return options;
}

data::DataOptions data_options(const Recipe& recipe) {
  return {.path = recipe.data.path,
          .format = data_format(recipe.data.format),
          .validation_path = recipe.data.validation_path,
          .validation_fraction = recipe.data.validation_fraction,
          .vocab_size = recipe.model.vocab_size,
          .seq_length = recipe.training.seq_length};
}

data::BatchShape batch_shape(const Recipe& recipe) {
  return {.seq_length = recipe.training.seq_length,
          .micro_batch_size = recipe.training.micro_batch_size,
          .num_micro_steps = recipe.training.gradient_accumulation_steps,
          .world = static_cast<int>(recipe.world_size()),
          .seed = recipe.run.seed};
}

double flops_per_token(const model::ModelShape& shape) {
  const auto layers = static_cast<double>(shape.num_layers);
  const auto width = static_cast<double>(shape.width);
  const auto heads_width = static_cast<double>(shape.query_heads * shape.head_width());
  const double block = width * static_cast<double>(shape.qkv_width() + shape.up_width()) +
                       heads_width * width + static_cast<double>(shape.ffn_width) * width;
  const double head = width * static_cast<double>(shape.vocab_size);
  return 6.0 * (layers * block + head) +
         6.0 * layers * static_cast<double>(shape.seq_length) * heads_width;
}

}  // namespace sherd::engine
