#include <algorithm>

#include "kernels/device_common/experts.h"
#include "kernels/device_common/grouped_rows.h"
#include "kernels/expert_pieces.h"
#include "kernels/launches/memory.h"
#include "kernels/router_rules.h"

namespace sherd::kernels::launches {
namespace {

/// The launches of a round: what they read and write follows from the rows that are in it.
class Round {
 public:
  Round(const ExpertsShape& shape, DType dtype, const Tensor& workspace,
        const std::vector<ExpertPiece>& pieces, Launches& all)
      : shape_(shape),
        dtype_(dtype),
        workspace_(workspace),
        pieces_(pieces),
        rows_(range_of(pieces).count),
        all_(all) {}

  std::int64_t bytes(std::int64_t width) const {
    return rows_ * width * static_cast<std::int64_t>(size_of(dtype_));
  }
  Tensor tensor(std::int64_t width) const { return {nullptr, dtype_, rows_ * width}; }
  ActivationShape activation() const { return {shape_.activation, rows_, shape_.ffn_width}; }

  void gather() const {
    all_.push_back(memory("experts (gather)", bytes(shape_.width), bytes(shape_.width)));
  }
  void combine() const {
    const std::int64_t sums = rows_ * shape_.width * kFloat;
    all_.push_back(memory("experts (combine)", bytes(shape_.width) + sums, sums));
  }
  void activate(const ConstTensor& bias) const {
    gather();
    multiply(shape_.width, shape_.up_width(), bias);
    add(activation_forward({activation(), tensor(shape_.up_width()), tensor(shape_.ffn_width)}));
  }
  void multiply(std::int64_t inputs, std::int64_t outputs, const ConstTensor& bias) const {
    if (!bias && device_common::groups_products(shape_, dtype_)) {
      return multiply_grouped(inputs, outputs);
    }
    for_each_expert([&](std::int64_t rows) {
      add(linear_forward({.shape = {rows, inputs, outputs},
                          .x = part(rows * inputs),
                          .w = part(inputs * outputs),
                          .bias = bias ? ConstTensor(bias.data, dtype_, outputs) : ConstTensor(),
                          .y = part(rows * outputs),
                          .workspace = workspace_}));
    });
  }
  void multiply_grouped(std::int64_t inputs, std::int64_t outputs) const {
    device_common::for_each_grouped_launch(
        expert_runs(pieces_), range_of(pieces_).first, shape_.buffer_rows,
        [&](std::span<const ExpertRun> runs, const device_common::GroupedRows& rows) {
          all_.push_back(memory("experts (offsets)", 0, shape_.experts * kFloat));
          all_.push_back(
              {.kernel = "experts (grouped products)",
               .kind = LaunchKind::kMatmul,
               .read = part(rows.rows * inputs + std::ssize(runs) * inputs * outputs).bytes(),
               .written = part(rows.rows * outputs).bytes(),
               .flops = 2.0 * static_cast<double>(rows.rows) * static_cast<double>(inputs) *
                        static_cast<double>(outputs),
               .dtype = dtype_,
               .m = outputs,
               .n = rows.rows,
               .k = inputs});
        });
  }
  void multiply_back(std::int64_t inputs, std::int64_t outputs) const {
    for_each_expert([&](std::int64_t rows) {
      add(linear_backward_input({.shape = {rows, outputs, inputs},
                                 .dy = part(rows * inputs),
                                 .w = part(inputs * outputs),
                                 .dx = part(rows * outputs),
                                 .workspace = workspace_}));
    });
  }
  void add_gradient(const Tensor& gradient, std::int64_t inputs, std::int64_t outputs,
                    bool adds) const {
    for (const ExpertPiece& piece : pieces_) {
      add(linear_backward_weight({.shape = {piece.count, inputs, outputs},
                                  .dy = part(piece.count * outputs),
                                  .x = part(piece.count * inputs),
                                  .dw = {nullptr, gradient.dtype, inputs * outputs},
                                  .dbias = {},
                                  .add_to_output = adds || !piece.begins,
                                  .workspace = workspace_}));
    }
  }
  void weigh() const {
    const std::int64_t both = 2 * bytes(shape_.ffn_width);
    if (!shape_.weighs_input) all_.push_back(memory("experts (weigh)", both, both));
  }
  void weigh_inputs() const {
    all_.push_back(memory("experts (input weights)", 2 * bytes(shape_.width), rows_ * kFloat));
  }
  void add_second_bias() const {
    const std::int64_t runs = std::ssize(expert_runs(pieces_)), numbers = rows_ * kFloat;
    for_runs("experts (second bias)",
             bytes(shape_.width) + numbers + part(runs * shape_.width).bytes(), numbers);
  }
  void add_bias_gradient(const Tensor& gradient, std::int64_t width) const {
    if (!gradient) return;
    const std::int64_t runs = std::ssize(expert_runs(pieces_));
    for_runs("experts (bias gradient)", bytes(width),
             Tensor{nullptr, gradient.dtype, runs * width}.bytes());
  }
  void add(const Launches& more) const { all_.insert(all_.end(), more.begin(), more.end()); }

