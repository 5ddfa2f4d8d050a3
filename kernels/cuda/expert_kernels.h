/// The kernels that experts on a GPU are made of, around their products
/// (kernels/cuda/experts.cpp). Equations and names are those of kernels/experts.h.
#pragma once

#include "kernels/expert_rows.h"

namespace sherd::kernels::cuda {

/// As cpu::ExpertRowOrder writes it; `counts` i32 [E] may be empty.
void order_by_expert(Stream& stream, const ExpertsShape& shape, const ConstTensor& chosen,
                     const Tensor& order, const Tensor& counts);
/// out[r] = x[token of row first + r].
void gather_rows(Stream& stream, const ExpertsShape& shape, const ConstTensor& order,
                 const RowRange& range, const ConstTensor& x, const Tensor& out);
/// sums += what came out of the rows of `range`; `weights` may be empty: 1.
void combine_rows(Stream& stream, const ExpertsShape& shape, const ConstTensor& order,
                  const RowRange& range, const ConstTensor& rows, const ConstTensor& weights,
                  const Tensor& sums);
/// Between choices and home rows, in one direction or the other.
void move_choices(Stream& stream, const ExpertChoices& args, bool to_rows);
/// y = sums (+ more) (+ shared), rounded once.
void finish_sums(Stream& stream, const ConstTensor& sums, const ConstTensor& more,
                 const ConstTensor& shared, const Tensor& y);
/// Of each row of `range`: its weight's gradient <a, d_a>, and both a and d_a times the weight.
/// Without an order, weights and their gradients are those of rows, not of choices.
struct WeighRows {
  ExpertsShape shape;
  ConstTensor order;
  RowRange range;
  ConstTensor weights;
  Tensor d_weights, activated, d_activated;
};
void weigh_rows(Stream& stream, const WeighRows& args);

}  // namespace sherd::kernels::cuda
