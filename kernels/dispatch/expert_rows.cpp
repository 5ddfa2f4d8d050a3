#include "kernels/expert_rows.h"

#include "kernels/check_tensor.h"
#include "kernels/cpu/experts/expert_rows.h"
#include "kernels/device.h"
#include "kernels/launches/on_gpu.h"

namespace sherd::kernels {
namespace {

void check_order(const ExpertsShape& shape, const ConstTensor& order) {
  check_tensor("experts: order", order, DType::kI32, experts_order_numel(shape));
}

void check_choices(const ExpertChoices& args) {
  check_order(args.shape, args.order);
  const std::int64_t choices = args.shape.tokens * args.shape.per_token;
  check_tensor("experts: numbers of choices", args.from, DType::kF32, choices);
  check_tensor("experts: numbers of rows", args.to, DType::kF32, choices);
}

void check_biases(const ExpertsShape& shape, const ExpertBiases& biases,
                  const ExpertsWorkspace& workspace) {
  if (!biases) return;
  SHERD_CHECK(!shape.weighs_input, "biases of experts with weighed inputs");
  check_tensor("experts: up bias", biases.up, workspace.up.dtype, shape.experts * shape.up_width());
  if (!biases.down) return;
  check_tensor("experts: down bias", biases.down, workspace.up.dtype, shape.experts * shape.width);
}

// What a round's pieces need of the owner's buffers.
template <class Args>
void check_round(const Stream& stream, const Args& args, bool with_gradients = false) {
  const ExpertsShape& shape = args.shape;
  SHERD_CHECK(!is_cuda(stream) || !args.adapters, "experts on a GPU with adapters");
  if constexpr (requires { args.biases; }) check_biases(shape, args.biases, args.workspace);
  const std::int64_t C = shape.buffer_rows;
  for (const ExpertPiece& piece : args.pieces) {
    SHERD_CHECK(piece.expert >= 0 && piece.expert < shape.experts && piece.first >= 0 &&
                    piece.count > 0 && piece.count <= kExpertPiece &&
                    piece.first + piece.count <= C,
                "rows {} to {} of expert {} in a buffer of {}", piece.first,
                piece.first + piece.count, piece.expert, C);
  }
  const DType dtype = args.workspace.up.dtype;
  check_adapters(shape, args.adapters, dtype, with_gradients);
  check_tensor("experts: up", args.workspace.up, dtype, C * shape.up_width());
  check_tensor("experts: activated", args.workspace.activated, dtype, C * shape.ffn_width);
}

template <class Args>
void check_up(const Args& args) {
  const ExpertsShape& shape = args.shape;
  check_tensor("experts: up", args.up, args.workspace.up.dtype,
               shape.experts * shape.up_width() * shape.width);
}

template <class Args>
void check_down(const Args& args) {
  const ExpertsShape& shape = args.shape;
  const DType dtype = args.workspace.up.dtype;
  check_tensor("experts: down", args.down, dtype, shape.experts * shape.width * shape.ffn_width);
  check_tensor("experts: rows", args.workspace.rows, dtype, shape.buffer_rows * shape.width);
}

void check_rows(const char* what, const ConstTensor& rows, const ExpertsShape& shape,
                const ExpertsWorkspace& workspace) {
  check_tensor(what, rows, workspace.up.dtype, shape.buffer_rows * shape.width);
}

}  // namespace

void expert_order(Stream& stream, const ExpertOrder& args) {
  check_order(args.shape, args.order);
  check_tensor("experts: chosen", args.chosen, DType::kI32,
               args.shape.tokens * args.shape.per_token);
  if (args.counts) check_tensor("experts: counts", args.counts, DType::kI32, args.shape.experts);
  if (is_cuda(stream)) return on_gpu(stream, cuda::expert_order, launches::expert_order, args);
  stream.run("expert_order", [=, &stream] { cpu::expert_order(stream.team(), args); });
}

void expert_rank_counts(Stream& stream, const ExpertRankCounts& args) {
  if (!is_cuda(stream)) return stream.synchronize();
  check_tensor("experts: counts of ranks", args.counts, DType::kI32, std::ssize(args.rows));
  if (LedgerStream* ledger = ledger_stream(stream)) {
    const std::int64_t E = args.shape.experts, choices = args.shape.tokens * args.shape.per_token;
    for (std::size_t i = 0; i < args.rows.size(); ++i) {
      const bool more = static_cast<std::int64_t>(i) % E < choices % E;
      args.rows[i] = static_cast<std::int32_t>(choices / E + (more ? 1 : 0));
    }
    return ledger->synchronize();
  }
  const CallWithOperands call(args);
  cuda::expert_rank_counts(stream, args);
}

void expert_pack(Stream& stream, const ExpertPack& args) {
  check_order(args.shape, args.order);
  check_tensor("experts: x", args.x, args.x.dtype, args.shape.tokens * args.shape.width);
  check_tensor("experts: home rows", args.out, args.x.dtype,
               args.shape.tokens * args.shape.per_token * args.shape.width);
  if (args.weights) {
    check_tensor("experts: weights", args.weights, DType::kF32,
                 args.shape.tokens * args.shape.per_token);
  }
  if (is_cuda(stream)) return on_gpu(stream, cuda::expert_pack, launches::expert_pack, args);
  stream.run("expert_pack", [=, &stream] { cpu::expert_pack(stream.team(), args); });
}

void expert_input_weights(Stream& stream, const ExpertInputWeights& args) {
  const std::int64_t choices = args.shape.tokens * args.shape.per_token;
  check_order(args.shape, args.order);
  check_tensor("experts: x", args.x, args.x.dtype, args.shape.tokens * args.shape.width);
  check_tensor("experts: home rows", args.rows, args.x.dtype, choices * args.shape.width);
  check_tensor("experts: d_weights", args.d_weights, DType::kF32, choices);
  if (is_cuda(stream)) {
    return on_gpu(stream, cuda::expert_input_weights, launches::expert_input_weights, args);
  }
  stream.run("expert_input_weights",
             [=, &stream] { cpu::expert_input_weights(stream.team(), args); });
}

void expert_choices_to_rows(Stream& stream, const ExpertChoices& args) {
  check_choices(args);
  if (is_cuda(stream))
    return on_gpu(stream, cuda::expert_choices_to_rows, launches::expert_choices_to_rows, args);
  stream.run("expert_choices_to_rows",
             [=, &stream] { cpu::expert_choices_to_rows(stream.team(), args); });
}

void expert_rows_to_choices(Stream& stream, const ExpertChoices& args) {
  check_choices(args);
  if (is_cuda(stream))
    return on_gpu(stream, cuda::expert_rows_to_choices, launches::expert_rows_to_choices, args);
  stream.run("expert_rows_to_choices",
             [=, &stream] { cpu::expert_rows_to_choices(stream.team(), args); });
}

void expert_combine(Stream& stream, const ExpertCombine& args) {
  check_order(args.shape, args.order);
  const std::int64_t T = args.shape.tokens, D = args.shape.width, k = args.shape.per_token;
  check_tensor("experts: home rows", args.rows, args.rows.dtype, T * k * D);
  check_tensor("experts: sums", args.sums, DType::kF32, T * D);
  if (args.weights) check_tensor("experts: weights", args.weights, DType::kF32, T * k);
  if (args.y) check_tensor("experts: y", args.y, args.rows.dtype, T * D);
  if (args.shared) check_tensor("experts: shared", args.shared, args.rows.dtype, T * D);
  if (is_cuda(stream)) return on_gpu(stream, cuda::expert_combine, launches::expert_combine, args);
  stream.run("expert_combine", [=, &stream] { cpu::expert_combine(stream.team(), args); });
}

void expert_rows_forward(Stream& stream, const ExpertRowsForward& args) {
  check_round(stream, args);
  check_rows("experts: x", args.x, args.shape, args.workspace);
  check_up(args);
  check_down(args);
  if (is_cuda(stream))
    return on_gpu(stream, cuda::expert_rows_forward, launches::expert_rows_forward, args);
  stream.run("expert_rows_forward",
             [=, &stream] { cpu::expert_rows_forward(stream.team(), args); });
}

void expert_rows_activate(Stream& stream, const ExpertRowsActivate& args) {
  check_round(stream, args);
  check_rows("experts: x", args.x, args.shape, args.workspace);
  check_up(args);
  if (is_cuda(stream))
    return on_gpu(stream, cuda::expert_rows_activate, launches::expert_rows_activate, args);
  stream.run("expert_rows_activate",
             [=, &stream] { cpu::expert_rows_activate(stream.team(), args); });
}

void expert_rows_backward(Stream& stream, const ExpertRowsBackward& args) {
  check_round(stream, args);
  check_rows("experts: dy", args.dy, args.shape, args.workspace);
  check_up(args);
  check_down(args);
  const std::int64_t C = args.shape.buffer_rows;
  check_tensor("experts: weights", args.weights, DType::kF32, C);
  check_tensor("experts: d_weights", args.d_weights, DType::kF32, C);
  check_tensor("experts: d_activated", args.workspace.d_activated, args.dy.dtype,
               C * args.shape.ffn_width);
  if (is_cuda(stream))
    return on_gpu(stream, cuda::expert_rows_backward, launches::expert_rows_backward, args);
  stream.run("expert_rows_backward",
             [=, &stream] { cpu::expert_rows_backward(stream.team(), args); });
}

void expert_rows_gradients(Stream& stream, const ExpertRowsGradients& args) {
  check_round(stream, args, true);
  const ExpertsShape& shape = args.shape;
  check_rows("experts: x", args.x, shape, args.workspace);
  check_rows("experts: dy", args.dy, shape, args.workspace);
  if (args.d_up) {
    check_tensor("experts: d_up", args.d_up, args.d_up.dtype,
                 shape.experts * shape.up_width() * shape.width);
  }
  if (args.d_down) {
    check_tensor("experts: d_down", args.d_down, args.d_down.dtype,
                 shape.experts * shape.width * shape.ffn_width);
  }
  if (const Tensor& up = args.d_biases.up) {
    check_tensor("experts: d_up bias", up, up.dtype, shape.experts * shape.up_width());
  }
  if (const Tensor& down = args.d_biases.down) {
    check_tensor("experts: d_down bias", down, down.dtype, shape.experts * shape.width);
    check_tensor("experts: weights", args.weights, DType::kF32, shape.buffer_rows);
  }
  if (is_cuda(stream))
    return on_gpu(stream, cuda::expert_rows_gradients, launches::expert_rows_gradients, args);
  stream.run("expert_rows_gradients",
             [=, &stream] { cpu::expert_rows_gradients(stream.team(), args); });
}

}  // namespace sherd::kernels
