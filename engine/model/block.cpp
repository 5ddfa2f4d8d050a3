// One transformer block. The legend of shapes is in engine/model/shape.h.

#include "engine/model/sites.h"
#include "engine/model/transformer.h"
#include "kernels/activation.h"
#include "kernels/linear.h"
#include "kernels/pointwise.h"
#include "kernels/rotary.h"

namespace sherd::model {
namespace {

kernels::Rotary rotary_of(const ModelShape& shape, const Tensor& table, const Tensor& qkv,
                          bool inverse) {
  return {shape.sequences,
          shape.seq_length,
          shape.query_heads,
          shape.kv_heads,
          shape.head_width(),
          table.part(0, shape.seq_length * shape.head_width()),
          qkv,
          inverse};
}

}  // namespace

void Transformer::project(const Affine& affine, const Tensor& x, std::int64_t inputs,
                          std::int64_t outputs, const Tensor& y) {
  kernels::linear_forward(compute_, {{shape_.tokens(), inputs, outputs},
                                     x,
                                     affine.weight,
                                     affine.bias,
                                     y,
                                     activations_.workspace});
}

void Transformer::project_backward(const Affine& parameters, const Affine& gradients,
                                   const Tensor& x, const Tensor& dy, std::int64_t inputs,
                                   std::int64_t outputs, const Tensor& dx,
                                   const Tensor& gelu_input) {
  const kernels::LinearShape product{shape_.tokens(), inputs, outputs};
  kernels::linear_backward_weight(
      compute_, {product, dy, x, gradients.weight, gradients.bias, false, activations_.workspace});
  kernels::linear_backward_input(
      compute_, {product, dy, parameters.weight, dx, false, activations_.workspace, gelu_input});
}

void Transformer::block_forward(std::int64_t block, const BlockParameters& parameters,
                                const Pass& pass) {
  fill_block(block, parameters, pass);
  const BlockTensors kept = activations_.block(block, shape_);
  const Tensor branch_TD = rows(activations_.branch_TD, shape_.tokens(), shape_.width);
  project(parameters.down, kept.activated_TF, shape_.ffn_width, shape_.width, branch_TD);
  kernels::residual_add(compute_, kept.middle_TD, branch_TD, dropout(pass, mlp_branch_site(block)),
                        rows(activations_.residual_TD[block + 1], shape_.tokens(), shape_.width));
}

// From the block's input to its last activation: what the backward needs.
void Transformer::fill_block(std::int64_t block, const BlockParameters& parameters,
                             const Pass& pass) {
  filled_block_ = block;
  const BlockTensors kept = activations_.block(block, shape_);
  const Tensor branch_TD = rows(activations_.branch_TD, shape_.tokens(), shape_.width);
  const std::int64_t width = shape_.width;
  const std::int64_t heads_width = shape_.query_heads * shape_.head_width();

  normalise(parameters.norm1, kept.x_TD, kept.norm1);
  project(parameters.qkv, kept.norm1.normed_TD, width, shape_.qkv_width(), kept.qkv_TE);
  if (shape_.positions == Positions::kRope) {
    kernels::rotary(compute_,
                    rotary_of(shape_, activations_.rotary_SK.tensor(), kept.qkv_TE, false));
  }
  kernels::attention_forward(compute_, {.shape = shape_.attention(),
                                        .qkv = kept.qkv_TE,
                                        .dropout = attention_dropout(pass, attention_site(block)),
                                        .out = kept.attended_TD,
                                        .lse = kept.lse_BHS,
                                        .workspace = activations_.workspace});
  project(parameters.attention_output, kept.attended_TD, heads_width, width, branch_TD);
  kernels::norm_forward(compute_, {.shape = shape_.norm_shape(),
                                   .residual = kept.x_TD,
                                   .branch = branch_TD,
                                   .branch_dropout = dropout(pass, attention_branch_site(block)),
                                   .weight = parameters.norm2.weight,
                                   .bias = parameters.norm2.bias,
                                   .residual_out = kept.middle_TD,
                                   .y = kept.norm2.normed_TD,
                                   .mean = kept.norm2.mean_T,
                                   .rstd = kept.norm2.rstd_T});
  if (shape_.activated_in_product()) {
    kernels::linear_forward(compute_, {.shape = {shape_.tokens(), width, shape_.up_width()},
                                       .x = kept.norm2.normed_TD,
                                       .w = parameters.up.weight,
                                       .bias = parameters.up.bias,
                                       .y = kept.activated_TF,
                                       .workspace = activations_.workspace,
                                       .gelu_input = kept.up_TU});
    return;
  }
  project(parameters.up, kept.norm2.normed_TD, width, shape_.up_width(), kept.up_TU);
  kernels::activation_forward(compute_, {shape_.activation_shape(), kept.up_TU, kept.activated_TF});
}

// A norm's output from the residual stream: in the forward, and again in a selective backward.
void Transformer::normalise(const Affine& parameters, const Tensor& residual_TD,
                            const NormTensors& norm) {
  kernels::norm_forward(compute_, {.shape = shape_.norm_shape(),
                                   .residual = residual_TD,
                                   .branch = {},
                                   .branch_dropout = {},
                                   .weight = parameters.weight,
                                   .bias = parameters.bias,
                                   .residual_out = {},
                                   .y = norm.normed_TD,
                                   .mean = norm.mean_T,
                                   .rstd = norm.rstd_T});
}

void Transformer::block_backward(std::int64_t block, const BlockParameters& parameters,
                                 const BlockParameters& gradients, const Pass& pass) {
  const BlockTensors kept = activations_.block(block, shape_);
  // The last block's activations are still there from the forward.
  if (shape_.recompute == Recompute::kFull && filled_block_ != block) {
    fill_block(block, parameters, pass);
  }
  filled_block_ = -1;
  const Tensor& d_residual_TD = activations_.d_residual_TD.tensor();
  const Tensor& d_normed_TD = activations_.branch_TD.tensor();
  // Without dropout a branch's gradient is the residual stream's.
  const bool masked = pass.training && shape_.dropout > 0.0;
  const Tensor d_branch_TD = masked ? activations_.d_branch_TD.tensor() : d_residual_TD;

  if (masked) {
    kernels::dropout_backward(compute_, d_residual_TD, dropout(pass, mlp_branch_site(block)),
                              d_branch_TD);
  }
  mlp_backward(block, parameters, gradients, d_branch_TD);
  kernels::norm_backward(compute_, {.shape = shape_.norm_shape(),
                                    .residual = kept.middle_TD,
                                    .mean = kept.norm2.mean_T,
                                    .rstd = kept.norm2.rstd_T,
                                    .weight = parameters.norm2.weight,
                                    .dy = d_normed_TD,
                                    .d_residual_out = d_residual_TD,
                                    .branch_dropout = dropout(pass, attention_branch_site(block)),
                                    .d_residual_in = d_residual_TD,
                                    .d_branch = masked ? d_branch_TD : Tensor{},
                                    .dweight = gradients.norm2.weight,
                                    .dbias = gradients.norm2.bias,
                                    .workspace = activations_.workspace});
  attention_backward(block, parameters, gradients, d_branch_TD, pass);
  kernels::norm_backward(compute_, {.shape = shape_.norm_shape(),
                                    .residual = kept.x_TD,
                                    .mean = kept.norm1.mean_T,
                                    .rstd = kept.norm1.rstd_T,
                                    .weight = parameters.norm1.weight,
                                    .dy = d_normed_TD,
                                    .d_residual_out = d_residual_TD,
                                    .branch_dropout = {},
                                    .d_residual_in = d_residual_TD,
                                    .d_branch = {},
                                    .dweight = gradients.norm1.weight,
                                    .dbias = gradients.norm1.bias,
                                    .workspace = activations_.workspace});
}

// From the gradient of the MLP's branch to that of norm2's output, left in branch_TD.
void Transformer::mlp_backward(std::int64_t block, const BlockParameters& parameters,
                               const BlockParameters& gradients, const Tensor& d_branch_TD) {
  const BlockTensors kept = activations_.block(block, shape_);
  if (shape_.recompute == Recompute::kSelective) {
    normalise(parameters.norm2, kept.middle_TD, kept.norm2);
    kernels::activation_forward(compute_,
                                {shape_.activation_shape(), kept.up_TU, kept.activated_TF});
  }
  const Tensor d_up_TU = activations_.d_wide.tensor().part(0, shape_.tokens() * shape_.up_width());
  if (shape_.gated()) {
    const Tensor d_activated_TF =
        activations_.d_narrow.tensor().part(0, shape_.tokens() * shape_.ffn_width);
    project_backward(parameters.down, gradients.down, kept.activated_TF, d_branch_TD,
                     shape_.ffn_width, shape_.width, d_activated_TF);
    kernels::activation_backward(compute_,
                                 {shape_.activation_shape(), kept.up_TU, d_activated_TF, d_up_TU});
  } else {
    project_backward(parameters.down, gradients.down, kept.activated_TF, d_branch_TD,
                     shape_.ffn_width, shape_.width, d_up_TU, kept.up_TU);
  }
  project_backward(parameters.up, gradients.up, kept.norm2.normed_TD, d_up_TU, shape_.width,
                   shape_.up_width(), activations_.branch_TD);
}

// From the gradient of the attention's branch to that of norm1's output, left in branch_TD.
void Transformer::attention_backward(std::int64_t block, const BlockParameters& parameters,
                                     const BlockParameters& gradients, const Tensor& d_branch_TD,
                                     const Pass& pass) {
  const BlockTensors kept = activations_.block(block, shape_);
  const std::int64_t heads_width = shape_.query_heads * shape_.head_width();
  const Tensor d_attended_TD =
      activations_.d_narrow.tensor().part(0, shape_.tokens() * heads_width);
  const Tensor d_qkv_TE =
      activations_.d_wide.tensor().part(0, shape_.tokens() * shape_.qkv_width());
  if (shape_.recompute == Recompute::kSelective) {
    normalise(parameters.norm1, kept.x_TD, kept.norm1);
  }
  project_backward(parameters.attention_output, gradients.attention_output, kept.attended_TD,
                   d_branch_TD, heads_width, shape_.width, d_attended_TD);
  kernels::attention_backward(compute_, {.shape = shape_.attention(),
                                         .qkv = kept.qkv_TE,
                                         .out = kept.attended_TD,
                                         .lse = kept.lse_BHS,
                                         .dout = d_attended_TD,
                                         .dropout = attention_dropout(pass, attention_site(block)),
                                         .dqkv = d_qkv_TE,
                                         .workspace = activations_.workspace});
  if (shape_.positions == Positions::kRope) {
    kernels::rotary(compute_, rotary_of(shape_, activations_.rotary_SK.tensor(), d_qkv_TE, true));
  }
  project_backward(parameters.qkv, gradients.qkv, kept.norm1.normed_TD, d_qkv_TE, shape_.width,
                   shape_.qkv_width(), activations_.branch_TD);
}

}  // namespace sherd::model
