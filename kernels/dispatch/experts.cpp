#include "kernels/experts.h"

#include <algorithm>
#include <utility>

#include "kernels/check_tensor.h"
#include "kernels/cpu/experts/experts.h"
#include "kernels/device.h"
#include "kernels/device_common/matmul_key.h"
#include "kernels/launches/on_gpu.h"

namespace sherd::kernels {
namespace {

void check_workspace(const ExpertsShape& shape, const ExpertsWorkspace& buffers, DType dtype) {
  const std::int64_t C = shape.buffer_rows;
  SHERD_CHECK(C >= std::min(kExpertPiece, shape.tokens), "a buffer of {} rows for {} tokens", C,
              shape.tokens);
  check_tensor("experts: rows", buffers.rows, dtype, C * shape.width);
  check_tensor("experts: up", buffers.up, dtype, C * shape.up_width());
  check_tensor("experts: activated", buffers.activated, dtype, C * shape.ffn_width);
  check_tensor("experts: order", buffers.order, DType::kI32, experts_order_numel(shape));
}

template <class Args>
void check_operands(const Stream& stream, const Args& args) {
  const ExpertsShape& shape = args.shape;
  SHERD_CHECK(!is_cuda(stream) || (!args.adapters && std::ssize(args.rows) == shape.experts),
              "experts on a GPU with adapters, or with rows of {} experts", args.rows.size());
  SHERD_CHECK(!shape.weighs_input || !args.biases, "weighed inputs of experts with biases");
  const std::int64_t T = shape.tokens, D = shape.width, E = shape.experts, k = shape.per_token;
  check_tensor("experts: x", args.x, args.x.dtype, T * D);
  check_tensor("experts: up", args.up, args.x.dtype, E * shape.up_width() * D);
  check_tensor("experts: down", args.down, args.x.dtype, E * D * shape.ffn_width);
  if (args.biases) {
    check_tensor("experts: up bias", args.biases.up, args.x.dtype, E * shape.up_width());
  }
  if (args.biases.down) check_tensor("experts: down bias", args.biases.down, args.x.dtype, E * D);
  check_tensor("experts: chosen", args.chosen, DType::kI32, T * k);
  check_tensor("experts: weights", args.weights, DType::kF32, T * k);
  check_workspace(shape, args.workspace, args.x.dtype);
}

// What adapters are of.
struct MatrixSize {
  std::int64_t inputs = 0, outputs = 0;
};

void check_adapter(const ExpertsShape& shape, const ExpertAdapters& adapters,
                   const ExpertAdapter& adapter, MatrixSize size, DType dtype) {
  const std::int64_t r = adapters.rank;
  SHERD_CHECK(r > 0 && r <= size.inputs && r <= adapter.outputs && adapter.first_output >= 0 &&
                  adapter.first_output + adapter.outputs <= size.outputs,
              "an adapter of rank {} of outputs {} to {} of a matrix {} x {}", r,
              adapter.first_output, adapter.first_output + adapter.outputs, size.outputs,
              size.inputs);
  check_tensor("experts: A", adapter.a, dtype, shape.experts * r * size.inputs);
  check_tensor("experts: B", adapter.b, dtype, shape.experts * adapter.outputs * r);
  check_tensor("experts: h", adapters.h, dtype, shape.buffer_rows * r);
  if (adapter.outputs == size.outputs) return;
  check_tensor("experts: z", adapters.z, dtype, shape.buffer_rows * shape.ffn_width);
}

}  // namespace

void check_adapters(const ExpertsShape& shape, const ExpertAdapters& adapters, DType dtype,
                    bool with_gradients) {
  const auto check = [&](const std::vector<ExpertAdapter>& list, MatrixSize size) {
    for (const ExpertAdapter& adapter : list) {
      check_adapter(shape, adapters, adapter, size, dtype);
      if (!with_gradients) continue;
      check_tensor("experts: gradient of A", adapter.d_a, adapter.d_a.dtype, adapter.a.numel);
      check_tensor("experts: gradient of B", adapter.d_b, adapter.d_b.dtype, adapter.b.numel);
    }
  };
  check(adapters.up, {shape.width, shape.up_width()});
  check(adapters.down, {shape.ffn_width, shape.width});
}

void expert_row_counts(Stream& stream, const ExpertRowCounts& args) {
  if (!is_cuda(stream)) return;
  const ExpertsShape& shape = args.shape;
  const std::int64_t choices = shape.tokens * shape.per_token;
  check_tensor("experts: chosen", args.chosen, DType::kI32, choices);
  check_tensor("experts: order", args.order, DType::kI32, experts_order_numel(shape));
  SHERD_CHECK(std::ssize(args.rows) == shape.experts, "rows of {} experts, not of {}",
              args.rows.size(), shape.experts);
  if (LedgerStream* ledger = ledger_stream(stream)) {  // takes choices to be spread evenly
    for (std::int64_t e = 0; e < shape.experts; ++e) {
      args.rows[static_cast<std::size_t>(e)] = static_cast<std::int32_t>(
          choices / shape.experts + (e < choices % shape.experts ? 1 : 0));
    }
    ledger->add(launches::expert_row_counts(args));
    return ledger->synchronize();
  }
  on_gpu(stream, cuda::expert_row_counts, launches::expert_row_counts, args);
}

void experts_forward(Stream& stream, const ExpertsForward& args) {
  check_operands(stream, args);
  check_adapters(args.shape, args.adapters, args.x.dtype, false);
  const std::int64_t numel = args.shape.tokens * args.shape.width;
  check_tensor("experts: y", args.y, args.x.dtype, numel);
  if (args.shared) check_tensor("experts: shared", args.shared, args.x.dtype, numel);
  check_tensor("experts: sums", args.workspace.sums, DType::kF32, numel);
  if (is_cuda(stream)) {
    return on_gpu(stream, cuda::experts_forward, launches::experts_forward, args);
  }
  stream.run("experts_forward", [=, &stream] { cpu::experts_forward(stream.team(), args); });
}

void experts_backward(Stream& stream, const ExpertsBackward& args) {
  check_operands(stream, args);
  check_adapters(args.shape, args.adapters, args.x.dtype, true);
  const ExpertsShape& shape = args.shape;
  check_tensor("experts: dy", args.dy, args.x.dtype, shape.tokens * shape.width);
  check_tensor("experts: d_weights", args.d_weights, DType::kF32, shape.tokens * shape.per_token);
  if (args.d_sum) {
    check_tensor("experts: d_sum", args.d_sum, DType::kF32, shape.tokens * shape.width);
  }
  if (args.d_up) check_tensor("experts: d_up", args.d_up, args.d_up.dtype, args.up.numel);
  for (const auto& [gradient, width] :
       {std::pair(args.d_biases.up, shape.up_width()), {args.d_biases.down, shape.width}}) {
    if (!gradient) continue;
    check_tensor("experts: d_bias", gradient, gradient.dtype, shape.experts * width);
  }
  if (args.d_down) check_tensor("experts: d_down", args.d_down, args.d_down.dtype, args.down.numel);
  check_tensor("experts: d_activated", args.workspace.d_activated, args.x.dtype,
               shape.buffer_rows * shape.ffn_width);
  if (is_cuda(stream)) {
    return on_gpu(stream, cuda::experts_backward, launches::experts_backward, args);
  }
  stream.run("experts_backward", [=, &stream] { cpu::experts_backward(stream.team(), args); });
}

void experts_input_gradient(Stream& stream, const ExpertsInputGradient& args) {
  check_tensor("experts: d_sum", args.d_sum, DType::kF32, args.d_x.numel);
  if (args.router) check_tensor("experts: router", args.router, DType::kF32, args.d_x.numel);
  if (args.shared) check_tensor("experts: shared", args.shared, args.d_x.dtype, args.d_x.numel);
  if (is_cuda(stream)) {
    return on_gpu(stream, cuda::experts_input_gradient, launches::experts_input_gradient, args);
  }
  stream.run("experts_input_gradient",
             [=, &stream] { cpu::experts_input_gradient(stream.team(), args); });
}

void gate_logits(Stream& stream, const GateLogits& args) {
  check_tensor("gate: x", args.x, args.x.dtype, args.tokens * args.width);
  check_tensor("gate: weight", args.gate, args.x.dtype, args.width);
  check_tensor("gate: logits", args.logits, DType::kF32, args.tokens);
  if (is_cuda(stream)) return on_gpu(stream, cuda::gate_logits, launches::gate_logits, args);
  stream.run("gate_logits", [=, &stream] { cpu::gate_logits(stream.team(), args); });
}

void gate_forward(Stream& stream, const GateForward& args) {
  check_tensor("gate: logits", args.logits, DType::kF32, args.tokens);
  check_tensor("gate: shared", args.shared, args.y.dtype, args.tokens * args.width);
  check_tensor("gate: y", args.y, args.y.dtype, args.tokens * args.width);
  if (is_cuda(stream)) return on_gpu(stream, cuda::gate_forward, launches::gate_forward, args);
  stream.run("gate_forward", [=, &stream] { cpu::gate_forward(stream.team(), args); });
}

void gate_backward(Stream& stream, const GateBackward& args) {
  const std::int64_t numel = args.tokens * args.width;
  check_tensor("gate: logits", args.logits, DType::kF32, args.tokens);
  check_tensor("gate: shared", args.shared, args.dy.dtype, numel);
  check_tensor("gate: weight", args.gate, args.dy.dtype, args.width);
  check_tensor("gate: dy", args.dy, args.dy.dtype, numel);
  check_tensor("gate: d_shared", args.d_shared, args.dy.dtype, numel);
  check_tensor("gate: d_logits", args.d_logits, DType::kF32, args.tokens);
  if (args.d_x) check_tensor("gate: d_x", args.d_x, DType::kF32, numel);
  if (is_cuda(stream)) return on_gpu(stream, cuda::gate_backward, launches::gate_backward, args);
  stream.run("gate_backward", [=, &stream] { cpu::gate_backward(stream.team(), args); });
}

void gate_weight_gradient(Stream& stream, const GateWeightGradient& args) {
  check_tensor("gate: x", args.x, args.x.dtype, args.tokens * args.width);
  check_tensor("gate: d_logits", args.d_logits, DType::kF32, args.tokens);
  check_tensor("gate: d_gate", args.d_gate, args.d_gate.dtype, args.width);
  if (is_cuda(stream))
    return on_gpu(stream, cuda::gate_weight_gradient, launches::gate_weight_gradient, args);
  stream.run("gate_weight_gradient",
             [=, &stream] { cpu::gate_weight_gradient(stream.team(), args); });
}

std::int64_t experts_workspace_bytes(const ExpertsShape& shape, DType dtype, DType grad_dtype,
                                     const ComputeDevice& device) {
  if (device.kind == DeviceKind::kCuda) return device_common::kMatmulWorkspaceBytes;
  return cpu::experts_workspace_bytes(shape, dtype, grad_dtype);
}

std::int64_t experts_buffer_rows(const ExpertsShape& shape) {
  const std::int64_t rows = shape.tokens * shape.per_token;
  return std::min(rows, std::max(kExpertPiece, shape.buffer_rows));
}

}  // namespace sherd::kernels
