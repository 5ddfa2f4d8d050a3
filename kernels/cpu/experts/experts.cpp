#include "kernels/cpu/experts/experts.h"

#include <algorithm>
#include <vector>

#include "kernels/cpu/activation.h"
#include "kernels/cpu/experts/round_products.h"
#include "kernels/dispatch_float.h"

namespace sherd::kernels::cpu {
namespace {

template <class T>
float of_bias(const ExpertsBackward& args, std::int64_t token, std::int64_t expert) {
  return of_second_bias<T>(args.biases, expert, args.dy.as<T>() + token * args.shape.width,
                           args.shape.width);
}

void add_bias_gradients(const ExpertsBackward& args, const ExpertRowOrder& order,
                        const ExpertRound& round, const std::vector<ExpertPiece>& pieces) {
  const std::int64_t D = args.shape.width, U = args.shape.up_width(), k = args.shape.per_token;
  const DType dtype = args.x.dtype;
  if (args.d_biases.up) {
    round.add_bias_gradient(pieces, args.d_biases.up, U, args.adds_up, dtype, [&](std::int64_t r) {
      return ExpertRound::WeighedRow{element_of(args.workspace.up, r * U)};
    });
  }
  if (!args.d_biases.down) return;
  const std::int64_t first = round.range().first;
  std::vector<float> weights(static_cast<std::size_t>(round.range().count));
  for (std::int64_t i = 0; i < args.shape.tokens * k; ++i) {
    const std::int64_t row = order.row_of(i) - first;
    if (order.row_of(i) < 0 || row < 0 || row >= round.range().count) continue;
    weights[static_cast<std::size_t>(row)] = args.weights.as<float>()[i];
  }
  round.add_bias_gradient(
      pieces, args.d_biases.down, D, args.adds_down, dtype, [&](std::int64_t r) {
        return ExpertRound::WeighedRow{element_of(args.dy, order.tokens()[first + r] * D),
                                       weights[static_cast<std::size_t>(r)]};
      });
}

// Of each row: the gradient of its weight, and both a and d_a times the weight.
void weigh(ThreadTeam& team, const ExpertsBackward& args, const ExpertRowOrder& order,
           const ExpertRound& round) {
  const std::int64_t F = args.shape.ffn_width, k = args.shape.per_token;
  dispatch_float(args.x.dtype, [&]<class T>(T) {
    parallel_rows(team, args.shape.tokens, F, [&](std::int64_t t) {
      for (std::int64_t i = t * k; i < (t + 1) * k; ++i) {
        const std::int64_t row = order.row_of(i) - round.range().first;
        if (order.row_of(i) < 0 || row < 0 || row >= round.range().count) continue;
        args.d_weights.as<float>()[i] = weigh_row(args.workspace.activated.as<T>() + row * F,
                                                  args.workspace.d_activated.as<T>() + row * F, F,
                                                  args.weights.as<float>()[i]) +
                                        of_bias<T>(args, t, args.chosen.as<std::int32_t>()[i]);
      }
    });
  });
}

// With weights on the inputs: the gradient of each row's weight, from what reached the row's input.
void input_weight_gradients(ThreadTeam& team, const ExpertsBackward& args,
                            const ExpertRowOrder& order, const ExpertRound& round) {
  const std::int64_t D = args.shape.width, k = args.shape.per_token;
  dispatch_float(args.x.dtype, [&]<class T>(T) {
    parallel_rows(team, args.shape.tokens, D, [&](std::int64_t t) {
      for (std::int64_t i = t * k; i < (t + 1) * k; ++i) {
        const std::int64_t row = order.row_of(i) - round.range().first;
        if (order.row_of(i) < 0 || row < 0 || row >= round.range().count) continue;
        args.d_weights.as<float>()[i] =
            dot_row(args.workspace.rows.as<T>() + row * D, args.x.as<T>() + t * D, D);
      }
    });
  });
}

// Gradients of experts that no row reaches.
void clear_gradients(ThreadTeam& team, const Tensor& gradient, std::int64_t numel, bool adds,
                     const ExpertsShape& shape, const ExpertRowOrder& order) {
  if (!gradient || adds) return;
  team.parallel_for(shape.experts, [&](std::int64_t e, int) {
    if (order.rows_of(e) == 0) clear_expert(gradient, e, numel);
  });
}

struct RoundOut {
  RowRange range;
  ConstTensor rows;
};
void combine_round(ThreadTeam& team, const ExpertsShape& shape, const ExpertRowOrder& order,
                   const RoundOut& round, CombineRows args) {
  args.range = round.range;
  args.out = round.rows;
  args.begins = round.range.first == 0;
  args.ends = round.range.first + round.range.count == order.num_rows();
  combine_rows(team, shape, order, args);
}

}  // namespace

void experts_forward(ThreadTeam& team, const ExpertsForward& args) {
  const ExpertsShape& shape = args.shape;
  const ExpertsWorkspace& buffers = args.workspace;
  const std::int64_t D = shape.width;
  const RoundMatrices matrices{args.up, args.down, args.biases, args.adapters};
  const ExpertRowOrder order(shape, args.chosen, buffers.order);
  const CombineRows combine{.weights = shape.weighs_input ? ConstTensor{} : args.weights,
                            .sums = buffers.sums,
                            .shared = args.shared,
                            .y = args.y};
  order.for_each_round([&](const std::vector<ExpertPiece>& pieces) {
    const ExpertRound round(team, shape, order.tokens(), range_of(pieces), pieces, buffers);
    round.weigh_inputs(order, args.x, args.weights);
    form_activated(round, matrices, args.x);
    const Tensor out = round.of(buffers.rows, D);
    form_outputs(round, matrices, out);
    combine_round(team, shape, order, {round.range(), out}, combine);
  });
  if (order.num_rows() == 0) combine_round(team, shape, order, {{}, args.x}, combine);
}

void experts_backward(ThreadTeam& team, const ExpertsBackward& args) {
  const ExpertsShape& shape = args.shape;
  const ExpertsWorkspace& buffers = args.workspace;
  const std::int64_t D = shape.width, F = shape.ffn_width, U = shape.up_width();
  const RoundMatrices matrices{args.up, args.down, args.biases, args.adapters};
  const ExpertRowOrder order(shape, args.chosen, buffers.order);
  clear_f32(team, args.d_weights);
  clear_gradients(team, args.d_up, U * D, args.adds_up, shape, order);
  clear_gradients(team, args.d_down, D * F, args.adds_down, shape, order);
  clear_gradients(team, args.d_biases.up, U, args.adds_up, shape, order);
  clear_gradients(team, args.d_biases.down, D, args.adds_down, shape, order);
  for (std::int64_t e = 0; e < shape.experts; ++e) {
    if (order.rows_of(e) == 0) clear_adapter_gradients(shape, args.adapters, e);
  }
  order.for_each_round([&](const std::vector<ExpertPiece>& pieces) {
    const ExpertRound round(team, shape, order.tokens(), range_of(pieces), pieces, buffers);
    const Tensor up = round.of(buffers.up, U);
    const Tensor d_activated = round.of(buffers.d_activated, F);
    round.weigh_inputs(order, args.x, args.weights);
    form_activated(round, matrices, args.x);
    form_d_activated(round, matrices, args.dy);
    if (!shape.weighs_input) weigh(team, args, order, round);
    activation_backward(team, {round.activation(), up, d_activated, up});
    add_bias_gradients(args, order, round, pieces);
    round.add_gradients(pieces, {.x = args.x,
                                 .dy = args.dy,
                                 .d_up = args.d_up,
                                 .d_down = args.d_down,
                                 .adds_up = args.adds_up,
                                 .adds_down = args.adds_down});
    add_adapter_gradients(round, pieces, args.adapters, args.x, args.dy);
    if (!args.d_sum && !shape.weighs_input) return;
    const Tensor d_rows = round.of(buffers.rows, D);
    form_d_inputs(round, matrices, d_rows);
    if (shape.weighs_input) input_weight_gradients(team, args, order, round);
    if (!args.d_sum) return;
    combine_round(
        team, shape, order, {round.range(), d_rows},
        {.weights = shape.weighs_input ? args.weights : ConstTensor{}, .sums = args.d_sum});
  });
  if (args.d_sum && order.num_rows() == 0) clear_f32(team, args.d_sum);
}

void experts_input_gradient(ThreadTeam& team, const ExpertsInputGradient& args) {
  dispatch_float(args.d_x.dtype, [&]<class T>(T) {
    parallel_blocks(team, args.d_x.numel, [&](std::int64_t first, int count) {
      alignas(64) float sum[kBlock];
      std::copy_n(args.d_sum.as<float>() + first, count, sum);
      if (args.router) {
        const float* router = args.router.as<float>() + first;
#pragma omp simd
        for (int i = 0; i < count; ++i) sum[i] += router[i];
      }
      if (args.shared) {
        BlockScratch scratch;
        const float* shared = load_block(args.shared.as<T>() + first, count, scratch);
#pragma omp simd
        for (int i = 0; i < count; ++i) sum[i] += shared[i];
      }
      narrow(sum, args.d_x.as<T>() + first, count);
    });
  });
}

std::int64_t experts_workspace_bytes(const ExpertsShape& shape, DType dtype, DType grad_dtype) {
  const std::int64_t C = std::min(shape.buffer_rows, kExpertPiece);
  const std::int64_t D = shape.width, F = shape.ffn_width, U = shape.up_width();
  if (dtype != DType::kF32)
    grad_dtype = dtype;  // gradients of 16-bit parameters may have either width
  return std::max(
      {matmul_list_workspace_bytes(C, U, D, dtype), matmul_list_workspace_bytes(C, D, F, dtype),
       matmul_list_workspace_bytes(C, F, D, dtype), matmul_list_workspace_bytes(C, D, U, dtype),
       matmul_list_workspace_bytes(D, F, C, grad_dtype),
       matmul_list_workspace_bytes(U, D, C, grad_dtype)});
}

}  // namespace sherd::kernels::cpu
