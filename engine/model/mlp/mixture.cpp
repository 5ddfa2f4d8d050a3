#include "engine/model/mlp/mixture.h"

#include "engine/model/cut/sequence_cut.h"
#include "engine/model/mlp/expert_adapters.h"
#include "kernels/linear.h"
#include "kernels/pointwise.h"
#include "kernels/router.h"

namespace sherd::model {

Mixture::Mixture(Computation& computation)
    : Part(computation),
      shared_(computation, &computation.activations.experts.read),
      exchange_(computation) {
  if (compute_.device() != DeviceKind::kCuda || !shape_.moe.active()) return;
  const std::int64_t ranks = shape_.expert.is_cut() ? shape_.expert.degree : 1;
  rows_of_experts_.resize(activations_.routing.size() *
                          static_cast<std::size_t>(ranks * shape_.moe.experts));
}

std::span<std::int32_t> Mixture::rows_of_experts(std::int64_t block) {
  if (rows_of_experts_.empty()) return {};
  const auto slot = static_cast<std::size_t>(c_.routing_slot(block));
  const std::size_t of_a_slot = rows_of_experts_.size() / activations_.routing.size();
  return std::span(rows_of_experts_).subspan(slot * of_a_slot, of_a_slot);
}

Routing Mixture::routing(std::int64_t block) const {
  return activations_.routing_of(c_.routing_slot(block), shape_);
}

Tensor Mixture::normed_TD(std::int64_t block) const {
  const BlockTensors kept = c_.kept_of(block);
  if (!shape_.norm_before()) return kept[SiteId::kMiddle].output;
  const bool shares = shape_.block_form == BlockForm::kParallelOneNorm;
  return kept[shares ? SiteId::kNorm1 : SiteId::kNorm2].output;
}

Tensor Mixture::x_TD(std::int64_t block) const {
  if (!shape_.sequence_parallel()) return normed_TD(block);
  return rows(activations_.experts.read, shape_.tokens(), shape_.width);
}

// If ranks share the tokens, each routes all of them: their rows are gathered, once for all that
// reads them in a forward or backward.
void Mixture::gather_x(std::int64_t block, bool again) {
  if (!shape_.sequence_parallel()) return;
  const Tensor own = normed_TD(block), all = x_TD(block);
  const bool still_there = !again && shape_.block_form == BlockForm::kParallelOneNorm;
  const Tensor from = still_there
                          ? all_rows_place(own)
                          : all_rows(again ? "what a branch read" : "what a branch reads", own);
  compute_.copy(from.data, all.data, all.bytes());
}

ConstTensor Mixture::x_in_f32(std::int64_t block) {
  const Tensor x = x_TD(block);
  if (x.dtype == DType::kF32) return x;
  const Tensor wide = rows(activations_.experts.x, shape_.tokens(), shape_.width);
  kernels::cast(compute_, x, wide);
  return wide;
}

kernels::ExpertBiases Mixture::biases_of(const BlockParameters& parameters) const {
  return {parameters[SiteId::kExpertsUp].bias,
          shape_.part.adds_biases_of_sums() ? parameters[SiteId::kExpertsDown].bias : Tensor{}};
}

kernels::ExpertsWorkspace Mixture::experts_workspace(bool backward) const {
  const ExpertsBuffers& own = activations_.experts;
  const kernels::ExpertsShape shape = shape_.experts();
  const std::int64_t C = shape_.owned_experts().buffer_rows;
  return {rows(own.sums, shape.tokens, shape.width),
          rows(own.rows, C, shape.width),
          rows(own.up, C, shape.up_width()),
          rows(own.activated, C, shape.ffn_width),
          backward ? rows(own.d_activated, C, shape.ffn_width) : Tensor{},
          rows(own.order, 1, kernels::experts_order_numel(shape)),
          activations_.workspace.tensor()};
}

Tensor Mixture::own_counts(const Routing& decides) const {
  if (!counts_sequences_together(shape_)) return decides.counts;
  const std::int64_t numel = decides.counts.numel;
  return activations_.experts.counts_of_ranks.tensor().part(shape_.context.rank * numel, numel);
}

kernels::RowPart Mixture::row_part() const {
  if (!shape_.context.is_cut()) return {};
  return {.positions = shape_.whole_seq_length(),
          .first = shape_.first_position(),
          .gap_at = shape_.position_run(0).count,
          .gap = shape_.position_gap()};
}

// From logits to experts, weights and losses.
void Mixture::choose(std::int64_t block, const Tensor& correction, const Pass& pass) {
  const Routing decides = routing(block);
  kernels::RouterShape shape = shape_.router();
  ConstTensor previous;
  if (shape.scope == kernels::BalanceScope::kPreviousStep) {
    const std::int64_t per_layer = shape.experts + 1;
    if (pass.previous_counts) {
      previous = pass.previous_counts.part(block * per_layer, per_layer);
    } else {
      shape.scope = kernels::BalanceScope::kMicroBatch;
    }
  }
  const bool together = counts_sequences_together(shape_);
  kernels::router_forward(compute_, {.shape = shape,
                                     .logits = decides.logits,
                                     .bias = correction,
                                     .documents = pass.documents,
                                     .part = row_part(),
                                     .chosen = decides.chosen,
                                     .weights = decides.weights,
                                     .counts = own_counts(decides),
                                     .balance = together ? Tensor{} : decides.balance,
                                     .previous_counts = previous,
                                     .workspace = activations_.workspace});
  if (!together) return;
  const Tensor all =
      rows(activations_.experts.counts_of_ranks, shape_.context.degree, decides.counts.numel);
  collectives_.gather_positions("counts of experts in sequences", all);
  kernels::router_losses(compute_, {.shape = shape,
                                    .logits = decides.logits,
                                    .chosen = decides.chosen,
                                    .rank_counts = all,
                                    .counts = decides.counts,
                                    .balance = decides.balance,
                                    .previous_counts = previous,
                                    .workspace = activations_.workspace});
}

// The router's decision, and what it counts for metrics.
void Mixture::decide(std::int64_t block, const BlockParameters& parameters, const Pass& pass) {
  const Routing decides = routing(block);
  const Affine& router = parameters[SiteId::kRouter];
  kernels::linear_forward(compute_, {.shape = {shape_.tokens(), shape_.width, shape_.moe.experts},
                                     .x = x_in_f32(block),
                                     .w = router.weight,
                                     .bias = shape_.moe.biases ? router.bias : Tensor{},
                                     .y = decides.logits,
                                     .workspace = activations_.workspace});
  choose(block, shape_.moe.biases ? Tensor{} : router.bias, pass);
  if (shape_.expert.is_cut()) exchange_.begin(decides, x_TD(block), rows_of_experts(block));
  if (pass.expert_totals) {
    const std::int64_t per_layer = shape_.moe.experts + 2;
    kernels::router_totals(compute_, {shape_.router(), own_counts(decides), decides.balance,
                                      pass.expert_totals.part(block * per_layer, per_layer)});
  }
  if (shape_.expert.is_cut()) return;
  kernels::expert_row_counts(
      compute_,
      {.shape = shape_.experts(),
       .chosen = decides.chosen,
       .order = rows(activations_.experts.order, 1, kernels::experts_order_numel(shape_.experts())),
       .rows = rows_of_experts(block)});
}

void Mixture::forward(std::int64_t block, const BlockParameters& parameters, const Pass& pass,
                      bool recomputes) {
  gather_x(block, false);
  if (!recomputes) decide(block, parameters, pass);
  if (!has_shared()) return;
  shared_.forward(block, parameters);
  if (!shape_.moe.shared_gate) return;
  const SiteTensors gate = c_.kept_of(block)[SiteId::kSharedGate];
  shared_output(block, parameters, gate.output);
  kernels::gate_logits(compute_, {shape_.tokens(), shape_.width, x_TD(block),
                                  parameters[SiteId::kSharedGate].weight, gate.statistic});
}

// A tensor rank's part of it, of its columns.
void Mixture::shared_output(std::int64_t block, const BlockParameters& parameters,
                            const Tensor& out_TD) {
  Affine down = parameters[SiteId::kDown];
  if (!shape_.part.adds_biases_of_sums()) down.bias = {};
  project(down, c_.kept_of(block)[SiteId::kActivation].output, shape_.ffn_width_of(block),
          shape_.width, out_TD);
}

void Mixture::output(std::int64_t block, const BlockParameters& parameters, const Tensor& out_TD) {
  const Tensor addend_TD = all_rows_place(out_TD);
  own_output(block, parameters, addend_TD);
  add_up_rows("branch", addend_TD, out_TD);
}

void Mixture::own_output(std::int64_t block, const BlockParameters& parameters,
                         const Tensor& out_TD) {
  if (shape_.moe.shared_gate) {
    const SiteTensors gate = c_.kept_of(block)[SiteId::kSharedGate];
    kernels::gate_forward(compute_,
                          {shape_.tokens(), shape_.width, gate.statistic, gate.output, out_TD});
  } else if (has_shared()) {
    shared_output(block, parameters, out_TD);
  }
  const Routing decided = routing(block);
  if (shape_.expert.is_cut()) {
    return exchange_.forward({.decided = decided,
                              .x_TD = x_TD(block),
                              .up = parameters[SiteId::kExpertsUp].weight,
                              .down = parameters[SiteId::kExpertsDown].weight,
                              .shared = has_shared() ? out_TD : ConstTensor{},
                              .out_TD = out_TD,
                              .workspace = experts_workspace(false),
                              .counts = rows_of_experts(block),
                              .adapters = expert_adapters(activations_, shape_, parameters),
                              .biases = biases_of(parameters)});
  }
  kernels::experts_forward(compute_,
                           {.shape = shape_.experts(),
                            .x = x_TD(block),
                            .up = parameters[SiteId::kExpertsUp].weight,
                            .down = parameters[SiteId::kExpertsDown].weight,
                            .chosen = decided.chosen,
                            .weights = decided.weights,
                            .biases = biases_of(parameters),
                            .shared = has_shared() ? out_TD : ConstTensor{},
                            .y = out_TD,
                            .workspace = experts_workspace(false),
                            .rows = rows_of_experts(block),
                            .adapters = expert_adapters(activations_, shape_, parameters)});
}

void Mixture::compute_again(std::int64_t block, const BlockParameters& parameters) {
  shared_.compute_again(block, parameters);
  gather_x(block, true);
}

// The order of addends to the input's gradient: experts, router, gate, shared expert. On a tensor
// rank it is an addend of a sum over ranks: of experts and gate each rank has its part; the
// router's, which all ranks have, is one rank's.
void Mixture::backward(std::int64_t block, const BlockParameters& parameters,
                       const BlockParameters& gradients, const Pass& pass, const Tensor& d_out_TD,
                       const Tensor& d_read_TD) {
  const bool input = static_cast<bool>(d_read_TD);
  if (c_.puts_off != nullptr) {
    const Tensor waits = rows(c_.puts_off->d_experts, shape_.tokens(), shape_.width);
    compute_.copy(d_out_TD.data, waits.data, d_out_TD.bytes());
  }
  experts_backward(block, parameters, gradients, d_out_TD, input);
  collectives_.sum("gradients of routing weights",
                   rows(activations_.experts.d_weights, shape_.tokens(), shape_.moe.per_token));
  router_backward(block, parameters, gradients, pass, input);
  if (has_shared()) {
    const Tensor d_shared_TD = shape_.moe.shared_gate
                                   ? gate_backward(block, parameters, gradients, d_out_TD, input)
                                   : d_out_TD;
    shared_.backward(block, parameters, gradients, d_shared_TD, d_read_TD);
  }
  if (!input) return;
  const ExpertsBuffers& own = activations_.experts;
  const Tensor d_x_TD = rows(own.d_x, shape_.tokens(), shape_.width);
  const bool has_addend = adds_router() || shape_.moe.shared_gate;
  kernels::experts_input_gradient(compute_, {.d_sum = rows(own.sums, shape_.tokens(), shape_.width),
                                             .router = has_addend ? d_x_TD : ConstTensor{},
                                             .shared = has_shared() ? d_read_TD : ConstTensor{},
                                             .d_x = d_read_TD});
}

void Mixture::experts_backward(std::int64_t block, const BlockParameters& parameters,
                               const BlockParameters& gradients, const ConstTensor& d_out_TD,
                               bool input) {
  const ExpertsBuffers& own = activations_.experts;
  const Routing decided = routing(block);
  const Affine &up = gradients[SiteId::kExpertsUp], &down = gradients[SiteId::kExpertsDown];
  const Tensor d_weights = rows(own.d_weights, shape_.tokens(), shape_.moe.per_token);
  const Tensor d_sum = input ? rows(own.sums, shape_.tokens(), shape_.width) : Tensor{};
  const ExpertGradients written{up.weight,     down.weight, up.adapters,
                                down.adapters, up.bias,     down.bias};
  kernels::ExpertAdapters adapters = expert_adapters(activations_, shape_, parameters);
  if (adapters) set_gradients(adapters, written);
  if (shape_.expert.is_cut()) {
    return exchange_.backward({.decided = decided,
                               .x_TD = x_TD(block),
                               .d_out_TD = d_out_TD,
                               .up = parameters[SiteId::kExpertsUp].weight,
                               .down = parameters[SiteId::kExpertsDown].weight,
                               .d_weights = d_weights,
                               .d_sum = d_sum,
                               .written = written,
                               .next = up.next,
                               .workspace = experts_workspace(true),
                               .counts = rows_of_experts(block),
                               .adapters = adapters,
                               .biases = biases_of(parameters)});
  }
  kernels::experts_backward(compute_, {.shape = shape_.experts(),
                                       .x = x_TD(block),
                                       .dy = d_out_TD,
                                       .up = parameters[SiteId::kExpertsUp].weight,
                                       .down = parameters[SiteId::kExpertsDown].weight,
                                       .chosen = decided.chosen,
                                       .weights = decided.weights,
                                       .d_weights = d_weights,
                                       .d_sum = d_sum,
                                       .d_up = up.weight,
                                       .d_down = down.weight,
                                       .adds_up = up.adds,
                                       .adds_down = down.adds,
                                       .workspace = experts_workspace(true),
                                       .biases = biases_of(parameters),
                                       .d_biases = {up.bias, down.bias},
                                       .rows = rows_of_experts(block),
                                       .adapters = adapters});
}

void Mixture::router_backward(std::int64_t block, const BlockParameters& parameters,
                              const BlockParameters& gradients, const Pass& pass, bool input) {
  const ExpertsBuffers& own = activations_.experts;
  const Routing decided = routing(block);
  const std::int64_t T = shape_.tokens(), E = shape_.moe.experts;
  const Buffer& place = c_.puts_off != nullptr ? c_.puts_off->d_router : own.d_logits;
  const Tensor d_logits_TE = rows(place, T, E);
  kernels::router_backward(
      compute_,
      {.shape = shape_.router(),
       .logits = decided.logits,
       .chosen = decided.chosen,
       .weights = decided.weights,
       .d_weights = rows(own.d_weights, T, shape_.moe.per_token),
       .counts = decided.counts,
       .balance = decided.balance,
       .loss_scale = pass.balance_scale / static_cast<float>(shape_.router().balance_groups()),
       .d_logits = d_logits_TE});
  router_weight_gradient(block, gradients, d_logits_TE);
  if (!input) return;
  const Tensor d_x_TD = rows(own.d_x, T, shape_.width);
  if (!adds_router()) return kernels::fill_zero(compute_, d_x_TD);
  kernels::linear_backward_input(compute_, {{T, shape_.width, E},
                                            d_logits_TE,
                                            parameters[SiteId::kRouter].weight,
                                            d_x_TD,
                                            false,
                                            activations_.workspace});
}

// The gradient of the shared expert's output.
Tensor Mixture::gate_backward(std::int64_t block, const BlockParameters& parameters,
                              const BlockParameters& gradients, const Tensor& d_out_TD,
                              bool input) {
  const ExpertsBuffers& own = activations_.experts;
  const std::int64_t T = shape_.tokens(), D = shape_.width;
  const SiteTensors gate = c_.kept_of(block)[SiteId::kSharedGate];
  const Tensor d_shared_TD = rows(own.d_shared, T, D);
  const Tensor d_logits = rows(c_.puts_off != nullptr ? c_.puts_off->d_gate : own.d_gate, T, 1);
  kernels::gate_backward(compute_, {.tokens = T,
                                    .width = D,
                                    .logits = gate.statistic,
                                    .shared = gate.output,
                                    .gate = parameters[SiteId::kSharedGate].weight,
                                    .dy = d_out_TD,
                                    .d_shared = d_shared_TD,
                                    .d_logits = d_logits,
                                    .d_x = input ? rows(own.d_x, T, D) : Tensor{}});
  collectives_.sum("gradients of gates", d_logits);
  gate_weight_gradient(block, gradients, d_logits);
  return d_shared_TD;
}

void Mixture::router_weight_gradient(std::int64_t block, const BlockParameters& gradients,
                                     const Tensor& d_logits_TE) {
  const Affine& router = gradients[SiteId::kRouter];
  // A choice has no gradient. The bias is corrected after the update
  // (engine/train/expert_statistics.h).
  const bool corrects = router.bias && !shape_.moe.biases;
  if (corrects && !router.adds) kernels::fill_zero(compute_, router.bias);
  if (!router.weight) return;
  kernels::linear_backward_weight(compute_, {{shape_.tokens(), shape_.width, shape_.moe.experts},
                                             d_logits_TE,
                                             x_in_f32(block),
                                             router.weight,
                                             corrects ? Tensor{} : router.bias,
                                             router.adds,
                                             activations_.workspace});
}

void Mixture::gate_weight_gradient(std::int64_t block, const BlockParameters& gradients,
                                   const Tensor& d_logits) {
  const Affine& gate = gradients[SiteId::kSharedGate];
  if (!gate.weight) return;
  kernels::gate_weight_gradient(
      compute_, {shape_.tokens(), shape_.width, x_TD(block), d_logits, gate.weight, gate.adds});
}

// The experts' products of the input half are formed once more, since nothing of a row is kept.
void Mixture::weight_gradients(std::int64_t block, const BlockParameters& parameters,
                               const BlockParameters& gradients) {
  const WaitingBuffers& waiting = c_.waiting_of(block);
  const std::int64_t T = shape_.tokens(), D = shape_.width;
  if (has_shared()) shared_.weight_gradients(block, gradients);
  if (gradients[SiteId::kExpertsUp].weight) {
    experts_backward(block, parameters, gradients, rows(waiting.d_experts, T, D), false);
  }
  router_weight_gradient(block, gradients, rows(waiting.d_router, T, shape_.moe.experts));
  if (shape_.moe.shared_gate) gate_weight_gradient(block, gradients, rows(waiting.d_gate, T, 1));
}

}  // namespace sherd::model
