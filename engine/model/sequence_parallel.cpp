// Sequence parallelism (Korthikanti et al., arXiv:2205.05198): of the residual stream, norms and dropout each tensor
// rank has a part of the tokens, neighbours. What a matrix reads or writes is of all of them: an all-gather of
// rows takes the place before a matrix whose outputs are cut, and a reduce-scatter that of the sum behind one whose
// inputs are. Both together send what an all-reduce does. Rows of the sums have its bits.
//
// Where the ranks can't share the tokens evenly, the last ones have rows of zeros, whose gradients are zeros. With
// canonical sums they share them evenly, in whole groups (canonical_sums.cpp); f32 sums then take the way of rows.

#include "engine/model/transformer.h"
#include "kernels/pointwise.h"

namespace sherd::model {

// Each rank's rows behind those of the one before.
Tensor Transformer::all_rows(const char* what, const Tensor& own_TD) {
  if (!shape_.sequence_parallel()) return own_TD;
  const std::int64_t own = shape_.residual_tokens() * shape_.width;
  const Tensor all = activations_.all_rows_TD.tensor().part(0, shape_.part.degree * own);
  compute_.copy(own_TD.data, all.part(shape_.part.rank * own, own).data, own_TD.bytes());
  collectives_.gather(what, all);
  return all.part(0, shape_.tokens() * shape_.width);
}

Tensor Transformer::all_rows_place(const Tensor& own_TD) const {
  if (!shape_.sequence_parallel()) return own_TD;
  return rows(activations_.all_rows_TD, shape_.tokens(), shape_.width);
}

// Where a branch's first matrix writes the gradient of what it read. Canonical sums are complete before.
Tensor Transformer::d_read_TD() const {
  if (shape_.part.has_canonical_sums()) return branch_TD();
  const Buffer& shared = activations_.d_normed_TD;
  return shared ? rows(shared, shape_.tokens(), shape_.width) : all_rows_place(branch_TD());
}

void Transformer::add_up_rows(const char* what, const Tensor& addend_TD, const Tensor& sum_TD) {
  if (!shape_.sequence_parallel()) return collectives_.sum(what, sum_TD);
  Tensor all = addend_TD;
  all.numel = shape_.part.degree * sum_TD.numel;
  const std::int64_t behind = all.numel - addend_TD.numel;
  if (behind > 0) kernels::fill_zero(compute_, all.part(addend_TD.numel, behind));
  collectives_.reduce_scatter(what, all, sum_TD);
}

// A norm's weights serve the tokens of all ranks. Those that are frozen have no gradients.
void Transformer::add_up_norm(const Affine& gradients) {
  if (!shape_.sequence_parallel() || !gradients.weight) return;
  collectives_.sum("gradient of a norm", gradients.weight);
  if (gradients.bias) collectives_.sum("gradient of a norm", gradients.bias);
}

}  // namespace sherd::model
