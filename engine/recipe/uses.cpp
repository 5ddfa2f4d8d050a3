#include "engine/recipe/uses.h"

#include <algorithm>

#include "engine/recipe/use_conditions.h"

namespace sherd::engine {
namespace {

using namespace use_conditions;
using enum OptimizerType;
constexpr std::string_view kOnGpus = "on GPUs", kWithExperts = "with num_experts",
                           kWithLora = "with adapter.type: lora", kWithChat = "with format: chat",
                           kWithSample = "with sample_tokens", kCompresses = "with compress_ratio",
                           kWithPipeline = "with pipeline_parallel_degree",
                           kWithOffload = "with offload_optimizer or offload_param: nvme",
                           kWithServers = "with parameter_servers", kDynamic = "with mode: dynamic",
                           kDecays = "with every type but constant",
                           kByAStep = "with every type but constant and inverse_sqrt",
                           kWsd = "with type: wsd", kAtStage3 = "at stage 3",
                           kTurned = "with positions: rope, in layers selected by rope_layers",
                           kSaves = "if checkpoints are saved",
                           kValidates = "if there is validation data";

const Use kUses[] = {
    {"run.share_device", kOnGpus, on_gpus},
    {"run.deterministic", kOnGpus, on_gpus},
    {"run.cuda_graphs", kOnGpus, on_gpus},
    {"run.peer_timeout", "with several ranks", [](R r) { return r.world_size() > 1; }},
    {"model.rope_theta", kTurned, turns_with_theta},
    {"model.init_std", "if the run starts from random weights",
     [](R r) { return r.checkpoint.init_from.empty(); }},
    {"model.window", "in layers selected by window_layers",
     [](R r) {
       return r.model.window == 0 || any_layer(r, [](bool, bool windowed) { return windowed; });
     }},
    {"model.window_layers", "with window", [](R r) { return r.model.window > 0; }},
    {"model.rope_layers", "with positions: rope",
     [](R r) { return r.model.positions == PositionChoice::kRope; }},
    {"model.query_growth", "in layers that rope_layers leaves out",
     [](R r) {
       return r.model.query_growth == 0.0 ||
              any_layer(r, [](bool turned, bool) { return !turned; });
     }},
    {"model.query_step", "with query_growth", [](R r) { return r.model.query_growth > 0.0; }},
    {"model.rope_fraction", kTurned, turns},
    {"model.rope_scaling",
     "with positions: rope, in layers selected by rope_layers; linear and llama3 with rope_factor "
     "above 1",
     [](R r) {
       return (r.model.rope_scaling == RotaryScaling::kNone && turns(r)) || stretches(r) ||
              (turns_scaled(r) && r.model.rope_attention_factor > 0.0);
     }},
    {"model.rope_factor", "with rope_scaling; with longrope only if rope_attention_factor is 0",
     [](R r) {
       return turns_scaled(r) && (r.model.rope_scaling != RotaryScaling::kLongrope ||
                                  r.model.rope_attention_factor == 0.0);
     }},
    {"model.rope_original_length", "with rope_scaling: llama3, yarn or longrope",
     [](R r) { return r.model.rope_scaling >= RotaryScaling::kLlama3 && stretches(r); }},
    {"model.rope_low_freq_factor", "with rope_scaling: llama3", scales_by<RotaryScaling::kLlama3>},
    {"model.rope_high_freq_factor", "with rope_scaling: llama3", scales_by<RotaryScaling::kLlama3>},
    {"model.rope_beta_fast", "with rope_scaling: yarn", scales_by<RotaryScaling::kYarn>},
    {"model.rope_beta_slow", "with rope_scaling: yarn", scales_by<RotaryScaling::kYarn>},
    {"model.rope_truncate", "with rope_scaling: yarn", scales_by<RotaryScaling::kYarn>},
    {"model.rope_attention_factor", "with rope_scaling", turns_scaled},
    {"model.rope_short_factors", "with rope_scaling: longrope",
     scales_by<RotaryScaling::kLongrope>},
    {"model.rope_long_factors", "with rope_scaling: longrope", scales_by<RotaryScaling::kLongrope>},
    {"model.window_rope_theta", "with window and positions: rope", turns_in_windows},
    {"model.window_rope_scaling", "with window and rope_scaling",
     [](R r) { return r.model.rope_scaling != RotaryScaling::kNone && turns_in_windows(r); }},

    {"model.q_lora_rank", "with kv_lora_rank", has_latents},
    {"model.qk_nope_head_dim", "with kv_lora_rank", has_latents},
    {"model.qk_rope_head_dim", "with kv_lora_rank", has_latents},
    {"model.v_head_dim", "with kv_lora_rank", has_latents},
    {"moe.experts_per_token", kWithExperts, has_experts},
    {"moe.ffn_hidden_size", kWithExperts, has_experts},
    {"moe.shared_ffn_hidden_size", kWithExperts, has_experts},
    {"moe.shared_gate", "with shared_ffn_hidden_size",
     [](R r) { return has_experts(r) && r.moe.shared_ffn_hidden_size > 0; }},
    {"moe.layers", kWithExperts, has_experts},
    {"moe.score", kWithExperts, has_experts},
    {"moe.normalize_weights", "with num_experts and score: softmax or sigmoid",
     [](R r) {
       return has_experts(r) &&
              (r.moe.score == RouterScore::kSoftmax || r.moe.score == RouterScore::kSigmoid);
     }},
    {"moe.weight_scale", kWithExperts, has_experts},
    {"moe.weigh_input", kWithExperts, has_experts},
    {"moe.jitter", "with score: sparsemixer",
     [](R r) { return has_experts(r) && r.moe.score == RouterScore::kSparsemixer; }},
    {"moe.num_groups", kWithExperts, has_experts},
    {"moe.kept_groups", "with num_groups above 1",
     [](R r) { return has_experts(r) && r.moe.num_groups > 1; }},
    {"moe.bias", kWithExperts, has_experts},
    {"moe.correction_bias", kWithExperts, has_experts},
    {"moe.bias_update_rate", "with correction_bias, where the router is trained",
     [](R r) {
       return has_experts(r) && r.moe.correction_bias && r.adapter.type == AdapterChoice::kNone;
     }},
    {"moe.balance_scope", "with num_experts and balance_loss or z_loss",
     [](R r) { return has_experts(r) && (r.moe.balance_loss > 0.0 || r.moe.z_loss > 0.0); }},
    {"moe.balance_loss", kWithExperts, has_experts},
    {"moe.z_loss", kWithExperts, has_experts},
    {"moe.buffer_rows", kWithExperts, has_experts},
    {"moe.grouped_gemm", "with num_experts, on GPUs",
     [](R r) { return has_experts(r) && on_gpus(r); }},

    {"adapter.rank", kWithLora, adapts},
    {"adapter.alpha", kWithLora, adapts},
    {"adapter.rslora", kWithLora, adapts},
    {"adapter.dropout", kWithLora, adapts},
    {"adapter.lora_plus_ratio", kWithLora, adapts},
    {"adapter.targets", kWithLora, adapts},
    {"adapter.modules_to_save", kWithLora, adapts},

    {"data.tokenizer", "with format: text, chat or bin",
     [](R r) { return r.data.format >= DataFormat::kBin; }},
    {"data.field", "with every format but chat", any_not_chat},
    {"data.token_bytes", "with format: bin", any_bin},
    {"data.packing", "with documents: separate", any_separate},
    {"data.unfit", kWithChat, is_chat},
    {"data.rewritten_history", kWithChat, is_chat},

    {"training.eval_interval", kValidates, validates},
    {"training.eval_batches", kValidates, validates},
    {"training.early_stopping_patience", "if more evaluations come before the last step",
     [](R r) {
       const auto& training = r.training;
       const std::int64_t patience = training.early_stopping_patience;
       return patience == 0 || training.max_steps == 0 ||
              (patience + 1) * training.eval_interval < training.max_steps;
     }},
    {"training.final_eval", "with eval_batches, if there is validation data",
     [](R r) { return validates(r) && r.training.eval_batches > 0; }},
    {"training.best_by", kValidates, validates},
    {"training.train_on", kWithChat, is_chat},
    {"training.sample_prompt", kWithSample, samples},
    {"training.sample_temperature", kWithSample, samples},
    {"training.sample_top_k", "with sample_tokens and a sample_temperature above 0",
     [](R r) { return samples(r) && r.training.sample_temperature > 0.0; }},

    {"parallelism.context_parallel_method", "with context_parallel_degree",
     [](R r) { return r.parallelism.context_parallel_degree > 1; }},
    {"parallelism.pipeline_schedule", kWithPipeline, has_pipeline},
    {"parallelism.pipeline_chunks_per_rank", kWithPipeline, has_pipeline},
    {"parallelism.pipeline_layers_per_chunk", kWithPipeline, has_pipeline},

    {"zero_optimization.grad_sync", "with several ranks or micro-steps",
     [](R r) {
       const std::int64_t replicas =
           r.diloco.active() ? r.parallelism.data_parallel_replicate_degree : 1;
       return r.world_size() > replicas || r.training.gradient_accumulation_steps > 1;
     }},
    {"zero_optimization.prefetch_depth", kAtStage3, at_stage_3},
    {"zero_optimization.reshard_after_forward", kAtStage3, at_stage_3},
    {"zero_optimization.shard_optimizer_over_replicas", "with data_parallel_replicate_degree",
     [](R r) { return r.parallelism.data_parallel_replicate_degree > 1; }},
    {"zero_optimization.offload_path", "with state or activations on disk", has_files},
    {"zero_optimization.offload_buffer_mib", kWithOffload, offloads},
    {"mtp.loss_scaling_factor", "with num_layers", active<&Recipe::mtp>},
    {"mixed_precision.allow_tf32", kOnGpus, on_gpus},
    {"mixed_precision.replica_reduce_dtype", "with several batch_groups, and no diloco",
     [](R r) { return r.parallelism.batch_groups > 1 && !r.diloco.active(); }},
    {"loss_scaling.initial_scale_power", "with mode: static or dynamic",
     [](R r) { return r.loss_scaling.mode != LossScaling::Mode::kNone; }},
    {"loss_scaling.growth_factor", kDynamic, is_dynamic},
    {"loss_scaling.backoff_factor", kDynamic, is_dynamic},
    {"loss_scaling.growth_interval", kDynamic, is_dynamic},
    {"loss_scaling.hysteresis", kDynamic, is_dynamic},
    {"loss_scaling.min_scale", kDynamic, is_dynamic},
    {"loss_scaling.on_min_scale", kDynamic, is_dynamic},
    {"optimizer.betas", "by adamw, adam, lamb, lion, muon, dion",
     updates_by<kAdamW, kAdam, kLamb, kLion, kMuon, kDion>},
    {"optimizer.eps", "by adamw, adam, lamb, muon, dion, adafactor",
     updates_by<kAdamW, kAdam, kLamb, kMuon, kDion, kAdafactor>},
    {"optimizer.no_decay", "with weight_decay", [](R r) { return r.optimizer.weight_decay > 0.0; }},
    {"optimizer.momentum", "by sgd, lars, muon, dion", updates_by<kSgd, kLars, kMuon, kDion>},
    {"optimizer.trust_coefficient", "by lars", updates_by<kLars>},
    {"optimizer.beta2_decay", "by adafactor", updates_by<kAdafactor>},
    {"optimizer.clip_threshold", "by adafactor", updates_by<kAdafactor>},
    {"optimizer.min_parameter_rms", "by adafactor", updates_by<kAdafactor>},
    {"optimizer.adamw_lr", "by muon, dion", updates_by<kMuon, kDion>},
    {"optimizer.dion_rank_fraction", "by dion", updates_by<kDion>},
    {"optimizer.dion_decoupled", "by dion", updates_by<kDion>},
    {"optimizer.dion_average_interval", "with dion_decoupled",
     [](R r) { return r.optimizer.decouples_replicas(); }},
    {"optimizer.muon_scale", "by muon", updates_by<kMuon>},
    {"optimizer.eight_bit_states", "by adamw, adam, lion", updates_by<kAdamW, kAdam, kLion>},
    {"optimizer.muon_coefficients", "by muon", updates_by<kMuon>},
    {"optimizer.muon_dtype", "by muon", updates_by<kMuon>},
    {"optimizer.qk_clip_alpha", "with qk_clip_threshold",
     [](R r) { return r.optimizer.qk_clip_threshold > 0.0; }},
    {"lr_scheduler.decay_steps", kByAStep, decays_by_a_step},
    {"lr_scheduler.min_lr_ratio", kDecays, decays},
    {"lr_scheduler.wsd_decay_shape", kWsd, is_wsd},
    {"lr_scheduler.wsd_decay_ratio",
     "with type: wsd, if wsd_decay_tokens and wsd_decay_steps aren't set",
     [](R r) { return is_wsd(r) && r.lr_scheduler.wsd_decay_tokens == 0; }},
    {"lr_scheduler.wsd_decay_tokens", "with type: wsd, if wsd_decay_steps isn't set", is_wsd},
    {"lr_scheduler.wsd_decay_steps", kWsd, is_wsd},
    {"lr_scheduler.batch_size_scaling", "if data.stages change global_batch_size",
     changes_batch_size},
    {"bad_steps.rewind_after", "with a limit on the loss or gradient norm", judges_steps},
    {"bad_steps.rewind_steps", "with rewind_after", rewinds},
    {"bad_steps.skip_data_steps", "with rewind_after", rewinds},
    {"bad_steps.max_rewinds", "with rewind_after", rewinds},

    {"averages.decay", "with type: ema", [](R r) { return r.averages.type == AverageType::kEma; }},
    {"averages.start_step", "with a type", averages},
    {"averages.interval", "with a type", averages},
    {"averages.evaluate", "with a type, if there is validation data",
     [](R r) { return averages(r) && validates(r); }},
    {"preference.beta", "with a loss", active<&Recipe::preference>},
    {"preference.label_smoothing", "with loss: sigmoid, robust or simpo",
     [](R r) {
       return r.preference.loss == PreferenceLoss::kSigmoid ||
              r.preference.loss == PreferenceLoss::kRobust ||
              r.preference.loss == PreferenceLoss::kSimpo;
     }},
    {"preference.simpo_gamma", "with loss: simpo",
     [](R r) { return r.preference.loss == PreferenceLoss::kSimpo; }},
    {"preference.desirable_weight", "with loss: kto", judges_answers},
    {"preference.undesirable_weight", "with loss: kto", judges_answers},
    {"parallelism.publish_delay", kWithServers, has_servers},
    {"memory.server_memory", kWithServers, has_servers},
    {"diloco.outer_lr", "with sync_every", active<&Recipe::diloco>},
    {"diloco.outer_momentum", "with sync_every", active<&Recipe::diloco>},
    {"diloco.num_fragments", "with sync_every", active<&Recipe::diloco>},
    {"diloco.fragment_sync_delay", "with sync_every", active<&Recipe::diloco>},
    {"diloco.fragment_update_alpha", "with sync_every", active<&Recipe::diloco>},
    {"diloco.quantize", "with sync_every and data_parallel_replicate_degree",
     [](R r) { return r.diloco.active() && r.parallelism.data_parallel_replicate_degree > 1; }},
    {"powersgd.start_step", "with a rank", active<&Recipe::powersgd>},
    {"powersgd.min_compression_rate", "with a rank", active<&Recipe::powersgd>},
    {"powersgd.seed", "with a rank", active<&Recipe::powersgd>},
    {"dgc.sample_ratio", kCompresses, active<&Recipe::dgc>},
    {"dgc.compress_lower_bound", kCompresses, active<&Recipe::dgc>},
    {"dgc.compress_upper_bound", kCompresses, active<&Recipe::dgc>},
    {"dgc.max_adaptation_iters", kCompresses, active<&Recipe::dgc>},
    {"dgc.warmup_epochs", kCompresses, active<&Recipe::dgc>},
    {"dgc.clip", kCompresses, active<&Recipe::dgc>},
    {"dgc.momentum_correction", kCompresses, active<&Recipe::dgc>},
    {"dgc.warmup_coeff", "with warmup_epochs", [](R r) { return r.dgc.warmup_epochs > 0; }},
    {"dgc.clip_threshold", "with clip", [](R r) { return r.dgc.clip != optim::LocalClip::kNone; }},
    {"dgc.momentum_masking", "with momentum and momentum_correction",
     [](R r) { return r.dgc.active() && r.dgc.momentum_correction && r.optimizer.momentum > 0.0; }},
    {"distillation.top_k", "with a teacher", active<&Recipe::distillation>},
    {"distillation.weight", "with a teacher", active<&Recipe::distillation>},
    {"distillation.temperature", "with a teacher", active<&Recipe::distillation>},
    {"bad_steps.window", "with sigma", [](R r) { return r.bad_steps.sigma > 0.0; }},
    {"bad_steps.max_in_a_row", "with another of these keys", judges_steps},
    {"checkpoint.async", kSaves, saves},
    {"checkpoint.staging_mib", kSaves, saves},
    {"checkpoint.keep_last", kSaves, saves},
    {"checkpoint.keep_every", kSaves, saves},
    {"checkpoint.keep_best", kSaves, saves},
    {"checkpoint.max_failed_saves", kSaves, saves},
    {"checkpoint.stop_deadline", kSaves, saves},
    {"metrics.source_losses", "with several data.sources",
     [](R r) { return r.data.sources.size() > 1; }},
    {"hooks.on_step", "if the run has step_interval steps",
     [](R r) {
       return r.training.max_steps == 0 || r.hooks.step_interval <= r.training.max_steps;
     }},
    {"hooks.on_save", kSaves, saves},
    {"hooks.step_interval", "with on_step", [](R r) { return !r.hooks.on_step.empty(); }},
    {"hooks.timeout", "with a command", [](R r) { return r.hooks.any(); }},
    {"hooks.retries", "with on_save", [](R r) { return !r.hooks.on_save.empty(); }},
};

}  // namespace

const Use* use_of(std::string_view key) {
  const auto* const found = std::ranges::find(kUses, key, &Use::key);
  return found == std::end(kUses) ? nullptr : found;
}

}  // namespace sherd::engine
