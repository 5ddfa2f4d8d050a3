// Which changes of a recipe make another run, which are reported, and what old checkpoints still contain.
#include "engine/saving/resume_check.h"

#include <gtest/gtest.h>

#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "engine/recipe/fields.h"
#include "engine/recipe/values.h"
#include "tests/engine/recipe/recipe_support.h"

namespace sherd::engine {
namespace {

using nlohmann::json;
using Keys = std::set<std::string>;

constexpr std::uint64_t kData = 0x1234;

/// What a manifest's `global` has of this run.
json saved_by(const ResolvedRecipe& recipe) {
  return {{"run", *run_settings(recipe.values, {{0, kData}})}, {"recipe", recipe.yaml()}};
}

ResumeCheck check(const json& global, const std::vector<std::string>& sets) {
  return compare_runs(global, *run_settings(resolve(kTinyRecipe, sets).values, {{0, kData}}));
}

Keys keys_of(const std::vector<ResumeCheck::Difference>& differences) {
  Keys keys;
  for (const auto& difference : differences) keys.insert(difference.key);
  return keys;
}

struct Change {
  std::vector<std::string> sets;  ///< the key first
  Keys refused, changed;
};

// Every key that is compared, with another value and all that follows from it.
const std::map<std::string, Change> kChanges = {
    {"run.seed", {{"run.seed=2"}, {"run.seed"}, {}}},
    {"run.device", {{"run.device=cpu"}, {}, {"run.device"}}},
    {"run.deterministic", {{"run.deterministic=false"}, {}, {"run.deterministic"}}},
    {"adapter.type",
     {{"adapter.type=lora", "checkpoint.init_from=x"}, {"adapter.type", "adapter.targets"}, {}}},
    {"adapter.rank", {{"adapter.rank=4"}, {"adapter.rank", "adapter.alpha"}, {}}},
    {"adapter.alpha", {{"adapter.alpha=4"}, {"adapter.alpha"}, {}}},
    {"adapter.rslora", {{"adapter.rslora=true"}, {"adapter.rslora"}, {}}},
    {"adapter.base_dtype",
     {{"adapter.base_dtype=nf4", "adapter.type=lora", "checkpoint.init_from=x"},
      {"adapter.base_dtype", "adapter.type", "adapter.targets"},
      {}}},
    {"adapter.dropout", {{"adapter.dropout=0.1"}, {}, {"adapter.dropout"}}},
    {"adapter.targets", {{"adapter.targets=[mlp.up]"}, {"adapter.targets"}, {}}},
    {"adapter.modules_to_save",
     {{"adapter.modules_to_save=[head]"}, {"adapter.modules_to_save"}, {}}},
    {"model.num_layers", {{"model.num_layers=3"}, {"model.num_layers"}, {}}},
    {"model.hidden_size",
     {{"model.hidden_size=128"},
      {"model.hidden_size", "model.ffn_hidden_size", "model.head_width"},
      {}}},
    {"model.num_attention_heads",
     {{"model.num_attention_heads=8"},
      {"model.num_attention_heads", "model.num_kv_heads", "model.head_width"},
      {}}},
    {"model.num_kv_heads", {{"model.num_kv_heads=2"}, {"model.num_kv_heads"}, {}}},
    {"model.ffn_hidden_size", {{"model.ffn_hidden_size=64"}, {"model.ffn_hidden_size"}, {}}},
    {"model.vocab_size", {{"model.vocab_size=128"}, {"model.vocab_size"}, {}}},
    {"model.max_seq_length", {{"model.max_seq_length=32"}, {}, {"model.max_seq_length"}}},
    {"model.norm", {{"model.norm=layernorm"}, {"model.norm"}, {}}},
    {"model.positions", {{"model.positions=learned"}, {"model.positions"}, {}}},
    {"model.activation",
     {{"model.activation=gelu"}, {"model.activation", "model.ffn_hidden_size"}, {}}},
    {"model.bias",
     {{"model.bias=true"},
      {"model.bias", "model.qkv_bias", "model.output_bias", "model.mlp_bias"},
      {}}},
    {"model.tie_embeddings", {{"model.tie_embeddings=true"}, {"model.tie_embeddings"}, {}}},
    {"model.dropout", {{"model.dropout=0.1"}, {"model.dropout"}, {}}},
    {"model.rope_theta", {{"model.rope_theta=5e5"}, {"model.rope_theta"}, {}}},
    {"model.norm_eps", {{"model.norm_eps=1e-6"}, {"model.norm_eps"}, {}}},
    {"model.add_special_tokens",
     {{"data.tokenizer=folder", "model.add_special_tokens=[a1]"},
      {"model.add_special_tokens"},
      {}}},
    {"model.head_width", {{"model.head_width=8"}, {"model.head_width"}, {}}},
    {"model.block", {{"model.block=parallel"}, {"model.block"}, {}}},
    {"model.norm_placement", {{"model.norm_placement=sandwich"}, {"model.norm_placement"}, {}}},
    {"model.norm_offset", {{"model.norm_offset=1"}, {"model.norm_offset"}, {}}},
    {"model.norm_bias",
     {{"model.norm_bias=true", "model.norm=layernorm"}, {"model.norm_bias", "model.norm"}, {}}},
    {"model.qkv_bias", {{"model.qkv_bias=true"}, {"model.qkv_bias"}, {}}},
    {"model.output_bias", {{"model.output_bias=true"}, {"model.output_bias"}, {}}},
    {"model.mlp_bias", {{"model.mlp_bias=true"}, {"model.mlp_bias"}, {}}},
    {"model.qk_norm", {{"model.qk_norm=head"}, {"model.qk_norm"}, {}}},
    {"model.kv_lora_rank",
     {{"model.kv_lora_rank=8", "model.qk_nope_head_dim=8", "model.qk_rope_head_dim=8",
       "model.v_head_dim=8"},
      {"model.kv_lora_rank", "model.qk_nope_head_dim", "model.qk_rope_head_dim",
       "model.v_head_dim"},
      {}}},
    {"model.q_lora_rank", {{"model.q_lora_rank=8"}, {"model.q_lora_rank"}, {}}},
    {"model.qk_nope_head_dim", {{"model.qk_nope_head_dim=8"}, {"model.qk_nope_head_dim"}, {}}},
    {"model.qk_rope_head_dim", {{"model.qk_rope_head_dim=8"}, {"model.qk_rope_head_dim"}, {}}},
    {"model.v_head_dim", {{"model.v_head_dim=8"}, {"model.v_head_dim"}, {}}},
    {"model.attention_sinks", {{"model.attention_sinks=true"}, {"model.attention_sinks"}, {}}},
    {"model.attention_scale", {{"model.attention_scale=0.5"}, {"model.attention_scale"}, {}}},
    {"model.attention_softcap", {{"model.attention_softcap=50"}, {"model.attention_softcap"}, {}}},
    {"model.logits_scale", {{"model.logits_scale=0.5"}, {"model.logits_scale"}, {}}},
    {"model.logits_softcap", {{"model.logits_softcap=30"}, {"model.logits_softcap"}, {}}},
    {"model.embedding_scale", {{"model.embedding_scale=8"}, {"model.embedding_scale"}, {}}},
    {"model.residual_scale", {{"model.residual_scale=0.5"}, {"model.residual_scale"}, {}}},
    {"model.window", {{"model.window=4"}, {"model.window"}, {}}},
    {"model.window_layers", {{"model.window_layers=10"}, {"model.window_layers"}, {}}},
    {"model.rope_layers", {{"model.rope_layers=10"}, {"model.rope_layers"}, {}}},
    {"model.rope_fraction", {{"model.rope_fraction=0.5"}, {"model.rope_fraction"}, {}}},
    {"model.rope_scaling", {{"model.rope_scaling=linear"}, {"model.rope_scaling"}, {}}},
    {"model.rope_factor", {{"model.rope_factor=2"}, {"model.rope_factor"}, {}}},
    {"model.rope_original_length",
     {{"model.rope_original_length=8"}, {"model.rope_original_length"}, {}}},
    {"model.rope_low_freq_factor",
     {{"model.rope_low_freq_factor=2"}, {"model.rope_low_freq_factor"}, {}}},
    {"model.rope_high_freq_factor",
     {{"model.rope_high_freq_factor=8"}, {"model.rope_high_freq_factor"}, {}}},
    {"model.rope_beta_fast", {{"model.rope_beta_fast=64"}, {"model.rope_beta_fast"}, {}}},
    {"model.rope_beta_slow", {{"model.rope_beta_slow=2"}, {"model.rope_beta_slow"}, {}}},
    {"model.rope_truncate", {{"model.rope_truncate=false"}, {"model.rope_truncate"}, {}}},
    {"model.rope_attention_factor",
     {{"model.rope_attention_factor=2"}, {"model.rope_attention_factor"}, {}}},
    {"model.rope_short_factors",
     {{"model.rope_short_factors=[1]"}, {"model.rope_short_factors"}, {}}},
    {"model.rope_long_factors", {{"model.rope_long_factors=[1]"}, {"model.rope_long_factors"}, {}}},
    {"model.window_rope_theta", {{"model.window_rope_theta=100"}, {"model.window_rope_theta"}, {}}},
    {"model.window_rope_scaling",
     {{"model.window_rope_scaling=false"}, {"model.window_rope_scaling"}, {}}},
    {"data.format", {{"data.format=chars"}, {"data.format"}, {}}},
    {"data.validation_fraction",
     {{"data.validation_fraction=0.2"}, {"data.validation_fraction"}, {}}},
    {"training.seq_length",
     {{"training.seq_length=8"}, {"training.seq_length"}, {"model.max_seq_length"}}},
    {"training.global_batch_size",
     {{"training.global_batch_size=16"},
      {"training.global_batch_size"},
      {"training.micro_batch_size"}}},
    {"training.micro_batch_size",
     {{"training.micro_batch_size=4"},
      {},
      {"training.micro_batch_size", "training.gradient_accumulation_steps"}}},
    {"training.gradient_accumulation_steps",
     {{"training.gradient_accumulation_steps=2"},
      {},
      {"training.micro_batch_size", "training.gradient_accumulation_steps"}}},
    {"training.max_steps",
     {{"training.max_steps=200"}, {}, {"training.max_steps", "lr_scheduler.decay_steps"}}},
    {"training.num_epochs", {{"training.num_epochs=2"}, {}, {"training.num_epochs"}}},
    {"training.early_stopping_patience",
     {{"training.early_stopping_patience=2", "training.eval_interval=5"},
      {},
      {"training.early_stopping_patience"}}},
    {"data.documents", {{"data.documents=separate"}, {"data.documents"}, {}}},
    {"data.packing",
     {{"data.documents=separate", "data.packing=none"}, {"data.documents", "data.packing"}, {}}},
    {"data.unfit", {{"data.unfit=cut"}, {"data.unfit"}, {}}},
    {"data.rewritten_history", {{"data.rewritten_history=error"}, {"data.rewritten_history"}, {}}},
    {"training.train_on", {{"training.train_on=last"}, {"training.train_on"}, {}}},
    {"parallelism.data_parallel_replicate_degree",
     {{"parallelism.data_parallel_replicate_degree=2"},
      {},
      {"training.micro_batch_size", "parallelism.data_parallel_replicate_degree",
       "parallelism.batch_groups"}}},
    {"parallelism.batch_groups",
     {{"parallelism.batch_groups=2", "training.gradient_accumulation_steps=2"},
      {},
      {"training.micro_batch_size", "training.gradient_accumulation_steps",
       "parallelism.batch_groups", "zero_optimization.grad_sync"}}},
    {"parallelism.pipeline_parallel_degree",
     {{"parallelism.pipeline_parallel_degree=2"}, {}, {"parallelism.pipeline_parallel_degree"}}},
    {"parallelism.tensor_parallel_degree",
     {{"parallelism.tensor_parallel_degree=2"}, {}, {"parallelism.tensor_parallel_degree"}}},
    {"parallelism.sequence_parallel",
     {{"parallelism.sequence_parallel=true", "parallelism.tensor_parallel_degree=2"},
      {},
      {"parallelism.sequence_parallel", "parallelism.tensor_parallel_degree"}}},
    {"parallelism.sum_order", {{"parallelism.sum_order=canonical"}, {}, {"parallelism.sum_order"}}},
    {"parallelism.context_parallel_degree",
     {{"parallelism.context_parallel_degree=2"}, {}, {"parallelism.context_parallel_degree"}}},
    {"parallelism.expert_parallel_degree",
     {{"parallelism.expert_parallel_degree=2", "parallelism.data_parallel_shard_degree=2",
       "moe.num_experts=4"},
      {"moe.ffn_hidden_size", "moe.num_experts"},
      {"parallelism.data_parallel_shard_degree", "parallelism.expert_parallel_degree",
       "training.micro_batch_size", "zero_optimization.grad_sync"}}},
    {"parallelism.context_parallel_method",
     {{"parallelism.context_parallel_method=all_gather"},
      {},
      {"parallelism.context_parallel_method"}}},
    {"parallelism.data_parallel_shard_degree",
     {{"parallelism.data_parallel_shard_degree=2"},
      {},
      {"parallelism.data_parallel_shard_degree", "training.micro_batch_size"}}},
    {"zero_optimization.grad_sync",
     {{"zero_optimization.stage=2"}, {}, {"zero_optimization.grad_sync"}}},
    {"mixed_precision.param_dtype",
     {{"mixed_precision.param_dtype=bf16"}, {"mixed_precision.param_dtype"}, {}}},
    {"mixed_precision.gather_dtype",
     {{"mixed_precision.gather_dtype=int8_block64"}, {}, {"mixed_precision.gather_dtype"}}},
    {"mixed_precision.reduce_dtype",
     {{"mixed_precision.param_dtype=bf16", "mixed_precision.reduce_dtype=bf16"},
      {"mixed_precision.param_dtype"},
      {"mixed_precision.reduce_dtype", "mixed_precision.grad_accum_dtype"}}},
    {"mixed_precision.grad_accum_dtype",
     {{"mixed_precision.grad_accum_dtype=bf16", "zero_optimization.grad_sync=every_micro_step"},
      {},
      {"mixed_precision.grad_accum_dtype", "zero_optimization.grad_sync"}}},
    {"mixed_precision.optimizer_state_dtype",
     {{"mixed_precision.optimizer_state_dtype=bf16"},
      {"mixed_precision.optimizer_state_dtype"},
      {}}},
    {"mixed_precision.stochastic_rounding",
     {{"mixed_precision.optimizer_state_dtype=bf16", "mixed_precision.stochastic_rounding=true"},
      {"mixed_precision.optimizer_state_dtype"},
      {"mixed_precision.stochastic_rounding"}}},
    {"mixed_precision.allow_tf32",
     {{"mixed_precision.allow_tf32=true"}, {}, {"mixed_precision.allow_tf32"}}},
    {"loss_scaling.mode", {{"loss_scaling.mode=static"}, {}, {"loss_scaling.mode"}}},
    {"loss_scaling.initial_scale_power",
     {{"loss_scaling.initial_scale_power=8"}, {}, {"loss_scaling.initial_scale_power"}}},
    {"loss_scaling.growth_factor",
     {{"loss_scaling.growth_factor=4"}, {}, {"loss_scaling.growth_factor"}}},
    {"loss_scaling.backoff_factor",
     {{"loss_scaling.backoff_factor=0.25"}, {}, {"loss_scaling.backoff_factor"}}},
    {"loss_scaling.growth_interval",
     {{"loss_scaling.growth_interval=50"}, {}, {"loss_scaling.growth_interval"}}},
    {"loss_scaling.hysteresis", {{"loss_scaling.hysteresis=1"}, {}, {"loss_scaling.hysteresis"}}},
    {"loss_scaling.min_scale", {{"loss_scaling.min_scale=2"}, {}, {"loss_scaling.min_scale"}}},
    {"loss_scaling.on_min_scale",
     {{"loss_scaling.on_min_scale=hold"}, {}, {"loss_scaling.on_min_scale"}}},
    {"optimizer.type", {{"optimizer.type=adam"}, {"optimizer.type"}, {}}},
    {"optimizer.lr", {{"optimizer.lr=1"}, {}, {"optimizer.lr"}}},
    {"optimizer.betas", {{"optimizer.betas=[0.9, 0.999]"}, {}, {"optimizer.betas"}}},
    {"optimizer.eps", {{"optimizer.eps=1e-6"}, {}, {"optimizer.eps"}}},
    {"optimizer.weight_decay", {{"optimizer.weight_decay=0"}, {}, {"optimizer.weight_decay"}}},
    {"optimizer.no_decay", {{"optimizer.no_decay=[head.weight]"}, {}, {"optimizer.no_decay"}}},
    {"optimizer.momentum", {{"optimizer.momentum=0.5"}, {}, {"optimizer.momentum"}}},
    {"optimizer.trust_coefficient",
     {{"optimizer.trust_coefficient=1"}, {}, {"optimizer.trust_coefficient"}}},
    {"optimizer.beta2_decay", {{"optimizer.beta2_decay=-0.5"}, {}, {"optimizer.beta2_decay"}}},
    {"optimizer.clip_threshold",
     {{"optimizer.clip_threshold=2"}, {}, {"optimizer.clip_threshold"}}},
    {"optimizer.min_parameter_rms",
     {{"optimizer.min_parameter_rms=1"}, {}, {"optimizer.min_parameter_rms"}}},
    {"optimizer.adamw_lr", {{"optimizer.adamw_lr=1"}, {}, {"optimizer.adamw_lr"}}},
    {"optimizer.muon_dtype", {{"optimizer.muon_dtype=bf16"}, {}, {"optimizer.muon_dtype"}}},
    {"optimizer.qk_clip_threshold",
     {{"optimizer.qk_clip_threshold=50"}, {}, {"optimizer.qk_clip_threshold"}}},
    {"optimizer.qk_clip_alpha",
     {{"optimizer.qk_clip_alpha=0.25"}, {}, {"optimizer.qk_clip_alpha"}}},
    {"moe.num_experts", {{"moe.num_experts=4"}, {"moe.ffn_hidden_size", "moe.num_experts"}, {}}},
    {"moe.experts_per_token", {{"moe.experts_per_token=1"}, {"moe.experts_per_token"}, {}}},
    {"moe.ffn_hidden_size", {{"moe.ffn_hidden_size=8"}, {"moe.ffn_hidden_size"}, {}}},
    {"moe.shared_ffn_hidden_size",
     {{"moe.shared_ffn_hidden_size=8"}, {"moe.shared_ffn_hidden_size"}, {}}},
    {"moe.shared_gate", {{"moe.shared_gate=true"}, {"moe.shared_gate"}, {}}},
    {"moe.layers", {{"moe.layers=\"01\""}, {"moe.layers"}, {}}},
    {"moe.score", {{"moe.score=sigmoid"}, {"moe.score"}, {}}},
    {"moe.normalize_weights", {{"moe.normalize_weights=false"}, {"moe.normalize_weights"}, {}}},
    {"moe.weight_scale", {{"moe.weight_scale=2"}, {"moe.weight_scale"}, {}}},
    {"moe.num_groups", {{"moe.num_groups=2"}, {"moe.num_groups"}, {}}},
    {"moe.kept_groups", {{"moe.kept_groups=2"}, {"moe.kept_groups"}, {}}},
    {"moe.bias", {{"moe.bias=true"}, {"moe.bias"}, {}}},
    {"moe.correction_bias",
     {{"moe.correction_bias=true"}, {"moe.correction_bias"}, {"moe.bias_update_rate"}}},
    {"moe.bias_update_rate", {{"moe.bias_update_rate=0.5"}, {}, {"moe.bias_update_rate"}}},
    {"moe.balance_scope", {{"moe.balance_scope=sequence"}, {}, {"moe.balance_scope"}}},
    {"moe.balance_loss", {{"moe.balance_loss=1"}, {}, {"moe.balance_loss"}}},
    {"moe.z_loss", {{"moe.z_loss=1"}, {}, {"moe.z_loss"}}},
    {"lr_scheduler.type",
     {{"lr_scheduler.type=wsd"}, {}, {"lr_scheduler.type", "lr_scheduler.wsd_decay_steps"}}},
    {"lr_scheduler.warmup_ratio",
     {{"lr_scheduler.warmup_ratio=0.5"},
      {},
      {"lr_scheduler.warmup_ratio", "lr_scheduler.warmup_steps"}}},
    {"lr_scheduler.warmup_steps",
     {{"lr_scheduler.warmup_steps=5"}, {}, {"lr_scheduler.warmup_steps"}}},
    {"lr_scheduler.decay_steps",
     {{"lr_scheduler.decay_steps=50"}, {}, {"lr_scheduler.decay_steps"}}},
    {"lr_scheduler.min_lr_ratio",
     {{"lr_scheduler.min_lr_ratio=0"}, {}, {"lr_scheduler.min_lr_ratio"}}},
    {"gradient_clipping.max_norm",
     {{"gradient_clipping.max_norm=0"}, {}, {"gradient_clipping.max_norm"}}},
    {"lr_scheduler.wsd_decay_shape",
     {{"lr_scheduler.wsd_decay_shape=cosine"}, {}, {"lr_scheduler.wsd_decay_shape"}}},
    {"lr_scheduler.wsd_decay_ratio",
     {{"lr_scheduler.wsd_decay_ratio=0.5"}, {}, {"lr_scheduler.wsd_decay_ratio"}}},
    {"lr_scheduler.wsd_decay_tokens",
     {{"lr_scheduler.wsd_decay_tokens=512"}, {}, {"lr_scheduler.wsd_decay_tokens"}}},
    {"lr_scheduler.batch_size_scaling",
     {{"lr_scheduler.batch_size_scaling=sqrt"}, {}, {"lr_scheduler.batch_size_scaling"}}},
    {"lr_scheduler.wsd_decay_steps",
     {{"lr_scheduler.wsd_decay_steps=5"}, {}, {"lr_scheduler.wsd_decay_steps"}}},
    {"bad_steps.max_loss", {{"bad_steps.max_loss=5"}, {}, {"bad_steps.max_loss"}}},
    {"bad_steps.max_grad_norm", {{"bad_steps.max_grad_norm=5"}, {}, {"bad_steps.max_grad_norm"}}},
    {"bad_steps.sigma", {{"bad_steps.sigma=6"}, {}, {"bad_steps.sigma"}}},
    {"bad_steps.window", {{"bad_steps.window=5"}, {}, {"bad_steps.window"}}},
    {"bad_steps.skip_non_finite",
     {{"bad_steps.skip_non_finite=true"}, {}, {"bad_steps.skip_non_finite"}}},
    {"bad_steps.max_in_a_row", {{"bad_steps.max_in_a_row=5"}, {}, {"bad_steps.max_in_a_row"}}},
    {"bad_steps.rewind_after",
     {{"bad_steps.rewind_after=3", "bad_steps.sigma=6"},
      {},
      {"bad_steps.rewind_after", "bad_steps.sigma"}}},
    {"bad_steps.rewind_steps", {{"bad_steps.rewind_steps=3"}, {}, {"bad_steps.rewind_steps"}}},
    {"bad_steps.skip_data_steps",
     {{"bad_steps.skip_data_steps=3"}, {}, {"bad_steps.skip_data_steps"}}},
    {"bad_steps.max_rewinds", {{"bad_steps.max_rewinds=5"}, {}, {"bad_steps.max_rewinds"}}},
    {"averages.decay", {{"averages.decay=0.5"}, {}, {"averages.decay"}}},
    {"averages.start_step", {{"averages.start_step=5"}, {}, {"averages.start_step"}}},
    {"averages.interval", {{"averages.interval=5"}, {}, {"averages.interval"}}},
    {"optimizer.muon_scale",
     {{"optimizer.muon_scale=match_rms_adamw"}, {}, {"optimizer.muon_scale"}}},
    {"optimizer.eight_bit_states",
     {{"optimizer.eight_bit_states=true"}, {"optimizer.eight_bit_states"}, {}}},
    {"optimizer.muon_coefficients",
     {{"optimizer.muon_coefficients=polar_express"}, {}, {"optimizer.muon_coefficients"}}},
    {"optimizer.groups",
     {{"optimizer.groups=[{parameters: [\"*\"], lr_factor: 2}]"}, {}, {"optimizer.groups"}}},
    {"adapter.lora_plus_ratio", {{"adapter.lora_plus_ratio=4"}, {}, {"adapter.lora_plus_ratio"}}},
    {"model.mup_base_hidden_size",
     {{"model.mup_base_hidden_size=4"}, {"model.logits_scale", "model.mup_base_hidden_size"}, {}}},
    {"training.best_by", {{"training.best_by=validation"}, {}, {"training.best_by"}}},
    {"preference.loss",
     {{"preference.loss=sigmoid", "data.format=chat", "data.tokenizer=x"},
      {"preference.loss", "data.format", "data.documents", "training.train_on"},
      {}}},
    {"preference.beta", {{"preference.beta=5"}, {}, {"preference.beta"}}},
    {"preference.label_smoothing",
     {{"preference.label_smoothing=0.2"}, {}, {"preference.label_smoothing"}}},
    {"preference.simpo_gamma", {{"preference.simpo_gamma=1"}, {}, {"preference.simpo_gamma"}}},
    {"preference.desirable_weight",
     {{"preference.desirable_weight=2"}, {}, {"preference.desirable_weight"}}},
    {"preference.undesirable_weight",
     {{"preference.undesirable_weight=2"}, {}, {"preference.undesirable_weight"}}},
    {"distillation.teacher", {{"distillation.teacher=x"}, {}, {"distillation.teacher"}}},
    {"distillation.top_k", {{"distillation.top_k=4"}, {}, {"distillation.top_k"}}},
    {"distillation.weight", {{"distillation.weight=1"}, {}, {"distillation.weight"}}},
    {"distillation.temperature",
     {{"distillation.temperature=2"}, {}, {"distillation.temperature"}}},
    {"parallelism.publish_delay",
     {{"parallelism.publish_delay=1", "parallelism.parameter_servers=1",
       "zero_optimization.stage=1"},
      {"parallelism.publish_delay"},
      {}}},
    {"diloco.sync_every", {{"diloco.sync_every=6"}, {"diloco.sync_every"}, {}}},
    {"diloco.outer_lr", {{"diloco.outer_lr=0.5"}, {"diloco.outer_lr"}, {}}},
    {"diloco.outer_momentum", {{"diloco.outer_momentum=0.5"}, {"diloco.outer_momentum"}, {}}},
    {"diloco.num_fragments", {{"diloco.num_fragments=2"}, {"diloco.num_fragments"}, {}}},
    {"diloco.fragment_sync_delay",
     {{"diloco.fragment_sync_delay=2"}, {"diloco.fragment_sync_delay"}, {}}},
    {"diloco.fragment_update_alpha",
     {{"diloco.fragment_update_alpha=0.5"}, {"diloco.fragment_update_alpha"}, {}}},
    {"diloco.quantize", {{"diloco.quantize=int8_block64"}, {"diloco.quantize"}, {}}},
    {"averages.type", {{"averages.type=ema"}, {"averages.type"}, {}}},
    {"training.z_loss_multiplier",
     {{"training.z_loss_multiplier=0.5"}, {}, {"training.z_loss_multiplier"}}},
    {"training.overfit_one_batch",
     {{"training.overfit_one_batch=true"}, {"training.overfit_one_batch"}, {}}},
};

TEST(ResumeCheck, EveryKeyThatIsntFreeIsRefusedOrSaid) {
  const json global = saved_by(resolve(kTinyRecipe));
  for (const auto& [key, change] : kChanges) {
    const ResumeCheck found = check(global, change.sets);
    EXPECT_EQ(keys_of(found.refused), change.refused) << key;
    EXPECT_EQ(keys_of(found.changed), change.changed) << key;
  }
  for (const Field& field : recipe_fields()) {
    EXPECT_EQ(kChanges.contains(std::string(field.key)), field.on_resume != OnResume::kFree)
        << field.key << " needs a row above, or has one too many";
  }
}

TEST(ResumeCheck, TheSameRecipeAndFreeKeysAreSilent) {
  const json global = saved_by(resolve(kTinyRecipe));
  const ResumeCheck same =
      check(global,
            {"run.name=other", "run.num_threads=3", "model.init_std=1", "training.sample_tokens=5",
             "training.eval_interval=7", "training.final_eval=whole", "checkpoint.interval=3",
             "activation_checkpointing.mode=full", "metrics.log_interval=1",
             "zero_optimization.stage=1", "zero_optimization.prefetch_depth=3"});
  EXPECT_TRUE(same.refused.empty()) << same.refused[0].key;
  EXPECT_TRUE(same.changed.empty()) << same.changed[0].key;
  EXPECT_EQ(changes_text(same), "");
  EXPECT_NO_THROW(require_same_run(same, "x"));
}

TEST(ResumeCheck, OtherDataIsAnotherRun) {
  const json global = saved_by(resolve(kTinyRecipe));
  const auto other = run_settings(resolve(kTinyRecipe).values, {{0, kData + 1}});
  EXPECT_EQ(keys_of(compare_runs(global, *other).refused), Keys{"data (fingerprint)"});
}

TEST(ResumeCheck, SaysKeysAndBothValues) {
  const json global = saved_by(resolve(kTinyRecipe));
  const ResumeCheck found =
      check(global, {"model.norm=layernorm", "run.seed=2", "optimizer.lr=0.5"});
  EXPECT_EQ(changes_text(found),
            "unlike the checkpoint's run:\n  optimizer.lr: 0.5 (checkpoint: 0.0003)");
  try {
    require_same_run(found, "runs/x/checkpoints/step-0000000001");
    FAIL() << "another run is taken";
  } catch (const UsageError& error) {
    EXPECT_STREQ(
        error.what(),
        "runs/x/checkpoints/step-0000000001: model.norm is rmsnorm in the checkpoint and "
        "layernorm in the recipe; run.seed is 1 in the checkpoint and 2 in the recipe. "
        "Resume with the recipe of the checkpoint, or start again in another run.output_dir "
        "(checkpoint.init_from takes its weights).");
  }
}

/// As programs before this table wrote it: seven keys, two of them ordinals.
json old_global(const ResolvedRecipe& recipe, int optimizer, int dtype) {
  return {{"run",
           {{"run.seed", "1"},
            {"training.seq_length", 16},
            {"training.global_batch_size", 8},
            {"data (fingerprint)", "0000000000001234"},
            {"optimizer.type", optimizer},
            {"mixed_precision.param_dtype", dtype},
            {"model.dropout", 0.0}}},
          {"recipe", recipe.yaml()}};
}

TEST(ResumeCheck, OldCheckpointsAreReadThroughTheirOrdinalsAndTheirRecipe) {
  const std::vector<std::string> optimizers = {"adamw", "adam", "sgd", "lion",
                                               "lamb",  "lars", "muon"};
  for (int i = 0; i < std::ssize(optimizers); ++i) {
    const std::string set = "optimizer.type=" + optimizers[static_cast<std::size_t>(i)];
    EXPECT_TRUE(check(old_global(resolve(kTinyRecipe, {set}), i, 0), {set}).refused.empty()) << set;
    const ResumeCheck other =
        check(old_global(resolve(kTinyRecipe), i, 0), {i == 0 ? "optimizer.type=sgd" : set});
    EXPECT_EQ(other.refused.size(), i == 0 ? 1u : 0u) << set;
  }
  for (const auto& [ordinal, type] :
       {std::pair(0, "f32"), std::pair(1, "bf16"), std::pair(2, "f16")}) {
    const std::string set = std::string("mixed_precision.param_dtype=") + type;
    EXPECT_TRUE(check(old_global(resolve(kTinyRecipe, {set}), 0, ordinal), {set}).refused.empty());
  }
  const json old = old_global(resolve(kTinyRecipe), 0, 0);
  EXPECT_EQ(keys_of(check(old, {"optimizer.type=lion"}).refused), Keys{"optimizer.type"});
  // What isn't among the seven comes from the recipe.
  EXPECT_EQ(keys_of(check(old, {"model.rope_theta=5e5"}).refused), Keys{"model.rope_theta"});
  EXPECT_EQ(keys_of(check(old, {"optimizer.lr=1"}).changed), Keys{"optimizer.lr"});
  EXPECT_EQ(keys_of(check(old, {"model.dropout=0.5"}).refused), Keys{"model.dropout"});
  json unknown = old_global(resolve(kTinyRecipe), 7, 0);
  EXPECT_EQ(check(unknown, {}).refused.at(0).saved, "7");
}

TEST(ResumeCheck, RecipesOfOtherVersionsAreReadAsFarAsTheyGo) {
  json global = saved_by(resolve(kTinyRecipe));
  global.erase("run");
  std::string recipe = global.at("recipe");
  recipe += "a_block_to_come:\n  key: 1\n";
  recipe.replace(recipe.find("  rope_theta: 10000"), 19, "  rope_theta: 1e-99");
  recipe.erase(recipe.find("  allow_tf32"),
               recipe.find('\n', recipe.find("  allow_tf32")) + 1 - recipe.find("  allow_tf32"));
  recipe.erase(recipe.find("  decay_steps"),
               recipe.find('\n', recipe.find("  decay_steps")) + 1 - recipe.find("  decay_steps"));
  global["recipe"] = recipe;
  const ResumeCheck found = check(global, {"optimizer.lr=1"});
  EXPECT_EQ(keys_of(found.refused), (Keys{"data (fingerprint)", "model.rope_theta"}));
  EXPECT_EQ(keys_of(found.changed), Keys{"optimizer.lr"});
  EXPECT_EQ(keys_of(check(global, {"mixed_precision.allow_tf32=true"}).changed),
            Keys{"mixed_precision.allow_tf32"})
      << "a key that came later had its default";
}

// Stages begin at steps 0, 100 and 200.
TEST(ResumeCheck, OnlyStagesThatHaveBegunMustBeTheSame) {
  const ResolvedRecipe recipe = resolve(kTinyRecipe);
  const auto settings = [&](std::uint64_t second, std::int64_t third_step, std::uint64_t third) {
    return run_settings(recipe.values, {{0, kData}, {100, second}, {third_step, third}});
  };
  const json global = {{"run", *settings(2, 200, 3)}, {"recipe", recipe.yaml()}};
  const auto refused = [&](const std::shared_ptr<const json>& now, std::int64_t steps_done) {
    return keys_of(compare_runs(global, *now, steps_done).refused).contains("data (fingerprint)");
  };
  EXPECT_FALSE(refused(settings(2, 200, 4), 200)) << "the third has had no step";
  EXPECT_TRUE(refused(settings(2, 200, 4), 201));
  EXPECT_FALSE(refused(settings(2, 300, 3), 200)) << "a longer second stage";
  EXPECT_FALSE(refused(settings(2, 150, 3), 150)) << "a shorter one, before its new end";
  EXPECT_TRUE(refused(settings(2, 150, 3), 151));
  EXPECT_TRUE(refused(settings(9, 200, 3), 101));
  EXPECT_FALSE(refused(settings(9, 200, 3), 100));
  EXPECT_TRUE(refused(run_settings(recipe.values, {{0, kData + 1}}), 1));
  EXPECT_FALSE(refused(run_settings(recipe.values, {{0, kData}}), 100)) << "without later stages";
  EXPECT_TRUE(refused(run_settings(recipe.values, {{0, kData}}), 101));
}

TEST(ResumeCheck, ManifestsWithoutASensibleRunAreRefused) {
  for (const json& global : {json::object(), json(1), json{{"run", 3}, {"recipe", 4}},
                             json{{"run", json::object()}, {"recipe", "[[["}}}) {
    const Keys refused = keys_of(check(global, {}).refused);
    EXPECT_TRUE(refused.contains("model.num_layers") && refused.contains("data (fingerprint)"))
        << global;
  }
}

TEST(ResumeCheck, WeightsOfAnotherModelAreSaidWhenTheyStartARun) {
  const json global = saved_by(resolve(kTinyRecipe));
  const auto settings = run_settings(
      resolve(kTinyRecipe, {"model.norm=layernorm", "model.dropout=0.1", "run.seed=3"}).values,
      {{0, 1}});
  const ResumeCheck found = compare_models(global, *settings);
  EXPECT_TRUE(found.refused.empty());
  EXPECT_EQ(keys_of(found.changed), Keys{"model.norm"});
}

TEST(ResumedScaler, ObeysTheRecipe) {
  using Mode = LossScaling::Mode;
  const optim::LossScaler::State saved{
      .scale = 1024, .clean_steps = 7, .credit = 5, .skips_in_a_row = 1, .total_skips = 9};
  ResumeCheck same, other_mode;
  other_mode.changed.push_back({"loss_scaling.mode", "none", "dynamic"});
  LossScaling options;
  options.mode = Mode::kDynamic;
  options.hysteresis = 9;
  EXPECT_EQ(resumed_scaler(saved, options, same), saved);
  options.hysteresis = 2;
  options.min_scale = 4096;
  const auto within = resumed_scaler(saved, options, same);
  EXPECT_EQ(within.scale, 4096);
  EXPECT_EQ(within.credit, 2);
  EXPECT_EQ(within.clean_steps, 7);
  const auto anew = resumed_scaler(saved, options, other_mode);
  EXPECT_EQ(anew.scale, 65536);
  EXPECT_EQ(anew.clean_steps, 0);
  EXPECT_EQ(anew.total_skips, 9);
  options.mode = Mode::kStatic;
  options.initial_scale_power = 3;
  EXPECT_EQ(resumed_scaler(saved, options, same).scale, 8);
  options.mode = Mode::kNone;
  EXPECT_EQ(resumed_scaler(saved, options, same).scale, 1);
}

}  // namespace
}  // namespace sherd::engine
