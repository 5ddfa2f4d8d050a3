/// A layer: its branches, attention and MLP, and how they join the residual stream.
///
///   h       = x + s dropout(attention(norm1(x)))
///   output  = h + s dropout(mlp(norm2(h)))                       sequential, norms before
///
/// The shape selects other forms (engine/model/shape.h): norms after the branches instead or in
/// addition; parallel branches; a layer with attention only.
///
/// The backward: d_residual_TD is the gradient of the residual stream: first of the layer's output,
/// at the end of its input. branch_TD holds the gradient of a branch's input.
#pragma once

#include "engine/model/attention/attention.h"
#include "engine/model/mlp/mixture.h"
#include "engine/model/mlp/mlp.h"

namespace sherd::model {

class Block : protected Part {
 public:
  explicit Block(Computation& computation);

  void forward(std::int64_t block, const BlockParameters& parameters, const Pass& pass);
  void backward(std::int64_t block, const BlockParameters& parameters,
                const BlockParameters& gradients, const Pass& pass);
  /// The two halves of `backward`, bit-identical to it; see Transformer.
  void input_gradient(std::int64_t block, const BlockParameters& parameters, const Pass& pass);
  void weight_gradient(std::int64_t block, const BlockParameters& parameters,
                       const BlockParameters& gradients);
  /// Forgets which block's activations are computed: another micro-batch follows.
  void forget_filled() { filled_block_ = -1; }

 private:
  void fill(std::int64_t block, const BlockParameters& parameters, const Pass& pass,
            bool recomputes);
  void fill_middle(std::int64_t block, const BlockParameters& parameters, const Pass& pass);
  void attention_output(std::int64_t block, const BlockParameters& parameters);
  void mlp_output(std::int64_t block, const BlockParameters& parameters);
  template <class Projection>
  void finish_branch(const Affine& norm, const SiteTensors& norm_site, const Projection& project);
  void join_attention(std::int64_t block, const BlockParameters& parameters, const Pass& pass,
                      const Tensor& out_TD);
  void join_mlp(std::int64_t block, const BlockParameters& parameters, const Pass& pass,
                const Tensor& residual_TD, const Tensor& out_TD);
  bool joins_in_matmul(const kernels::Dropout& dropout) const;
  bool mlp_joins_in_matmul(std::int64_t block, const kernels::Dropout& dropout) const;
  void join(const Tensor& residual_TD, const kernels::Dropout& dropout, const Tensor& out_TD);
  void branch_gradient(const kernels::Dropout& mask);
  void leave_branch(std::int64_t block, SiteId norm, const BlockParameters& parameters,
                    const BlockParameters& gradients, const kernels::Dropout* next);
  Tensor projection_gradient(const SiteTensors& site, const Affine& parameters,
                             const Affine& gradients);

  Attention attention_;
  Mlp mlp_;
  Mixture mixture_;
  const bool may_join_in_matmul_;
  std::vector<BackwardReach> reaches_;  ///< of each block
  std::int64_t filled_block_ = -1;      ///< with full recompute: whose activations exist
};

}  // namespace sherd::model
