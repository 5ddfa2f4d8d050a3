/// The parameter table: which parameters a model has, in which units, and how they start.
///
///   unit         parameters
///   embedding    embedding.token.weight [V, D], embedding.position.weight [max, D] (learned)
///                and, with a tied head, final_norm.weight, .bias [D]
///   block.i      block.i.SITE.weight, .bias for the layer's sites (engine/model/sites.h), in order
///   block.i.PART the same of the sites in one of ModelShape::layer_parts
///   head         final_norm.*, head.weight [V, D]   (untied)
///
/// With an adapter, a unit has the parameters of its sites' targets after its own; their indices come after those of
/// the whole model, whose initial values are the same with and without.
///
/// A tied matrix belongs to one unit, which is then used at both ends.
///
/// Initial values (Radford et al. 2019; nanoGPT): matrices normal(0, init_std), those that write to
/// the residual stream divided by sqrt(2 L); norms 1, their offset included; biases 0.
#pragma once

#include <span>
#include <vector>

#include "core/parameter.h"
#include "core/tensor.h"
#include "engine/model/adapter.h"
#include "engine/model/sites.h"

namespace sherd::model {

/// Weight and bias of a projection or norm; the bias is empty where the model has none.
struct Affine {
  Tensor weight, bias;
  std::vector<AdapterTensors> adapters{};
  bool adds = false;  ///< of gradients: added to what stands there
};

struct EmbeddingParameters {
  Tensor token_weight, position_weight;
};
using BlockParameters = PerSite<Affine>;
struct HeadParameters {
  Affine final_norm;
  Tensor weight;      ///< [V, D]; the token embedding's where tied
  bool adds = false;  ///< of the weight's gradient: added to what stands there
};

std::vector<UnitSpec> parameter_table(const ModelShape& shape);

/// The same table's order, back from a unit's views (of parameters or gradients) to names.
EmbeddingParameters embedding_parameters(const ModelShape& shape, std::span<const Tensor> views);
/// `views`: of each of the layer's parts, in the order of their numbers; empty for a part that the layer doesn't have.
BlockParameters block_parameters(const ModelShape& shape, std::int64_t layer,
                                 std::span<const std::vector<Tensor>> views);
/// Of a layer that has one part.
BlockParameters block_parameters(const ModelShape& shape, std::int64_t layer,
                                 const std::vector<Tensor>& views);
HeadParameters head_parameters(const ModelShape& shape, std::span<const Tensor> views);

std::int64_t num_parameters(const ModelShape& shape);
std::int64_t num_trained_parameters(const ModelShape& shape);

}  // namespace sherd::model
