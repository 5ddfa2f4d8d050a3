// A legal recipe's ranks: what each has, and what they send.

#include <fmt/format.h>

#include "tests/support/random/legal_recipe.h"

namespace sherd::testing {
namespace {

constexpr std::string_view kOverReplicas = "zero_optimization.shard_optimizer_over_replicas";

}  // namespace

// Where nothing of the optimizer's is sharded, replicas have nothing to divide; where all is, they
// alone have copies to compare.
void leave_what_the_stage_lacks(Settings& settings) {
  const std::int64_t stage = whole(settings, "zero_optimization.stage");
  const std::int64_t replicas = whole(settings, "parallelism.data_parallel_replicate_degree");
  const std::int64_t shards = whole(settings, "parallelism.data_parallel_shard_degree");
  if (stage == 0) settings.erase(std::string(kOverReplicas));
  const bool has_copies = replicas > 1 || (stage < 3 && shards > 1);
  if (!has_copies) settings.erase("training.weight_hash_interval");
  if (stage < 3) settings.erase("zero_optimization.offload_param");
}

// Ranks that divide the experts, of a recipe with its data ranks.
void choose_expert_ranks(Settings& settings, Random& random) {
  const std::int64_t experts = whole(settings, "moe.num_experts");
  const std::int64_t ranks = whole(settings, "parallelism.data_parallel_shard_degree");
  std::int64_t degree = experts == 0 || random.chance(0.4) ? 1 : ranks;
  while (ranks % degree != 0 || experts % degree != 0) --degree;
  settings["parallelism.expert_parallel_degree"] = std::to_string(degree);
  if (degree > 1) settings["zero_optimization.grad_sync"] = "every_micro_step";
}

void LegalRecipe::batch() {
  const std::int64_t replicas = random_.chance(0.3) ? 2 : 1;
  const std::int64_t ranks = random_.whole(1, 4 / replicas), micro = random_.whole(1, 3),
                     steps = random_.whole(1, 3);
  set("parallelism.data_parallel_shard_degree", ranks);
  set("parallelism.data_parallel_replicate_degree", replicas);
  set("training.global_batch_size", replicas * ranks * micro * steps);
  set("training.micro_batch_size", micro);
  maybe("training.gradient_accumulation_steps", steps);
  set("zero_optimization.stage", random_.whole(0, 3));
  maybe("training.weight_hash_interval", random_.whole(0, 2));
  maybe("training.z_loss_multiplier", random_.one_of({"0", "0.0001"}));
  leave_what_the_stage_lacks(settings_);
  const auto optimizer = settings_.find("optimizer.type");
  if (optimizer != settings_.end() &&
      (optimizer->second == "muon" || optimizer->second == "dion")) {
    leave(kOverReplicas);
  }
}

// Layers on one to three ranks, with a schedule that takes them.
void LegalRecipe::pipeline() {
  for (const char* key :
       {"pipeline_schedule", "pipeline_chunks_per_rank", "pipeline_layers_per_chunk"}) {
    leave(std::string("parallelism.") + key);
  }
  const std::int64_t layers = whole(settings_, "model.num_layers");
  const std::int64_t degree = random_.chance(0.6) ? 1 : random_.whole(1, layers);
  set("parallelism.pipeline_parallel_degree", degree);
  if (degree == 1) return;
  set("parallelism.pipeline_schedule",
      random_.one_of({"layer_parallel", "gpipe", "1f1b", "zb_h1"}));
  if (!random_.chance(0.3)) return;
  std::string counts;
  for (std::int64_t chunk = 1; chunk < degree; ++chunk) counts += "1, ";
  set("parallelism.pipeline_layers_per_chunk", fmt::format("[{}{}]", counts, layers - degree + 1));
}

// Two tensor ranks, or two context ranks, perhaps a ring, of a model that they can share.
void LegalRecipe::parts_of_models() {
  const auto value = [&](const char* key, const std::string& otherwise) {
    const auto found = settings_.find(std::string(key));
    return found == settings_.end() ? otherwise : found->second;
  };
  const std::int64_t ranks = whole(settings_, "parallelism.data_parallel_shard_degree") *
                             whole(settings_, "parallelism.data_parallel_replicate_degree") *
                             whole(settings_, "parallelism.pipeline_parallel_degree");
  const std::string heads = value("model.num_attention_heads", "1");
  const bool even = std::stoll(heads) % 2 == 0 && ranks <= 4;
  const bool cut = even && random_.chance(0.4);
  set("parallelism.tensor_parallel_degree", cut ? 2 : 1);
  if (cut) set("model.ffn_hidden_size", 2 * random_.whole(1, 50));
  const bool enough_heads = std::stoll(value("model.num_kv_heads", heads)) % 2 == 0;
  const bool gathers = cut || !enough_heads || random_.chance(0.5);
  const bool context = ranks <= (cut ? 2 : 4) && length_ % 2 == 0;
  const bool in_sequences = context && random_.chance(0.6);
  set("parallelism.context_parallel_degree", in_sequences ? 2 : 1);
  set("parallelism.context_parallel_method", gathers ? "all_gather" : "ulysses");
  const std::int64_t num_heads = std::stoll(heads);
  const std::int64_t width = std::stoll(
      value("model.head_width", std::to_string(whole(settings_, "model.hidden_size") / num_heads)));
  const bool in_eighths =
      num_heads * width % 8 == 0 && std::stoll(value("model.num_kv_heads", heads)) * width % 8 == 0;
  const bool in_groups = length_ % 8 == 0;  // of tokens, which ranks can share
  const bool apart =
      value("data.documents", "joined") == "separate" || settings_.at("data.format") == "chat";
  const bool in_ring = length_ % 4 == 0 && random_.chance(0.4);
  if (in_ring) set("parallelism.context_parallel_method", "ring");
  const bool canonical = in_eighths && ((in_groups && !apart && !in_ring) || !in_sequences) &&
                         !has_adapter_ && random_.chance(0.6) &&
                         settings_.at("mixed_precision.reduce_dtype") == "f32";
  set("parallelism.sum_order", canonical ? "canonical" : "rank");
  const bool one_row = whole(settings_, "training.micro_batch_size") == 1;
  const bool shares_tokens = cut && (!canonical || (in_groups && one_row)) && random_.chance(0.5);
  set("parallelism.sequence_parallel", shares_tokens ? "true" : "false");
  if (canonical) set("model.ffn_hidden_size", 8 * random_.whole(1, 12));
}

// What ranks send, unless something else excludes blocks.
void LegalRecipe::in_blocks() {
  leave("mixed_precision.gather_dtype");
  leave("mixed_precision.replica_reduce_dtype");
  if (value_of("parallelism.tensor_parallel_degree", "1") != "1" ||
      value_of("parallelism.expert_parallel_degree", "1") != "1") {
    return;
  }
  const auto blocks = [this] { return random_.one_of({"int8_block64", "int4_block64"}); };
  if (settings_.at("mixed_precision.reduce_dtype") == "f32" && random_.chance(0.4) &&
      value_of("parallelism.sum_order", "rank") != "canonical") {
    set("mixed_precision.reduce_dtype", blocks());
    leave("mixed_precision.grad_accum_dtype");
  }
  const std::string& reduce = settings_.at("mixed_precision.reduce_dtype");
  const std::string sums = reduce.ends_with("_block64") ? "f32" : reduce;
  if (random_.chance(0.3) && value_of("parallelism.sum_order", "rank") != "canonical" &&
      value_of("mixed_precision.grad_accum_dtype", sums) == "f32") {
    set("mixed_precision.replica_reduce_dtype", blocks());
  }
  if (!has_adapter_ && random_.chance(0.3) &&
      value_of("zero_optimization.offload_optimizer", "none") == "none") {
    set("mixed_precision.gather_dtype", blocks());
  }
}

// State and the inputs of blocks.
void LegalRecipe::on_disk() {
  for (const char* key : {"optimizer", "param", "update", "path", "buffer_mib"}) {
    leave(fmt::format("zero_optimization.offload_{}", key));
  }
  leave("activation_checkpointing.offload");
  if (value_of("activation_checkpointing.mode", "none") == "full" &&
      value_of("parallelism.pipeline_parallel_degree", "1") == "1") {
    maybe("activation_checkpointing.offload", "nvme");
  }
  const std::string type = value_of("optimizer.type", "adamw");
  if (type != "adamw" && type != "adam" && type != "lion") return;
  if (random_.chance(0.6)) return;
  set("zero_optimization.offload_optimizer", "nvme");
  set("zero_optimization.offload_buffer_mib", random_.whole(1, 8));
  if (value_of("zero_optimization.stage", "0") == "3") {
    maybe("zero_optimization.offload_param", "nvme");
  }
  // Of FP32 weights on disk.
  for (const char* key : {"averages.type", "training.weight_hash_interval",
                          "optimizer.qk_clip_threshold", "optimizer.qk_clip_alpha"}) {
    leave(key);
  }
}

// Replicas that train apart, where no other key forbids it.
void LegalRecipe::train_apart() {
  const bool refused = settings_.contains("preference.loss") ||
                       settings_.contains("zero_optimization.offload_optimizer") ||
                       value_of("moe.num_experts", "0") != "0";
  if (refused || random_.chance(0.7)) return;
  for (const char* key : {"averages.type", "optimizer.qk_clip_threshold",
                          "parallelism.batch_groups", "training.weight_hash_interval"}) {
    leave(key);
  }
  leave(kOverReplicas);
  // The blocks are trained in any case, unless a group freezes some.
  const std::int64_t layers = whole(settings_, "model.num_layers");
  const std::int64_t fragments =
      settings_.contains("optimizer.groups") ? 1 : random_.whole(1, layers);
  const std::int64_t period = random_.whole(1, 3);
  set("diloco.sync_every", fragments * period);
  set("diloco.num_fragments", fragments);
  maybe("diloco.fragment_sync_delay", random_.whole(0, period - 1));
  maybe("diloco.fragment_update_alpha", random_.one_of({"0", "0.5", "1"}));
  maybe("diloco.quantize", random_.one_of({"none", "int8_block64", "int4_block64"}));
  maybe("diloco.outer_lr", random_.one_of({"0.7", "1"}));
  maybe("diloco.outer_momentum", random_.one_of({"0", "0.9"}));
}

// Parameter servers, where no other key forbids them.
void LegalRecipe::servers() {
  for (const char* key :
       {"parallelism.parameter_servers", "parallelism.publish_delay", "memory.server_memory"}) {
    leave(key);
  }
  bool refused = has_adapter_ || value_of("zero_optimization.stage", "0") == "0" ||
                 value_of("moe.num_experts", "0") != "0" ||
                 value_of("parallelism.sum_order", "rank") != "rank" ||
                 value_of("mixed_precision.gather_dtype", "param_dtype") != "param_dtype" ||
                 value_of("mixed_precision.reduce_dtype", "f32").ends_with("_block64");
  for (const char* axis : {"data_parallel_replicate", "pipeline_parallel", "tensor_parallel",
                           "context_parallel", "expert_parallel"}) {
    refused |= value_of(fmt::format("parallelism.{}_degree", axis), "1") != "1";
  }
  refused |= value_of("parallelism.batch_groups", "1") != "1";
  for (const char* key : {"zero_optimization.offload_optimizer", "zero_optimization.offload_param",
                          "activation_checkpointing.offload", "preference.loss",
                          "distillation.teacher", "diloco.sync_every"}) {
    refused |= settings_.contains(key);
  }
  if (refused || random_.chance(0.4)) return;
  set("parallelism.parameter_servers", random_.whole(1, 3));
  leave("zero_optimization.shard_optimizer_over_replicas");
  if (value_of("mixed_precision.param_dtype", "bf16") != "f16") {
    maybe("parallelism.publish_delay", random_.one_of({"0", "1"}));
  }
}

// Compressed sums over replicas, where no other key forbids them.
void LegalRecipe::compress() {
  const auto is = [&](const char* key, const char* usual) { return value_of(key, usual) == usual; };
  bool refused =
      !is("moe.num_experts", "0") || !is("parallelism.sum_order", "rank") ||
      !is("parallelism.parameter_servers", "0") || !is("mixed_precision.reduce_dtype", "f32") ||
      !is("mixed_precision.grad_accum_dtype", "f32") || !is("loss_scaling.mode", "none") ||
      is("mixed_precision.param_dtype", "f16") || settings_.contains("diloco.sync_every") ||
      (!is("parallelism.pipeline_parallel_degree", "1") && !is("model.tie_embeddings", "false"));
  for (const char* key :
       {"model.from", "zero_optimization.offload_optimizer", "zero_optimization.offload_param"}) {
    refused |= settings_.contains(key);
  }
  if (refused || random_.chance(0.6)) return;
  std::erase_if(settings_, [](const auto& each) { return each.first.starts_with("bad_steps."); });
  leave("parallelism.batch_groups");
  leave(kOverReplicas);
  leave("mixed_precision.replica_reduce_dtype");
  if (value_of("optimizer.type", "adamw") == "sgd" && random_.chance(0.7)) {
    set("dgc.compress_ratio", random_.one_of({"0.01", "0.2"}));
    maybe("dgc.sample_ratio", random_.one_of({"0.1", "1"}));
    maybe("dgc.warmup_epochs", "1");
    const bool whole = is("parallelism.tensor_parallel_degree", "1");
    maybe("dgc.clip", whole ? random_.one_of({"norm", "value"}) : std::string("value"));
    maybe("dgc.momentum_correction", "false");
    if (settings_.contains("data.stages")) leave("dgc.warmup_epochs");
    return;
  }
  if (value_of("optimizer.type", "adamw") == "dion" && random_.chance(0.7)) {
    set("optimizer.dion_decoupled", "true");
    set("gradient_clipping.max_norm", "0");
    maybe("optimizer.dion_average_interval", random_.whole(0, 2));
    return;
  }
  set("powersgd.rank", random_.whole(1, 3));
  maybe("powersgd.start_step", random_.whole(0, 2));
  maybe("powersgd.min_compression_rate", "1");
}

// Multi-token prediction, where no other key forbids it.
void LegalRecipe::predict() {
  const auto is = [&](const char* key, const char* usual) { return value_of(key, usual) == usual; };
  bool refused = has_adapter_ || !is("parallelism.pipeline_parallel_degree", "1") ||
                 !is("parallelism.tensor_parallel_degree", "1") ||
                 !is("parallelism.sum_order", "rank") ||
                 !is("parallelism.parameter_servers", "0") || !is("model.positions", "rope") ||
                 !is("model.dropout", "0") || !is("training.z_loss_multiplier", "0") ||
                 !is("model.mup_base_hidden_size", "0") || length_ < 4;
  for (const char* key :
       {"activation_checkpointing.offload", "preference.loss", "distillation.teacher",
        "diloco.sync_every", "optimizer.groups", "model.from"}) {
    refused |= settings_.contains(key);
  }
  if (refused || random_.chance(0.5)) return;
  set("mtp.num_layers", random_.whole(1, 2));
  maybe("mtp.loss_scaling_factor", random_.one_of({"0", "0.3"}));
}

}  // namespace sherd::testing
