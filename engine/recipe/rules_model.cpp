// Rules about the model: its shape, its initial weights, and sizes that don't overflow.
#include <cmath>

#include "engine/recipe/resolution.h"

namespace sherd::engine {
namespace {

void refuse_odd_heads(Resolution& recipe) {
  const auto& model = recipe.values().model;
  if (recipe.is_set("model.head_width")) {
    return recipe.refuse({"model.head_width", "model.positions"},
                         "model.head_width is {}, but positions: rope turns pairs. Make it even, "
                         "or use positions: learned.",
                         model.head_width);
  }
  recipe.refuse({"model.hidden_size", "model.num_attention_heads", "model.positions"},
                "a head is {} wide (hidden_size {} / num_attention_heads {}), but positions: rope "
                "turns pairs. Make it even, or use positions: learned.",
                model.head_width, model.hidden_size, model.num_attention_heads);
}

void check_shape(Resolution& recipe) {
  const auto& model = recipe.values().model;
  const auto& training = recipe.values().training;
  if (!recipe.is_set("model.head_width") && model.kv_lora_rank == 0 &&
      model.hidden_size % model.num_attention_heads != 0) {
    return recipe.refuse(
        {"model.hidden_size", "model.num_attention_heads"},
        "model.hidden_size is {}, which {} heads don't divide. Nearest multiples are {} and {}; "
        "or set model.head_width.",
        model.hidden_size, model.num_attention_heads,
        model.hidden_size / model.num_attention_heads * model.num_attention_heads,
        (model.hidden_size / model.num_attention_heads + 1) * model.num_attention_heads);
  }
  if (model.num_attention_heads % model.num_kv_heads != 0) {
    recipe.refuse({"model.num_kv_heads", "model.num_attention_heads"},
                  "model.num_kv_heads is {}, which doesn't divide num_attention_heads {}.",
                  model.num_kv_heads, model.num_attention_heads);
  }
  if (model.positions == PositionChoice::kRope && model.head_width % 2 != 0) {
    refuse_odd_heads(recipe);
  }
  if (training.seq_length > model.max_seq_length) {
    recipe.refuse(
        {"training.seq_length", "model.max_seq_length"},
        "training.seq_length is {}, longer than model.max_seq_length {}. Raise the latter or "
        "leave it out.",
        training.seq_length, model.max_seq_length);
  }
}

// So that no product of a few sizes overflows later: what a rank holds stays far below 2^63
// bytes.
void check_sizes(Resolution& recipe) {
  const auto& model = recipe.values().model;
  const auto& training = recipe.values().training;
  const double tokens =
      static_cast<double>(training.micro_batch_size) * static_cast<double>(training.seq_length);
  const double widths = static_cast<double>(8 * model.hidden_size + 4 * model.ffn_hidden_size) +
                        static_cast<double>(model.num_attention_heads) *
                            (1.0 + 8.0 * static_cast<double>(model.head_width));
  constexpr double kMostElementBytes = 16.0;
  if (tokens * widths * static_cast<double>(model.num_layers + 8) * kMostElementBytes >= 0x1p62) {
    recipe.refuse(
        {"training.seq_length", "training.micro_batch_size"},
        "micro-steps of {} sequences of {} tokens need more bytes than 64 bits can count in {} "
        "layers of width {}. Make them smaller.",
        training.micro_batch_size, training.seq_length, model.num_layers, model.hidden_size);
  }
}

// Weights are drawn as floats and rounded to param_dtype.
void check_first_weights(Resolution& recipe) {
  const auto& model = recipe.values().model;
  if (recipe.values().mixed_precision.param_dtype != FloatType::kF16) return;
  constexpr double kLargest = 65504.0, kSmallest = 0x1p-24, kFarthestDraw = 8.0;
  const double narrowest = model.init_std / std::sqrt(2.0 * static_cast<double>(model.num_layers));
  if (narrowest >= kSmallest && model.init_std * kFarthestDraw <= kLargest) return;
  recipe.refuse({"model.init_std", "mixed_precision.param_dtype"},
                "model.init_std is {}: in f16 weights would be {}. Use bf16, or an init_std "
                "between {:.2g} and {:.0f}.",
                model.init_std, narrowest < kSmallest ? "rounded to 0" : "infinite",
                kSmallest * model.init_std / narrowest, kLargest / kFarthestDraw);
}

void check_head_bias(Resolution& recipe) {
  const Recipe& values = recipe.values();
  if (!values.model.head_bias) return;
  if (values.model.tie_embeddings) {
    recipe.refuse({"model.head_bias", "model.tie_embeddings"},
                  "model.head_bias is true, but a tied head has no bias. Use one of the two.");
  }
  if (const auto degree = values.parallelism.tensor_parallel_degree; degree > 1) {
    recipe.refuse({"parallelism.tensor_parallel_degree", "model.head_bias"},
                  "parallelism.tensor_parallel_degree is {}, but a head with a bias can't be "
                  "divided yet. Use 1.",
                  degree);
  }
}

}  // namespace

void check_model(Resolution& recipe) {
  check_shape(recipe);
  check_block(recipe);
  check_layers(recipe);
  check_latent_attention(recipe);
  check_experts(recipe);
  check_head_bias(recipe);
  check_sizes(recipe);
  check_first_weights(recipe);
}

}  // namespace sherd::engine
