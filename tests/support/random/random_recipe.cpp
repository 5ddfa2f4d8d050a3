#include "tests/support/random/random_recipe.h"

#include <fmt/format.h>

#include <algorithm>

#include "checkpoint/format/manifest.h"
#include "engine/model/adapter.h"
#include "engine/model/cut/tensor_cut.h"
#include "engine/train/model_shape.h"

namespace sherd::testing {
namespace {

// What chars finds in chars.txt: this many different characters, two of them beyond ASCII.
constexpr std::int64_t kCharacters = 12;
constexpr std::int64_t kTokenizerSize = 259;  // small_tokenizer.h

using model::SiteId;

std::string quoted(const std::string& text) {
  return '"' + text + '"';
}

constexpr std::string_view kOverReplicas = "zero_optimization.shard_optimizer_over_replicas";

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
  const auto bias = settings.find("moe.bias");
  const bool biased = bias != settings.end() && bias->second == "true";
  std::int64_t degree = experts == 0 || biased || random.chance(0.4) ? 1 : ranks;
  while (ranks % degree != 0 || experts % degree != 0) --degree;
  settings["parallelism.expert_parallel_degree"] = std::to_string(degree);
  if (degree > 1) settings["zero_optimization.grad_sync"] = "every_micro_step";
}

// Latent attention, or sinks, where no other key forbids them; what it doesn't have is left out.
void choose_latent_attention(Settings& settings, Random& random, bool may) {
  for (const char* key : {"q_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim"}) {
    settings.erase(fmt::format("model.{}", key));
  }
  settings["model.kv_lora_rank"] = "0";
  settings["model.attention_sinks"] = "false";
  if (!may || !random.chance(0.4)) return;
  if (random.chance(0.3)) {
    const bool one = whole(settings, "parallelism.context_parallel_degree") <= 1;
    settings["model.attention_sinks"] = one ? "true" : "false";
    return;
  }
  const std::int64_t plain = 2 * random.whole(1, 6), rotated = 2 * random.whole(1, 4);
  settings["model.kv_lora_rank"] = std::to_string(random.whole(1, 40));
  settings["model.q_lora_rank"] = std::to_string(random.chance(0.5) ? 0 : random.whole(1, 40));
  settings["model.qk_nope_head_dim"] = std::to_string(plain);
  settings["model.qk_rope_head_dim"] = std::to_string(rotated);
  settings["model.v_head_dim"] = std::to_string(random.whole(1, plain + rotated));
  settings["model.positions"] = "rope";
  settings["model.norm"] = "rmsnorm";
  settings["model.block"] = "sequential";
  settings["model.qk_norm"] = "none";
  settings["model.qkv_bias"] = "false";
  if (settings["model.rope_scaling"] == "longrope") settings["model.rope_scaling"] = "linear";
  for (const char* key :
       {"model.head_width", "model.num_kv_heads", "model.rope_fraction", "model.norm_bias",
        "model.rope_short_factors", "model.rope_long_factors", "optimizer.qk_clip_threshold"}) {
    settings.erase(key);
  }
}

class LegalRecipe {
 public:
  LegalRecipe(const test::TempFolder& folder, Random& random) : folder_(folder), random_(random) {}

  Settings make(const std::string& output) {
    for (const engine::Field& field : engine::recipe_fields()) {
      if (random_.chance(0.5)) set(field.key, legal_value(field, random_));
    }
    std::erase_if(settings_, [](const auto& each) { return each.first.starts_with("diloco."); });
    has_adapter_ = random_.chance(0.3);
    text();
    names(output);
    shape();
    batch();
    pipeline();
    numbers();
    precision();
    saves();
    parts_of_models();
    experts();
    eight_bits();
    attention_scores();
    choose_latent_attention(settings_, random_,
                            !has_adapter_ &&
                                whole(settings_, "parallelism.tensor_parallel_degree") <= 1 &&
                                value_of("parallelism.sum_order", "rank") != "canonical");
    on_disk();
    preferences();
    distillation();
    in_blocks();
    if (has_adapter_) adapter();
    train_apart();
    servers();
    return std::move(settings_);
  }

