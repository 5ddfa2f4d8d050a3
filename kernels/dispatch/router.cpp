#include "kernels/router.h"

#include "kernels/check_tensor.h"
#include "kernels/cpu/experts/router.h"
#include "kernels/device.h"

namespace sherd::kernels {
namespace {

void check_shape(const Stream& stream, const RouterShape& shape) {
  SHERD_CHECK(!is_cuda(stream), "a router on a GPU");
  SHERD_CHECK(shape.per_token >= 1 && shape.per_token <= shape.experts, "{} of {} experts",
              shape.per_token, shape.experts);
  SHERD_CHECK(shape.groups >= 1 && shape.experts % shape.groups == 0 && shape.kept_groups >= 1 &&
                  shape.kept_groups <= shape.groups &&
                  shape.kept_groups * (shape.experts / shape.groups) >= shape.per_token,
              "{} of {} groups of {} experts", shape.kept_groups, shape.groups, shape.experts);
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
  check_tensor("router: balance", args.balance, DType::kF32, shape.balance_groups() * (E + 2));
  if (shape.scope == BalanceScope::kPreviousStep) {
    check_tensor("router: previous counts", args.previous_counts, DType::kI32, E + 1);
  }
  stream.run("router_forward", [=, &stream] { cpu::router_forward(stream.team(), args); });
}

void router_totals(Stream& stream, const RouterTotals& args) {
  const RouterShape& shape = args.shape;
  check_shape(stream, shape);
  check_tensor("router: counts", args.counts, DType::kI32, shape.sequences * shape.experts);
  check_tensor("router: totals", args.totals, DType::kF64, shape.experts + 2);
  stream.run("router_totals", [args] { cpu::router_totals(args); });
}

void router_correction(Stream& stream, const RouterCorrection& args) {
  SHERD_CHECK(!is_cuda(stream), "a router's correction on a GPU");
  SHERD_CHECK(args.first >= 0 && args.first + args.bias.numel <= std::ssize(args.counts),
              "a router's bias of experts {} to {}, of {}", args.first,
              args.first + args.bias.numel, args.counts.size());
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
  check_tensor("router: balance", args.balance, DType::kF32, shape.balance_groups() * (E + 2));
  check_tensor("router: d_logits", args.d_logits, DType::kF32, T * E);
  stream.run("router_backward", [=, &stream] { cpu::router_backward(stream.team(), args); });
}

}  // namespace sherd::kernels
