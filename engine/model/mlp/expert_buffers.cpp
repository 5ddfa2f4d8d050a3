// What layers with experts need of Activations.

#include <string>

#include "engine/model/activations.h"
#include "engine/model/cut/sequence_cut.h"
#include "kernels/experts.h"
#include "kernels/router.h"

namespace sherd::model {
namespace {

constexpr Phases kKept = kForwardToBackward | kEvaluation;
constexpr Phases kInBlocks = kForward | kBackward | kEvaluation;

}  // namespace

RoutingBuffers acquire_routing(const ModelShape& shape, const std::string& prefix,
                               const Acquire& acquire) {
  const auto kept = [&](const char* name, DType dtype, std::int64_t numel) {
    return acquire({prefix + name, Category::kActivations, dtype, numel, kKept});
  };
  const kernels::RouterShape router = shape.router();
  const std::int64_t E = router.experts, choices = router.tokens() * router.per_token;
  return {kept("routing.logits", DType::kF32, router.tokens() * E),
          kept("routing.chosen", DType::kI32, choices),
          kept("routing.weights", DType::kF32, choices),
          kept("routing.counts", DType::kI32, router.sequences * E),
          kept("routing.balance", DType::kF32, router.balance_groups() * (E + 2)),
          shape.expert.is_cut() ? kept("routing.rank_counts", DType::kI32, shape.expert.degree * E)
                                : Buffer()};
}

void Activations::acquire_experts(const ModelShape& shape, const Acquire& acquire) {
  const kernels::ExpertsShape own = shape.experts();
  const std::int64_t T = own.tokens, D = own.width, k = own.per_token;
  const std::int64_t C = shape.owned_experts().buffer_rows;
  const auto buffer = [&](const char* name, DType dtype, std::int64_t numel, Phases phases) {
    return acquire({std::string("experts.") + name, Category::kActivations, dtype, numel, phases});
  };
  experts.sums = buffer("sums", DType::kF32, T * D, kInBlocks);
  experts.rows = buffer("rows", shape.dtype, C * D, kInBlocks);
  experts.up = buffer("up", shape.dtype, C * own.up_width(), kInBlocks);
  experts.activated = buffer("activated", shape.dtype, C * own.ffn_width, kInBlocks);
  experts.d_activated = buffer("d_activated", shape.dtype, C * own.ffn_width, kBackward);
  experts.order = buffer("order", DType::kI32, kernels::experts_order_numel(own), kInBlocks);
  if (shape.sequence_parallel()) experts.read = buffer("read", shape.dtype, T * D, kInBlocks);
  if (counts_sequences_together(shape)) {
    experts.counts_of_ranks =
        buffer("counts_of_ranks", DType::kI32, shape.context.degree * shape.sequences * own.experts,
               kInBlocks);
  }
  if (shape.dtype != DType::kF32) experts.x = buffer("router_input", DType::kF32, T * D, kInBlocks);
  experts.d_weights = buffer("d_weights", DType::kF32, T * own.per_token, kBackward);
  experts.d_logits = buffer("d_logits", DType::kF32, T * own.experts, kBackward);
  experts.d_x = buffer("d_router_input", DType::kF32, T * D, kBackward);
  if (shape.expert.is_cut()) {
    experts.home_rows = buffer("home_rows", shape.dtype, T * k * D, kInBlocks);
    experts.home_numbers =
        buffer("home_numbers", DType::kF32, T * k, shape.moe.weighs_input ? kInBlocks : kBackward);
    experts.x_rows = buffer("x_rows", shape.dtype, C * D, kInBlocks);
    experts.dy_rows = buffer("dy_rows", shape.dtype, C * D, kBackward);
    experts.row_weights = buffer("row_weights", DType::kF32, C, kBackward);
    experts.row_d_weights = buffer("row_d_weights", DType::kF32, C, kBackward);
  }
  if (adapts_experts(shape.adapter)) {
    experts.adapter_h = buffer("adapter_h", shape.dtype, C * shape.adapter.rank, kInBlocks);
    if (shape.gated()) {
      experts.adapter_z = buffer("adapter_z", shape.dtype, C * own.ffn_width, kInBlocks);
    }
  }
  if (shape.moe.shared_gate) {
    experts.d_shared = buffer("d_shared", shape.dtype, T * D, kBackward);
    experts.d_gate = buffer("d_gate", DType::kF32, T, kBackward);
  }
}

Routing Activations::routing_of(int residual, const ModelShape& shape) const {
  const RoutingBuffers& own = routing[static_cast<std::size_t>(residual)];
  const kernels::RouterShape router = shape.router();
  const std::int64_t E = router.experts, choices = router.tokens() * router.per_token;
  return {own.logits.tensor().part(0, router.tokens() * E),
          own.chosen.tensor().part(0, choices),
          own.weights.tensor().part(0, choices),
          own.counts.tensor().part(0, router.sequences * E),
          own.balance.tensor().part(0, router.balance_groups() * (E + 2)),
          own.rank_counts.tensor()};
}

}  // namespace sherd::model