 private:
  std::string value_of(const std::string& key, const std::string& fallback) const {
    const auto found = settings_.find(key);
    return found == settings_.end() ? fallback : found->second;
  }
  // Pairs or judged answers in place of conversations, with all that rules then ask for.
  void preferences() {
    for (const char* key : {"loss", "beta", "label_smoothing", "simpo_gamma", "desirable_weight",
                            "undesirable_weight"}) {
      leave(fmt::format("preference.{}", key));
    }
    if (value_of("data.format", "bytes") != "chat" || random_.chance(0.4)) return;
    if (value_of("parallelism.context_parallel_degree", "1") != "1") return;
    const std::string loss = random_.one_of(
        {"sigmoid", "robust", "hinge", "ipo", "apo_zero", "apo_down", "orpo", "simpo", "kto"});
    const std::string rows = loss == "kto" ? "judged" : "pairs";
    set("preference.loss", loss);
    maybe("preference.beta", random_.one_of({"0.01", "0.1", "2"}));
    maybe("preference.label_smoothing", random_.one_of({"0", "0.1"}));
    maybe("preference.simpo_gamma", random_.one_of({"0", "1"}));
    maybe("preference.desirable_weight", random_.one_of({"1", "1.5"}));
    maybe("preference.undesirable_weight", random_.one_of({"0", "1"}));
    set("data.path", quoted(folder_.file(rows + ".jsonl")));
    if (settings_.contains("data.validation_path")) {
      set("data.validation_path", quoted(folder_.file(rows + ".validation.jsonl")));
    }
    set("data.unfit", "drop");
    set("model.dropout", "0");
    for (const char* key : {"training.train_on", "adapter.dropout", "training.z_loss_multiplier",
                            "metrics.source_losses", "model.max_seq_length"}) {
      leave(key);
    }
    length_ = random_.whole(40, 64);
    set("training.seq_length", length_);
  }
  // The test writes the file before it trains.
  void distillation() {
    for (const char* key : {"teacher", "top_k", "weight", "temperature"}) {
      leave(fmt::format("distillation.{}", key));
    }
    const bool has_stages = settings_.contains("data.stages");
    if (has_stages || settings_.contains("preference.loss") ||
        value_of("training.z_loss_multiplier", "0") != "0" ||
        value_of("bad_steps.skip_data_steps", "0") != "0" || random_.chance(0.75)) {
      return;
    }
    set("distillation.teacher", quoted(folder_.file("teacher.safetensors")));
    set("distillation.top_k", random_.whole(1, 3));
    maybe("distillation.weight", random_.one_of({"0", "0.5", "1"}));
    maybe("distillation.temperature", random_.one_of({"0.5", "1", "2"}));
  }
  // Replicas that train apart, where no other key forbids it.
  void train_apart() {
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
  void servers() {
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
    for (const char* key : {"zero_optimization.offload_optimizer",
                            "zero_optimization.offload_param", "activation_checkpointing.offload",
                            "preference.loss", "distillation.teacher", "diloco.sync_every"}) {
      refused |= settings_.contains(key);
    }
    if (refused || random_.chance(0.4)) return;
    set("parallelism.parameter_servers", random_.whole(1, 3));
    leave("zero_optimization.shard_optimizer_over_replicas");
    if (value_of("mixed_precision.param_dtype", "bf16") != "f16") {
      maybe("parallelism.publish_delay", random_.one_of({"0", "1"}));
    }
  }
  // State and the inputs of blocks.
  void on_disk() {
    for (const char* key : {"optimizer", "param", "path", "buffer_mib"}) {
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
  void set(std::string_view key, const std::string& value) { settings_[std::string(key)] = value; }
  void set(std::string_view key, std::int64_t value) { set(key, std::to_string(value)); }
  void leave(std::string_view key) { settings_.erase(std::string(key)); }
  void maybe(std::string_view key, const std::string& value) {
    random_.chance(0.5) ? set(key, value) : leave(key);
  }
  void maybe(std::string_view key, std::int64_t value) { maybe(key, std::to_string(value)); }

  void text() {
    const std::string format = random_.one_of({"bytes", "chars", "bin", "text", "chat"});
    set("data.format", format);
    const bool words = format == "bytes" || format == "text" || format == "chat";
    const std::string file = format == "chat" ? "chat" : words ? "bytes" : format;
    const std::string ending = format == "chat" ? ".jsonl" : ".txt";
    const bool folder = words && format != "chat" && random_.chance(0.5);
    set("data.path", quoted(folder_.file(folder ? "texts" : file + ending)));
    // Raw tokens don't say where documents end, and conversations are documents.
    if (format == "bin") maybe("data.documents", "joined");
    if (format == "chat") maybe("data.documents", "separate");
    if (format == "chat") set("training.train_on", "all");
    if (format == "chat") set("data.unfit", "cut");
    set("model.vocab_size", format == "chars"   ? kCharacters
                            : format == "bytes" ? random_.whole(128, 300)
                            : words             ? random_.whole(kTokenizerSize, 300)
                                                : random_.whole(kLargestId + 1, 300));
    leave("data.tokenizer");
    if (format == "text") set("data.tokenizer", quoted(folder_.file("tokenizer")));
    if (format == "chat") set("data.tokenizer", quoted(folder_.file("chat_tokenizer")));
    leave("model.add_special_tokens");
    const bool encodes = format == "text" || format == "chat";
    if (encodes && random_.chance(0.3)) {
      set("model.vocab_size", random_.whole(kTokenizerSize + 2, 300));
      set("model.add_special_tokens", "[<|new|>, \"→\"]");
    }
    leave("data.token_bytes");
    if (format == "bin") maybe("data.token_bytes", 2);  // of raw files, as these are
    for (const char* list : {"data.sources", "data.stages", "data.validation_sets"}) leave(list);
    leave("data.validation_path");
    leave("data.validation_fraction");
    if (random_.chance(0.3)) {
      set("data.validation_path", quoted(folder_.file(file + ".validation" + ending)));
    } else {
      maybe("data.validation_fraction", random_.one_of({"0", "0.1", "0.3"}));
    }
    // One document can't be both trained on and held out.
    const auto documents = settings_.find("data.documents");
    const bool apart = documents != settings_.end() && documents->second == "separate";
    if (apart && !folder && format != "chat" && !settings_.contains("data.validation_path")) {
      set("data.validation_fraction", "0");
    }
    maybe("training.sample_prompt", words               ? quoted("the \\\"fox\\\"")
                                    : format == "chars" ? quoted("héße")
                                                        : quoted("1 2 96"));
    maybe("training.sample_tokens", random_.whole(0, 8));
    maybe("training.sample_temperature", random_.one_of({"0", "0.8", "1000", "1e-3"}));
    maybe("training.sample_top_k", random_.one_of({"0", "1", "5", "16777216"}));
  }

  void names(const std::string& output) {
    set("run.output_dir", quoted(folder_.file(output)));
    maybe("run.name",
          random_.one_of({"tiny", "\"a name: with # and 'quotes'\"", "\"\\u00e9\"", "\"-\""}));
    set("run.device", random_.one_of({"auto", "cpu"}));
    maybe("run.num_threads", random_.whole(0, 3));
    maybe("memory.device_memory", random_.one_of({"\"\"", "64GiB", "1TB", "9000000000B"}));
    leave("checkpoint.init_from");
    maybe("adapter.type", "none");
    leave("adapter.base_dtype");
    maybe("checkpoint.resume", random_.one_of({"auto", "never"}));
    maybe("checkpoint.max_minutes", random_.one_of({"0", "1e5"}));
  }

  void shape() {
    const std::int64_t kv_heads = random_.whole(1, 2), heads = kv_heads * random_.whole(1, 3);
    const std::int64_t head_width = 2 * random_.whole(1, 16);
    set("model.num_layers", random_.whole(1, 3));
    set("model.num_attention_heads", heads);
    set("model.hidden_size", heads * head_width);
    maybe("model.num_kv_heads", kv_heads);
    maybe("model.ffn_hidden_size", random_.whole(1, 100));
    block(heads);
    const bool is_chat =
        settings_.at("data.format") == "chat";  // cut to one token, nothing is left
    length_ = random_.chance(0.25) ? 8 * random_.whole(1, 4) : random_.whole(is_chat ? 2 : 1, 33);
    set("training.seq_length", length_);
    maybe("model.max_seq_length", random_.whole(length_, length_ + 9));
  }

  /// What a block is made of, where rules or the size of a test hold between keys.
  void block(std::int64_t heads) {
    maybe("model.head_width", 2 * random_.whole(1, 12));
    const std::string norm = random_.one_of({"layernorm", "rmsnorm"});
    set("model.norm", norm);
    if (norm == "rmsnorm") leave("model.norm_bias");
    const std::string form = random_.one_of({"sequential", "parallel", "parallel_one_norm"});
    set("model.block", form);
    if (form != "sequential") leave("model.norm_placement");
    for (const char* key :
         {"model.attention_scale", "model.attention_softcap", "model.logits_softcap"}) {
      maybe(key, random_.one_of({"0", "0.5", "30"}));
    }
    for (const char* key :
         {"model.logits_scale", "model.embedding_scale", "model.residual_scale"}) {
      maybe(key, random_.one_of({"1", "0.25", "2"}));
    }
    maybe("model.window", random_.whole(0, 40));
    maybe("model.window_layers", random_.one_of({"\"1\"", "\"110\"", "\"01\""}));
    maybe("model.rope_layers", random_.one_of({"\"1\"", "\"10\"", "\"0\""}));
    rotary(heads);
  }

  /// Experts, where no other key forbids them.
  void experts() {
    const auto is = [&](const char* key, const char* value) {
      const auto found = settings_.find(key);
      return found != settings_.end() && found->second == value;
    };
    const bool cut = whole(settings_, "parallelism.tensor_parallel_degree") > 1 ||
                     whole(settings_, "parallelism.context_parallel_degree") > 1;
    leave("moe.layers");
    leave("moe.bias");
    set("moe.num_experts", "0");
    set("parallelism.expert_parallel_degree", 1);
    if (cut || is("parallelism.sum_order", "canonical") || is("optimizer.type", "adafactor") ||
        has_adapter_ || !random_.chance(0.3))
      return;
    const std::int64_t groups = random_.whole(1, 2), experts = groups * random_.whole(1, 4);
    const std::int64_t kept = random_.whole(1, groups);
    set("moe.num_experts", experts);
    set("moe.num_groups", groups);
    set("moe.kept_groups", kept);
    set("moe.experts_per_token", random_.whole(1, experts / groups * kept));
    maybe("moe.ffn_hidden_size", random_.whole(1, 60));
    const bool shared = random_.chance(0.5);
    set("moe.shared_ffn_hidden_size", shared ? random_.whole(1, 60) : 0);
    set("moe.shared_gate", shared && random_.chance(0.5) ? "true" : "false");
    if (whole(settings_, "model.num_layers") > 1) {
      maybe("moe.layers", random_.one_of({"\"1\"", "\"01\"", "\"10\""}));
    }
    maybe("moe.weight_scale", random_.one_of({"1", "2.5"}));
    maybe("moe.balance_scope", random_.one_of({"sequence", "micro_batch", "previous_step"}));
    const bool corrected = random_.chance(0.4);
    set("moe.correction_bias", corrected ? "true" : "false");
    corrected ? maybe("moe.bias_update_rate", random_.one_of({"0", "0.001", "0.5"}))
              : leave("moe.bias_update_rate");
    const bool biased = !corrected && random_.chance(0.3);
    set("moe.bias", biased ? "true" : "false");
    maybe("moe.balance_loss", random_.one_of({"0", "0.01", "1"}));
    maybe("moe.z_loss", random_.one_of({"0", "0.001"}));
    maybe("moe.buffer_rows", random_.whole(0, 2000));
    set("model.mlp_bias", "false");
    choose_expert_ranks(settings_, random_);
  }

  void rotary(std::int64_t heads) {
    const auto found = settings_.find("model.head_width");
    const std::int64_t width = found != settings_.end()
                                   ? std::stoll(found->second)
                                   : std::stoll(settings_["model.hidden_size"]) / heads;
    // Half of a head is rotated where that is an even number.
    leave("model.rope_fraction");
    const bool half = width % 4 == 0 && random_.chance(0.5);
    if (half) set("model.rope_fraction", "0.5");
    set("model.rope_scaling", random_.one_of({"none", "linear", "llama3", "yarn", "longrope"}));
    set("model.rope_original_length", random_.whole(2, 40));
    set("model.rope_factor", random_.one_of({"1", "8"}));
    for (const char* key : {"model.rope_low_freq_factor", "model.rope_beta_slow"}) {
      maybe(key, random_.one_of({"1", "2"}));
    }
    for (const char* key : {"model.rope_high_freq_factor", "model.rope_beta_fast"}) {
      maybe(key, random_.one_of({"4", "16"}));
    }
    maybe("model.rope_attention_factor", random_.one_of({"0", "1.5"}));
    maybe("model.window_rope_theta", random_.one_of({"0", "100"}));
    std::string factors;
    for (std::int64_t pair = 0; pair < (half ? width / 4 : width / 2); ++pair) {
      factors += (pair > 0 ? ", 1." : "1.") + std::to_string(pair % 10);
    }
    set("model.rope_short_factors", "[" + factors + "]");
    set("model.rope_long_factors", "[" + factors + "]");
  }

  void batch() {
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
    if (optimizer != settings_.end() && optimizer->second == "muon") leave(kOverReplicas);
  }

  /// Layers on one to three ranks, with a schedule that takes them.
  void pipeline() {
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
    set("parallelism.pipeline_layers_per_chunk",
        fmt::format("[{}{}]", counts, layers - degree + 1));
  }

  /// Two tensor ranks, or two context ranks, perhaps a ring, of a model that they can share.
  void parts_of_models() {
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
    const std::int64_t width = std::stoll(value(
        "model.head_width", std::to_string(whole(settings_, "model.hidden_size") / num_heads)));
    const bool in_eighths = num_heads * width % 8 == 0 &&
                            std::stoll(value("model.num_kv_heads", heads)) * width % 8 == 0;
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

  /// Some of the model's matrices, none of their rows twice; and modules in addition.
  void adapter() {
    const model::ModelShape model = shape_of_model();
    std::vector<model::AdapterTarget> targets;
    std::vector<std::string> names, modules;
    const bool adds_tokens = settings_.contains("model.add_special_tokens");
    // Muon refuses the fused matrix's adapter there.
    const bool has_copies = whole(settings_, "parallelism.tensor_parallel_degree") > model.kv_heads;
    for (model::AdapterTarget& target : model::possible_targets(model)) {
      if (has_copies && target.name == "attention.qkv") continue;
      const bool overlaps = std::ranges::any_of(targets, [&](const auto& other) {
        return other.site == target.site && other.first_row < target.first_row + target.rows &&
               target.first_row < other.first_row + other.rows;
      });
      if (!overlaps && random_.chance(0.4)) targets.push_back(std::move(target));
    }
    if (targets.empty()) targets = {model::possible_targets(model).back()};
    std::int64_t most = 8;
    for (const model::AdapterTarget& target : targets) {
      most = std::min({most, target.rows, target.inputs});
      names.push_back(target.name);
    }
    for (std::string& module : model::possible_modules(model)) {
      const bool is_target = std::ranges::any_of(targets, [&](const auto& target) {
        return target.name == module ||
               (module == "attention.qkv" && target.site == SiteId::kQkv) ||
               (module == "mlp.up" && target.site == SiteId::kUp);
      });
      // Positions are trained with the tokens; rows of new tokens must be.
      const bool has_new_rows = adds_tokens && (module == "embedding.token" || module == "head");
      const bool may_be = !is_target && module != "embedding.position";
      if (has_new_rows || (may_be && random_.chance(0.2))) {
        modules.push_back(std::move(module));
      }
    }
    set("checkpoint.init_from", quoted(base_checkpoint(folder_)));
    set("adapter.type", "lora");
    set("adapter.rank", random_.whole(1, most));
    maybe("adapter.alpha", random_.one_of({"0.5", "1", "16"}));
    maybe("adapter.lora_plus_ratio", random_.one_of({"1", "16"}));
    settings_.contains("preference.loss")
        ? leave("adapter.dropout")
        : maybe("adapter.dropout", random_.one_of({"0", "0.1", "0.5"}));
    const bool four_bits = model::cuts_between_blocks(
        model, static_cast<int>(whole(settings_, "parallelism.tensor_parallel_degree")));
    maybe("adapter.base_dtype", four_bits && random_.chance(0.5) ? "nf4" : "param_dtype");
    set("adapter.targets", fmt::format("[{}]", fmt::join(names, ", ")));
    set("adapter.modules_to_save", fmt::format("[{}]", fmt::join(modules, ", ")));
  }

  model::ModelShape shape_of_model() const {
    engine::RecipeRequest request;
    request.path = "random.yaml";
    Settings without = settings_;  // servers, which may not be decided yet, don't change the model
    for (const char* key :
         {"parallelism.parameter_servers", "parallelism.publish_delay", "memory.server_memory"}) {
      without.erase(key);
    }
    request.text = recipe_text(without);
    return engine::model_shape(engine::resolve_recipe(request).values);
  }

  // Small enough for three steps to stay finite.
  void numbers() {
    max_steps_ = 3;
    set("training.max_steps", max_steps_);
    leave("training.num_epochs");  // it would be another number of steps
    maybe("model.dropout", random_.one_of({"0", "0.1", "0.5", "0.9"}));
    maybe("model.rope_theta", random_.one_of({"2", "100", "1e6"}));
    maybe("model.norm_eps", random_.one_of({"1e-12", "1e-5", "0.1"}));
    maybe("model.init_std", random_.one_of({"1e-6", "0.02", "0.5"}));
    maybe("optimizer.lr", random_.one_of({"1e-12", "1e-3", "0.01"}));
    maybe("optimizer.adamw_lr", random_.one_of({"0", "1e-3"}));
    maybe("optimizer.muon_coefficients", random_.one_of({"jordan", "polar_express"}));
    maybe("optimizer.muon_dtype", random_.one_of({"f32", "bf16"}));
    maybe("optimizer.eps", random_.one_of({"1e-12", "1e-8", "1"}));
    maybe("optimizer.weight_decay", random_.one_of({"0", "0.1", "1"}));
    maybe("optimizer.no_decay", has_adapter_
                                    ? random_.one_of({"[]", "[\"*\"]"})
                                    : random_.one_of({"[]", "[\"embedding.*\", \"*norm*\"]"}));
    maybe("optimizer.trust_coefficient", random_.one_of({"1e-3", "1"}));
    maybe("optimizer.beta2_decay", random_.one_of({"-0.8", "0", "-2"}));
    maybe("optimizer.clip_threshold", random_.one_of({"1e-3", "1"}));
    maybe("optimizer.min_parameter_rms", random_.one_of({"1e-6", "0.1"}));
    maybe("optimizer.betas", random_.one_of({"[0.9, 0.95]", "[0, 0]", "[0.5, 0.999]"}));
    maybe("optimizer.momentum", random_.one_of({"0", "0.9", "0.99"}));
    maybe("optimizer.groups",
          has_adapter_
              ? random_.one_of({"[]", "[{parameters: [\"*\"], lr_factor: 0.5}]"})
              : random_.one_of({"[]", "[{parameters: [\"*\"], lr_factor: 0.5, weight_decay: 0.01}]",
                                "[{parameters: [\"embedding.*\", \"block.0.*\"], frozen: true}]",
                                "[{parameters: [\"block.*norm*\"]}, {parameters: "
                                "[\"block.*\"], frozen: true}]"}));
    // New rows of an embedding that is frozen would never be trained.
    if (settings_.contains("model.add_special_tokens")) leave("optimizer.groups");
    maybe("model.mup_base_hidden_size", random_.one_of({"0", "8", "100"}));
    const auto optimizer = settings_.find("optimizer.type");
    const bool by_trust = optimizer != settings_.end() &&
                          (optimizer->second == "lamb" || optimizer->second == "lars" ||
                           optimizer->second == "adafactor");
    if (by_trust || has_adapter_ || settings_.contains("model.logits_scale")) {
      leave("model.mup_base_hidden_size");
    }
    maybe("averages.decay", random_.one_of({"0", "0.5", "0.999"}));
    maybe("averages.start_step", random_.whole(0, max_steps_));
    maybe("averages.interval", random_.whole(1, 2));
    maybe("bad_steps.max_loss", random_.one_of({"0", "1e6"}));
    maybe("bad_steps.max_grad_norm", random_.one_of({"0", "1e6"}));
    maybe("bad_steps.sigma", random_.one_of({"0", "6"}));
    maybe("bad_steps.window", random_.whole(2, 8));
    leave("bad_steps.max_in_a_row");  // it may end the run
    for (const char* key : {"after", "steps"}) leave(fmt::format("bad_steps.rewind_{}", key));
    leave("bad_steps.skip_data_steps");
    leave("bad_steps.max_rewinds");
    leave("lr_scheduler.batch_size_scaling");
    maybe("gradient_clipping.max_norm", random_.one_of({"0", "1e-3", "1", "100"}));
    maybe("lr_scheduler.warmup_steps", random_.whole(0, max_steps_));
    maybe("lr_scheduler.decay_steps", random_.whole(max_steps_, max_steps_ + 3));
  }

  void precision() {
    const std::string compute = random_.one_of({"f32", "bf16", "f16"});
    const std::string reduce = random_.chance(0.5) ? "f32" : compute;
    set("mixed_precision.param_dtype", compute);
    set("mixed_precision.reduce_dtype", reduce);
    const std::string sync = random_.one_of({"boundary", "every_micro_step"});
    set("zero_optimization.grad_sync", sync);
    leave("parallelism.batch_groups");
    if (sync == "every_micro_step" &&
        whole(settings_, "parallelism.data_parallel_replicate_degree") == 1 &&
        random_.chance(0.3)) {
      const std::int64_t micro_batches = whole(settings_, "training.global_batch_size") /
                                         whole(settings_, "training.micro_batch_size");
      std::int64_t groups = random_.whole(1, micro_batches);
      while (micro_batches % groups != 0) --groups;
      set("parallelism.batch_groups", groups);
    }
    leave("mixed_precision.grad_accum_dtype");
    std::string sums = reduce;
    if (sync == "every_micro_step" && random_.chance(0.5)) {
      sums = random_.one_of({"f32", "bf16", "f16"});
      set("mixed_precision.grad_accum_dtype", sums);
    }
    const std::string state = value_of("optimizer.type", "adamw") == "adafactor"
                                  ? "f32"
                                  : random_.one_of({"f32", "bf16"});
    set("mixed_precision.optimizer_state_dtype", state);
    if (state == "f32") leave("mixed_precision.stochastic_rounding");
    const bool f16 = compute == "f16" || reduce == "f16" || sums == "f16";
    maybe("loss_scaling.mode", f16 ? random_.one_of({"static", "dynamic"})
                                   : random_.one_of({"none", "static", "dynamic"}));
    maybe("loss_scaling.initial_scale_power", random_.whole(0, 12));
    maybe("loss_scaling.min_scale", random_.one_of({"1e-3", "1"}));
  }

  // Parts of small matrices on tensor or expert ranks aren't whole blocks of 64.
  void eight_bits() {
    const auto is = [this](std::string_view key, std::initializer_list<std::string_view> values) {
      const auto found = settings_.find(std::string(key));
      return found == settings_.end() || std::ranges::find(values, found->second) != values.end();
    };
    if (!is("optimizer.type", {"adamw", "adam", "lion"}) ||
        !is("mixed_precision.optimizer_state_dtype", {"f32"}) ||
        !is("parallelism.tensor_parallel_degree", {"1"}) ||
        !is("parallelism.expert_parallel_degree", {"1"})) {
      leave("optimizer.eight_bit_states");
    }
  }

  // What ranks send, unless something else excludes blocks.
  void in_blocks() {
    leave("mixed_precision.gather_dtype");
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
    if (!has_adapter_ && random_.chance(0.3) &&
        value_of("zero_optimization.shard_optimizer_over_replicas", "false") == "false" &&
        value_of("zero_optimization.offload_optimizer", "none") == "none") {
      set("mixed_precision.gather_dtype", blocks());
    }
  }

  void attention_scores() {
    const auto is_off = [this](const char* key, std::string_view off) {
      const auto found = settings_.find(std::string(key));
      return found == settings_.end() || found->second == off;
    };
    leave("optimizer.qk_clip_threshold");
    if (has_adapter_ || !is_off("model.qk_norm", "none") ||
        !is_off("model.attention_softcap", "0") || !random_.chance(0.5)) {
      return leave("optimizer.qk_clip_alpha");
    }
    set("optimizer.qk_clip_threshold", random_.one_of({"1e-6", "0.5", "100"}));
  }

  void saves() {
    set("checkpoint.interval", random_.chance(0.8) ? random_.whole(1, 2) : 0);
    maybe("checkpoint.keep_last", random_.whole(1, 3));
    maybe("checkpoint.keep_every", random_.whole(0, 2));
    maybe("checkpoint.staging_mib", random_.one_of({"0", "4", "5"}));
    maybe("checkpoint.stop_deadline", random_.whole(30, 60));
    maybe("training.eval_interval", random_.whole(0, 2));
    maybe("training.eval_batches", random_.whole(0, 2));
    leave("checkpoint.keep_best");
    leave("training.best_by");
    leave("training.eval_at_start");
    leave("training.early_stopping_patience");  // it may end before the last step
    const auto fraction = settings_.find("data.validation_fraction");
    const bool validates = fraction == settings_.end() || fraction->second != "0";
    if (validates && random_.chance(0.3)) set("training.eval_at_start", "true");
    leave("training.tasks");
    if (validates && random_.chance(0.3)) {
      const std::string file = "questions." + settings_.at("data.format") + ".jsonl";
      set("training.tasks", "[{path: " + quoted(folder_.file(file)) + "}]");
    }
    if (validates && random_.chance(0.2)) {
      set("training.eval_interval", 1);
      set("checkpoint.keep_best", random_.whole(1, 2));
    }
    maybe("metrics.trace_steps", random_.one_of({"[]", "[1, 1]", "[2, 3]"}));
  }

  const test::TempFolder& folder_;
  Random& random_;
  Settings settings_;
  std::int64_t length_ = 0, max_steps_ = 0;
  bool has_adapter_ = false;
};

}  // namespace

Settings legal_recipe(const test::TempFolder& folder, const std::string& output, Random& random) {
  return LegalRecipe(folder, random).make(output);
}

std::string base_checkpoint(const test::TempFolder& folder) {
  return folder.file("base/checkpoints/" + checkpoint::step_directory_name(1));
}

std::optional<Settings> base_recipe(const Settings& settings, const test::TempFolder& folder) {
  if (!settings.contains("checkpoint.init_from")) return std::nullopt;
  Settings base = {{"run.output_dir", quoted(folder.file("base"))},
                   {"run.device", "cpu"},
                   {"training.global_batch_size", "1"},
                   {"training.max_steps", "1"},
                   {"checkpoint.interval", "1"}};
  for (const auto& [key, value] : settings) {
    const bool is_models =
        key.starts_with("model.") || key.starts_with("data.") || key.starts_with("preference.");
    if (is_models || key == "training.seq_length" || key == "training.train_on") base[key] = value;
  }
  return base;
}

Settings elsewhere(const Settings& settings, Random& random) {
  Settings changed = settings;
  const std::int64_t batch = whole(settings, "training.global_batch_size");
  std::vector<std::int64_t> worlds;
  for (std::int64_t ranks = 1; ranks <= 4; ++ranks) {
    if (batch % ranks == 0) worlds.push_back(ranks);
  }
  const std::int64_t ranks = random.one_of(worlds);
  const bool servers = settings.contains("parallelism.parameter_servers");
  const std::int64_t replicas = !servers && ranks % 2 == 0 && random.chance(0.5) ? 2 : 1;
  changed["parallelism.data_parallel_shard_degree"] = std::to_string(ranks / replicas);
  changed["parallelism.data_parallel_replicate_degree"] = std::to_string(replicas);
  changed.erase("parallelism.batch_groups");
  for (const char* key : {"parallel_degree", "schedule", "chunks_per_rank", "layers_per_chunk"}) {
    changed.erase(std::string("parallelism.pipeline_") + key);
  }
  // Canonical sums of ranks that share tokens are of one row.
  const auto is = [&](const char* key, const char* value) {
    const auto found = changed.find(key);
    return found != changed.end() && found->second == value;
  };
  const bool one_row =
      (is("parallelism.sum_order", "canonical") && is("parallelism.sequence_parallel", "true")) ||
      random.chance(0.5);
  changed["training.micro_batch_size"] = std::to_string(one_row ? std::int64_t{1} : batch / ranks);
  changed.erase("training.gradient_accumulation_steps");
  changed["zero_optimization.stage"] = std::to_string(random.whole(servers ? 1 : 0, 3));
  leave_what_the_stage_lacks(changed);
  choose_expert_ranks(changed, random);
  // Parts of experts may cut blocks.
  const bool in_blocks = std::ranges::any_of(changed, [](const auto& entry) {
    return entry.first.starts_with("mixed_precision.") &&
           entry.second.find("block64") != std::string::npos;
  });
  if (in_blocks || changed.contains("optimizer.eight_bit_states")) {
    changed["parallelism.expert_parallel_degree"] = "1";
  }
  return changed;
}

Settings at_another_stage(const Settings& settings, Random& random) {
  Settings changed = settings;
  const std::int64_t stage = whole(settings, "zero_optimization.stage");
  const std::int64_t other = (stage + random.whole(1, 3)) % 4;
  const bool servers = settings.contains("parallelism.parameter_servers");
  changed["zero_optimization.stage"] =
      std::to_string(servers && other == 0 ? stage % 3 + 1 : other);
  leave_what_the_stage_lacks(changed);
  return changed;
}

}  // namespace sherd::testing
