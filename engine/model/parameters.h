/// The parameter table: a model's parameters, their units and initial values.
///
///   unit         parameters
///   embedding    embedding.token.weight [V, D], embedding.position.weight [max, D] (learned)
///                and, with a tied head, final_norm.weight, .bias [D]
///   block.i      block.i.SITE.weight, .bias for the layer's sites (engine/model/sites.h), in order
///   block.i.PART the same of the sites in one of ModelShape::layer_parts
///   head         final_norm.*, head.weight [V, D], head.bias [V]   (untied)
///
/// Blocks of multi-token prediction come before the head. Their indices follow those of the whole
/// model without them.
///
/// With an adapter, a unit has the parameters of its sites' targets after its own. Their indices
/// follow those of the whole model, so the model's initial values are the same with and without
/// adapter.
///
/// A tied matrix belongs to one unit, which is used at both ends.
///
/// Initial values (Radford et al. 2019; nanoGPT): matrices normal(0, init_std), divided by sqrt(2
/// L) if they write to the residual stream; norms 1, including their offset; biases 0.
#pragma once

#include <functional>
#include <span>
#include <vector>

#include "core/parameter.h"
#include "core/tensor.h"
#include "engine/model/adapter.h"
#include "engine/model/sites.h"

namespace sherd::model {

/// Gradients of a layer's experts, and of their adapters.
struct ExpertGradients {
  Tensor up, down;
  std::vector<AdapterTensors> up_adapters{}, down_adapters{};
  Tensor up_bias{}, down_bias{};
};

/// Weight and bias of a projection or norm; the bias is empty if the model has none.
struct Affine {
  Tensor weight, bias;
  std::vector<AdapterTensors> adapters{};
  bool adds = false;  ///< for gradients: add to the existing values
  /// For gradients of experts that ranks divide: the present ones are complete, and those of the
  /// next rank's micro-batch follow.
  std::function<ExpertGradients()> next{};
};

struct EmbeddingParameters {
  Tensor token_weight, position_weight;
};
using BlockParameters = PerSite<Affine>;
struct HeadParameters {
  Affine final_norm;
  Tensor weight;      ///< [V, D]; the token embedding's if tied
  bool adds = false;  ///< for the weight's gradient: add to the existing values
  Tensor bias{};      ///< [V], or empty; not trained
};

std::vector<UnitSpec> parameter_table(const ModelShape& shape);
/// The same, of these units only; what it takes doesn't depend on the others' parameters.
std::vector<UnitSpec> parameter_table(const ModelShape& shape, std::span<const UnitId> ids);

/// Maps a unit's views (of parameters or gradients), in the table's order, to names.
EmbeddingParameters embedding_parameters(const ModelShape& shape, std::span<const Tensor> views);
/// `views`: for each of the layer's parts, by index; empty for a part that the layer doesn't have.
BlockParameters block_parameters(const ModelShape& shape, std::int64_t layer,
                                 std::span<const std::vector<Tensor>> views);
/// For a layer with one part.
BlockParameters block_parameters(const ModelShape& shape, std::int64_t layer,
                                 const std::vector<Tensor>& views);
HeadParameters head_parameters(const ModelShape& shape, std::span<const Tensor> views);

std::int64_t num_parameters(const ModelShape& shape);
std::int64_t num_trained_parameters(const ModelShape& shape);
/// Those that one token uses: of the experts in each layer, as many as the router chooses.
std::int64_t num_active_parameters(const ModelShape& shape);

}  // namespace sherd::model
