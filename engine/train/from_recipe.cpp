#include "engine/train/from_recipe.h"

#include <algorithm>

#include "engine/recipe/offload.h"
#include "engine/train/data_sources.h"
#include "engine/train/model_shape.h"
#include "engine/train/parameter_groups.h"
#include "engine/train/units/kept_inputs.h"
#include "kernels/block_codec.h"
#include "optim/compression.h"

namespace sherd::engine {
namespace {

data::Format data_format(DataFormat format) {
  switch (format) {
    case DataFormat::kBytes:
      return data::Format::kBytes;
    case DataFormat::kChars:
      return data::Format::kChars;
    case DataFormat::kBin:
      return data::Format::kBin;
    case DataFormat::kText:
      return data::Format::kText;
    case DataFormat::kChat:
      return data::Format::kChat;
  }
  SHERD_CHECK(false, "unknown data format");
  __builtin_unreachable();
}

kernels::BlockFormat blocks_of(ReduceType type) {
  if (type == ReduceType::kInt8Block64) return kernels::BlockFormat::kInt8;
  return type == ReduceType::kInt4Block64 ? kernels::BlockFormat::kInt4
                                          : kernels::BlockFormat::kF32;
}

kernels::BlockFormat blocks_of(GatherType type) {
  if (type == GatherType::kInt8Block64) return kernels::BlockFormat::kInt8;
  return type == GatherType::kInt4Block64 ? kernels::BlockFormat::kInt4
                                          : kernels::BlockFormat::kF32;
}

kernels::BlockFormat blocks_of(ReplicaReduceType type) {
  if (type == ReplicaReduceType::kInt8Block64) return kernels::BlockFormat::kInt8;
  return type == ReplicaReduceType::kInt4Block64 ? kernels::BlockFormat::kInt4
                                                 : kernels::BlockFormat::kF32;
}

optim::OptimizerOptions optimizer_options(const Recipe& recipe, const model::ModelShape& shape) {
  const OptimizerKeys& optimizer = recipe.optimizer;
  optim::OptimizerOptions options = {
      .type = optimizer.type,
      .beta1 = static_cast<float>(optimizer.betas[0]),
      .beta2 = static_cast<float>(optimizer.betas[1]),
      .eps = static_cast<float>(optimizer.eps),
      .momentum = static_cast<float>(optimizer.momentum),
      .trust_coefficient = static_cast<float>(optimizer.trust_coefficient),
      .adamw_lr_ratio =
          optimizer.lr > 0.0 ? static_cast<float>(optimizer.adamw_lr / optimizer.lr) : 0.0f,
      .dion_rank_fraction = static_cast<float>(optimizer.dion_rank_fraction),
      .dion_decoupled = optimizer.decouples_replicas(),
      .beta2_decay = static_cast<float>(optimizer.beta2_decay),
      .clip_threshold = static_cast<float>(optimizer.clip_threshold),
      .min_parameter_rms = static_cast<float>(optimizer.min_parameter_rms),
      .muon_scale = optimizer.muon_scale,
      .muon_coefficients = optimizer.muon_coefficients,
      .muon_dtype = dtype_of(optimizer.muon_dtype),
      .decay = {static_cast<float>(optimizer.weight_decay), optimizer.no_decay},
      .groups = parameter_groups(recipe, shape),
      .moment_type = {dtype_of(recipe.mixed_precision.optimizer_state_dtype),
                      recipe.mixed_precision.stochastic_rounding, recipe.run.seed}};
  if (recipe.dgc.active() && recipe.dgc.momentum_correction) options.momentum = 0.0f;
  options.moment_type.in_8_bits = optimizer.eight_bit_states;
  options.offload = offload_of(recipe);
  return options;
}

// Null: gradients are sent whole.
std::shared_ptr<const optim::Compression> compression_of(const Recipe& recipe,
                                                         const optim::OptimizerOptions& optimizer) {
  optim::Compression compression{
      recipe.powersgd.options(), recipe.dgc.options(recipe.optimizer.momentum),
      static_cast<int>(recipe.parallelism.data_parallel_replicate_degree)};
  if (optimizer.dion_decoupled) {
    compression.dion = {std::make_shared<const optim::OptimizerOptions>(optimizer),
                        recipe.optimizer.dion_average_interval};
  }
  if (!compression.active()) return nullptr;
  return std::make_shared<const optim::Compression>(compression);
}

}  // namespace

// The recipe's choices are in the order of the data room's.
static_assert(static_cast<int>(TrainOnChoice::kLast) == static_cast<int>(data::TrainOn::kLast));
static_assert(static_cast<int>(UnfitChoice::kError) == static_cast<int>(data::Unfit::kError));
static_assert(static_cast<int>(RewrittenChoice::kError) ==
              static_cast<int>(data::RewrittenHistory::kError));

TrainingOptions training_options(const Recipe& recipe) {
  TrainingOptions options;
  options.model = model_shape(recipe);
  const Recipe::ZeroOptimization& zero = recipe.zero_optimization;
  options.placement = sharding::placement_of(static_cast<int>(zero.stage), zero.grad_sync,
                                             zero.shard_optimizer_over_replicas
                                                 ? sharding::Replicas::kDivideOptimizer
                                                 : sharding::Replicas::kHoldCopies);
  options.placement.batch_groups = static_cast<int>(recipe.parallelism.batch_groups);
  options.placement.published_late =
      recipe.parallelism.parameter_servers > 0 && recipe.parallelism.publish_delay > 0;
  if (recipe.diloco.active()) {
    options.local_updates =
        recipe.diloco.options(recipe.parallelism.data_parallel_replicate_degree);
    options.placement.replicas_apart = true;
    options.placement.batch_groups = 1;
  }
  const Recipe::Parallelism& degrees = recipe.parallelism;
  options.pipeline = {
      degrees.pipeline_schedule,
      static_cast<int>(degrees.pipeline_chunks_per_rank),
      {degrees.pipeline_layers_per_chunk.begin(), degrees.pipeline_layers_per_chunk.end()}};
  const Recipe::MixedPrecision& precision = recipe.mixed_precision;
  options.precision = {
      dtype_of(precision.param_dtype),      dtype_of(formed_in(precision.reduce_dtype)),
      dtype_of(precision.grad_accum_dtype), blocks_of(precision.gather_dtype),
      blocks_of(precision.reduce_dtype),    blocks_of(precision.replica_reduce_dtype)};
  options.loss_scaling = recipe.loss_scaling;
  options.gather = {static_cast<int>(zero.prefetch_depth), zero.reshard_after_forward};
  options.num_micro_steps = static_cast<int>(recipe.training.gradient_accumulation_steps);
  options.seed = recipe.run.seed;
  options.nf4_base = recipe.adapter.base_dtype == BaseDType::kNf4;
  // An adapter that is trained further may have rows that its base lacks.
  const auto& whole = recipe.adapter.modules_to_save;
  options.adds_tokens = !recipe.model.add_special_tokens.empty() ||
                        (options.model.adapter.active() &&
                         std::ranges::find(whole, "embedding.token") != whole.end());
  options.separate_documents = has_separate_documents(recipe);
  if (recipe.metrics.source_losses && recipe.data.sources.size() > 1) {
    options.num_loss_sources = static_cast<int>(recipe.data.sources.size());
  }

  options.optimizer = optimizer_options(recipe, options.model);
  options.compression = compression_of(recipe, options.optimizer);
  if (recipe.activation_checkpointing.offload != OffloadDevice::kNone) {
    options.model.residual_slots = KeptInputs::slots(options.model.num_layers);
  }
  options.lr_schedule = recipe.lr_schedule();
  options.qk_clip_threshold = recipe.optimizer.qk_clip_threshold;
  options.weight_hash_interval = recipe.training.weight_hash_interval;
  options.qk_clip_alpha = recipe.optimizer.qk_clip_alpha;
  options.model.max_attention_logit =
      recipe.metrics.log_max_attention_logit || options.qk_clip_threshold > 0.0;
  options.model.z_loss = recipe.training.z_loss_multiplier;
  options.preference = recipe.preference.options();
  if (const DistillationKeys& keys = recipe.distillation; keys.active()) {
    options.model.teacher = {keys.top_k, static_cast<float>(keys.weight),
                             static_cast<float>(keys.temperature)};
  }
  options.overfit_one_batch = recipe.training.overfit_one_batch;
  if (degrees.expert_parallel_degree > 1) options.divide_experts();
  options.staging_bytes = recipe.checkpoint.staging_mib << 20;
  options.max_norm = static_cast<float>(recipe.gradient_clipping.max_norm);
  options.average = {recipe.averages.type, recipe.averages.decay, recipe.averages.start_step,
                     recipe.averages.interval};
  const BadStepsKeys& bad = recipe.bad_steps;
  options.bad_steps = {.max_loss = bad.max_loss,
                       .max_grad_norm = bad.max_grad_norm,
                       .sigma = bad.sigma,
                       .window = bad.window,
                       .skip_non_finite = bad.skip_non_finite,
                       .max_in_a_row = bad.max_in_a_row};
  return options;
}

sharding::Mesh mesh_of(const Recipe& recipe) {
  const auto& degrees = recipe.parallelism;
  return sharding::Mesh(
      {{std::string(sharding::kPipelineAxis), static_cast<int>(degrees.pipeline_parallel_degree)},
       {std::string(sharding::kReplicateAxis),
        static_cast<int>(degrees.data_parallel_replicate_degree)},
       {std::string(sharding::kExpertAxis), static_cast<int>(degrees.expert_parallel_degree)},
       {std::string(sharding::kShardAxis),
        static_cast<int>(degrees.data_parallel_shard_degree / degrees.expert_parallel_degree)},
       {std::string(sharding::kContextAxis), static_cast<int>(degrees.context_parallel_degree)},
       {std::string(sharding::kTensorAxis), static_cast<int>(degrees.tensor_parallel_degree)}},
      static_cast<int>(degrees.parameter_servers));
}

data::DataOptions data_options(const Recipe& recipe) {
  const PreferenceOptions preference = recipe.preference.options();
  const auto examples = !preference.active()     ? data::ExampleKind::kDocument
                        : preference.has_pairs() ? data::ExampleKind::kPair
                                                 : data::ExampleKind::kLabelled;
  return {.path = recipe.data.path,
          .format = data_format(recipe.data.format),
          .validation_path = recipe.data.validation_path,
          .validation_fraction = recipe.data.validation_fraction,
          .vocab_size = recipe.model.vocab_size,
          .seq_length = recipe.training.seq_length,
          .tokenizer = recipe.data.tokenizer,
          .special_tokens = recipe.model.add_special_tokens,
          .field = recipe.data.field,
          .token_bytes = recipe.data.token_bytes,
          .separate_documents = recipe.data.documents == DocumentChoice::kSeparate,
          .chat = {.train_on = preference.active()
                                   ? data::TrainOn::kCompletion
                                   : static_cast<data::TrainOn>(recipe.training.train_on),
                   .unfit = static_cast<data::Unfit>(recipe.data.unfit),
                   .rewritten = static_cast<data::RewrittenHistory>(recipe.data.rewritten_history),
                   .examples = examples}};
}

data::BatchShape batch_shape(const Recipe& recipe) {
  return {.seq_length = recipe.training.seq_length,
          .micro_batch_size = recipe.training.micro_batch_size,
          .num_micro_steps = recipe.training.gradient_accumulation_steps,
          .world = mesh_of(recipe).degree(sharding::data_axes()),
          .num_replicas = static_cast<int>(recipe.parallelism.data_parallel_replicate_degree),
          .seed = recipe.run.seed,
          .packing = recipe.data.packing == PackingChoice::kBestFit ? data::Packing::kBestFit
                                                                    : data::Packing::kNone,
          .num_epochs = recipe.training.num_epochs,
          // Replicas have the rows of as many groups of the batch, and so their bits.
          .ordered = {recipe.training.micro_batch_size,
                      std::max(std::int64_t{1}, recipe.parallelism.batch_groups)}};
}

}  // namespace sherd::engine
