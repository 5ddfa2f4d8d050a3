#include "engine/model/embedding.h"

#include "engine/model/rng_sites.h"
#include "kernels/pointwise.h"
#include "kernels/token.h"

namespace sherd::model {

void Embedding::forward(const EmbeddingParameters& parameters, const Pass& pass) {
  Tensor position_weight = parameters.position_weight;
  if (position_weight) {
    const std::int64_t before = first_table_row(pass) * shape_.width;
    position_weight = position_weight.part(before, position_weight.numel - before);
  }
  const Tensor addend_TD = all_rows_place(c_.residual_TD(0));
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
                   .interleaved = c_.interleaved && shape_.tied});
  });
  add_up_rows("embedding", addend_TD, c_.residual_TD(0));
}

void Embedding::backward(const EmbeddingParameters& gradients, const Pass& pass,
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

}  // namespace sherd::model
