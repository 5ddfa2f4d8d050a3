// The rounds of kernels/experts.h on a GPU. A round's rows are gathered into its buffer `rows`,
// which afterwards holds what comes out.
#include "kernels/experts.h"

#include "kernels/cuda/expert_kernels.h"
#include "kernels/cuda/expert_round.h"
#include "kernels/cuda/forms.h"

namespace sherd::kernels::cuda {
namespace {

// Into the buffer `rows`.
template <class Args>
Tensor gather(Stream& stream, const ExpertRound& round, const Args& args, const ConstTensor& x,
              const ConstTensor& weights = {}) {
  const Tensor rows = round.of(args.workspace.rows, args.shape.width);
  gather_rows(stream, args.shape, args.workspace.order, round.range(),
              {args.shape, args.workspace.order, weights}, x, rows);
  return rows;
}
// What experts read.
template <class Args>
Tensor gather_inputs(Stream& stream, const ExpertRound& round, const Args& args) {
  return gather(stream, round, args, args.x,
                args.shape.weighs_input ? args.weights : ConstTensor());
}

template <class Args, class Each>
void for_each_round(Stream& stream, const Args& args, const Each& each) {
  for_each_expert_round(
      args.shape,
      [&](std::int64_t e) -> std::int64_t { return args.rows[static_cast<std::size_t>(e)]; },
      [&](const std::vector<ExpertPiece>& pieces) {
        each(ExpertRound(stream, args.shape, args.workspace, pieces, range_of(pieces)));
      });
}

// up = x times the experts' up, of gathered rows; activated = the activation of it.
template <class Args>
void activate(Stream& stream, const ExpertRound& round, const Args& args) {
  const ExpertsShape& shape = args.shape;
  const Tensor up = round.of(args.workspace.up, shape.up_width());
  round.multiply(gather_inputs(stream, round, args), args.up, args.biases.up, shape.width,
                 shape.up_width(), up);
  activation_forward(stream,
                     {round.activation(), up, round.of(args.workspace.activated, shape.ffn_width)});
}

// From the gradient of the up product and that of the results, before other rows take its place.
void add_bias_gradients(Stream& stream, const ExpertRound& round, const ExpertsBackward& args,
                        const WeightsOfRows& weights, const Tensor& dy) {
  const ExpertsShape& shape = args.shape;
  const std::int64_t U = shape.up_width();
  if (args.d_biases.up) {
    add_bias_gradient(stream, round.pieces(), round.range(), {shape},
                      round.of(args.workspace.up, U), U, args.adds_up, args.d_biases.up);
  }
  if (args.d_biases.down) {
    add_bias_gradient(stream, round.pieces(), round.range(), weights, dy, shape.width,
                      args.adds_down, args.d_biases.down);
  }
}

// Gradients of experts that no row reaches.
void clear_gradients(Stream& stream, const Tensor& gradient, std::int64_t numel, bool adds,
                     std::span<const std::int32_t> rows) {
  if (!gradient || adds) return;
  for (std::size_t e = 0; e < rows.size(); ++e) {
    if (rows[e] > 0) continue;
    fill_zero(stream, gradient.part(static_cast<std::int64_t>(e) * numel, numel));
  }
}

}  // namespace

void expert_row_counts(Stream& stream, const ExpertRowCounts& args) {
  const ExpertsShape& shape = args.shape;
  order_by_expert(stream, shape, args.chosen, args.order, {});
  const std::int64_t choices = shape.tokens * shape.per_token;
  CudaStream& cuda = cuda_stream(stream);
  const auto* begin = static_cast<const std::int32_t*>(cuda.mailbox());
  const ConstTensor starts = ConstTensor(args.order).part(2 * choices, shape.experts + 1);
  stream.copy(starts.data, cuda.mailbox(), starts.bytes());
  stream.synchronize();
  for (std::size_t e = 0; e < args.rows.size(); ++e) args.rows[e] = begin[e + 1] - begin[e];
}

void experts_forward(Stream& stream, const ExpertsForward& args) {
  const ExpertsShape& shape = args.shape;
  const ExpertsWorkspace& buffers = args.workspace;
  order_by_expert(stream, shape, args.chosen, buffers.order, {});
  fill_zero(stream, buffers.sums);
  for_each_round(stream, args, [&](const ExpertRound& round) {
    activate(stream, round, args);
    const Tensor out = round.of(buffers.rows, shape.width);
    round.multiply(buffers.activated, args.down, args.biases.down, shape.ffn_width, shape.width,
                   out);
    combine_rows(stream, shape, buffers.order, round.range(), out,
                 shape.weighs_input ? ConstTensor() : args.weights, buffers.sums);
  });
  finish_sums(stream, buffers.sums, {}, args.shared, args.y);
}

void experts_backward(Stream& stream, const ExpertsBackward& args) {
  const ExpertsShape& shape = args.shape;
  const ExpertsWorkspace& buffers = args.workspace;
  const std::int64_t D = shape.width, F = shape.ffn_width, U = shape.up_width();
  order_by_expert(stream, shape, args.chosen, buffers.order, {});
  fill_zero(stream, args.d_weights);
  if (args.d_sum) fill_zero(stream, args.d_sum);
  clear_gradients(stream, args.d_up, U * D, args.adds_up, args.rows);
  clear_gradients(stream, args.d_down, D * F, args.adds_down, args.rows);
  clear_gradients(stream, args.d_biases.up, U, args.adds_up, args.rows);
  clear_gradients(stream, args.d_biases.down, D, args.adds_down, args.rows);
  const WeightsOfRows weights{shape, buffers.order, args.weights};
  for_each_round(stream, args, [&](const ExpertRound& round) {
    const Tensor up = round.of(buffers.up, U), activated = round.of(buffers.activated, F);
    const Tensor d_activated = round.of(buffers.d_activated, F);
    activate(stream, round, args);
    const Tensor dy = gather(stream, round, args, args.dy);
    round.multiply_back(dy, args.down, D, F, d_activated);
    if (!shape.weighs_input) {
      weigh_rows(stream, {.shape = shape,
                          .order = buffers.order,
                          .range = round.range(),
                          .weights = args.weights,
                          .d_weights = args.d_weights,
                          .activated = activated,
                          .d_activated = d_activated});
    }
    if (args.biases.down) {
      add_second_bias(stream, round.pieces(), round.range(), weights, dy, args.biases.down,
                      args.d_weights);
    }
    activation_backward(stream, {round.activation(), up, d_activated, up});
    if (args.d_down) round.add_gradient(activated, dy, F, D, args.adds_down, args.d_down);
    add_bias_gradients(stream, round, args, weights, dy);
    if (args.d_up)
      round.add_gradient(gather_inputs(stream, round, args), up, D, U, args.adds_up, args.d_up);
    if (!args.d_sum && !shape.weighs_input) return;
    const Tensor d_rows = round.of(buffers.rows, D);
    round.multiply_back(up, args.up, U, D, d_rows);
    if (shape.weighs_input) {
      gradients_of_input_weights(stream, shape, buffers.order, round.range(), d_rows, args.x, false,
                                 args.d_weights);
    }
    if (!args.d_sum) return;
    combine_rows(stream, shape, buffers.order, round.range(), d_rows,
                 shape.weighs_input ? args.weights : ConstTensor(), args.d_sum);
  });
}

void experts_input_gradient(Stream& stream, const ExpertsInputGradient& args) {
  finish_sums(stream, args.d_sum, args.router, args.shared, args.d_x);
}

}  // namespace sherd::kernels::cuda
