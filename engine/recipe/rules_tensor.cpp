// Whether the model's matrices can be cut over tensor ranks, and its sequences over context ranks.
#include <string_view>

#include "core/error.h"
#include "engine/model/cut/sequence_cut.h"
#include "engine/model/cut/tensor_cut.h"
#include "engine/recipe/resolution.h"

namespace sherd::engine {
namespace {

constexpr std::string_view kTensorDegree = "parallelism.tensor_parallel_degree";
constexpr std::string_view kContext = "parallelism.context_parallel_degree";

constexpr std::string_view kSumOrder = "parallelism.sum_order";
constexpr std::string_view kSequence = "parallelism.sequence_parallel";

bool is_canonical(const Recipe& recipe) {
  return recipe.parallelism.sum_order == SumOrderChoice::kCanonical;
}

model::ModelShape sizes_of(const Recipe& recipe) {
  const Recipe::Model& sizes = recipe.model;
  model::ModelShape shape;
  shape.width = sizes.hidden_size;
  shape.query_heads = sizes.num_attention_heads;
  shape.kv_heads = sizes.num_kv_heads;
  shape.head_size = sizes.head_width;
  shape.ffn_width = sizes.ffn_hidden_size;
  if (recipe.moe.num_experts > 0) {
    shape.moe.experts = recipe.moe.num_experts;
    shape.moe.ffn_width = recipe.moe.ffn_hidden_size;
    shape.moe.shared_width = recipe.moe.shared_ffn_hidden_size;
    for (const char of_layer : recipe.moe.layers) {
      shape.layer_kinds.push_back(
          {.mlp = of_layer == '1' ? model::MlpKind::kExperts : model::MlpKind::kDense});
    }
  }
  model::set_latent_attention(shape, sizes.latent());
  shape.vocab_size = sizes.vocab_size;
  shape.sequences = recipe.training.micro_batch_size;
  shape.seq_length = recipe.training.seq_length;
  shape.part.sequence_parallel = recipe.parallelism.sequence_parallel;
  shape.context.method = recipe.parallelism.context_parallel_method;
  if (is_canonical(recipe)) model::sum_canonically(shape);
  return shape;
}

// The cut itself reports what it doesn't support; `asks` is the key that requires it.
bool check_sizes(Resolution& recipe, std::string_view asks, int degree) {
  try {
    model::tensor_part(sizes_of(recipe.values()), degree, 0);
    return true;
  } catch (const UsageError& error) {
    recipe.refuse({asks, "model.num_attention_heads", "model.num_kv_heads", "model.ffn_hidden_size",
                   "moe.ffn_hidden_size", "moe.shared_ffn_hidden_size", "model.vocab_size"},
                  "{}: {}", asks, error.what());
    return false;
  }
}

// What canonical sums don't support.
std::string not_summed(const Recipe& recipe) {
  if (recipe.adapter.type != AdapterChoice::kNone) return "adapters: use sum_order: rank";
  if (recipe.parallelism.sequence_parallel && recipe.training.micro_batch_size > 1) {
    return "sequence parallelism of several rows: use training.micro_batch_size: 1, or sum_order: "
           "rank";
  }
  if (recipe.parallelism.context_parallel_degree > 1 &&
      recipe.data.documents == DocumentChoice::kSeparate) {
    return "separate documents on context ranks: use parallelism.context_parallel_degree: 1, or "
           "sum_order: rank";
  }
  if (in_blocks(recipe.mixed_precision.reduce_dtype)) {
    return "gradients in blocks: use mixed_precision.reduce_dtype: f32";
  }
  if (recipe.mixed_precision.replica_reduce_dtype != ReplicaReduceType::kGradAccumDType) {
    return "sums of replicas in blocks: use mixed_precision.replica_reduce_dtype: "
           "grad_accum_dtype";
  }
  if (recipe.mixed_precision.reduce_dtype != ReduceType::kF32) {
    return "gradients of 16 bits: use mixed_precision.reduce_dtype: f32";
  }
  return {};
}

void check_blocks(Resolution& recipe) {
  const Recipe& values = recipe.values();
  const auto degree = static_cast<int>(values.parallelism.tensor_parallel_degree);
  if (values.adapter.base_dtype != BaseDType::kNf4 || degree == 1) return;
  const model::ModelShape whole = sizes_of(values);
  if (model::cuts_between_blocks(whole, degree)) return;
  int nearest = degree - 1;
  while (!model::cuts_between_blocks(whole, nearest)) --nearest;
  const model::ModelShape part = model::tensor_part(whole, degree, 0);
  const std::string latents = whole.latent.active()
                                  ? fmt::format(", those of latents {} and {}",
                                                whole.latent.kv_rank, whole.latent.query_rank)
                                  : "";
  recipe.refuse({kTensorDegree, "adapter.base_dtype"},
                "{} is {}, and adapter.base_dtype nf4 has blocks of {} numbers of a row, which "
                "ranks can't split: a rank's rows would be {}, {} and {}{} wide. Use {}: {}, or "
                "adapter.base_dtype: param_dtype.",
                kTensorDegree, degree, model::kQuantisedBlock, part.width, part.attended_width(),
                part.ffn_width, latents, kTensorDegree, nearest);
}

}  // namespace

void check_tensor_ranks(Resolution& recipe) {
  const Recipe& values = recipe.values();
  const std::int64_t degree = values.parallelism.tensor_parallel_degree;
  if (values.parallelism.sequence_parallel && degree == 1) {
    return recipe.refuse({kSequence, kTensorDegree},
                         "{} is true, but tokens are shared among tensor ranks, and {} is 1. Use "
                         "{}: 2, or {}: false.",
                         kSequence, kTensorDegree, kTensorDegree, kSequence);
  }
  if (degree <= 1 && !is_canonical(values)) return;
  if (is_canonical(values)) {
    if (const std::string what = not_summed(values); !what.empty()) {
      return recipe.refuse({kSumOrder}, "{} is canonical, which doesn't serve {}.", kSumOrder,
                           what);
    }
  }
  if (is_canonical(values) && !check_sizes(recipe, kSumOrder, 1)) return;
  if (check_sizes(recipe, kTensorDegree, static_cast<int>(degree))) check_blocks(recipe);
}

void check_context_ranks(Resolution& recipe) {
  const Recipe& values = recipe.values();
  const auto degree = static_cast<int>(values.parallelism.context_parallel_degree);
  if (degree <= 1) return;
  const auto tensor = static_cast<int>(values.parallelism.tensor_parallel_degree);
  model::ModelShape part;
  try {
    part = model::tensor_part(sizes_of(values), tensor, 0);
  } catch (const UsageError&) {
    return;  // reported by check_tensor_ranks
  }
  try {
    model::context_part(part, degree, 0);
  } catch (const UsageError& error) {
    recipe.refuse(
        {kContext, "training.seq_length", "model.num_attention_heads", "model.num_kv_heads"},
        "{}: {}", kContext, error.what());
  }
}

}  // namespace sherd::engine
