// The backward of one block; the forward is in block_forward.cpp, the backward of attention in
// block_attention_backward.cpp.
//
// d_residual_TD is the gradient of the residual stream: of the block's output at first, of its input
// in the end. branch_TD holds the gradient of what a branch read.

#include "engine/model/rng_sites.h"
#include "engine/model/transformer.h"
#include "kernels/activation.h"
#include "kernels/linear.h"
#include "kernels/norm.h"
#include "kernels/pointwise.h"

namespace sherd::model {

void Transformer::project_backward(const Affine& parameters, const Affine& gradients,
                                   const InputGradient& args, const Buffer WaitingBuffers::*waits) {
  const kernels::LinearShape matmul{shape_.tokens(), args.inputs, args.outputs};
  if (puts_off_ != nullptr) {
    const Tensor kept = (puts_off_->*waits).tensor();
    if (kept.data != args.dy.data) compute_.copy(args.dy.data, kept.data, args.dy.bytes());
  } else if (gradients.weight) {  // not frozen
    weight_gradient(gradients, args.x, args.inputs, args.dy, args.outputs);
  }
  const auto backward_of_adapters = [&](const AdapterProducts::Parts& parts) {
    activations_.adapters.backward(compute_, parameters, gradients, args.x, args.dy, args.dx,
                                   activations_.workspace, parts);
  };
  const bool shares = args.dy_of_copies && !shape_.part.has_canonical_sums();
  const bool overwrites_x = args.x.data == args.dx.data;  // the place of all ranks' rows
  if (shares || overwrites_x) backward_of_adapters({.b = true, .a = false, .input = false});
  if (shares) leave_own_share(args.dy_of_copies);
  if (overwrites_x) backward_of_adapters({.b = false, .a = true, .input = false});
  if (args.dx && !args.fused.empty()) {
    sum_input_gradient(parameters.weight, args);
  } else if (args.dx) {
    kernels::linear_backward_input(compute_, {matmul, args.dy, parameters.weight, args.dx, args.add,
                                              activations_.workspace, args.gelu_input});
  }
  backward_of_adapters({.b = !shares && !overwrites_x, .a = !overwrites_x, .input = true});
  add_up_adapters(gradients);
}

// The kernels of norms always write gradients.
Affine Transformer::norm_gradients(const Affine& parameters, const Affine& gradients) const {
  if (gradients.weight || !parameters.weight) return gradients;
  // The bias's place is the weight's: neither is read.
  const Tensor discarded = activations_.adapters.discarded(parameters.weight.numel);
  return {discarded, parameters.bias ? discarded : Tensor{}};
}

void Transformer::block_backward(std::int64_t block, const BlockParameters& parameters,
                                 const BlockParameters& gradients, const Pass& pass) {
  backward_of_block(block, parameters, gradients, pass);
}

const WaitingBuffers& Transformer::waiting_of(std::int64_t block) const {
  return activations_.waiting[static_cast<std::size_t>(waiting_[static_cast<std::size_t>(block)])];
}

void Transformer::block_input_gradient(std::int64_t block, const BlockParameters& parameters,
                                       const Pass& pass) {
  puts_off_ = &waiting_of(block);
  BlockParameters norms;
  for (std::size_t site = 0; site < kNumSites; ++site) {
    if (puts_off_->norm_weight.values[site]) {
      norms.values[site].weight = puts_off_->norm_weight.values[site].tensor();
    }
    if (puts_off_->norm_bias.values[site]) {
      norms.values[site].bias = puts_off_->norm_bias.values[site].tensor();
    }
  }
  backward_of_block(block, parameters, norms, pass);
  puts_off_ = nullptr;
}

void Transformer::block_weight_gradient(std::int64_t block, const BlockParameters& parameters,
                                        const BlockParameters& gradients) {
  const WaitingBuffers& waiting = waiting_of(block);
  const BlockTensors kept = kept_of(block);
  const bool selective = shape_.recompute == Recompute::kSelective;
  const Tensor& activated_TF = kept[SiteId::kActivation].output;
  if (selective) {
    compute_mlp_input_again(kept, parameters);
    kernels::activation_forward(
        compute_, {shape_.activation_shape(), kept[SiteId::kUp].output, activated_TF});
  }
  const auto waited = [&](const Buffer& dy, std::int64_t outputs) {
    return rows(dy, shape_.tokens(), outputs);
  };
  weight_gradient(gradients[SiteId::kDown], activated_TF, shape_.ffn_width,
                  waited(waiting.d_down, shape_.width), shape_.width);
  weight_gradient(gradients[SiteId::kUp], read_again(mlp_input(kept)), shape_.width,
                  waited(waiting.d_up, shape_.up_width()), shape_.up_width());
  if (selective && shape_.norm_before()) {
    normalise(parameters[SiteId::kNorm1], kept.x_TD, kept[SiteId::kNorm1],
              kept[SiteId::kNorm1].output);
  }
  weight_gradient(gradients[SiteId::kAttentionOutput], kept[SiteId::kAttention].output,
                  shape_.heads_width(), waited(waiting.d_attention_output, shape_.width),
                  shape_.width);
  weight_gradient(gradients[SiteId::kQkv], read_again(attention_input(kept)), shape_.width,
                  waited(waiting.d_qkv, shape_.qkv_width()), shape_.qkv_width());
  for (std::size_t site = 0; site < kNumSites; ++site) {
    const auto move = [&](const Buffer& from, const Tensor& to) {
      if (from) compute_.copy(from.tensor().data, to.data, to.bytes());
    };
    move(waiting.norm_weight.values[site], gradients.values[site].weight);
    move(waiting.norm_bias.values[site], gradients.values[site].bias);
  }
}

void Transformer::backward_of_block(std::int64_t block, const BlockParameters& parameters,
                                    const BlockParameters& gradients, const Pass& pass) {
  // The last block's activations are still there from the forward.
  if (shape_.recompute == Recompute::kFull && filled_block_ != block) {
    fill_block(block, parameters, pass);
  }
  filled_block_ = -1;
  activations_.adapters.begin(shape_, block, pass);
  const BackwardReach reach = backward_reach(shape_, block);
  const kernels::Dropout mask = branch_dropout(pass, attention_branch_site(block));
  branch_gradient(branch_dropout(pass, mlp_branch_site(block)));
  mlp_backward(block, parameters, gradients, reach);
  if (!reach.attention) return;
  if (shape_.parallel()) {
    branch_gradient(mask);  // while d_residual_TD is still that of the block's output
    if (shape_.block_form == BlockForm::kParallel) {
      leave_branch(block, SiteId::kNorm2, parameters, gradients, nullptr);
    }
  } else {
    leave_branch(block, SiteId::kNorm2, parameters, gradients, &mask);
  }
  attention_backward(block, parameters, gradients, pass, reach);
  if (reach.input) leave_branch(block, SiteId::kNorm1, parameters, gradients, nullptr);
}

Tensor Transformer::d_branch_TD() const {
  if (!shape_.branch_gradients_differ()) return residual_gradient();
  return rows(activations_.d_branch_TD, shape_.residual_tokens(), shape_.width);
}

// The gradient of a branch where it joins the residual stream.
void Transformer::branch_gradient(const kernels::Dropout& mask) {
  if (!shape_.branch_gradients_differ()) return;
  kernels::dropout_backward(compute_, activations_.d_residual_TD, mask, activations_.d_branch_TD,
                            static_cast<float>(shape_.residual_scale));
}

// Adds the gradient of what a branch read to the residual stream's, through the branch's norm if it
// has one. `next`: then comes the gradient of the branch before, behind this mask.
void Transformer::leave_branch(std::int64_t block, SiteId norm, const BlockParameters& parameters,
                               const BlockParameters& gradients, const kernels::Dropout* next) {
  const BlockTensors kept = kept_of(block);
  const Tensor& d_residual_TD = activations_.d_residual_TD.tensor();
  if (!shape_.part.has_canonical_sums()) {
    add_up_rows("gradient of what a branch read", d_read_TD(), branch_TD());
  }
  if (!shape_.norm_before()) {
    kernels::add(compute_, branch_TD(), d_residual_TD);
    if (next != nullptr) branch_gradient(*next);
    return;
  }
  const bool is_middle = norm == SiteId::kNorm2 && !shape_.parallel();
  const bool wants_next = next != nullptr && shape_.branch_gradients_differ();
  const Affine norm_gradients = this->norm_gradients(parameters[norm], gradients[norm]);
  kernels::norm_backward(compute_,
                         {.shape = shape_.norm_shape(),
                          .residual = is_middle ? kept[SiteId::kMiddle].output : kept.x_TD,
                          .mean = kept[norm].mean,
                          .rstd = kept[norm].statistic,
                          .weight = parameters[norm].weight,
                          .dy = branch_TD(),
                          .d_residual_out = d_residual_TD,
                          .branch_dropout = wants_next ? *next : kernels::Dropout{},
                          .d_residual_in = d_residual_TD,
                          .d_branch = wants_next ? activations_.d_branch_TD.tensor() : Tensor{},
                          .dweight = norm_gradients.weight,
                          .dbias = norm_gradients.bias,
                          .workspace = activations_.workspace,
                          .branch_scale = static_cast<float>(shape_.residual_scale)});
  add_up_norm(gradients[norm]);
}

// What a branch read, where its weight gradient is formed now.
ConstTensor Transformer::read_again(const Tensor& input_TD) {
  return puts_off_ == nullptr ? all_rows("what a branch read", input_TD) : input_TD;
}

// From a branch's gradient to that of its last projection's output, through the norm behind it.
Tensor Transformer::projection_gradient(const SiteTensors& site, const Affine& parameters,
                                        const Affine& gradients) {
  constexpr const char* kWhat = "gradient of a branch";
  if (!shape_.norm_behind()) return all_rows(kWhat, d_branch_TD());
  const Affine norm_gradients = this->norm_gradients(parameters, gradients);
  kernels::norm_backward(compute_, {.shape = shape_.norm_shape(),
                                    .residual = site.output,
                                    .mean = site.mean,
                                    .rstd = site.statistic,
                                    .weight = parameters.weight,
                                    .dy = d_branch_TD(),
                                    .d_residual_out = {},
                                    .branch_dropout = {},
                                    .d_residual_in = branch_TD(),
                                    .d_branch = {},
                                    .dweight = norm_gradients.weight,
                                    .dbias = norm_gradients.bias,
                                    .workspace = activations_.workspace});
  add_up_norm(gradients);
  return all_rows(kWhat, branch_TD());
}

void Transformer::mlp_backward(std::int64_t block, const BlockParameters& parameters,
                               const BlockParameters& gradients, const BackwardReach& reach) {
  const BlockTensors kept = kept_of(block);
  const Tensor& up_TU = kept[SiteId::kUp].output;
  const Tensor& activated_TF = kept[SiteId::kActivation].output;
  if (shape_.recompute == Recompute::kSelective) {
    compute_mlp_input_again(kept, parameters);
    kernels::activation_forward(compute_, {shape_.activation_shape(), up_TU, activated_TF});
  }
  const Tensor d_out_TD = projection_gradient(kept[SiteId::kMlpNorm], parameters[SiteId::kMlpNorm],
                                              gradients[SiteId::kMlpNorm]);
  const std::int64_t tokens = shape_.tokens();
  const Tensor d_up_TU =
      rows(puts_off_ ? puts_off_->d_up : activations_.d_wide, tokens, shape_.up_width());
  InputGradient down{activated_TF, d_out_TD, shape_.ffn_width, shape_.width, d_up_TU};
  if (shape_.activation == kernels::ActivationKind::kGelu &&
      parameters[SiteId::kDown].adapters.empty()) {
    down.gelu_input = up_TU;
    project_backward(parameters[SiteId::kDown], gradients[SiteId::kDown], down,
                     &WaitingBuffers::d_down);
  } else {
    down.dx = activations_.d_narrow.tensor().part(0, tokens * shape_.ffn_width);
    project_backward(parameters[SiteId::kDown], gradients[SiteId::kDown], down,
                     &WaitingBuffers::d_down);
    kernels::activation_backward(compute_, {shape_.activation_shape(), up_TU, down.dx, d_up_TU});
  }
  InputGradient up{read_again(mlp_input(kept)), d_up_TU, shape_.width, shape_.up_width(),
                   reach.attention ? d_read_TD() : Tensor{}};
  if (shape_.part.has_canonical_sums()) up.fused = up_columns();
  project_backward(parameters[SiteId::kUp], gradients[SiteId::kUp], up, &WaitingBuffers::d_up);
}

void Transformer::compute_mlp_input_again(const BlockTensors& kept,
                                          const BlockParameters& parameters) {
  if (!shape_.norm_before()) return;
  const SiteId norm =
      shape_.block_form == BlockForm::kParallelOneNorm ? SiteId::kNorm1 : SiteId::kNorm2;
  const Tensor& read_TD = shape_.parallel() ? kept.x_TD : kept[SiteId::kMiddle].output;
  normalise(parameters[norm], read_TD, kept[norm], kept[norm].output);
}

}  // namespace sherd::model
