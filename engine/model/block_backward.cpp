// The backward of one block.

#include "engine/model/adapter.h"
#include "engine/model/block.h"
#include "engine/model/cut/sums.h"
#include "engine/model/rng_sites.h"
#include "kernels/norm.h"
#include "kernels/pointwise.h"

namespace sherd::model {

void Block::input_gradient(std::int64_t block, const BlockParameters& parameters,
                           const Pass& pass) {
  c_.puts_off = &c_.waiting_of(block);
  BlockParameters norms;
  for (std::size_t site = 0; site < kNumSites; ++site) {
    if (c_.puts_off->norm_weight.values[site]) {
      norms.values[site].weight = c_.puts_off->norm_weight.values[site].tensor();
    }
    if (c_.puts_off->norm_bias.values[site]) {
      norms.values[site].bias = c_.puts_off->norm_bias.values[site].tensor();
    }
  }
  backward(block, parameters, norms, pass);
  c_.puts_off = nullptr;
}

void Block::weight_gradient(std::int64_t block, const BlockParameters& parameters,
                            const BlockParameters& gradients) {
  if (shape_.has_experts(block)) {
    mixture_.compute_again(block, parameters);
    mixture_.weight_gradients(block, parameters, gradients);
  } else if (shape_.has_mlp(block)) {
    mlp_.compute_again(block, parameters);
    mlp_.weight_gradients(block, gradients);
  }
  attention_.weight_gradients(block, parameters, gradients);
  const WaitingBuffers& waiting = c_.waiting_of(block);
  for (std::size_t site = 0; site < kNumSites; ++site) {
    const auto move = [&](const Buffer& from, const Tensor& to) {
      if (from && to) compute_.copy(from.tensor().data, to.data, to.bytes());
    };
    move(waiting.norm_weight.values[site], gradients.values[site].weight);
    move(waiting.norm_bias.values[site], gradients.values[site].bias);
  }
}

void Block::backward(std::int64_t block, const BlockParameters& parameters,
                     const BlockParameters& gradients, const Pass& pass) {
  // The last block's activations are still there from the forward.
  if (shape_.recompute == Recompute::kFull && filled_block_ != block) {
    fill(block, parameters, pass, true);
  }
  filled_block_ = -1;
  activations_.adapters.begin(shape_, block, pass);
  const BackwardReach& reach = reaches_[static_cast<std::size_t>(block)];
  const kernels::Dropout mask = branch_dropout(pass, attention_branch_site(block));
  if (shape_.has_mlp(block)) {
    branch_gradient(branch_dropout(pass, mlp_branch_site(block)));
    const bool experts = shape_.has_experts(block);
    experts ? mixture_.compute_again(block, parameters) : mlp_.compute_again(block, parameters);
    const SiteId norm = SiteId::kMlpNorm;
    const Tensor d_out_TD =
        projection_gradient(c_.kept_of(block)[norm], parameters[norm], gradients[norm]);
    const Tensor d_read_TD = reach.attention ? c_.sums->d_read_TD() : Tensor{};
    if (experts) {
      mixture_.backward(block, parameters, gradients, pass, d_out_TD, d_read_TD);
    } else {
      mlp_.backward(block, parameters, gradients, d_out_TD, d_read_TD);
    }
  }
  if (!reach.attention) return;
  if (!shape_.has_mlp(block)) {
    branch_gradient(mask);
  } else if (shape_.parallel()) {
    branch_gradient(mask);  // while d_residual_TD is still that of the block's output
    if (shape_.block_form == BlockForm::kParallel) {
      leave_branch(block, SiteId::kNorm2, parameters, gradients, nullptr);
    }
  } else {
    leave_branch(block, SiteId::kNorm2, parameters, gradients, &mask);
  }
  const SiteId norm = SiteId::kAttentionNorm;
  attention_.backward(
      block, parameters, gradients, pass,
      projection_gradient(c_.kept_of(block)[norm], parameters[norm], gradients[norm]),
      reach.input ? c_.sums->d_read_TD() : Tensor{});
  if (reach.input) leave_branch(block, SiteId::kNorm1, parameters, gradients, nullptr);
}

// The gradient of a branch where it joins the residual stream.
void Block::branch_gradient(const kernels::Dropout& mask) {
  if (!shape_.branch_gradients_differ()) return;
  kernels::dropout_backward(compute_, activations_.d_residual_TD, mask, activations_.d_branch_TD,
                            static_cast<float>(shape_.residual_scale));
}

// Adds the gradient of what a branch read to the residual stream's, through the branch's norm if it
// has one. `next`: then comes the gradient of the branch before, after this mask.
void Block::leave_branch(std::int64_t block, SiteId norm, const BlockParameters& parameters,
                         const BlockParameters& gradients, const kernels::Dropout* next) {
  const BlockTensors kept = c_.kept_of(block);
  const Tensor& d_residual_TD = activations_.d_residual_TD.tensor();
  c_.sums->finish_read_gradient();
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

// From a branch's gradient to that of its last projection's output, through the norm after it.
Tensor Block::projection_gradient(const SiteTensors& site, const Affine& parameters,
                                  const Affine& gradients) {
  constexpr const char* kWhat = "gradient of a branch";
  if (!shape_.norm_after()) return all_rows(kWhat, d_branch_TD());
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

}  // namespace sherd::model
