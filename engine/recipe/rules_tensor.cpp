// Whether the model's matrices can be cut over tensor ranks.
#include <string_view>

#include "core/error.h"
#include "engine/model/tensor_cut.h"
#include "engine/recipe/resolution.h"

namespace sherd::engine {
namespace {

constexpr std::string_view kDegree = "parallelism.tensor_parallel_degree";

// The cut says itself what it can't do.
void check_sizes(Resolution& recipe, int degree) {
  const Recipe::Model& sizes = recipe.values().model;
  model::ModelShape shape;
  shape.width = sizes.hidden_size;
  shape.query_heads = sizes.num_attention_heads;
  shape.kv_heads = sizes.num_kv_heads;
  shape.head_size = sizes.head_width;
  shape.ffn_width = sizes.ffn_hidden_size;
  shape.vocab_size = sizes.vocab_size;
  try {
    model::tensor_part(shape, degree, 0);
  } catch (const UsageError& error) {
    recipe.refuse({kDegree, "model.num_attention_heads", "model.num_kv_heads",
                   "model.ffn_hidden_size", "model.vocab_size"},
                  "{}: {}", kDegree, error.what());
  }
}

}  // namespace

void check_tensor_ranks(Resolution& recipe) {
  const Recipe& values = recipe.values();
  const std::int64_t degree = values.parallelism.tensor_parallel_degree;
  if (degree <= 1) return;
  if (values.adapter.type != AdapterChoice::kNone) {
    return recipe.refuse({kDegree, "adapter.type"},
                         "{} is {}, but adapters aren't served on tensor ranks yet. Use {}: 1, and "
                         "parallelism.data_parallel_shard_degree.",
                         kDegree, degree, kDegree);
  }
  check_sizes(recipe, static_cast<int>(degree));
}

}  // namespace sherd::engine
