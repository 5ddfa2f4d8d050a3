#include "kernels/router.h"

#include "kernels/check_tensor.h"
#include "kernels/cpu/experts/router.h"
#include "kernels/device.h"
#include "kernels/launches/on_gpu.h"
#include "kernels/router_rules.h"

namespace sherd::kernels {
namespace {

void check_shape(const Stream& stream, const RouterShape& shape) {
  SHERD_CHECK(!is_cuda(stream) || router_rules::scratch_numel(shape) <= kMostGpuExperts,
              "{} experts in {} groups on a GPU", shape.experts, shape.groups);
  SHERD_CHECK(shape.per_token >= 1 && shape.per_token <= shape.experts, "{} of {} experts",
              shape.per_token, shape.experts);
  SHERD_CHECK(shape.score != RouterScore::kSparsemixer ||
                  (shape.per_token == 2 && shape.groups == 1 && !is_cuda(stream)),
              "sparsemixer with {} of {} experts, in {} groups", shape.per_token, shape.experts,
              shape.groups);
  SHERD_CHECK(shape.groups >= 1 && shape.experts % shape.groups == 0 && shape.kept_groups >= 1 &&
                  shape.kept_groups <= shape.groups &&
                  shape.kept_groups * (shape.experts / shape.groups) >= shape.per_token,
              "{} of {} groups of {} experts", shape.kept_groups, shape.groups, shape.experts);
}

void check_workspace(Stream& stream, const RouterShape& shape, const Tensor& workspace) {
  const std::int64_t needed = router_workspace_bytes(shape, compute_device(stream));
  SHERD_CHECK(workspace.bytes() >= needed, "router: a workspace of {} bytes, not {}",
              workspace.bytes(), needed);
}

}  // namespace

void router_forward(Stream& stream, const RouterForward& args) {
  const RouterShape& shape = args.shape;
  check_shape(stream, shape);
  const std::int64_t T = shape.tokens(), E = shape.experts, k = shape.per_token;
  check_tensor("router: logits", args.logits, DType::kF32, T * E);
  if (args.bias) check_tensor("router: bias", args.bias, DType::kF32, E);
  check_tensor("router: chosen", args.chosen, DType::kI32, T * k);
  check_tensor("router: weights", args.weights, DType::kF32, T * k);
  check_tensor("router: counts", args.counts, DType::kI32, shape.sequences * E);
  if (args.balance) {
    check_tensor("router: balance", args.balance, DType::kF32, shape.balance_groups() * (E + 2));
  }
  if (shape.scope == BalanceScope::kPreviousStep) {
    check_tensor("router: previous counts", args.previous_counts, DType::kI32, E + 1);
  }
  check_workspace(stream, shape, args.workspace);
  if (is_cuda(stream)) return on_gpu(stream, cuda::router_forward, launches::router_forward, args);
  stream.run("router_forward", [=, &stream] { cpu::router_forward(stream.team(), args); });
}

void router_losses(Stream& stream, const RouterLosses& args) {
  const RouterShape& shape = args.shape;
  check_shape(stream, shape);
  const std::int64_t T = shape.tokens(), E = shape.experts, counts = shape.sequences * E;
  check_tensor("router: logits", args.logits, DType::kF32, T * E);
  check_tensor("router: chosen", args.chosen, DType::kI32, T * shape.per_token);
  check_tensor("router: counts of ranks", args.rank_counts, DType::kI32,
               args.rank_counts.numel / counts * counts);
  check_tensor("router: counts", args.counts, DType::kI32, counts);
  check_tensor("router: balance", args.balance, DType::kF32, shape.balance_groups() * (E + 2));
  if (shape.scope == BalanceScope::kPreviousStep) {
    check_tensor("router: previous counts", args.previous_counts, DType::kI32, E + 1);
  }
  check_workspace(stream, shape, args.workspace);
  if (is_cuda(stream)) return on_gpu(stream, cuda::router_losses, launches::router_losses, args);
  stream.run("router_losses", [=, &stream] { cpu::router_losses(stream.team(), args); });
}

void router_totals(Stream& stream, const RouterTotals& args) {
  const RouterShape& shape = args.shape;
  check_shape(stream, shape);
  check_tensor("router: counts", args.counts, DType::kI32, shape.sequences * shape.experts);
  check_tensor("router: totals", args.totals, DType::kF64, shape.experts + 2);
  if (is_cuda(stream)) return on_gpu(stream, cuda::router_totals, launches::router_totals, args);
  stream.run("router_totals", [args] { cpu::router_totals(args); });
}

void router_correction(Stream& stream, const RouterCorrection& args) {
  SHERD_CHECK(!is_cuda(stream) || std::ssize(args.counts) <= kMostGpuExperts, "{} experts on a GPU",
              args.counts.size());
  SHERD_CHECK(args.first >= 0 && args.first + args.bias.numel <= std::ssize(args.counts),
              "a router's bias of experts {} to {}, of {}", args.first,
              args.first + args.bias.numel, args.counts.size());
  if (is_cuda(stream)) {
    return on_gpu(stream, cuda::router_correction, launches::router_correction, args);
  }
  stream.run("router_correction", [args] { cpu::router_correction(args); });
}

void router_backward(Stream& stream, const RouterBackward& args) {
  const RouterShape& shape = args.shape;
  check_shape(stream, shape);
  const std::int64_t T = shape.tokens(), E = shape.experts, k = shape.per_token;
  check_tensor("router: logits", args.logits, DType::kF32, T * E);
  check_tensor("router: chosen", args.chosen, DType::kI32, T * k);
  check_tensor("router: weights", args.weights, DType::kF32, T * k);
  check_tensor("router: d_weights", args.d_weights, DType::kF32, T * k);
  check_tensor("router: counts", args.counts, DType::kI32, shape.sequences * E);
  check_tensor("router: balance", args.balance, DType::kF32, shape.balance_groups() * (E + 2));
  check_tensor("router: d_logits", args.d_logits, DType::kF32, T * E);
  if (is_cuda(stream)) {
    return on_gpu(stream, cuda::router_backward, launches::router_backward, args);
  }
  stream.run("router_backward", [=, &stream] { cpu::router_backward(stream.team(), args); });
}

std::int64_t router_workspace_bytes(const RouterShape& shape, const ComputeDevice& device) {
  if (device.kind == DeviceKind::kCpu) return 0;
  const std::int64_t chunks = shape.sequences * router_rules::chunks_of(shape);
  return chunks * ((shape.experts + 1) * 8 + shape.experts * 4);
}

}  // namespace sherd::kernels
