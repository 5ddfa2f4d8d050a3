// Both ends of the model: embedding, final norm, head and loss. Blocks are in block_*.cpp.

#include "engine/model/transformer.h"

#include <algorithm>
#include <numeric>

#include "core/thread_team.h"
#include "engine/model/rng_sites.h"
#include "kernels/linear.h"
#include "kernels/norm.h"
#include "kernels/pointwise.h"
#include "kernels/rotary.h"
#include "kernels/token.h"

namespace sherd::model {

Transformer::Transformer(const ModelShape& shape, Allocator& memory, Stream& compute,
                         Collectives& collectives, const ModelPart* part)
    : shape_(shape),
      planned_sequences_(shape.sequences),
      planned_seq_length_(shape.seq_length),
      compute_(compute),
      collectives_(collectives),
      activations_(
          shape, kernels::compute_device(compute),
          [&](const BufferSpec& spec) { return memory.acquire(spec); }, part),
      residuals_(static_cast<std::size_t>(shape.num_layers) + 1),
      kept_(static_cast<std::size_t>(shape.num_layers)),
      waiting_(static_cast<std::size_t>(shape.num_layers)) {
  if (shape.part.has_canonical_sums() && compute.device() == DeviceKind::kCuda) {
    throw UsageError(
        "sums can't be canonical on GPUs: set parallelism.sum_order to rank (--set "
        "parallelism.sum_order=rank), or run.device to cpu.");
  }
  if (!part) {
    std::iota(residuals_.begin(), residuals_.end(), 0);
    if (shape.recompute != Recompute::kFull) std::iota(kept_.begin(), kept_.end(), 0);
  }
  for (std::size_t i = 0; i < shape_.num_rotary_tables(); ++i) {
    kernels::rotary_table(compute_, activations_.rotary_SK[i], shape_.table_positions(),
                          shape_.head_width(), shape_.rotary[i]);
  }
}

void Transformer::stand(const Standing& standing) {
  const auto first = standing.first_block;
  std::copy(standing.residuals.begin(), standing.residuals.end(), residuals_.begin() + first);
  std::copy(standing.kept.begin(), standing.kept.end(), kept_.begin() + first);
  std::copy(standing.waiting.begin(), standing.waiting.end(), waiting_.begin() + first);
  filled_block_ = -1;
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
  dropout.first_element =
      (pass.first_row * shape_.whole_seq_length() + shape_.first_position()) * shape_.width;
  if (shape_.context.is_cut()) {
    dropout.part = {.columns = shape_.width,
                    .all_columns = shape_.width,
                    .rows = shape_.seq_length,
                    .all_rows = shape_.whole_seq_length(),
                    .gap_at = shape_.position_run(0).count,
                    .gap = shape_.position_gap()};
  }
  return dropout;
}

kernels::Dropout Transformer::branch_dropout(const Pass& pass, std::uint32_t site) const {
  kernels::Dropout dropout = this->dropout(pass, site);
  if (dropout.part.columns > 0) {
    dropout.part.rows_before = shape_.first_residual_token();
  } else {
    dropout.first_element += shape_.first_residual_token() * shape_.width;
  }
  return dropout;
}

kernels::Dropout Transformer::attention_dropout(const Pass& pass, std::uint32_t site) const {
  kernels::Dropout dropout = this->dropout(pass, site);
  const std::int64_t positions = shape_.whole_seq_length();
  dropout.first_element = pass.first_row * shape_.all_query_heads() * positions * positions;
  dropout.part = {};  // attention counts heads and positions itself
  return dropout;
}

void Transformer::embed(const EmbeddingParameters& parameters, const Pass& pass) {
  Tensor position_weight = parameters.position_weight;
  if (position_weight) {
    const std::int64_t before = first_table_row(pass) * shape_.width;
    position_weight = position_weight.part(before, position_weight.numel - before);
  }
  const Tensor addend_TD = all_rows_place(residual_TD(0));
  for_each_run(pass, [&](std::int64_t token, std::int64_t position, std::int64_t count) {
    const std::int64_t sequences = count == shape_.tokens() ? shape_.sequences : 1;
    const std::int64_t before = position * shape_.width;
    kernels::Dropout mask = dropout(pass, embedding_site());
    mask.part.rows_before = token;
    kernels::embedding_forward(
        compute_, {.sequences = sequences,
                   .positions = count / sequences,
                   .width = shape_.width,
                   .vocab_size = shape_.vocab_size,
                   .tokens = pass.inputs.part(token, count),
                   .token_weight = parameters.token_weight,
                   .position_weight = position_weight ? position_weight.part(
                                                            before, position_weight.numel - before)
                                                      : Tensor{},
                   .dropout = mask,
                   .y = addend_TD.part(token * shape_.width, count * shape_.width),
                   .scale = static_cast<float>(shape_.embedding_scale),
                   .documents = pass.documents,
                   .rows = shape_.vocabulary_rows(),
                   .interleaved = interleaved_ && shape_.tied});
  });
  add_up_rows("embedding", addend_TD, residual_TD(0));
}

void Transformer::embed_backward(const EmbeddingParameters& gradients, const Pass& pass,
                                 bool add_to_tokens) {
  const bool in_runs = shape_.position_runs() > 1;
  const bool cut_rows = in_runs || (shape_.context.is_cut() && pass.documents);
  Tensor d_position_weight = gradients.position_weight;
  const std::int64_t before = first_table_row(pass);  // positions that other ranks have
  if (d_position_weight && before > 0) {
    kernels::fill_zero(compute_, d_position_weight.part(0, before * shape_.width));
    d_position_weight = d_position_weight.part(before * shape_.width,
                                               d_position_weight.numel - before * shape_.width);
  }
  kernels::embedding_backward(compute_,
                              {.sequences = shape_.sequences,
                               .positions = shape_.seq_length,
                               .width = shape_.width,
                               .vocab_size = shape_.vocab_size,
                               .position_rows = shape_.max_positions - before,
                               .tokens = pass.inputs,
                               .dy = all_rows("gradient of the embedding", residual_gradient()),
                               .dropout = dropout(pass, embedding_site()),
                               .d_token_weight = gradients.token_weight,
                               .d_position_weight = d_position_weight,
                               .add_to_token_gradient = add_to_tokens,
                               .workspace = activations_.workspace,
                               .scale = static_cast<float>(shape_.embedding_scale),
                               .documents = pass.documents,
                               .rows = shape_.vocabulary_rows(),
                               .row_positions = cut_rows ? shape_.whole_seq_length() : 0,
                               .first_position = shape_.first_position(),
                               .second_position = in_runs ? shape_.position_run(1).first : 0,
                               .groups = shape_.token_groups()});
}

Tensor Transformer::final_norm(const HeadParameters& parameters) {
  const SiteTensors site = activations_.final_norm(shape_);
  normalise(parameters.final_norm, residual_TD(shape_.num_layers), site, site.output);
  return all_rows("what the head reads", site.output);
}

void Transformer::head_product(const HeadParameters& parameters, const Tensor& normed_CD,
                               std::int64_t tokens, const Tensor& logits_CV) {
  kernels::linear_forward(compute_, {.shape = {tokens, shape_.width, shape_.vocab_size},
                                     .x = normed_CD,
                                     .w = parameters.weight,
                                     .bias = {},
                                     .y = logits_CV,
                                     .workspace = activations_.workspace,
                                     .interleaved = interleaved_});
}

void Transformer::head_evaluate(const HeadParameters& parameters, const Pass& pass) {
  const Tensor normed_TD = final_norm(parameters);
  for (std::int64_t first = 0; first < shape_.tokens(); first += activations_.chunk_tokens) {
    const std::int64_t tokens = std::min(activations_.chunk_tokens, shape_.tokens() - first);
    const Tensor logits_CV = activations_.logits_CV.tensor().part(0, tokens * shape_.vocab_size);
    head_product(parameters, normed_TD.part(first * shape_.width, tokens * shape_.width), tokens,
                 logits_CV);
    chunk_losses(pass, first, tokens, logits_CV, false);
  }
}

void Transformer::chunk_losses(const Pass& pass, std::int64_t first, std::int64_t tokens,
                               const Tensor& logits_CV, bool gradient) {
  if (shape_.in_parts()) return cut_losses(pass, first, tokens, logits_CV, gradient);
  kernels::cross_entropy(compute_, {.tokens = tokens,
                                    .vocab_size = shape_.vocab_size,
                                    .logits = logits_CV,
                                    .targets = pass.targets.part(first, tokens),
                                    .losses = losses().part(first, tokens),
                                    .gradient = gradient,
                                    .grad_scale = pass.gradient_scale,
                                    .form = shape_.logits_form()});
}

void Transformer::head_train(const HeadParameters& parameters, const HeadParameters& gradients,
                             const Pass& pass) {
  const Tensor normed_TD = final_norm(parameters);
  if (shape_.part.has_canonical_sums()) {
    train_groups(parameters, gradients.weight, pass, normed_TD);
  } else {
    train_chunks(parameters, gradients, pass, normed_TD);
  }
  const SiteTensors site = activations_.final_norm(shape_);
  add_up_head_input_gradient(normed_TD, site.output);
  const Affine final_norm = norm_gradients(parameters.final_norm, gradients.final_norm);
  kernels::norm_backward(compute_, {.shape = shape_.norm_shape(),
                                    .residual = residual_TD(shape_.num_layers),
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

void Transformer::train_chunks(const HeadParameters& parameters, const HeadParameters& gradients,
                               const Pass& pass, const Tensor& normed_TD) {
  for (std::int64_t first = 0; first < shape_.tokens(); first += activations_.chunk_tokens) {
    const std::int64_t tokens = std::min(activations_.chunk_tokens, shape_.tokens() - first);
    const kernels::LinearShape matmul{tokens, shape_.width, shape_.vocab_size};
    const Tensor logits_CV = activations_.logits_CV.tensor().part(0, tokens * shape_.vocab_size);
    const Tensor normed_CD = normed_TD.part(first * shape_.width, tokens * shape_.width);
    head_product(parameters, normed_CD, tokens, logits_CV);
    chunk_losses(pass, first, tokens, logits_CV, true);
    if (gradients.weight) {  // not frozen
      kernels::linear_backward_weight(compute_, {.shape = matmul,
                                                 .dy = logits_CV,
                                                 .x = normed_CD,
                                                 .dw = gradients.weight,
                                                 .dbias = {},
                                                 .add_to_output = first > 0 || gradients.adds,
                                                 .workspace = activations_.workspace});
    }
    // The chunk of norm outputs has been used up: its gradient takes its place.
    kernels::linear_backward_input(
        compute_, {matmul, logits_CV, parameters.weight, normed_CD, false, activations_.workspace});
  }
}

Tensor Transformer::logits(const HeadParameters& parameters, std::int64_t first,
                           std::int64_t count) {
  const Tensor normed_TD = final_norm(parameters);
  const Tensor logits_CV = activations_.logits_CV.tensor().part(0, count * shape_.vocab_size);
  head_product(parameters, normed_TD.part(first * shape_.width, count * shape_.width), count,
               logits_CV);
  kernels::shape_logits(compute_, shape_.logits_form(), logits_CV);
  return logits_CV;
}

}  // namespace sherd::model
