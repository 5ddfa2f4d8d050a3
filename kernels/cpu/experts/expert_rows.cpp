#include "kernels/cpu/experts/expert_rows.h"

#include <algorithm>
#include <cstring>

#include "kernels/cpu/activation.h"
#include "kernels/cpu/experts/round_products.h"
#include "kernels/dispatch_float.h"

namespace sherd::kernels::cpu {
namespace {

std::int64_t end_of(const std::vector<ExpertPiece>& pieces) {
  return pieces.back().first + pieces.back().count;
}

// Of each row: the gradient of its weight, and both a and d_a times the weight.
void weigh(ThreadTeam& team, const ExpertRowsBackward& args, const ExpertRound& round) {
  const std::int64_t D = args.shape.width, F = args.shape.ffn_width;
  std::vector<int> expert(static_cast<std::size_t>(round.range().count));
  for (const ExpertPiece& piece : args.pieces) {
    std::fill_n(expert.begin() + (piece.first - round.range().first), piece.count, piece.expert);
  }
  dispatch_float(args.dy.dtype, [&]<class T>(T) {
    parallel_rows(team, round.range().count, F, [&](std::int64_t row) {
      args.d_weights.as<float>()[row] =
          weigh_row(args.workspace.activated.as<T>() + row * F,
                    args.workspace.d_activated.as<T>() + row * F, F,
                    args.weights.as<float>()[row]) +
          of_second_bias<T>(args.biases, expert[static_cast<std::size_t>(row)],
                            args.dy.as<T>() + row * D, D);
    });
  });
}

void add_bias_gradients(const ExpertRowsGradients& args, const ExpertRound& round) {
  const std::int64_t D = args.shape.width, U = args.shape.up_width();
  const DType dtype = args.dy.dtype;
  const auto add = [&](const Tensor& gradient, std::int64_t width, const auto& row) {
    if (gradient) round.add_bias_gradient(args.pieces, gradient, width, false, dtype, row);
  };
  add(args.d_biases.up, U, [&](std::int64_t r) {
    return ExpertRound::WeighedRow{element_of(args.workspace.up, r * U)};
  });
  add(args.d_biases.down, D, [&](std::int64_t r) {
    return ExpertRound::WeighedRow{element_of(args.dy, r * D), args.weights.as<float>()[r]};
  });
}

}  // namespace

void expert_order(ThreadTeam&, const ExpertOrder& args) {
  const ExpertRowOrder order(args.shape, args.chosen, args.order);
  if (!args.counts) return;
  auto* counts = args.counts.as<std::int32_t>();
  for (std::int64_t e = 0; e < args.shape.experts; ++e) {
    counts[e] = static_cast<std::int32_t>(order.rows_of(e));
  }
}

void expert_pack(ThreadTeam& team, const ExpertPack& args) {
  const std::int64_t D = args.shape.width;
  const ExpertRowOrder order(args.shape, args.order);
  const auto bytes = static_cast<std::size_t>(D) * size_of(args.x.dtype);
  for (const RowRange& range : args.ranges) {
    parallel_rows(team, range.count, D, [&](std::int64_t i) {
      const std::int64_t row = range.first + i;
      if (args.weights) {
        return dispatch_float(args.x.dtype, [&]<class T>(T) {
          scale_row(args.x.as<T>() + order.tokens()[row] * D, D, args.weights.as<float>()[row],
                    args.out.as<T>() + row * D);
        });
      }
      std::memcpy(static_cast<char*>(args.out.data) + static_cast<std::size_t>(row) * bytes,
                  element_of(args.x, order.tokens()[row] * D), bytes);
    });
  }
}

void expert_choices_to_rows(ThreadTeam&, const ExpertChoices& args) {
  const ExpertRowOrder order(args.shape, args.order);
  for (std::int64_t i = 0; i < args.from.numel; ++i) {
    if (order.row_of(i) >= 0) args.to.as<float>()[order.row_of(i)] = args.from.as<float>()[i];
  }
}

void expert_rows_to_choices(ThreadTeam&, const ExpertChoices& args) {
  const ExpertRowOrder order(args.shape, args.order);
  for (std::int64_t i = 0; i < args.to.numel; ++i) {
    args.to.as<float>()[i] = order.row_of(i) < 0 ? 0.0f : args.from.as<float>()[order.row_of(i)];
  }
}

void expert_input_weights(ThreadTeam& team, const ExpertInputWeights& args) {
  const std::int64_t D = args.shape.width, k = args.shape.per_token;
  const ExpertRowOrder order(args.shape, args.order);
  dispatch_float(args.x.dtype, [&]<class T>(T) {
    parallel_rows(team, args.shape.tokens, D, [&](std::int64_t t) {
      for (std::int64_t i = t * k; i < (t + 1) * k; ++i) {
        const std::int64_t row = order.row_of(i);
        args.d_weights.as<float>()[i] =
            row < 0 ? 0.0f : dot_row(args.rows.as<T>() + row * D, args.x.as<T>() + t * D, D);
      }
    });
  });
}

void expert_combine(ThreadTeam& team, const ExpertCombine& args) {
  const ExpertRowOrder order(args.shape, args.order);
  combine_rows(team, args.shape, order,
               {.range = {0, args.shape.tokens * args.shape.per_token},
                .out = args.rows,
                .weights = args.weights,
                .sums = args.sums,
                .begins = true,
                .ends = true,
                .shared = args.shared,
                .y = args.y});
}

void expert_rows_forward(ThreadTeam& team, const ExpertRowsForward& args) {
  if (args.pieces.empty()) return;
  const ExpertRound round(team, args.shape, nullptr, range_of(args.pieces), args.pieces,
                          args.workspace);
  const RoundMatrices matrices{args.up, args.down, args.biases, args.adapters};
  form_activated(round, matrices, args.x);
  form_outputs(round, matrices, round.of(args.workspace.rows, args.shape.width));
}

void expert_rows_activate(ThreadTeam& team, const ExpertRowsActivate& args) {
  if (args.pieces.empty()) return;
  const ExpertRound round(team, args.shape, nullptr, range_of(args.pieces), args.pieces,
                          args.workspace);
  form_activated(round, {args.up, {}, args.biases, args.adapters}, args.x);
}

void expert_rows_backward(ThreadTeam& team, const ExpertRowsBackward& args) {
  if (args.pieces.empty()) return;
  const ExpertsShape& shape = args.shape;
  const ExpertsWorkspace& buffers = args.workspace;
  const std::int64_t D = shape.width, F = shape.ffn_width, U = shape.up_width();
  const ExpertRound round(team, shape, nullptr, range_of(args.pieces), args.pieces, buffers);
  const Tensor up = round.of(buffers.up, U);
  const Tensor d_activated = round.of(buffers.d_activated, F);
  const RoundMatrices matrices{args.up, args.down, args.biases, args.adapters};
  form_d_activated(round, matrices, args.dy);
  if (!shape.weighs_input) weigh(team, args, round);
  activation_backward(team, {round.activation(), up, d_activated, up});
  if (args.input) form_d_inputs(round, matrices, round.of(buffers.rows, D));
}

void expert_rows_gradients(ThreadTeam& team, const ExpertRowsGradients& args) {
  const ExpertsShape& shape = args.shape;
  const std::int64_t D = shape.width, F = shape.ffn_width, U = shape.up_width();
  team.parallel_for(std::ssize(args.without_rows), [&](std::int64_t i, int) {
    const int expert = args.without_rows[static_cast<std::size_t>(i)];
    if (args.d_up) clear_expert(args.d_up, expert, U * D);
    if (args.d_down) clear_expert(args.d_down, expert, D * F);
    if (args.d_biases.up) clear_expert(args.d_biases.up, expert, U);
    if (args.d_biases.down) clear_expert(args.d_biases.down, expert, D);
    clear_adapter_gradients(shape, args.adapters, expert);
  });
  if (args.pieces.empty()) return;
  const ExpertRound round(team, shape, nullptr, {0, end_of(args.pieces)}, args.pieces,
                          args.workspace);
  round.add_gradients(args.pieces,
                      {.x = args.x, .dy = args.dy, .d_up = args.d_up, .d_down = args.d_down});
  add_bias_gradients(args, round);
  add_adapter_gradients(round, args.pieces, args.adapters, args.x, args.dy);
}

}  // namespace sherd::kernels::cpu
