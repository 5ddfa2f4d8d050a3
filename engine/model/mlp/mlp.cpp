#include "engine/model/mlp/mlp.h"

#include "engine/model/cut/sums.h"
#include "engine/model/cut/tensor_shares.h"
#include "kernels/activation.h"
#include "kernels/linear.h"

namespace sherd::model {

const Tensor& Mlp::input(const BlockTensors& kept) const {
  if (!shape_.norm_before()) return kept[SiteId::kMiddle].output;
  const bool shares = shape_.block_form == BlockForm::kParallelOneNorm;
  return kept[shares ? SiteId::kNorm1 : SiteId::kNorm2].output;
}

Tensor Mlp::read(const BlockTensors& kept) {
  if (is_gathered()) return rows(*gathered_, shape_.tokens(), shape_.width);
  // Of a norm that both branches read, the rows are still there.
  return shape_.block_form == BlockForm::kParallelOneNorm
             ? all_rows_place(input(kept))
             : all_rows("what a branch reads", input(kept));
}

ConstTensor Mlp::read_once_more(const BlockTensors& kept) {
  if (is_gathered()) return rows(*gathered_, shape_.tokens(), shape_.width);
  return read_again(input(kept));
}

void Mlp::forward(std::int64_t block, const BlockParameters& parameters) {
  const BlockTensors kept = c_.kept_of(block);
  const Affine& up = parameters[SiteId::kUp];
  const Tensor read_TD = read(kept);
  const Tensor& up_TU = kept[SiteId::kUp].output;
  const Tensor& activated_TF = kept[SiteId::kActivation].output;
  if (shape_.activated_in_matmul()) {
    kernels::linear_forward(compute_,
                            {.shape = {shape_.tokens(), shape_.width, shape_.up_width(block)},
                             .x = read_TD,
                             .w = up.weight,
                             .bias = up.bias,
                             .y = activated_TF,
                             .workspace = activations_.workspace,
                             .gelu_input = up_TU,
                             .interleaved = c_.interleaved});
    return;
  }
  project(up, read_TD, shape_.width, shape_.up_width(block), up_TU);
  kernels::activation_forward(compute_, {shape_.activation_shape(block), up_TU, activated_TF});
}

void Mlp::compute_again(std::int64_t block, const BlockParameters& parameters) {
  if (shape_.recompute != Recompute::kSelective) return;
  const BlockTensors kept = c_.kept_of(block);
  if (shape_.norm_before()) {
    const SiteId norm =
        shape_.block_form == BlockForm::kParallelOneNorm ? SiteId::kNorm1 : SiteId::kNorm2;
    const Tensor& read_TD = shape_.parallel() ? kept.x_TD : kept[SiteId::kMiddle].output;
    normalise(parameters[norm], read_TD, kept[norm], kept[norm].output);
  }
  if (shape_.ffn_width_of(block) == 0) return;  // of experts without a shared one
  kernels::activation_forward(compute_, {shape_.activation_shape(block), kept[SiteId::kUp].output,
                                         kept[SiteId::kActivation].output});
}

void Mlp::backward(std::int64_t block, const BlockParameters& parameters,
                   const BlockParameters& gradients, const Tensor& d_out_TD,
                   const Tensor& d_read_TD) {
  const BlockTensors kept = c_.kept_of(block);
  const Tensor& up_TU = kept[SiteId::kUp].output;
  const Tensor& activated_TF = kept[SiteId::kActivation].output;
  const std::int64_t ffn_width = shape_.ffn_width_of(block), up_width = shape_.up_width(block);
  const Buffer& place = c_.puts_off != nullptr ? c_.puts_off->d_up : activations_.d_wide;
  const Tensor d_up_TU = rows(place, shape_.tokens(), up_width);
  InputGradient down{activated_TF, d_out_TD, ffn_width, shape_.width, d_up_TU};
  const bool in_matmul = shape_.activation == kernels::ActivationKind::kGelu &&
                         parameters[SiteId::kDown].adapters.empty();
  if (in_matmul) {
    down.gelu_input = up_TU;
  } else {
    down.dx = rows(activations_.d_narrow, shape_.tokens(), ffn_width);
  }
  project_backward(parameters[SiteId::kDown], gradients[SiteId::kDown], down,
                   &WaitingBuffers::d_down);
  if (!in_matmul) {
    kernels::activation_backward(compute_,
                                 {shape_.activation_shape(block), up_TU, down.dx, d_up_TU});
  }
  InputGradient up{read_once_more(kept), d_up_TU, shape_.width, up_width, d_read_TD};
  up.fused = c_.shares->up_columns(block);
  project_backward(parameters[SiteId::kUp], gradients[SiteId::kUp], up, &WaitingBuffers::d_up);
}

void Mlp::weight_gradients(std::int64_t block, const BlockParameters& gradients) {
  const WaitingBuffers& waiting = c_.waiting_of(block);
  const BlockTensors kept = c_.kept_of(block);
  const std::int64_t up_width = shape_.up_width(block);
  c_.sums->weight_gradient(gradients[SiteId::kDown], kept[SiteId::kActivation].output,
                           shape_.ffn_width_of(block),
                           rows(waiting.d_down, shape_.tokens(), shape_.width), shape_.width);
  c_.sums->weight_gradient(gradients[SiteId::kUp], read_once_more(kept), shape_.width,
                           rows(waiting.d_up, shape_.tokens(), up_width), up_width);
}

}  // namespace sherd::model
