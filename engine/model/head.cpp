#include "engine/model/head.h"

#include <algorithm>

#include "engine/model/cut/sums.h"
#include "engine/model/cut/tensor_shares.h"
#include "kernels/norm.h"
#include "kernels/token.h"

namespace sherd::model {

Tensor Head::final_norm(const HeadParameters& parameters) {
  const SiteTensors site = activations_.final_norm(shape_);
  normalise(parameters.final_norm, c_.residual_TD(shape_.num_layers), site, site.output);
  return all_rows("what the head reads", site.output);
}

void Head::evaluate(const HeadParameters& parameters, const Pass& pass) {
  const Tensor normed_TD = final_norm(parameters);
  for (std::int64_t first = 0; first < shape_.tokens(); first += activations_.chunk_tokens) {
    const std::int64_t tokens = std::min(activations_.chunk_tokens, shape_.tokens() - first);
    const Tensor logits_CV = activations_.logits_CV.tensor().part(0, tokens * shape_.vocab_size);
    head_product(parameters, normed_TD.part(first * shape_.width, tokens * shape_.width), tokens,
                 logits_CV);
    c_.shares->chunk_losses(pass, first, tokens, logits_CV, false);
  }
}

void Head::train(const HeadParameters& parameters, const HeadParameters& gradients,
                 const Pass& pass) {
  const Tensor normed_TD = final_norm(parameters);
  c_.sums->train_head(parameters, gradients, pass, normed_TD);
  c_.sums->finish_head_gradient(normed_TD, activations_.final_norm(shape_).output);
  for (std::int64_t i = 0; i < shape_.mtp_layers; ++i) {
    const auto index = static_cast<std::size_t>(i);
    Pass ahead = pass;
    ahead.targets = pass.ahead[index].targets;
    ahead.gradient_scale = pass.ahead[index].gradient_scale;
    ahead.losses = further_losses(i);
    HeadParameters to = gradients;
    to.adds = true;
    c_.sums->train_head(
        parameters, to, ahead,
        rows(activations_.predictions[index].output, shape_.tokens(), shape_.width));
  }
  if (shape_.mtp_layers == 0) finish_train(parameters, gradients);
}

Tensor Head::further_losses(std::int64_t index) const {
  return activations_.further_losses_T.tensor().part(index * shape_.tokens(), shape_.tokens());
}

void Head::finish_train(const HeadParameters& parameters, const HeadParameters& gradients) {
  const SiteTensors site = activations_.final_norm(shape_);
  const Affine final_norm = norm_gradients(parameters.final_norm, gradients.final_norm);
  kernels::norm_backward(compute_, {.shape = shape_.norm_shape(),
                                    .residual = c_.residual_TD(shape_.num_layers),
                                    .mean = site.mean,
                                    .rstd = site.statistic,
                                    .weight = parameters.final_norm.weight,
                                    .dy = site.output,
                                    .d_residual_out = {},
                                    .branch_dropout = {},
                                    .d_residual_in = activations_.d_residual_TD,
                                    .d_branch = {},
                                    .dweight = final_norm.weight,
                                    .dbias = final_norm.bias,
                                    .workspace = activations_.workspace});
  add_up_norm(gradients.final_norm);
}

Tensor Head::logits(const HeadParameters& parameters, std::int64_t first, std::int64_t count) {
  const Tensor normed_TD = final_norm(parameters);
  const Tensor logits_CV = activations_.logits_CV.tensor().part(0, count * shape_.vocab_size);
  head_product(parameters, normed_TD.part(first * shape_.width, count * shape_.width), count,
               logits_CV);
  kernels::shape_logits(compute_, shape_.logits_form(), logits_CV);
  return logits_CV;
}

}  // namespace sherd::model
