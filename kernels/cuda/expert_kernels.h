/// The kernels that experts on a GPU are made of, around their products
/// (kernels/cuda/experts.cpp). Equations and names are those of kernels/experts.h, and bits the
/// CPU's.
#pragma once

#include <vector>

#include "kernels/expert_rows.h"

namespace sherd::kernels::cuda {

/// As cpu::ExpertRowOrder writes it; `counts` i32 [E] may be empty.
void order_by_expert(Stream& stream, const ExpertsShape& shape, const ConstTensor& chosen,
                     const Tensor& order, const Tensor& counts);
/// Which row of a round has which weight. Without an order, weights are those of rows, not of
/// choices. Without weights: 1.
struct WeightsOfRows {
  ExpertsShape shape;
  ConstTensor order{}, weights{};
};
/// out[r] = x[token of row first + r], times its weight.
void gather_rows(Stream& stream, const ExpertsShape& shape, const ConstTensor& order,
                 const RowRange& range, const WeightsOfRows& weights, const ConstTensor& x,
                 const Tensor& out);
/// d_weights[t, j] = <the row of the choice, x[t]> of rows in `range`, which begins with the first
/// of `rows`. `clears`: 0 of choices without a row.
void gradients_of_input_weights(Stream& stream, const ExpertsShape& shape, const ConstTensor& order,
                                const RowRange& range, const ConstTensor& rows,
                                const ConstTensor& x, bool clears, const Tensor& d_weights);
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

/// d_weights += <dy, c_e> of each row of the pieces; dy's row `range.first` is its first.
void add_second_bias(Stream& stream, const std::vector<ExpertPiece>& pieces, const RowRange& range,
                     const WeightsOfRows& weights, const ConstTensor& dy, const ConstTensor& bias,
                     const Tensor& d_weights);
/// gradient[e] (+)= the weighted sum of the expert's rows [width], piece after piece.
void add_bias_gradient(Stream& stream, const std::vector<ExpertPiece>& pieces,
                       const RowRange& range, const WeightsOfRows& weights, const ConstTensor& rows,
                       std::int64_t width, bool adds, const Tensor& gradient);

}  // namespace sherd::kernels::cuda
