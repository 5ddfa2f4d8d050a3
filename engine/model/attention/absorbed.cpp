#include "engine/model/attention/absorbed.h"

namespace sherd::model {

kernels::AbsorbedMatrix AbsorbedLatents::matrix(const BlockParameters& parameters) const {
  const Affine& up = parameters[SiteId::kKvUp];
  kernels::AbsorbedMatrix matrix{.up = up.weight, .latent = shape_.latent.kv_rank};
  if (up.adapters.empty()) return matrix;
  SHERD_CHECK(up.adapters.size() == 1, "{} adapters of one matrix", up.adapters.size());
  matrix.a = up.adapters[0].a;
  matrix.b = up.adapters[0].b;
  matrix.rank = shape_.adapter.rank;
  matrix.scale = activations_.adapters.scale();
  return matrix;
}

kernels::AbsorbedScratch AbsorbedLatents::scratch() const {
  const AbsorbedBuffers& buffers = activations_.absorbed;
  return {buffers.plain.tensor(), buffers.latents.tensor(), buffers.thin.tensor()};
}

Tensor AbsorbedLatents::pack(const BlockTensors& kept, const Tensor& query_TE) {
  const std::int64_t width = (shape_.query_heads + 2) * shape_.head_width();
  const Tensor packed_TE = kept[SiteId::kQkv].output.part(0, shape_.tokens() * width);
  kernels::pack_one_key(compute_, shape_.latent_heads(), query_TE, kept[SiteId::kKvDown].output,
                        packed_TE);
  return packed_TE;
}

Tensor AbsorbedLatents::absorb(const BlockTensors& kept, const BlockParameters& parameters,
                               const Tensor& packed_TE) {
  const std::int64_t width = (shape_.query_heads + 2) * shape_.latent.down_width();
  const Tensor qkv_TE = rows(activations_.absorbed.qkv, shape_.tokens(), width);
  kernels::absorb_queries(compute_, {.shape = shape_.latent_heads(),
                                     .matrix = matrix(parameters),
                                     .packed = packed_TE,
                                     .latents = kept[SiteId::kKvLatentNorm].output,
                                     .qkv = qkv_TE,
                                     .scratch = scratch(),
                                     .workspace = activations_.workspace});
  return qkv_TE;
}

BlockTensors AbsorbedLatents::with_attended(const BlockTensors& kept) const {
  BlockTensors wide = kept;
  wide[SiteId::kAttention].output = rows(activations_.absorbed.attended, shape_.tokens(),
                                         shape_.query_heads * shape_.latent.down_width());
  return wide;
}

void AbsorbedLatents::expand(const BlockTensors& kept, const BlockParameters& parameters) {
  kernels::expand_attended(compute_, {.shape = shape_.latent_heads(),
                                      .matrix = matrix(parameters),
                                      .attended = with_attended(kept)[SiteId::kAttention].output,
                                      .values = kept[SiteId::kAttention].output,
                                      .scratch = scratch(),
                                      .workspace = activations_.workspace});
}

}  // namespace sherd::model
