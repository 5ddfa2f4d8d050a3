// kernels/expert_rows.h on a GPU: experts whose rows come from several ranks.
#include "kernels/cuda/expert_kernels.h"
#include "kernels/cuda/expert_round.h"
#include "kernels/cuda/forms.h"

namespace sherd::kernels::cuda {
namespace {

RowRange home_rows(const ExpertsShape& shape) {
  return {0, shape.tokens * shape.per_token};
}

// up = x times the experts' up, of rows in buffers; activated = the activation of it.
template <class Args>
void activate(Stream& stream, const ExpertRound& round, const Args& args) {
  const ExpertsShape& shape = args.shape;
  const Tensor up = round.of(args.workspace.up, shape.up_width());
  round.multiply(args.x, args.up, args.biases.up, shape.width, shape.up_width(), up);
  activation_forward(stream,
                     {round.activation(), up, round.of(args.workspace.activated, shape.ffn_width)});
}

}  // namespace

void expert_order(Stream& stream, const ExpertOrder& args) {
  order_by_expert(stream, args.shape, args.chosen, args.order, args.counts);
}

void expert_pack(Stream& stream, const ExpertPack& args) {
  const std::int64_t D = args.shape.width;
  for (const RowRange& range : args.ranges) {
    if (range.count == 0) continue;
    gather_rows(stream, args.shape, args.order, range, {args.shape, {}, args.weights}, args.x,
                args.out.part(range.first * D, range.count * D));
  }
}

void expert_input_weights(Stream& stream, const ExpertInputWeights& args) {
  gradients_of_input_weights(stream, args.shape, args.order, home_rows(args.shape), args.rows,
                             args.x, true, args.d_weights);
}

void expert_choices_to_rows(Stream& stream, const ExpertChoices& args) {
  move_choices(stream, args, true);
}
void expert_rows_to_choices(Stream& stream, const ExpertChoices& args) {
  move_choices(stream, args, false);
}

void expert_combine(Stream& stream, const ExpertCombine& args) {
  fill_zero(stream, args.sums);
  combine_rows(stream, args.shape, args.order, home_rows(args.shape), args.rows, args.weights,
               args.sums);
  if (args.y) finish_sums(stream, args.sums, {}, args.shared, args.y);
}

void expert_rows_forward(Stream& stream, const ExpertRowsForward& args) {
  if (args.pieces.empty()) return;
  const ExpertsShape& shape = args.shape;
  const ExpertRound round(stream, shape, args.workspace, args.pieces, range_of(args.pieces));
  activate(stream, round, args);
  round.multiply(args.workspace.activated, args.down, args.biases.down, shape.ffn_width,
                 shape.width, round.of(args.workspace.rows, shape.width));
}

void expert_rows_activate(Stream& stream, const ExpertRowsActivate& args) {
  if (args.pieces.empty()) return;
  activate(stream,
           ExpertRound(stream, args.shape, args.workspace, args.pieces, range_of(args.pieces)),
           args);
}

void expert_rows_backward(Stream& stream, const ExpertRowsBackward& args) {
  if (args.pieces.empty()) return;
  const ExpertsShape& shape = args.shape;
  const ExpertsWorkspace& buffers = args.workspace;
  const std::int64_t D = shape.width, F = shape.ffn_width, U = shape.up_width();
  const ExpertRound round(stream, shape, buffers, args.pieces, range_of(args.pieces));
  const Tensor up = round.of(buffers.up, U), d_activated = round.of(buffers.d_activated, F);
  round.multiply_back(args.dy, args.down, D, F, d_activated);
  if (!shape.weighs_input) {
    weigh_rows(stream, {.shape = shape,
                        .order = {},
                        .range = {0, round.range().count},
                        .weights = args.weights,
                        .d_weights = args.d_weights,
                        .activated = round.of(buffers.activated, F),
                        .d_activated = d_activated});
  }
  if (args.biases.down) {
    add_second_bias(stream, args.pieces, round.range(), {shape, {}, args.weights}, args.dy,
                    args.biases.down, args.d_weights);
  }
  activation_backward(stream, {round.activation(), up, d_activated, up});
  if (args.input) round.multiply_back(up, args.up, U, D, round.of(buffers.rows, D));
}

void expert_rows_gradients(Stream& stream, const ExpertRowsGradients& args) {
  const ExpertsShape& shape = args.shape;
  const std::int64_t D = shape.width, F = shape.ffn_width, U = shape.up_width();
  for (const int expert : args.without_rows) {
    if (args.d_up) fill_zero(stream, args.d_up.part(expert * U * D, U * D));
    if (args.d_down) fill_zero(stream, args.d_down.part(expert * D * F, D * F));
    if (args.d_biases.up) fill_zero(stream, args.d_biases.up.part(expert * U, U));
    if (args.d_biases.down) fill_zero(stream, args.d_biases.down.part(expert * D, D));
  }
  if (args.pieces.empty()) return;
  const RowRange range{0, args.pieces.back().first + args.pieces.back().count};
  const ExpertRound round(stream, shape, args.workspace, args.pieces, range);
  if (args.d_down) {
    round.add_gradient(args.workspace.activated, args.dy, F, D, false, args.d_down);
  }
  if (args.d_up) round.add_gradient(args.x, args.workspace.up, D, U, false, args.d_up);
  if (args.d_biases.up) {
    add_bias_gradient(stream, args.pieces, range, {shape}, args.workspace.up, U, false,
                      args.d_biases.up);
  }
  if (args.d_biases.down) {
    add_bias_gradient(stream, args.pieces, range, {shape, {}, args.weights}, args.dy, D, false,
                      args.d_biases.down);
  }
}

void expert_rank_counts(Stream& stream, const ExpertRankCounts& args) {
  CudaStream& cuda = cuda_stream(stream);
  constexpr std::int64_t kMost = CudaStream::kMailboxBytes / 4;
  const auto* read = static_cast<const std::int32_t*>(cuda.mailbox());
  for (std::int64_t first = 0; first < args.counts.numel; first += kMost) {
    const std::int64_t count = std::min(kMost, args.counts.numel - first);
    const ConstTensor part = args.counts.part(first, count);
    stream.copy(part.data, cuda.mailbox(), part.bytes());
    stream.synchronize();
    std::copy_n(read, count, args.rows.data() + first);
  }
}

}  // namespace sherd::kernels::cuda
