#include "engine/recipe/model_meaning.h"

#include <algorithm>
#include <cmath>
#include <string_view>

#include "engine/recipe/fields.h"
#include "engine/recipe/model_from.h"
#include "engine/recipe/values.h"

namespace sherd::engine {
namespace {

using Model = Recipe::Model;

std::string layer_by_layer(const std::string& pattern, std::int64_t num_layers) {
  if (pattern.empty()) return pattern;
  std::string layers;
  for (std::int64_t i = 0; i < num_layers; ++i) {
    layers += pattern[static_cast<std::size_t>(i) % pattern.size()];
  }
  return layers;
}

void settle_windows(Model& model) {
  model.window_layers = layer_by_layer(model.window_layers, model.num_layers);
  if (model.window == 0 || model.window_layers.find('1') == std::string::npos) {
    model.window = 0;
    model.window_layers = "0";
  }
  bool turns_in_windows = false;  // in any layer
  const std::size_t num_layers = std::min(model.window_layers.size(), model.rope_layers.size());
  for (std::size_t i = 0; i < num_layers; ++i) {
    turns_in_windows |= model.window_layers[i] == '1' && model.rope_layers[i] == '1';
  }
  if (!turns_in_windows || model.window_rope_theta == model.rope_theta) {
    model.window_rope_theta = 0;
  }
  if (!turns_in_windows || model.rope_scaling == RotaryScaling::kNone) {
    model.window_rope_scaling = true;
  }
}

// Keys that the scaling doesn't read get their value without scaling.
void settle_scaling(Model& model) {
  const RotaryScaling scaling = model.rope_scaling;
  const bool is_yarn = scaling == RotaryScaling::kYarn;
  const bool is_longrope = scaling == RotaryScaling::kLongrope;
  if (scaling == RotaryScaling::kNone) model.rope_factor = 1;
  if (scaling == RotaryScaling::kNone || scaling == RotaryScaling::kLinear) {
    model.rope_original_length = 0;
  }
  if (scaling != RotaryScaling::kLlama3) {
    model.rope_low_freq_factor = model.rope_high_freq_factor = 0;
  }
  if (!is_yarn) {
    model.rope_beta_fast = model.rope_beta_slow = 0;
    model.rope_truncate = true;
  }
  const bool is_one = !is_yarn && !is_longrope && model.rope_attention_factor == 1;
  if (scaling == RotaryScaling::kNone || is_one) model.rope_attention_factor = 0;
  if (!is_longrope) {
    model.rope_short_factors.clear();
    model.rope_long_factors.clear();
  }
}

void settle_positions(Model& model) {
  if (model.positions == PositionChoice::kLearned) {
    model.rope_theta = 1;
    model.rope_fraction = 1;
    model.rope_scaling = RotaryScaling::kNone;
    model.rope_layers = "0";
  }
  model.rope_layers = layer_by_layer(model.rope_layers, model.num_layers);
  if (model.query_growth == 0.0 || model.rope_layers.find('0') == std::string::npos ||
      model.qk_norm == QkNorm::kHeadAfterRotary) {
    model.query_growth = 0;
    model.query_step = 0;
  }
  settle_scaling(model);
}

Model settled(Model model) {
  model.bias = false;  // the specific keys decide
  if (model.kv_lora_rank == 0) {
    model.q_lora_rank = model.qk_nope_head_dim = model.qk_rope_head_dim = model.v_head_dim = 0;
  }
  if (model.norm == NormChoice::kRmsNorm) model.norm_bias = false;
  settle_positions(model);
  settle_windows(model);
  if (model.attention_scale == 0.0) {
    model.attention_scale = 1.0 / std::sqrt(static_cast<double>(model.head_width));
  }
  for (double* value : {&model.attention_scale, &model.attention_softcap, &model.logits_scale,
                        &model.logits_softcap, &model.embedding_scale, &model.residual_scale,
                        &model.query_growth, &model.norm_eps}) {
    *value = static_cast<double>(static_cast<float>(*value));
  }
  return model;
}

// Without experts their other keys mean nothing.
MoeKeys settled(MoeKeys moe, const Model& model) {
  if (moe.num_experts == 0) return {};
  moe.layers = layer_by_layer(moe.layers, model.num_layers);
  const bool mixes = moe.score == RouterScore::kSparsemixer;
  if (mixes || moe.score == RouterScore::kSoftmaxOfChosen) moe.normalize_weights = true;
  if (!mixes) moe.jitter = 0;
  if (moe.num_groups == moe.kept_groups) moe.num_groups = moe.kept_groups = 1;
  return moe;
}

}  // namespace

std::vector<ModelDifference> differences(const Recipe& a, const Recipe& b) {
  Recipe of_a = a, of_b = b;
  of_a.model = settled(a.model);
  of_b.model = settled(b.model);
  of_a.moe = settled(a.moe, a.model);
  of_b.moe = settled(b.moe, b.model);
  for (Recipe* of : {&of_a, &of_b}) {  // no layer has a dense feed-forward layer
    if (of->moe.num_experts > 0 && of->moe.layers.find('0') == std::string::npos) {
      of->model.ffn_hidden_size = 0;
    }
  }
  std::vector<ModelDifference> found;
  for (const Field& field : recipe_fields()) {
    if (!says_which_model(field.key)) continue;
    if (format_value(field, of_a) == format_value(field, of_b)) continue;
    found.push_back({std::string(field.key), format_value(field, a), format_value(field, b)});
  }
  return found;
}

bool is_missing_bias(const ModelDifference& difference) {
  return difference.key.ends_with("_bias") && difference.a == "false" && difference.b == "true";
}

}  // namespace sherd::engine
