// Rules about what a block is made of, and about what differs from layer to layer.
#include "engine/recipe/resolution.h"

namespace sherd::engine {
namespace {

using Model = Recipe::Model;

// Text of 1 and 0, one for each layer, repeated.
void check_pattern(Resolution& recipe, std::string_view key, const std::string& pattern) {
  constexpr std::size_t kLongest = 10'000;
  const bool fits = !pattern.empty() && pattern.size() <= kLongest &&
                    pattern.find_first_not_of("01") == std::string::npos;
  if (fits) return;
  recipe.refuse({key}, "{} is \"{}\"; write 1 or 0 for each layer, such as \"1110\", at most {}.",
                key, pattern, kLongest);
}

void check_factors(Resolution& recipe, std::string_view key, const std::vector<double>& factors) {
  const Model& model = recipe.values().model;
  const auto pairs =
      static_cast<std::int64_t>(static_cast<double>(model.head_width) * model.rope_fraction) / 2;
  if (std::ssize(factors) == pairs) return;
  recipe.refuse({key, "model.rope_scaling", "model.head_width", "model.rope_fraction"},
                "{} has {} numbers; longrope needs one for each of the {} rotated pairs "
                "(head_width {} x rope_fraction {} / 2).",
                key, factors.size(), pairs, model.head_width, model.rope_fraction);
}

// The scaling's own numbers; windowed layers may have another theta.
void check_scaling(Resolution& recipe) {
  const Model& model = recipe.values().model;
  switch (model.rope_scaling) {
    case RotaryScaling::kLlama3:
      if (model.rope_low_freq_factor < model.rope_high_freq_factor) return;
      return recipe.refuse({"model.rope_low_freq_factor", "model.rope_high_freq_factor"},
                           "model.rope_low_freq_factor is {}, not below rope_high_freq_factor {}.",
                           model.rope_low_freq_factor, model.rope_high_freq_factor);
    case RotaryScaling::kYarn:
      if (model.rope_beta_slow > model.rope_beta_fast) {
        recipe.refuse({"model.rope_beta_slow", "model.rope_beta_fast"},
                      "model.rope_beta_slow is {}, above rope_beta_fast {}.", model.rope_beta_slow,
                      model.rope_beta_fast);
      }
      if (model.rope_theta > 1.0 &&
          (model.window_rope_theta == 0.0 || model.window_rope_theta > 1.0)) {
        return;
      }
      return recipe.refuse({"model.rope_theta", "model.window_rope_theta"},
                           "model.rope_theta is {}, window_rope_theta {}; rope_scaling: yarn needs "
                           "more than 1.",
                           model.rope_theta, model.window_rope_theta);
    case RotaryScaling::kLongrope:
      check_factors(recipe, "model.rope_short_factors", model.rope_short_factors);
      return check_factors(recipe, "model.rope_long_factors", model.rope_long_factors);
    default:
      return;
  }
}

void check_rotary(Resolution& recipe) {
  const Model& model = recipe.values().model;
  if (model.positions != PositionChoice::kRope) return;
  const auto rotated =
      static_cast<std::int64_t>(static_cast<double>(model.head_width) * model.rope_fraction);
  if (model.head_width % 2 == 0 && (rotated % 2 != 0 || rotated == 0)) {
    recipe.refuse({"model.rope_fraction", "model.head_width"},
                  "model.rope_fraction is {}: {} of a head of {} would be rotated, which must be "
                  "an even number and not 0.",
                  model.rope_fraction, rotated, model.head_width);
  }
  const bool needs_length = model.rope_scaling >= RotaryScaling::kLlama3;
  if (needs_length && model.rope_original_length < 2) {
    return recipe.refuse({"model.rope_original_length", "model.rope_scaling"},
                         "model.rope_original_length is {}; this rope_scaling needs the length of "
                         "texts before it, at least 2.",
                         model.rope_original_length);
  }
  check_scaling(recipe);
}

}  // namespace

void check_block(Resolution& recipe) {
  const Model& model = recipe.values().model;
  if (model.block != BlockForm::kSequential && model.norm_placement != NormPlacement::kPre) {
    recipe.refuse(
        {"model.norm_placement", "model.block"},
        "model.norm_placement isn't pre, but parallel blocks have their norms before the branches. "
        "Use norm_placement: pre, or block: sequential.");
  }
  if (model.norm_bias && model.norm == NormChoice::kRmsNorm) {
    recipe.refuse({"model.norm_bias", "model.norm"},
                  "model.norm_bias is true, but rmsnorm has no bias. Use norm: layernorm, or leave "
                  "it out.");
  }
}

void check_layers(Resolution& recipe) {
  const Model& model = recipe.values().model;
  check_pattern(recipe, "model.window_layers", model.window_layers);
  check_pattern(recipe, "model.rope_layers", model.rope_layers);
  check_rotary(recipe);
}

}  // namespace sherd::engine
