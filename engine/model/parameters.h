/// The parameter table: which parameters a model has, in which units, and how they start.
///
///   unit         parameters
///   embedding    embedding.token.weight [V, D], embedding.position.weight [max, D] (learned)
///                and, with a tied head, final_norm.weight, .bias [D]
///   block.i      block.i.norm1.*, .attention.qkv.* [(H + 2G) K, D], .attention.output.* [D, H K],
///                .norm2.*, .mlp.up.* [F or 2F, D], .mlp.down.* [D, F]
///   head         final_norm.*, head.weight [V, D]   (untied)
///
/// A tied matrix belongs to one unit, which is then used at both ends.
///
/// Initial values (Radford et al. 2019; nanoGPT): matrices normal(0, init_std), those that write to
/// the residual stream divided by sqrt(2 L); norms 1; biases 0.
#pragma once

#include <span>
#include <vector>

#include "core/parameter.h"
#include "core/tensor.h"
#include "engine/model/shape.h"

namespace sherd::model {

/// Weight and bias of a projection or norm; the bias is empty where the model has none.
struct Affine {
  Tensor weight, bias;
};

struct EmbeddingParameters {
  Tensor token_weight, position_weight;
};
struct BlockParameters {
  Affine norm1, qkv, attention_output, norm2, up, down;
};
struct HeadParameters {
  Affine final_norm;
  Tensor weight;  ///< [V, D]; the token embedding's where tied
};

std::vector<UnitSpec> parameter_table(const ModelShape& shape);

/// The same table's order, back from a unit's views (of parameters or gradients) to names.
EmbeddingParameters embedding_parameters(const ModelShape& shape, std::span<const Tensor> views);
BlockParameters block_parameters(const ModelShape& shape, std::span<const Tensor> views);
HeadParameters head_parameters(const ModelShape& shape, std::span<const Tensor> views);

std::int64_t num_parameters(const ModelShape& shape);

}  // namespace sherd::model
