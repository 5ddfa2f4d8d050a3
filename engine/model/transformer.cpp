#include "engine/model/transformer.h"

#include <algorithm>

#include "kernels/rotary.h"

namespace sherd::model {

Transformer::Transformer(const ModelShape& shape, Allocator& memory, Stream& compute,
                         Collectives& collectives, const ModelPart* part)
    : planned_sequences_(shape.sequences),
      planned_seq_length_(shape.seq_length),
      planned_table_positions_(shape.table_positions()),
      computation_(shape, memory, compute, collectives, part),
      embedding_(computation_),
      block_(computation_),
      head_(computation_),
      prediction_(computation_) {
  fill_rotary_tables(planned_table_positions_);
}

void Transformer::fill_rotary_tables(std::int64_t text_length) {
  text_length_ = text_length;
  for (std::size_t i = 0; i < shape().num_rotary_tables(); ++i) {
    kernels::rotary_table(computation_.stream, computation_.activations.rotary_SK[i],
                          planned_table_positions_, shape().head_width(),
                          kernels::for_length(shape().rotary[i], text_length));
  }
}

bool Transformer::rotate_for(std::int64_t text_length) {
  const auto differs = [&](const kernels::RotaryFrequencies& rotary) {
    return kernels::takes_long_factors(rotary, text_length) !=
           kernels::takes_long_factors(rotary, text_length_);
  };
  const bool changes =
      shape().num_rotary_tables() > 0 && std::ranges::any_of(shape().rotary, differs);
  if (changes) fill_rotary_tables(text_length);
  return changes;
}

void Transformer::stand(const Standing& standing) {
  const auto first = standing.first_block;
  std::ranges::copy(standing.residuals, computation_.residuals.begin() + first);
  std::ranges::copy(standing.kept, computation_.kept.begin() + first);
  std::ranges::copy(standing.waiting, computation_.waiting.begin() + first);
  block_.forget_filled();
}

void Transformer::resize(std::int64_t sequences, std::int64_t seq_length) {
  SHERD_CHECK(sequences <= planned_sequences_ && seq_length <= planned_seq_length_,
              "{} sequences of {} tokens, planned for {} of {}", sequences, seq_length,
              planned_sequences_, planned_seq_length_);
  computation_.shape.sequences = sequences;
  computation_.shape.seq_length = seq_length;
}

Tensor Transformer::residual_gradient() const {
  return rows(computation_.activations.d_residual_TD, shape().residual_tokens(), shape().width);
}

}  // namespace sherd::model
