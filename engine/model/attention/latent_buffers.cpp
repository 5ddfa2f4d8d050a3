// The scratch of latent attention.
#include <algorithm>

#include "engine/model/activations.h"

namespace sherd::model {

void Activations::acquire_latent(const ModelShape& shape, const Acquire& acquire) {
  const LatentShape& of = shape.latent;
  constexpr Phases kInBlocks = kForward | kBackward | kEvaluation;
  const auto scratch = [&](const char* name, std::int64_t width, Phases phases) {
    return acquire({std::string("latent.") + name, Category::kActivations, shape.dtype,
                    shape.tokens() * width, phases});
  };
  const std::int64_t rank = std::max(of.kv_rank, of.query_rank);
  latent.query = scratch("query", shape.heads_width(), kInBlocks);
  latent.keys_values = scratch("keys_values", of.up_width(shape.query_heads), kInBlocks);
  latent.latent = scratch("latent", rank, kInBlocks);
  latent.d_latent = scratch("d_latent", rank, kBackward);
  if (of.query_rank > 0) latent.d_query_down = scratch("d_query_down", of.query_rank, kBackward);
  latent.d_kv_down = scratch("d_kv_down", of.down_width(), kBackward);
  if (!of.pads_values()) return;
  latent.attended = scratch("attended", shape.heads_width(), kInBlocks);
  latent.d_attended = scratch("d_attended", shape.heads_width(), kBackward);
}

}  // namespace sherd::model
