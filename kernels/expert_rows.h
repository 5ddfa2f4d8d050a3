/// Experts whose rows come from several ranks: what kernels/experts.h does in one call, in steps,
/// so that rows can travel between them.
///
///   at home      expert_order -> expert_pack -> (rows leave)    (rows come back) -> expert_combine
///   at the owner (rows arrive) -> expert_rows_forward, or expert_rows_activate and _backward
///                -> (results leave)
///
/// Home rows    a token's choices, sorted by expert, then by token: row r belongs to one token and
///              one expert. An owner's experts are neighbours, so its rows are too.
/// Pieces       rows of one expert and one source rank, at most kExpertPiece. A weight gradient
///              adds a source's pieces in order; each source's is a sum of its own.
/// Bits         a row's results follow from the row and its expert's matrices, and sums are those
///              of experts.h. So one rank that owns all experts forms the same bits.
/// Shapes, types, errors   as in experts.h; R rows; an owner has E' of the experts.
/// GPU          As in experts.h; the host must know all counts (`expert_rank_counts`).
#pragma once

#include <span>
#include <vector>

#include "kernels/experts.h"

namespace sherd::kernels {

/// Rows [first, first + count) of a list of rows.
struct RowRange {
  std::int64_t first = 0, count = 0;
  bool operator==(const RowRange&) const = default;
};

struct ExpertPiece {
  int expert = 0;  ///< among the owner's
  int source = 0;
  std::int64_t first = 0, count = 0;  ///< rows of the buffer
  bool begins = true;                 ///< the first of its source and expert
  bool operator==(const ExpertPiece&) const = default;
};

/// Sorts the choices; `counts` i32 [E]: home rows of each expert, unless it is empty.
struct ExpertOrder {
  ExpertsShape shape;  ///< of all experts
  ConstTensor chosen;
  Tensor order;  ///< i32 [experts_order_numel]
  Tensor counts;
};
void expert_order(Stream& stream, const ExpertOrder& args);

/// rows = counts, i32 [R, E]: what the host must know of what ranks have exchanged. Waits for the
/// stream. On a CPU it does nothing but that, since the host reads `counts`.
struct ExpertRankCounts {
  ExpertsShape shape;  ///< of this rank's tokens and all experts
  ConstTensor counts;
  std::span<std::int32_t> rows;
};
void expert_rank_counts(Stream& stream, const ExpertRankCounts& args);

/// out[r] = x[token of row r] (times row r's weight) for the rows of `ranges`.
struct ExpertPack {
  ExpertsShape shape;
  ConstTensor order, x;
  std::vector<RowRange> ranges;
  Tensor out;             ///< [T k, D]
  ConstTensor weights{};  ///< f32 [T k], of home rows; empty: 1
};
void expert_pack(Stream& stream, const ExpertPack& args);

/// Between a number for each choice, [T, k], and one for each home row, f32 [T k]. Choices without
/// a row are 0.
struct ExpertChoices {
  ExpertsShape shape;
  ConstTensor order, from;
  Tensor to;
};
void expert_choices_to_rows(Stream& stream, const ExpertChoices& args);
void expert_rows_to_choices(Stream& stream, const ExpertChoices& args);

/// d_weights[t, j] = <the home row of the choice, x[t]>, or 0 without a row: experts.h,
/// `weighs_input`.
struct ExpertInputWeights {
  ExpertsShape shape;
  ConstTensor order, rows, x;
  Tensor d_weights;  ///< f32 [T, k]
};
void expert_input_weights(Stream& stream, const ExpertInputWeights& args);

/// y = sum over a token's choices, in order, of weight times its home row (+ shared). Without y,
/// the sum stays in `sums`. `weights` may be empty: 1.
struct ExpertCombine {
  ExpertsShape shape;
  ConstTensor order, rows, weights, shared;
  Tensor sums;  ///< f32 [T, D]
  Tensor y{};
};
void expert_combine(Stream& stream, const ExpertCombine& args);

/// Buffers of a round at the owner: rows, up, activated, d_activated and matmuls of `workspace`.
struct ExpertRowsForward {
  ExpertsShape shape;  ///< `experts`: the owner's
  std::vector<ExpertPiece> pieces;
  ConstTensor x, up, down;
  ExpertsWorkspace workspace;  ///< `rows`: the results
  ExpertAdapters adapters{};
  ExpertBiases biases{};  ///< of the owner's experts
};
void expert_rows_forward(Stream& stream, const ExpertRowsForward& args);

/// up = the up product of x's rows, activated = its activation: what the backward needs again.
struct ExpertRowsActivate {
  ExpertsShape shape;
  std::vector<ExpertPiece> pieces;
  ConstTensor x, up;
  ExpertsWorkspace workspace;
  ExpertAdapters adapters{};
  ExpertBiases biases{};
};
void expert_rows_activate(Stream& stream, const ExpertRowsActivate& args);

/// After expert_rows_activate, everything except the weight gradients. Afterwards `activated` holds
/// weight times activation, and `up` the gradient of the up product.
struct ExpertRowsBackward {
  ExpertsShape shape;
  std::vector<ExpertPiece> pieces;
  ConstTensor dy, weights, up, down;
  Tensor d_weights;
  bool input = true;           ///< whether rows of the input's gradient are needed
  ExpertsWorkspace workspace;  ///< `rows`: the input's gradient
  ExpertAdapters adapters{};
  ExpertBiases biases{};
};
void expert_rows_backward(Stream& stream, const ExpertRowsBackward& args);

/// The weight gradients of one source's pieces, after expert_rows_backward. Experts in
/// `without_rows` get zeros.
struct ExpertRowsGradients {
  ExpertsShape shape;
  std::vector<ExpertPiece> pieces;
  std::vector<int> without_rows;
  ConstTensor x, dy;
  Tensor d_up, d_down;
  ExpertsWorkspace workspace;
  ExpertAdapters adapters{};  ///< with gradients
  ConstTensor weights{};      ///< f32, of the rows: for the second bias
  ExpertBiasGradients d_biases{};
};
void expert_rows_gradients(Stream& stream, const ExpertRowsGradients& args);

}  // namespace sherd::kernels
