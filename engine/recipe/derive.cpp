// Values that follow from others: names, shapes, types, and the third of the three batch keys.
#include <algorithm>
#include <cmath>
#include <filesystem>
#include <optional>

#include "engine/recipe/mup.h"
#include "engine/recipe/resolution.h"
#include "engine/recipe/segments.h"
#include "engine/schedule/generate.h"

namespace sherd::engine {
namespace {

constexpr std::string_view kShardDegree = "parallelism.data_parallel_shard_degree";
constexpr std::string_view kReplicateDegree = "parallelism.data_parallel_replicate_degree";
constexpr std::string_view kBatchGroups = "parallelism.batch_groups";
constexpr std::string_view kGlobalBatch = "training.global_batch_size";
constexpr std::string_view kMicroBatch = "training.micro_batch_size";
constexpr std::string_view kAccumulation = "training.gradient_accumulation_steps";

void derive_model(Resolution& recipe) {
  Recipe::Model& model = recipe.values().model;
  recipe.derive("model.num_kv_heads", model.num_kv_heads, model.num_attention_heads);
  recipe.derive("model.head_width", model.head_width,
                model.kv_lora_rank > 0 ? model.qk_nope_head_dim + model.qk_rope_head_dim
                                       : model.hidden_size / model.num_attention_heads);
  // Llama's rule: two thirds of 4 * width, so that three matrices cost as much as GELU's two.
  const std::int64_t gated = (8 * model.hidden_size / 3 + 63) / 64 * 64;
  recipe.derive("model.ffn_hidden_size", model.ffn_hidden_size,
                is_gated(model.activation) ? gated : 4 * model.hidden_size);
  MoeKeys& moe = recipe.values().moe;
  recipe.derive("moe.ffn_hidden_size", moe.ffn_hidden_size,
                moe.num_experts > 0 ? model.ffn_hidden_size : 0);
  recipe.derive("model.max_seq_length", model.max_seq_length, longest_sequence(recipe.values()));
  recipe.derive("model.norm_bias", model.norm_bias,
                model.bias && model.norm == NormChoice::kLayerNorm);
  recipe.derive("model.qkv_bias", model.qkv_bias, model.bias);
  recipe.derive("model.output_bias", model.output_bias, model.bias);
  recipe.derive("model.mlp_bias", model.mlp_bias, model.bias);
  derive_mup(recipe);
}

void derive_adapter(Resolution& recipe) {
  Recipe& values = recipe.values();
  recipe.derive("adapter.alpha", values.adapter.alpha, static_cast<double>(values.adapter.rank));
  recipe.derive("checkpoint.init_from", values.checkpoint.init_from,
                values.adapter.type == AdapterChoice::kLora ? values.model.from : std::string());
}

// Up to the next whole step, but 0.03 of 100 is 3: the ratio is decimal, its double isn't.
std::int64_t part_of(double ratio, std::int64_t steps) {
  constexpr double kRounding = 1e-9;
  return static_cast<std::int64_t>(
      std::ceil(ratio * static_cast<double>(steps) * (1.0 - kRounding)));
}

std::int64_t steps_of_decay(const Recipe& recipe) {
  const Recipe::LrScheduler& schedule = recipe.lr_scheduler;
  const std::int64_t tokens = schedule.wsd_decay_tokens;
  if (tokens > 0 && recipe.tokens_per_step() > 0) {
    return last_steps_with(recipe, tokens, schedule.decay_steps);
  }
  const double steps = schedule.wsd_decay_ratio * static_cast<double>(schedule.decay_steps);
  return static_cast<std::int64_t>(std::floor(steps + 0.5));
}

void derive_training(Resolution& recipe) {
  Recipe& values = recipe.values();
  recipe.derive(
      "data.validation_fraction", values.data.validation_fraction,
      values.data.validation_path.empty() && values.data.validation_sets.empty() ? 0.1 : 0.0);
  if (values.preference.active()) {
    recipe.derive("training.train_on", values.training.train_on, TrainOnChoice::kCompletion);
  }
  recipe.derive("data.documents", values.data.documents,
                values.data.format == DataFormat::kChat ? DocumentChoice::kSeparate
                                                        : DocumentChoice::kJoined);
  const bool draws = values.checkpoint.init_from.empty();
  recipe.derive("moe.bias_update_rate", values.moe.bias_update_rate,
                values.moe.correction_bias && draws ? 0.001 : 0.0);
  recipe.derive("moe.balance_loss", values.moe.balance_loss,
                draws && !values.moe.correction_bias ? 0.01 : 0.0);
  recipe.derive("checkpoint.on_interrupt", values.checkpoint.on_interrupt,
                values.checkpoint.interval > 0);
  auto& degrees = values.parallelism;
  recipe.derive(kBatchGroups, degrees.batch_groups, degrees.data_parallel_replicate_degree);
  recipe.derive("parallelism.pipeline_chunks_per_rank", degrees.pipeline_chunks_per_rank,
                std::int64_t{schedule::default_chunks_per_rank(degrees.pipeline_schedule)});
  auto& zero = values.zero_optimization;
  const bool in_groups = degrees.batch_groups > degrees.data_parallel_replicate_degree;
  // Context ranks add a micro-batch's parts as a tree, before micro-batches are added.
  const bool in_trees =
      degrees.sum_order == SumOrderChoice::kCanonical && degrees.context_parallel_degree > 1;
  recipe.derive("zero_optimization.grad_sync", zero.grad_sync,
                zero.stage >= 2 || in_groups || in_trees || degrees.expert_parallel_degree > 1
                    ? GradSync::kEveryMicroStep
                    : GradSync::kBoundary);
}

void derive_precision(Resolution& recipe) {
  Recipe& values = recipe.values();
  auto& precision = values.mixed_precision;
  recipe.derive("mixed_precision.grad_accum_dtype", precision.grad_accum_dtype,
                formed_in(precision.reduce_dtype));
  recipe.derive("mixed_precision.replica_reduce_dtype", precision.replica_reduce_dtype,
                precision.reduce_dtype == ReduceType::kInt8Block64 ? ReplicaReduceType::kInt8Block64
                : precision.reduce_dtype == ReduceType::kInt4Block64
                    ? ReplicaReduceType::kInt4Block64
                    : ReplicaReduceType::kGradAccumDType);
  recipe.derive(
      "loss_scaling.mode", values.loss_scaling.mode,
      first_f16_key(values).empty() ? LossScaling::Mode::kNone : LossScaling::Mode::kDynamic);
}

void derive_optimizer(Resolution& recipe) {
  auto& optimizer = recipe.values().optimizer;
  const optim::OptimizerDefaults defaults = optim::descriptor_of(optimizer.type).defaults;
  recipe.derive("optimizer.betas", optimizer.betas, {defaults.beta1, defaults.beta2});
  recipe.derive("optimizer.eps", optimizer.eps, defaults.eps);
  recipe.derive("optimizer.momentum", optimizer.momentum, defaults.momentum);
}

/// global_batch_size / (factor * ranks), which must be whole; nothing (and a problem) if it isn't.
std::optional<std::int64_t> batch_quotient(Resolution& recipe, std::string_view name,
                                           std::string_view key, std::int64_t factor) {
  const std::int64_t global = recipe.values().training.global_batch_size;
  const std::int64_t ranks = recipe.values().data_degree();
  const std::int64_t divisor = factor * ranks;
  if (global % divisor == 0) return global / divisor;
  const std::int64_t below = global / divisor * divisor;
  recipe.refuse({kGlobalBatch, key, kShardDegree, kReplicateDegree},
                "training.global_batch_size is {}, which isn't a multiple of {} {} x {} ranks = "
                "{}. global_batch_size: {} would be.",
                global, name, factor, ranks, divisor, below == 0 ? divisor : below);
  return std::nullopt;
}

/// Errors   a problem of the recipe, if its degrees make more than kMostRanks ranks
bool has_ranks(Resolution& recipe) {
  const std::int64_t ranks = recipe.values().world_size();
  if (ranks <= kMostRanks) return true;
  recipe.refuse({kShardDegree, kReplicateDegree, "parallelism.tensor_parallel_degree",
                 "parallelism.context_parallel_degree", "parallelism.pipeline_parallel_degree",
                 "parallelism.parameter_servers"},
                "the degrees of parallelism make {} ranks; at most {} are supported.", ranks,
                kMostRanks);
  return false;
}

/// global = micro * accumulation * ranks: two give the third.
void derive_batch(Resolution& recipe) {
  auto& training = recipe.values().training;
  const std::int64_t ranks = recipe.values().data_degree();
  const bool has_global = recipe.is_set(kGlobalBatch), has_micro = recipe.is_set(kMicroBatch);
  if (!has_global && !has_micro) {
    return recipe.refuse(
        {kAccumulation},
        "the batch size is missing. Give training.global_batch_size (sequences per step), "
        "training.micro_batch_size (sequences per rank at a time) or both.");
  }
  if (!(has_global && has_micro)) {
    recipe.derive(kAccumulation, training.gradient_accumulation_steps, std::int64_t{1});
  }
  if (has_global && has_micro && !recipe.is_set(kAccumulation)) {
    const auto steps =
        batch_quotient(recipe, "micro_batch_size", kMicroBatch, training.micro_batch_size);
    if (!steps) return;
    recipe.derive(kAccumulation, training.gradient_accumulation_steps, *steps);
  } else if (has_global && !has_micro) {
    const auto micro = batch_quotient(recipe, "gradient_accumulation_steps", kAccumulation,
                                      training.gradient_accumulation_steps);
    if (!micro) return;
    recipe.derive(kMicroBatch, training.micro_batch_size, *micro);
  }
  const std::int64_t product =
      training.micro_batch_size * training.gradient_accumulation_steps * ranks;
  recipe.derive(kGlobalBatch, training.global_batch_size, product);
  if (training.global_batch_size == product) return;
  recipe.refuse({kGlobalBatch, kMicroBatch, kAccumulation, kShardDegree, kReplicateDegree},
                "training.global_batch_size is {}, but micro_batch_size {} x "
                "gradient_accumulation_steps {} x {} ranks = {}. Leave one of the three out, or "
                "write global_batch_size: {}.",
                training.global_batch_size, training.micro_batch_size,
                training.gradient_accumulation_steps, ranks, product, product);
}

}  // namespace

std::string_view first_f16_key(const Recipe& recipe) {
  const auto& precision = recipe.mixed_precision;
  if (precision.param_dtype == FloatType::kF16) return "mixed_precision.param_dtype";
  if (precision.reduce_dtype == ReduceType::kF16) return "mixed_precision.reduce_dtype";
  if (precision.grad_accum_dtype == FloatType::kF16) return "mixed_precision.grad_accum_dtype";
  return {};
}

void derive_names(Resolution& recipe) {
  Recipe::Run& run = recipe.values().run;
  recipe.derive("run.name", run.name, std::filesystem::path(recipe.request().path).stem().string());
  recipe.derive("run.output_dir", run.output_dir, "runs/" + run.name);
}

void derive_steps(Resolution& recipe) {
  Recipe& values = recipe.values();
  if (values.training.max_steps == 0) {
    for (const char* key : {"training.max_steps", "lr_scheduler.warmup_steps",
                            "lr_scheduler.decay_steps", "lr_scheduler.wsd_decay_steps"}) {
      recipe.leave_open(key);
    }
    return;
  }
  recipe.derive("training.max_steps", values.training.max_steps, values.training.max_steps);
  recipe.derive("lr_scheduler.warmup_steps", values.lr_scheduler.warmup_steps,
                part_of(values.lr_scheduler.warmup_ratio, values.training.max_steps));
  auto& schedule = values.lr_scheduler;
  recipe.derive("lr_scheduler.decay_steps", schedule.decay_steps, values.training.max_steps);
  recipe.derive("lr_scheduler.wsd_decay_steps", schedule.wsd_decay_steps,
                schedule.type == optim::ScheduleType::kWsd ? steps_of_decay(values) : 0);
}

void derive_values(Resolution& recipe) {
  derive_model(recipe);
  derive_adapter(recipe);
  derive_training(recipe);
  derive_precision(recipe);
  derive_optimizer(recipe);
  if (has_ranks(recipe)) derive_batch(recipe);
  derive_steps(recipe);
}

std::string name_of_path(const std::string& path) {
  std::filesystem::path plain(path);
  if (!plain.has_filename()) plain = plain.parent_path();
  const std::string name = plain.filename().string();
  return name.substr(0, std::max<std::size_t>(name.find('.'), 1));
}

}  // namespace sherd::engine
