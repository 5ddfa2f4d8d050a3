/// Latent attention in generation: heads attend to latents, and no keys or values of heads are made
/// (kernels/absorbed_heads.h, ModelShape::latent.absorbed).
///
/// There is no backward. Results differ from those of LatentProjection by rounding.
///
/// Shapes   packed [T, (H + 2) K]: queries, one key, an unused value; qkv [T, (H + 2) (C + R)].
#pragma once

#include "engine/model/computation.h"
#include "kernels/absorbed_heads.h"

namespace sherd::model {

class AbsorbedLatents : protected Part {
 public:
  using Part::Part;

  /// Queries and one key, for rotation, in the place of the heads that training keeps.
  Tensor pack(const BlockTensors& kept, const Tensor& query_TE);
  /// What attention reads, after rotation.
  Tensor absorb(const BlockTensors& kept, const BlockParameters& parameters,
                const Tensor& packed_TE);
  /// Where attention writes what heads attended to.
  BlockTensors with_attended(const BlockTensors& kept) const;
  /// From there to the kept one.
  void expand(const BlockTensors& kept, const BlockParameters& parameters);

 private:
  kernels::AbsorbedMatrix matrix(const BlockParameters& parameters) const;
  kernels::AbsorbedScratch scratch() const;
};

}  // namespace sherd::model