 private:
  Tensor part(std::int64_t numel) const { return {nullptr, dtype_, numel}; }
  template <class Each>
  void for_each_expert(const Each& each) const {
    for (const ExpertRun& run : expert_runs(pieces_)) each(run.rows.count);
  }
  // All runs' bytes, divided evenly.
  void for_runs(std::string_view kernel, std::int64_t read, std::int64_t written) const {
    const std::int64_t launches = device_common::launches_of_runs(std::ssize(expert_runs(pieces_)));
    for (std::int64_t i = 0; i < launches; ++i) {
      all_.push_back(memory(kernel, read / launches, written / launches));
    }
  }

  const ExpertsShape& shape_;
  DType dtype_;
  const Tensor& workspace_;
  const std::vector<ExpertPiece>& pieces_;
  std::int64_t rows_;
  Launches& all_;
};

template <class Args, class Each>
void for_each_round(const Args& args, Launches& all, const Each& each) {
  for_each_expert_round(
      args.shape,
      [&](std::int64_t e) -> std::int64_t { return args.rows[static_cast<std::size_t>(e)]; },
      [&](const std::vector<ExpertPiece>& pieces) {
        each(Round(args.shape, args.x.dtype, args.workspace.matmuls, pieces, all));
      });
}

Launch ordering(const ExpertsShape& shape) {
  const std::int64_t choices = shape.tokens * shape.per_token * kFloat;
  return memory("experts (order)", choices, 2 * choices);
}

void clear_gradients(const Tensor& gradient, std::int64_t numel, bool adds,
                     std::span<const std::int32_t> rows, Launches& all) {
  if (!gradient || adds) return;
  for (const std::int32_t own : rows) {
    if (own == 0) all = all + fill_zero({gradient.data, gradient.dtype, numel});
  }
}

}  // namespace

namespace {
std::int64_t bytes_of_chunks(const RouterShape& shape) {
  return shape.sequences * router_rules::chunks_of(shape) *
         ((shape.experts + 1) * kDouble + shape.experts * kFloat);
}
}  // namespace

Launches router_forward(const RouterForward& args) {
  const std::int64_t sums = bytes_of_chunks(args.shape);
  return {memory("router_forward", bytes_of(args.logits, args.bias),
                 bytes_of(args.chosen, args.weights) + sums),
          memory("router (sums)", sums, bytes_of(args.counts, args.balance))};
}
Launches router_losses(const RouterLosses& args) {
  const std::int64_t sums = bytes_of_chunks(args.shape);
  return {memory("router_losses", bytes_of(args.logits, args.chosen), sums),
          memory("router (sums)", sums + bytes_of(args.rank_counts, args.previous_counts),
                 bytes_of(args.counts, args.balance))};
}
Launches router_totals(const RouterTotals& args) {
  return {memory("router_totals", bytes_of(args.counts, args.totals), args.totals.bytes())};
}
Launches router_correction(const RouterCorrection& args) {
  return flat("router_correction", args.bias.numel, args.bias.bytes(), args.bias.bytes());
}
Launches router_backward(const RouterBackward& args) {
  return {memory("router_backward",
                 bytes_of(args.logits, args.chosen, args.weights, args.d_weights, args.balance),
                 args.d_logits.bytes())};
}

Launches expert_row_counts(const ExpertRowCounts& args) {
  return {ordering(args.shape)};
}

Launches experts_forward(const ExpertsForward& args) {
  const ExpertsShape& shape = args.shape;
  Launches all = {ordering(shape)};
  all = all + fill_zero(args.workspace.sums);
  for_each_round(args, all, [&](const Round& round) {
    round.activate(args.biases.up);
    round.multiply(shape.ffn_width, shape.width, args.biases.down);
    round.combine();
  });
  return all + flat("experts (finish)", args.y.numel, bytes_of(args.workspace.sums, args.shared),
                    args.y.bytes());
}

Launches experts_backward(const ExpertsBackward& args) {
  const ExpertsShape& shape = args.shape;
  const std::int64_t D = shape.width, F = shape.ffn_width, U = shape.up_width();
  Launches all = {ordering(shape)};
  all = all + fill_zero(args.d_weights);
  if (args.d_sum) all = all + fill_zero(args.d_sum);
  clear_gradients(args.d_up, U * D, args.adds_up, args.rows, all);
  clear_gradients(args.d_down, D * F, args.adds_down, args.rows, all);
  clear_gradients(args.d_biases.up, U, args.adds_up, args.rows, all);
  clear_gradients(args.d_biases.down, D, args.adds_down, args.rows, all);
  for_each_round(args, all, [&](const Round& round) {
    round.activate(args.biases.up);
    round.gather();
    round.multiply_back(D, F);
    round.weigh();
    if (args.biases.down) round.add_second_bias();
    round.add(activation_backward(
        {round.activation(), round.tensor(U), round.tensor(F), round.tensor(U)}));
    if (args.d_down) round.add_gradient(args.d_down, F, D, args.adds_down);
    round.add_bias_gradient(args.d_biases.up, U);
    round.add_bias_gradient(args.d_biases.down, D);
    if (args.d_up) {
      round.gather();
      round.add_gradient(args.d_up, D, U, args.adds_up);
    }
    if (!args.d_sum && !shape.weighs_input) return;
    round.multiply_back(U, D);
    if (shape.weighs_input) round.weigh_inputs();
    if (args.d_sum) round.combine();
  });
  return all;
}

Launches expert_order(const ExpertOrder& args) {
  return {ordering(args.shape)};
}
Launches expert_pack(const ExpertPack& args) {
  Launches all;
  for (const RowRange& range : args.ranges) {
    const Tensor rows{nullptr, args.out.dtype, range.count * args.shape.width};
    all = all + flat("experts (gather)", range.count, rows.bytes(), rows.bytes());
  }
  return all;
}
Launches expert_choices_to_rows(const ExpertChoices& args) {
  return flat("experts (choices)", args.from.numel, 2 * args.from.bytes(), args.to.bytes());
}
Launches expert_rows_to_choices(const ExpertChoices& args) {
  return expert_choices_to_rows(args);
}
Launches expert_combine(const ExpertCombine& args) {
  Launches all = fill_zero(args.sums);
  all.push_back(memory("experts (combine)", bytes_of(args.rows, args.weights) + args.sums.bytes(),
                       args.sums.bytes()));
  if (!args.y) return all;
  return all +
         flat("experts (finish)", args.y.numel, bytes_of(args.sums, args.shared), args.y.bytes());
}

namespace {

template <class Args>
Round round_of(const Args& args, Launches& all) {
  return {args.shape, args.workspace.up.dtype, args.workspace.matmuls, args.pieces, all};
}
template <class Args>
void activate_rows(const Args& args, const Round& round) {
  const ExpertsShape& shape = args.shape;
  round.multiply(shape.width, shape.up_width(), args.biases.up);
  round.add(activation_forward(
      {round.activation(), round.tensor(shape.up_width()), round.tensor(shape.ffn_width)}));
}

}  // namespace

Launches expert_rows_forward(const ExpertRowsForward& args) {
  Launches all;
  if (args.pieces.empty()) return all;
  const Round round = round_of(args, all);
  activate_rows(args, round);
  round.multiply(args.shape.ffn_width, args.shape.width, args.biases.down);
  return all;
}
Launches expert_rows_activate(const ExpertRowsActivate& args) {
  Launches all;
  if (!args.pieces.empty()) activate_rows(args, round_of(args, all));
  return all;
}
Launches expert_rows_backward(const ExpertRowsBackward& args) {
  Launches all;
  if (args.pieces.empty()) return all;
  const std::int64_t D = args.shape.width, F = args.shape.ffn_width, U = args.shape.up_width();
  const Round round = round_of(args, all);
  round.multiply_back(D, F);
  round.weigh();
  if (args.biases.down) round.add_second_bias();
  round.add(
      activation_backward({round.activation(), round.tensor(U), round.tensor(F), round.tensor(U)}));
  if (args.input) round.multiply_back(U, D);
  return all;
}
Launches expert_rows_gradients(const ExpertRowsGradients& args) {
  Launches all;
  const std::int64_t D = args.shape.width, F = args.shape.ffn_width, U = args.shape.up_width();
  for (std::size_t i = 0; i < args.without_rows.size(); ++i) {
    if (args.d_up) all = all + fill_zero({args.d_up.data, args.d_up.dtype, U * D});
    if (args.d_down) all = all + fill_zero({args.d_down.data, args.d_down.dtype, D * F});
    if (const Tensor& up = args.d_biases.up) all = all + fill_zero({up.data, up.dtype, U});
    if (const Tensor& down = args.d_biases.down) all = all + fill_zero({down.data, down.dtype, D});
  }
  if (args.pieces.empty()) return all;
  const Round round = round_of(args, all);
  if (args.d_down) round.add_gradient(args.d_down, F, D, false);
  if (args.d_up) round.add_gradient(args.d_up, D, U, false);
  round.add_bias_gradient(args.d_biases.up, U);
  round.add_bias_gradient(args.d_biases.down, D);
  return all;
}

Launches expert_input_weights(const ExpertInputWeights& args) {
  return {memory("experts (input weights)", bytes_of(args.rows, args.x), args.d_weights.bytes())};
}
Launches experts_input_gradient(const ExpertsInputGradient& args) {
  return flat("experts (finish)", args.d_x.numel, bytes_of(args.d_sum, args.router, args.shared),
              args.d_x.bytes());
}

Launches gate_logits(const GateLogits& args) {
  return {memory("gate_logits", bytes_of(args.x, args.gate), args.logits.bytes())};
}
Launches gate_forward(const GateForward& args) {
  return {memory("gate_forward", bytes_of(args.logits, args.shared), args.y.bytes())};
}
Launches gate_backward(const GateBackward& args) {
  return {memory("gate_backward",
                 bytes_of(args.logits, args.shared, args.gate, args.dy) + args.d_x.bytes(),
                 bytes_of(args.d_shared, args.d_logits, args.d_x))};
}
Launches gate_weight_gradient(const GateWeightGradient& args) {
  return {memory("gate_weight_gradient",
                 bytes_of(args.x, args.d_logits) + (args.add ? args.d_gate.bytes() : 0),
                 args.d_gate.bytes())};
}

}  // namespace sherd::kernels::launches
