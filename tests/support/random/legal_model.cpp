// A legal recipe's model, and the parts of it that an adapter trains.

#include <fmt/format.h>

#include <algorithm>

#include "engine/model/adapter.h"
#include "engine/model/cut/tensor_cut.h"
#include "engine/train/model_shape.h"
#include "tests/support/random/legal_recipe.h"

namespace sherd::testing {

void LegalRecipe::shape() {
  const std::int64_t kv_heads = random_.whole(1, 2), heads = kv_heads * random_.whole(1, 3);
  const std::int64_t head_width = 2 * random_.whole(1, 16);
  set("model.num_layers", random_.whole(1, 3));
  set("model.num_attention_heads", heads);
  set("model.hidden_size", heads * head_width);
  maybe("model.num_kv_heads", kv_heads);
  maybe("model.ffn_hidden_size", random_.whole(1, 100));
  block(heads);
  const bool is_chat = settings_.at("data.format") == "chat";  // cut to one token, nothing is left
  length_ = random_.chance(0.25) ? 8 * random_.whole(1, 4) : random_.whole(is_chat ? 2 : 1, 33);
  set("training.seq_length", length_);
  maybe("model.max_seq_length", random_.whole(length_, length_ + 9));
}

// What a block is made of, where rules or the size of a test hold between keys.
void LegalRecipe::block(std::int64_t heads) {
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
  for (const char* key : {"model.logits_scale", "model.embedding_scale", "model.residual_scale"}) {
    maybe(key, random_.one_of({"1", "0.25", "2"}));
  }
  maybe("model.window", random_.whole(0, 40));
  maybe("model.window_layers", random_.one_of({"\"1\"", "\"110\"", "\"01\""}));
  maybe("model.rope_layers", random_.one_of({"\"1\"", "\"10\"", "\"0\""}));
  rotary(heads);
}

void LegalRecipe::rotary(std::int64_t heads) {
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

// Experts, where no other key forbids them.
void LegalRecipe::experts() {
  const auto is = [&](const char* key, const char* value) {
    const auto found = settings_.find(key);
    return found != settings_.end() && found->second == value;
  };
  const std::int64_t cut = whole(settings_, "parallelism.tensor_parallel_degree");
  leave("moe.layers");
  leave("moe.bias");
  leave("moe.weigh_input");
  leave("moe.jitter");
  maybe("moe.score", random_.one_of({"softmax", "softmax_of_chosen", "sigmoid"}));
  set("moe.num_experts", "0");
  set("parallelism.expert_parallel_degree", 1);
  const bool divided = cut > 1 || whole(settings_, "parallelism.context_parallel_degree") > 1;
  if (is("parallelism.sum_order", "canonical") || is("optimizer.type", "adafactor") ||
      (has_adapter_ && divided) || !random_.chance(0.3))
    return;
  const std::int64_t groups = random_.whole(1, 2), experts = groups * random_.whole(1, 4);
  const std::int64_t kept = random_.whole(1, groups);
  set("moe.num_experts", experts);
  set("moe.num_groups", groups);
  set("moe.kept_groups", kept);
  set("moe.experts_per_token", random_.whole(1, experts / groups * kept));
  maybe("moe.ffn_hidden_size", cut * random_.whole(1, 60 / cut));
  const bool shared = random_.chance(0.5);
  set("moe.shared_ffn_hidden_size", shared ? cut * random_.whole(1, 60 / cut) : 0);
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
  if (!biased) maybe("moe.weigh_input", random_.one_of({"true", "false"}));
  maybe("moe.balance_loss", random_.one_of({"0", "0.01", "1"}));
  maybe("moe.z_loss", random_.one_of({"0", "0.001"}));
  maybe("moe.buffer_rows", random_.whole(0, 2000));
  maybe("moe.grouped_gemm", random_.one_of({"true", "false"}));
  set("model.mlp_bias", "false");
  choose_expert_ranks(settings_, random_);
}

void LegalRecipe::attention_scores() {
  const auto is_off = [this](const char* key, std::string_view off) {
    const auto found = settings_.find(std::string(key));
    return found == settings_.end() || found->second == off;
  };
  leave("optimizer.qk_clip_threshold");
  const auto groups = settings_.find("optimizer.groups");
  const bool freezes =
      groups != settings_.end() && groups->second.find("frozen") != groups->second.npos;
  if (has_adapter_ || freezes || !is_off("model.qk_norm", "none") ||
      !is_off("model.attention_softcap", "0") || !random_.chance(0.5)) {
    return leave("optimizer.qk_clip_alpha");
  }
  set("optimizer.qk_clip_threshold", random_.one_of({"1e-6", "0.5", "100"}));
}

// Latent attention, or sinks, where no other key forbids them; what it doesn't have is left out.
void LegalRecipe::latent_attention() {
  const bool may = !has_adapter_ && value_of("parallelism.sum_order", "rank") != "canonical";
  for (const char* key : {"q_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim"}) {
    settings_.erase(fmt::format("model.{}", key));
  }
  settings_["model.kv_lora_rank"] = "0";
  settings_["model.attention_sinks"] = "false";
  if (!may || !random_.chance(0.4)) return;
  if (random_.chance(0.3)) {
    settings_["model.attention_sinks"] = "true";
    return;
  }
  const std::int64_t plain = 2 * random_.whole(1, 6), rotated = 2 * random_.whole(1, 4);
  settings_["model.kv_lora_rank"] = std::to_string(random_.whole(1, 40));
  settings_["model.q_lora_rank"] = std::to_string(random_.chance(0.5) ? 0 : random_.whole(1, 40));
  settings_["model.qk_nope_head_dim"] = std::to_string(plain);
  settings_["model.qk_rope_head_dim"] = std::to_string(rotated);
  settings_["model.v_head_dim"] = std::to_string(random_.whole(1, plain + rotated));
  settings_["model.positions"] = "rope";
  settings_["model.norm"] = "rmsnorm";
  settings_["model.block"] = "sequential";
  settings_["model.qk_norm"] = "none";
  settings_["model.qkv_bias"] = "false";
  if (settings_["model.rope_scaling"] == "longrope") settings_["model.rope_scaling"] = "linear";
  for (const char* key :
       {"model.head_width", "model.num_kv_heads", "model.rope_fraction", "model.norm_bias",
        "model.rope_short_factors", "model.rope_long_factors", "optimizer.qk_clip_threshold"}) {
    settings_.erase(key);
  }
}

// What Llama 4's attention has, where no other key forbids it. Heads with a bias aren't trained.
void LegalRecipe::growth() {
  leave("model.head_bias");
  leave("model.query_growth");
  leave("model.query_step");
  const bool may = value_of("model.positions", "rope") == "rope" &&
                   value_of("parallelism.sum_order", "rank") != "canonical";
  if (!may || value_of("model.norm", "rmsnorm") != "rmsnorm") {
    if (value_of("model.qk_norm", "none") == "rotated") set("model.qk_norm", "none");
  }
  if (!may || value_of("model.kv_lora_rank", "0") != "0" ||
      value_of("model.qk_norm", "none") == "head_after_rope" || !random_.chance(0.3)) {
    return;
  }
  set("model.query_growth", random_.one_of({"0.1", "2"}));
  maybe("model.query_step", random_.one_of({"1", "4"}));
}

namespace {

// Some of the model's matrices, none of their rows twice.
std::vector<model::AdapterTarget> targets_of_adapter(const model::ModelShape& model,
                                                     bool has_copies, Random& random) {
  const bool equal_mlps =
      !model.moe.active() ||
      (model.moe.shared_width > 0 && model.num_mixtures(0, model.num_layers) == model.num_layers);
  std::vector<model::AdapterTarget> targets, all = model::possible_targets(model);
  for (model::AdapterTarget& target : all) {
    // Muon refuses the fused matrix's adapter there.
    if (has_copies && target.name == "attention.qkv") continue;
    if (!equal_mlps && target.name.starts_with("mlp.")) continue;
    const bool overlaps = std::ranges::any_of(targets, [&](const auto& other) {
      return other.site == target.site && other.first_row < target.first_row + target.rows &&
             target.first_row < other.first_row + other.rows;
    });
    if (!overlaps && random.chance(0.4)) targets.push_back(target);
  }
  if (targets.empty()) targets = {all.back()};
  return targets;
}

// Modules in addition.
std::vector<std::string> modules_of_adapter(const model::ModelShape& model,
                                            const std::vector<model::AdapterTarget>& targets,
                                            bool adds_tokens, Random& random) {
  using model::SiteId;
  std::vector<std::string> modules;
  for (std::string& module : model::possible_modules(model)) {
    const bool is_target = std::ranges::any_of(targets, [&](const auto& target) {
      return target.name == module || (module == "attention.qkv" && target.site == SiteId::kQkv) ||
             (module == "mlp.up" && target.site == SiteId::kUp) ||
             (module == "moe.experts.up" && target.site == SiteId::kExpertsUp);
    });
    const bool of_mixture =
        model.moe.active() &&
        (module.starts_with("mlp.") || module == "moe.router" || module == "moe.shared_gate");
    // Positions are trained with the tokens; rows of new tokens must be.
    const bool has_new_rows = adds_tokens && (module == "embedding.token" || module == "head");
    const bool may_be = !is_target && !of_mixture && module != "embedding.position";
    if (has_new_rows || (may_be && random.chance(0.2))) modules.push_back(std::move(module));
  }
  return modules;
}

}  // namespace

void LegalRecipe::adapter() {
  const model::ModelShape model = shape_of_model();
  const bool has_copies = whole(settings_, "parallelism.tensor_parallel_degree") > model.kv_heads;
  const auto targets = targets_of_adapter(model, has_copies, random_);
  const auto modules =
      modules_of_adapter(model, targets, settings_.contains("model.add_special_tokens"), random_);
  std::int64_t most = 8;
  bool adapts_experts = false;
  std::vector<std::string> names;
  for (const model::AdapterTarget& target : targets) {
    adapts_experts |= target.experts > 0;
    most = std::min({most, target.rows, target.inputs});
    names.push_back(target.name);
  }
  set("checkpoint.init_from", quoted(base_checkpoint(folder_)));
  set("adapter.type", "lora");
  set("adapter.rank", random_.whole(1, most));
  maybe("adapter.alpha", random_.one_of({"0.5", "1", "16"}));
  maybe("adapter.lora_plus_ratio", random_.one_of({"1", "16"}));
  settings_.contains("preference.loss") || adapts_experts
      ? leave("adapter.dropout")
      : maybe("adapter.dropout", random_.one_of({"0", "0.1", "0.5"}));
  // Expert ranks may cut blocks.
  const bool four_bits =
      !model.moe.active() &&
      model::cuts_between_blocks(
          model, static_cast<int>(whole(settings_, "parallelism.tensor_parallel_degree")));
  maybe("adapter.base_dtype", four_bits && random_.chance(0.5) ? "nf4" : "param_dtype");
  set("adapter.targets", fmt::format("[{}]", fmt::join(names, ", ")));
  set("adapter.modules_to_save", fmt::format("[{}]", fmt::join(modules, ", ")));
}

model::ModelShape LegalRecipe::shape_of_model() const {
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

}  // namespace sherd::testing
