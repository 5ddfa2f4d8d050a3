/// Table rows that families with experts share.
#pragma once

#include "engine/huggingface/families/common.h"

namespace sherd::huggingface {

/// A router, and experts that are modules of their own: gate, up and down projection.
constexpr std::array<Module, 4> separate_experts(const Module& router, std::string_view gate,
                                                 std::string_view up, std::string_view down) {
  constexpr std::string_view kUp = "block.{}.moe.experts.up";
  constexpr std::string_view kStackedUp = "layers.{}.mlp.experts.gate_up_proj";
  return {{router,
           {.ours = kUp, .theirs = gate, .part = Part::kExpertGate, .stacked = kStackedUp},
           {.ours = kUp, .theirs = up, .part = Part::kExpertUp, .stacked = kStackedUp},
           {.ours = "block.{}.moe.experts.down",
            .theirs = down,
            .part = Part::kExpertDown,
            .stacked = "layers.{}.mlp.experts.down_proj"}}};
}
constexpr std::array<Module, 4> projected_experts(const Module& router) {
  return separate_experts(router, "layers.{}.mlp.experts.{}.gate_proj",
                          "layers.{}.mlp.experts.{}.up_proj", "layers.{}.mlp.experts.{}.down_proj");
}
/// What a layer of multi-token prediction has around its block. Released folders have copies of the
/// embedding and the head in it, too.
inline constexpr auto kPrediction = std::to_array<Module>({
    {"block.{}.mtp.embedding_norm", "layers.{}.enorm"},
    {"block.{}.mtp.hidden_norm", "layers.{}.hnorm"},
    {"block.{}.mtp.projection", "layers.{}.eh_proj"},
    {"block.{}.mtp.norm", "layers.{}.shared_head.norm"},
});
/// Without the feed-forward layer of dense models.
inline constexpr auto kAroundExperts = [] {
  std::array<Module, kUsualModules.size() - 3> rows{};
  std::size_t count = 0;
  for (const Module& module : kUsualModules) {
    if (module.ours.find(".mlp.") == std::string_view::npos) rows[count++] = module;
  }
  return rows;
}();

inline constexpr auto kDenseMlp = std::to_array<Module>({
    {.ours = "block.{}.mlp.up",
     .theirs = "layers.{}.mlp.gate_proj",
     .part = Part::kGate,
     .layers = InLayers::kDense},
    {.ours = "block.{}.mlp.up",
     .theirs = "layers.{}.mlp.up_proj",
     .part = Part::kUp,
     .layers = InLayers::kDense},
    {.ours = "block.{}.mlp.down", .theirs = "layers.{}.mlp.down_proj", .layers = InLayers::kDense},
});
/// An expert that every token goes through, by the names of its projections.
constexpr std::array<Module, 3> shared_expert(std::string_view gate, std::string_view up,
                                              std::string_view down) {
  constexpr InLayers kWhere = InLayers::kWithExperts;
  return {{{.ours = "block.{}.mlp.up", .theirs = gate, .part = Part::kGate, .layers = kWhere},
           {.ours = "block.{}.mlp.up", .theirs = up, .part = Part::kUp, .layers = kWhere},
           {.ours = "block.{}.mlp.down", .theirs = down, .layers = kWhere}}};
}
inline constexpr auto kSharedExperts =
    shared_expert("layers.{}.mlp.shared_experts.gate_proj", "layers.{}.mlp.shared_experts.up_proj",
                  "layers.{}.mlp.shared_experts.down_proj");

inline constexpr ConfigKey kTenthNormAndHead[] = {
    {"rms_norm_eps", "model.norm_eps", "1e-05"},
    {"tie_word_embeddings", "model.tie_embeddings", "false"},
};
inline constexpr ConfigKey kNormAndHead[] = {
    {"rms_norm_eps", "model.norm_eps", "1e-06"},
    {"tie_word_embeddings", "model.tie_embeddings", "false"},
};

/// The recipe says how experts are kept in balance.
inline constexpr std::string_view kBalanceSettings[] = {"output_router_logits",
                                                        "router_aux_loss_coef"};

/// A key that only training programs read, or that follows from others.
inline constexpr std::string_view kDeepseekHarmless[] = {
    "output_router_logits", "router_aux_loss_coef", "aux_loss_alpha", "seq_aux", "ep_size"};

/// Layers with a 1 in `mask` have experts. `from`: the setting that says so.
void experts_in_layers(ConfigReader& config, const std::string& mask, std::string_view from);
/// The same for layers from first_k_dense_replace on; `missing`: the class's number.
void experts_after_dense_layers(ConfigReader& config, std::int64_t missing);
/// n_shared_experts of moe_intermediate_size each, as one. `missing`: the class's number.
void shared_experts(ConfigReader& config, std::string_view count, double missing);
/// Writes both.
void write_experts_after_dense_layers(FamilyWriter& config);
void write_shared_experts(FamilyWriter& config, std::string_view count);

}  // namespace sherd::huggingface
