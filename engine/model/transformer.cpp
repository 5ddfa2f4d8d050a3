// Both ends of the model: embedding, final norm, head and loss. Blocks are in block_*.cpp.

#include "engine/model/transformer.h"

#include <algorithm>

#include "core/thread_team.h"
#include "engine/model/rng_sites.h"
#include "kernels/linear.h"
#include "kernels/norm.h"
#include "kernels/rotary.h"
#include "kernels/token.h"

namespace sherd::model {

Transformer::Transformer(const ModelShape& shape, Allocator& memory, Stream& compute)
    : shape_(shape),
      planned_sequences_(shape.sequences),
      planned_seq_length_(shape.seq_length),
      compute_(compute),
      activations_(shape, kernels::compute_device(compute),
                   [&](const BufferSpec& spec) { return memory.acquire(spec); }) {
  for (std::size_t i = 0; i < shape_.num_rotary_tables(); ++i) {
    kernels::rotary_table(compute_, activations_.rotary_SK[i], shape_.table_positions(),
                          shape_.head_width(), shape_.rotary[i]);
  }
}

void Transformer::resize(std::int64_t sequences, std::int64_t seq_length) {
  CHECK(sequences <= planned_sequences_ && seq_length <= planned_seq_length_,
        "{} sequences of {} tokens, planned for {} of {}", sequences, seq_length,
        planned_sequences_, planned_seq_length_);
  shape_.sequences = sequences;
  shape_.seq_length = seq_length;
}

kernels::Dropout Transformer::dropout(const Pass& pass, std::uint32_t site) const {
  kernels::Dropout dropout;
  if (!pass.training) return dropout;
  dropout.probability = static_cast<float>(shape_.dropout);
  dropout.address = {pass.seed, pass.step, site};
  dropout.first_element = pass.first_row * shape_.seq_length * shape_.width;
  return dropout;
}

kernels::Dropout Transformer::attention_dropout(const Pass& pass, std::uint32_t site) const {
  kernels::Dropout dropout = this->dropout(pass, site);
  dropout.first_element =
      pass.first_row * shape_.query_heads * shape_.seq_length * shape_.seq_length;
  return dropout;
}

void Transformer::embed(const EmbeddingParameters& parameters, const Pass& pass) {
  Tensor position_weight = parameters.position_weight;
  if (position_weight) {
    const std::int64_t before = pass.first_position * shape_.width;
    position_weight = position_weight.part(before, position_weight.numel - before);
  }
  kernels::embedding_forward(compute_,
                             {.sequences = shape_.sequences,
                              .positions = shape_.seq_length,
                              .width = shape_.width,
                              .vocab_size = shape_.vocab_size,
                              .tokens = pass.inputs,
                              .token_weight = parameters.token_weight,
                              .position_weight = position_weight,
                              .dropout = dropout(pass, embedding_site()),
                              .y = rows(activations_.residual_TD[0], shape_.tokens(), shape_.width),
                              .scale = static_cast<float>(shape_.embedding_scale),
                              .documents = pass.documents});
}

void Transformer::embed_backward(const EmbeddingParameters& gradients, const Pass& pass) {
  kernels::embedding_backward(compute_, {.sequences = shape_.sequences,
                                         .positions = shape_.seq_length,
                                         .width = shape_.width,
                                         .vocab_size = shape_.vocab_size,
                                         .position_rows = shape_.max_positions,
                                         .tokens = pass.inputs,
                                         .dy = activations_.d_residual_TD,
                                         .dropout = dropout(pass, embedding_site()),
                                         .d_token_weight = gradients.token_weight,
                                         .d_position_weight = gradients.position_weight,
                                         .add_to_token_gradient = shape_.tied,
                                         .workspace = activations_.workspace,
                                         .scale = static_cast<float>(shape_.embedding_scale),
                                         .documents = pass.documents});
}

void Transformer::final_norm(const HeadParameters& parameters) {
  const SiteTensors site = activations_.final_norm(shape_);
  normalise(parameters.final_norm,
            rows(activations_.residual_TD.back(), shape_.tokens(), shape_.width), site,
            site.output);
}

void Transformer::head_evaluate(const HeadParameters& parameters, const Pass& pass) {
  final_norm(parameters);
  const Tensor& normed_TD = activations_.final_norm_buffers.output.tensor();
  for (std::int64_t first = 0; first < shape_.tokens(); first += activations_.chunk_tokens) {
    const std::int64_t tokens = std::min(activations_.chunk_tokens, shape_.tokens() - first);
    const Tensor logits_CV = activations_.logits_CV.tensor().part(0, tokens * shape_.vocab_size);
    kernels::linear_forward(compute_, {{tokens, shape_.width, shape_.vocab_size},
                                       normed_TD.part(first * shape_.width, tokens * shape_.width),
                                       parameters.weight,
                                       {},
                                       logits_CV,
                                       activations_.workspace});
    kernels::cross_entropy(compute_, {.tokens = tokens,
                                      .vocab_size = shape_.vocab_size,
                                      .logits = logits_CV,
                                      .targets = pass.targets.part(first, tokens),
                                      .losses = losses().part(first, tokens),
                                      .gradient = false,
                                      .form = shape_.logits_form()});
  }
}

void Transformer::head_train(const HeadParameters& parameters, const HeadParameters& gradients,
                             const Pass& pass) {
  final_norm(parameters);
  const Tensor& normed_TD = activations_.final_norm_buffers.output.tensor();
  for (std::int64_t first = 0; first < shape_.tokens(); first += activations_.chunk_tokens) {
    const std::int64_t tokens = std::min(activations_.chunk_tokens, shape_.tokens() - first);
    const kernels::LinearShape matmul{tokens, shape_.width, shape_.vocab_size};
    const Tensor logits_CV = activations_.logits_CV.tensor().part(0, tokens * shape_.vocab_size);
    const Tensor normed_CD = normed_TD.part(first * shape_.width, tokens * shape_.width);
    kernels::linear_forward(
        compute_, {matmul, normed_CD, parameters.weight, {}, logits_CV, activations_.workspace});
    kernels::cross_entropy(compute_, {.tokens = tokens,
                                      .vocab_size = shape_.vocab_size,
                                      .logits = logits_CV,
                                      .targets = pass.targets.part(first, tokens),
                                      .losses = losses().part(first, tokens),
                                      .gradient = true,
                                      .grad_scale = pass.gradient_scale,
                                      .form = shape_.logits_form()});
    if (gradients.weight) {  // not frozen
      kernels::linear_backward_weight(compute_, {.shape = matmul,
                                                 .dy = logits_CV,
                                                 .x = normed_CD,
                                                 .dw = gradients.weight,
                                                 .dbias = {},
                                                 .add_to_output = first > 0,
                                                 .workspace = activations_.workspace});
    }
    // The chunk of norm outputs has been used up: its gradient takes its place.
    kernels::linear_backward_input(
        compute_, {matmul, logits_CV, parameters.weight, normed_CD, false, activations_.workspace});
  }
  const SiteTensors site = activations_.final_norm(shape_);
  const Affine final_norm = norm_gradients(parameters.final_norm, gradients.final_norm);
  kernels::norm_backward(compute_, {.shape = shape_.norm_shape(),
                                    .residual = activations_.residual_TD.back().tensor(),
                                    .mean = site.mean,
                                    .rstd = site.statistic,
                                    .weight = parameters.final_norm.weight,
                                    .dy = normed_TD,
                                    .d_residual_out = {},
                                    .branch_dropout = {},
                                    .d_residual_in = activations_.d_residual_TD,
                                    .d_branch = {},
                                    .dweight = final_norm.weight,
                                    .dbias = final_norm.bias,
                                    .workspace = activations_.workspace});
}

Tensor Transformer::logits(const HeadParameters& parameters, std::int64_t first,
                           std::int64_t count) {
  final_norm(parameters);
  const Tensor logits_CV = activations_.logits_CV.tensor().part(0, count * shape_.vocab_size);
  kernels::linear_forward(compute_, {{count, shape_.width, shape_.vocab_size},
                                     activations_.final_norm_buffers.output.tensor().part(
                                         first * shape_.width, count * shape_.width),
                                     parameters.weight,
                                     {},
                                     logits_CV,
                                     activations_.workspace});
  kernels::shape_logits(compute_, shape_.logits_form(), logits_CV);
  return logits_CV;
}

}  // namespace sherd::model
