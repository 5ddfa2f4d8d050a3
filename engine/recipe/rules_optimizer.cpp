// Rules about parameters that an optimizer treats differently.
#include <fnmatch.h>

#include <algorithm>

#include "engine/model/adapter.h"
#include "engine/model/parameters.h"
#include "engine/recipe/groups.h"
#include "engine/recipe/mup.h"
#include "engine/recipe/resolution.h"
#include "engine/recipe/suggest.h"
#include "optim/matrices/matrix_plan.h"

namespace sherd::engine {
namespace {

using Names = std::vector<std::string>;

Names trained_parameters(const Recipe& recipe) {
  const model::ModelShape shape = shape_of(recipe);
  Names names;
  for (const UnitSpec& unit : model::parameter_table(shape)) {
    for (const ParameterSpec& parameter : unit.parameters) {
      if (model::is_trained(shape, parameter.name)) names.push_back(parameter.name);
    }
  }
  return names;
}

/// The longest part of a pattern without wildcards.
std::string literal_of(const std::string& pattern) {
  std::string longest, part;
  for (const char c : pattern + "*") {
    if (c != '*' && c != '?' && c != '[' && c != ']') {
      part += c;
      continue;
    }
    if (part.size() > longest.size()) longest = part;
    part.clear();
  }
  return longest;
}

/// Names that contain the pattern's letters, or else all names; the first block represents all
/// blocks.
std::string near(const std::string& pattern, const Names& names) {
  const std::string literal = literal_of(pattern);
  std::vector<std::string_view> some;
  for (const bool all : {false, true}) {
    for (const std::string& name : names) {
      const bool in_another_block = name.starts_with("block.") && !name.starts_with("block.0.");
      const bool is_near = !literal.empty() && name.find(literal) != std::string::npos;
      if (!in_another_block && (all || is_near)) some.push_back(name);
    }
    if (!some.empty()) break;
  }
  return joined(some, ", ", " and ");
}

}  // namespace

namespace {

// Which layers have experts, and what names and sizes their parameters have.
void set_experts(const MoeKeys& moe, model::ModelShape& shape) {
  if (moe.num_experts == 0 || moe.layers.empty()) return;
  const std::size_t kinds =
      std::min<std::size_t>(moe.layers.size(), static_cast<std::size_t>(shape.num_layers));
  shape.layer_kinds.resize(std::max<std::size_t>(1, kinds));
  for (std::size_t i = 0; i < kinds; ++i) {
    if (moe.layers[i] == '1') shape.layer_kinds[i].mlp = model::MlpKind::kExperts;
  }
  shape.moe = {.experts = moe.num_experts,
               .ffn_width = moe.ffn_hidden_size,
               .shared_width = moe.shared_ffn_hidden_size,
               .shared_gate = moe.shared_gate,
               .biases = moe.bias,
               .correction_bias = moe.correction_bias};
  shape.layer_parts = model::expert_parts();
}

}  // namespace

model::ModelShape shape_of(const Recipe& recipe) {
  const Recipe::Model& m = recipe.model;
  model::ModelShape shape;
  shape.num_layers = m.num_layers;
  shape.mtp_layers = recipe.mtp.num_layers;
  shape.width = m.hidden_size;
  shape.query_heads = m.num_attention_heads;
  shape.kv_heads = m.num_kv_heads;
  shape.head_size = m.head_width;
  shape.ffn_width = m.ffn_hidden_size;
  shape.vocab_size = m.vocab_size;
  shape.max_positions = 1;
  shape.norm = m.norm == NormChoice::kLayerNorm ? kernels::NormKind::kLayerNorm
                                                : kernels::NormKind::kRmsNorm;
  shape.norm_placement = m.norm_placement;
  shape.block_form = m.block;
  shape.qk_norm = m.qk_norm;
  shape.sinks = m.attention_sinks;
  set_experts(recipe.moe, shape);
  model::set_latent_attention(shape, m.latent());
  shape.positions = m.positions == PositionChoice::kLearned ? model::Positions::kLearned
                                                            : model::Positions::kRope;
  shape.activation =
      is_gated(m.activation) ? kernels::ActivationKind::kSwiGlu : kernels::ActivationKind::kGelu;
  shape.biases = {m.norm_bias, m.qkv_bias, m.output_bias, m.mlp_bias, m.head_bias};
  shape.tied = m.tie_embeddings;
  if (recipe.adapter.type == AdapterChoice::kLora) {
    shape.adapter.rank = recipe.adapter.rank;
    shape.adapter.targets = recipe.adapter.targets;
    shape.adapter.trained_modules = recipe.adapter.modules_to_save;
  }
  return shape;
}

namespace {

// Each pattern must match a trained parameter.
void check_patterns(Resolution& recipe, std::string_view key, const std::string& label,
                    const Names& patterns) {
  const Names names = trained_parameters(recipe.values());
  for (const std::string& pattern : patterns) {
    const bool matches = std::ranges::any_of(names, [&](const std::string& name) {
      return fnmatch(pattern.c_str(), name.c_str(), 0) == 0;
    });
    if (matches) continue;
    recipe.refuse({key},
                  "{}: \"{}\" matches no parameter that is trained; near are {}. Patterns match "
                  "whole names: \"embedding.*\".",
                  label, pattern, near(pattern, names));
  }
}

constexpr std::string_view kGroups = "optimizer.groups";

std::string_view module_of_name(const std::string& parameter) {
  return std::string_view(parameter).substr(0, parameter.rfind('.'));
}

// The kernels form some gradients together.
void check_frozen_together(Resolution& recipe, const Names& names, const Names& trained) {
  const auto is_trained = [&](std::string_view name) {
    return std::ranges::find(trained, name) != trained.end();
  };
  const auto refuse = [&](std::string_view frozen, std::string_view other) {
    recipe.refuse({kGroups}, "{} freezes {}, but not {}; these can only be frozen together.",
                  kGroups, frozen, other);
  };
  for (const std::string& name : names) {
    if (is_trained(name)) continue;
    const std::string module(module_of_name(name));
    const auto partner = [&](const std::string& other) {
      return std::ranges::find(names, other) != names.end() && is_trained(other);
    };
    constexpr std::string_view kUp = "moe.experts.up", kDown = "moe.experts.down";
    const auto at_end = [&](std::string_view end, std::string_view other) {
      return module.substr(0, module.size() - end.size()) + std::string(other) + ".weight";
    };
    std::string with;
    for (const char* kind : {".weight", ".bias"}) {
      if (partner(module + kind)) with = module + kind;
    }
    if (module.ends_with(kUp) && partner(at_end(kUp, kDown))) with = at_end(kUp, kDown);
    if (module.ends_with(kDown) && partner(at_end(kDown, kUp))) with = at_end(kDown, kUp);
    if (module == "embedding.token" && partner("embedding.position.weight")) {
      with = "embedding.position.weight";
    }
    if (!with.empty()) return refuse(name, with);
  }
}

void check_frozen(Resolution& recipe) {
  const Recipe& values = recipe.values();
  if (!any_frozen(values.optimizer.groups)) return;
  if (values.adapter.type != AdapterChoice::kNone) {
    return recipe.refuse({kGroups, "adapter.type"},
                         "{} has frozen: true, but with adapter.type lora only the adapter and "
                         "adapter.modules_to_save are trained. Remove the group.",
                         kGroups);
  }
  for (std::size_t i = 0; i < values.optimizer.groups.size(); ++i) {
    const ParameterGroup& group = values.optimizer.groups[i];
    if (!group.frozen) continue;
    ParameterGroup alone;
    alone.parameters = group.parameters;
    alone.frozen = true;
    if (group == alone) continue;
    return recipe.refuse({kGroups},
                         "{}[{}] is frozen, so its other keys have no effect. Leave them out.",
                         kGroups, i);
  }
  const Names names = trained_parameters(values);
  Names trained = names;
  std::erase_if(trained,
                [&](const auto& name) { return is_frozen(values.optimizer.groups, name); });
  if (trained.empty()) {
    return recipe.refuse({kGroups}, "{} freezes every parameter, so nothing would be trained.",
                         kGroups);
  }
  check_frozen_together(recipe, names, trained);
  if (values.model.add_special_tokens.empty()) return;
  for (const char* name : {"embedding.token.weight", "head.weight"}) {
    if (!is_frozen(values.optimizer.groups, name)) continue;
    if (std::ranges::find(names, name) == names.end()) continue;
    recipe.refuse({kGroups, "model.add_special_tokens"},
                  "model.add_special_tokens adds rows to {}, which {} freezes, so they would never "
                  "be trained.",
                  name, kGroups);
  }
}

}  // namespace

namespace {

// Whether AdamW updates some of the group's parameters, with muon or dion.
bool has_adamw(const Recipe& recipe, std::size_t group) {
  const std::vector<ParameterGroup>& groups = recipe.optimizer.groups;
  if (groups[group].optimizer == "adamw") return true;
  const model::ModelShape shape = shape_of(recipe);
  for (const UnitSpec& unit : model::parameter_table(shape)) {
    for (const ParameterSpec& parameter : unit.parameters) {
      if (!model::is_trained(shape, parameter.name)) continue;
      if (group_of(groups, parameter.name) != static_cast<int>(group)) continue;
      if (!optim::is_by_matrix({}, unit, parameter)) return true;
    }
  }
  return false;
}

// Betas and eps that no parameter of the group is updated with.
void check_rates_of_group(Resolution& recipe, std::size_t i, const std::string& label) {
  using enum optim::OptimizerType;
  const Recipe& values = recipe.values();
  const ParameterGroup& group = values.optimizer.groups[i];
  if (!group.betas && !group.eps) return;
  const optim::OptimizerType type = values.optimizer.type;
  const bool leaves_some = optim::descriptor_of(type).leaves_some_to_adamw;
  if (type != kAdamW && type != kAdam && type != kLion && !leaves_some) {
    recipe.refuse({kGroups, "optimizer.type"},
                  "{} has betas or eps of its own; only adamw, adam, lion and the AdamW of muon "
                  "and dion take them.",
                  label);
  } else if (type == kLion && group.eps) {
    recipe.refuse({kGroups, "optimizer.type"}, "{}.eps is {}, but lion has no eps. Leave it out.",
                  label, *group.eps);
  } else if (leaves_some && !group.parameters.empty() && !has_adamw(values, i)) {
    recipe.refuse({kGroups, "optimizer.type"},
                  "{} has betas or eps of its own, but only matrices, which {} updates without "
                  "them. Leave them out, or add optimizer: adamw.",
                  label, type == kMuon ? "muon" : "dion");
  }
}

}  // namespace

void check_groups(Resolution& recipe) {
  constexpr std::string_view kKey = "optimizer.groups";
  const Recipe& values = recipe.values();
  check_mup(recipe);
  if (values.optimizer.groups.empty() || recipe.has_problems() || recipe.request().is_kept) return;
  for (std::size_t i = 0; i < values.optimizer.groups.size(); ++i) {
    const ParameterGroup& group = values.optimizer.groups[i];
    const std::string label = fmt::format("{}[{}]", kKey, i);
    if (group.parameters.empty()) {
      recipe.refuse({kKey}, "{}.parameters is empty; give patterns of parameter names.", label);
    }
    check_patterns(recipe, kKey, label + ".parameters", group.parameters);
    const bool leaves_some = optim::descriptor_of(values.optimizer.type).leaves_some_to_adamw;
    check_rates_of_group(recipe, i, label);
    if (!group.optimizer.empty() && group.optimizer != "adamw") {
      recipe.refuse({kKey}, "{}.optimizer is {}; a group of muon or dion can have adamw.", label,
                    group.optimizer);
    } else if (!group.optimizer.empty() && !leaves_some) {
      recipe.refuse({kKey, "optimizer.type"},
                    "{}.optimizer is {}, but only groups of muon and dion have an optimizer of "
                    "their own. Leave it out.",
                    label, group.optimizer);
    }
  }
  check_frozen(recipe);
}

// PyTorch's Adafactor would take experts as separate matrices, which are one parameter here.
void check_adafactor(Resolution& recipe) {
  const Recipe& values = recipe.values();
  if (values.optimizer.type != OptimizerType::kAdafactor || values.moe.num_experts == 0) return;
  recipe.refuse({"optimizer.type", "moe.num_experts"},
                "optimizer.type is adafactor, which doesn't have a row and a column for each "
                "expert's matrices yet. Use adamw, or moe.num_experts: 0.");
}

// QK-clip scales scores by scaling queries and keys.
void check_qk_clip(Resolution& recipe) {
  constexpr std::string_view kKey = "optimizer.qk_clip_threshold";
  const Recipe& values = recipe.values();
  if (values.optimizer.qk_clip_threshold == 0.0 || recipe.has_problems()) return;
  if (values.model.qk_norm != model::QkNorm::kNone) {
    return recipe.refuse(
        {kKey, "model.qk_norm"},
        "{} is {}, but model.qk_norm normalises queries and keys, so scaling their "
        "weights wouldn't change attention logits. Use {}: 0.",
        kKey, values.optimizer.qk_clip_threshold, kKey);
  }
  if (values.model.attention_softcap > 0.0) {
    return recipe.refuse({kKey, "model.attention_softcap"},
                         "{} is {}, but model.attention_softcap limits attention logits already. "
                         "Use {}: 0.",
                         kKey, values.optimizer.qk_clip_threshold, kKey);
  }
  const model::ModelShape shape = shape_of(values);
  for (std::int64_t layer = 0; layer < shape.num_layers; ++layer) {
    const std::string name = fmt::format("block.{}.attention.qkv.weight", layer);
    const bool is_trained =
        model::is_trained(shape, name) && !is_frozen(values.optimizer.groups, name);
    if (is_trained) continue;
    return recipe.refuse({kKey}, "{} is {}, but {} is frozen, and QK-clip scales it. Use {}: 0.",
                         kKey, values.optimizer.qk_clip_threshold, name, kKey);
  }
}

void check_router_bias(Resolution& recipe) {
  constexpr std::string_view kKey = "moe.bias_update_rate";
  const Recipe& values = recipe.values();
  if (!values.moe.correction_bias || values.moe.bias_update_rate == 0.0 || recipe.has_problems()) {
    return;
  }
  const model::ModelShape shape = shape_of(values);
  for (std::int64_t layer = 0; layer < shape.num_layers; ++layer) {
    const std::string name = fmt::format("block.{}.moe.router.weight", layer);
    if (shape.num_mixtures(layer, layer + 1) == 0) continue;
    if (!is_frozen(values.optimizer.groups, name)) continue;
    return recipe.refuse({kKey, "optimizer.groups"},
                         "{} is {}, but {} is frozen, and its bias with it. Use {}: 0.", kKey,
                         values.moe.bias_update_rate, name, kKey);
  }
}

void check_no_decay(Resolution& recipe) {
  constexpr std::string_view kKey = "optimizer.no_decay";
  const Recipe& values = recipe.values();
  if (values.optimizer.no_decay.empty() || recipe.has_problems() || recipe.request().is_kept) {
    return;
  }
  check_patterns(recipe, kKey, std::string(kKey), values.optimizer.no_decay);
}

}  // namespace sherd::engine
