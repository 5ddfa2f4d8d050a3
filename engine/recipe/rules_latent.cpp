// Rules about latent attention, attention sinks, and what Llama 4's attention has.
#include "engine/recipe/resolution.h"

namespace sherd::engine {
namespace {

constexpr std::string_view kRank = "model.kv_lora_rank";

void check_widths(Resolution& recipe) {
  const Recipe::Model& model = recipe.values().model;
  for (const auto& [key, width] : {std::pair("model.qk_nope_head_dim", model.qk_nope_head_dim),
                                   {"model.qk_rope_head_dim", model.qk_rope_head_dim},
                                   {"model.v_head_dim", model.v_head_dim}}) {
    const bool is_of_pairs = key != std::string_view("model.v_head_dim");
    if (width > 0 && (!is_of_pairs || width % 2 == 0)) continue;
    recipe.refuse({key, kRank}, "{} is {}; with {} it must be {}above 0.", key, width, kRank,
                  is_of_pairs ? "even and " : "");
  }
  const std::int64_t head = model.qk_nope_head_dim + model.qk_rope_head_dim;
  if (model.v_head_dim > head) {
    recipe.refuse(
        {"model.v_head_dim", "model.qk_nope_head_dim", "model.qk_rope_head_dim"},
        "model.v_head_dim is {}, more than the {} of a key; such values aren't supported.",
        model.v_head_dim, head);
  }
  if (model.head_width != head) {
    recipe.refuse({"model.head_width", kRank},
                  "model.head_width is {}, but with {} a head has qk_nope_head_dim + "
                  "qk_rope_head_dim = {} numbers. Leave it out.",
                  model.head_width, kRank, head);
  }
  if (model.num_kv_heads != model.num_attention_heads) {
    recipe.refuse({"model.num_kv_heads", kRank},
                  "model.num_kv_heads is {}, but with {} each of the {} query heads has its own "
                  "keys. Leave it out.",
                  model.num_kv_heads, kRank, model.num_attention_heads);
  }
}

// What latent attention isn't combined with.
void check_latent_company(Resolution& recipe) {
  const Recipe& values = recipe.values();
  const Recipe::Model& model = values.model;
  const auto refuse = [&](bool is, std::string_view key, std::string_view what) {
    if (!is) return;
    recipe.refuse({key, kRank}, "{} is {}, which latent attention ({}: {}) doesn't have.", key,
                  what, kRank, model.kv_lora_rank);
  };
  refuse(model.positions != PositionChoice::kRope, "model.positions", "learned");
  refuse(model.rope_fraction != 1.0, "model.rope_fraction",
         "set; qk_rope_head_dim says how much of a head is rotated");
  refuse(model.rope_scaling == RotaryScaling::kLongrope, "model.rope_scaling", "longrope");
  refuse(model.qk_norm != QkNorm::kNone, "model.qk_norm", "set");
  refuse(model.qkv_bias, "model.qkv_bias", "true");
  refuse(model.norm != NormChoice::kRmsNorm, "model.norm", "layernorm");
  refuse(model.block != BlockForm::kSequential, "model.block", "parallel");
  refuse(values.optimizer.qk_clip_threshold > 0.0, "optimizer.qk_clip_threshold", "set");
  refuse(values.parallelism.sum_order == SumOrderChoice::kCanonical, "parallelism.sum_order",
         "canonical");
}

// What sinks aren't combined with yet.
void check_sinks(Resolution& recipe) {
  constexpr std::string_view kSinks = "model.attention_sinks";
  const Recipe& values = recipe.values();
  if (!values.model.attention_sinks) return;
  if (values.model.kv_lora_rank > 0) {
    recipe.refuse({kSinks, kRank}, "{} is true, which latent attention doesn't have.", kSinks);
  }
  if (values.parallelism.sum_order == SumOrderChoice::kCanonical) {
    recipe.refuse({"parallelism.sum_order", kSinks},
                  "parallelism.sum_order is canonical, which attention sinks don't have. Use "
                  "sum_order: rank.");
  }
}

void refuse_canonical(Resolution& recipe, std::string_view key) {
  constexpr std::string_view kOrder = "parallelism.sum_order";
  if (recipe.values().parallelism.sum_order != SumOrderChoice::kCanonical) return;
  recipe.refuse({kOrder, key},
                "{} is canonical, which isn't supported with this {}. Use sum_order: rank.", kOrder,
                key);
}

// Without weights, heads are divided by their root mean square.
void check_rotated_norm(Resolution& recipe) {
  const Recipe::Model& model = recipe.values().model;
  if (model.qk_norm != QkNorm::kRotated) return;
  if (model.norm != NormChoice::kRmsNorm) {
    recipe.refuse({"model.norm", "model.qk_norm"},
                  "model.norm is layernorm, but model.qk_norm: rotated is an RMS norm. Use norm: "
                  "rmsnorm, or another qk_norm.");
  }
  if (model.positions != PositionChoice::kRope) {
    recipe.refuse(
        {"model.positions", "model.qk_norm"},
        "model.positions is learned, but model.qk_norm: rotated is of layers that rotate. "
        "Use positions: rope, or another qk_norm.");
  }
  refuse_canonical(recipe, "model.qk_norm");
}

void check_query_growth(Resolution& recipe) {
  const Recipe::Model& model = recipe.values().model;
  if (model.query_growth == 0.0) return;
  if (model.positions != PositionChoice::kRope) {
    recipe.refuse({"model.query_growth", "model.positions"},
                  "model.query_growth is {}, but it is for models with positions: rope. Leave it "
                  "out.",
                  model.query_growth);
  }
  if (model.kv_lora_rank > 0) {
    recipe.refuse({"model.query_growth", kRank},
                  "model.query_growth is {}, which latent attention doesn't have. Leave it out.",
                  model.query_growth);
  }
  if (model.qk_norm == QkNorm::kHeadAfterRotary) {
    recipe.refuse({"model.query_growth", "model.qk_norm"},
                  "model.query_growth is {}, but model.qk_norm: head_after_rope normalises the "
                  "queries afterwards, so it would change nothing. Use another qk_norm, or leave "
                  "it out.",
                  model.query_growth);
  }
  refuse_canonical(recipe, "model.query_growth");
}

}  // namespace

void check_latent_attention(Resolution& recipe) {
  check_sinks(recipe);
  check_rotated_norm(recipe);
  check_query_growth(recipe);
  if (recipe.values().model.kv_lora_rank == 0) return;
  check_widths(recipe);
  check_latent_company(recipe);
}

}  // namespace sherd::engine
