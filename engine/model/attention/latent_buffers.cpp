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
  if (of.absorbed) {
    latent.latent = scratch("latent", rank, kInBlocks);
    return acquire_absorbed(shape, acquire);
  }
  latent.keys_values = scratch("keys_values", of.up_width(shape.query_heads), kInBlocks);
  latent.latent = scratch("latent", rank, kInBlocks);
  latent.d_latent = scratch("d_latent", rank, kBackward);
  if (of.query_rank > 0) latent.d_query_down = scratch("d_query_down", of.query_rank, kBackward);
  latent.d_kv_down = scratch("d_kv_down", of.down_width(), kBackward);
  if (!of.pads_values()) return;
  latent.attended = scratch("attended", shape.heads_width(), kInBlocks);
  latent.d_attended = scratch("d_attended", shape.heads_width(), kBackward);
}

void Activations::acquire_absorbed(const ModelShape& shape, const Acquire& acquire) {
  const LatentShape& of = shape.latent;
  const std::int64_t H = shape.query_heads, wide = of.down_width();
  const auto scratch = [&](const char* name, std::int64_t width) {
    return acquire({std::string("absorbed.") + name, Category::kActivations, shape.dtype,
                    shape.tokens() * width, kEvaluation});
  };
  absorbed.plain = scratch("plain", H * std::max(of.plain, of.value));
  absorbed.latents = scratch("latents", H * of.kv_rank);
  if (shape.adapter.has_target("attention.kv_up")) {
    absorbed.thin = scratch("thin", H * shape.adapter.rank);
  }
  absorbed.qkv = scratch("qkv", (H + 2) * wide);
  absorbed.attended = scratch("attended", H * wide);
}

}  // namespace sherd::model
