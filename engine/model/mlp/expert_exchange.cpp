#include "engine/model/mlp/expert_exchange.h"

#include <algorithm>
#include <utility>

#include "engine/model/mlp/expert_adapters.h"
#include "kernels/expert_rows.h"

namespace sherd::model {
namespace {

std::vector<ElementRange> elements(const std::vector<kernels::RowRange>& rows, std::int64_t width) {
  std::vector<ElementRange> ranges;
  for (const kernels::RowRange& range : rows) {
    ranges.push_back({range.first * width, range.count * width});
  }
  return ranges;
}

// The gradients of this rank's matrices, for one source rank after another.
class LinkWriter {
 public:
  LinkWriter(const ExpertExchange::Backward& args, std::span<const std::int32_t> counts,
             const ExpertPart& part)
      : args_(args),
        counts_(counts),
        part_(part),
        held_(std::ssize(counts) / part.degree / part.degree),
        to_(args.written) {}

  bool writes() const {
    return to_.up || to_.down || args_.adapters || to_.up_bias || to_.down_bias;
  }

  /// The pieces of a round, whose rows are in the buffers.
  void add(Stream& compute, const kernels::ExpertRowsGradients& of_round,
           const std::vector<kernels::ExpertPiece>& pieces) {
    if (!writes()) return;
    for (std::size_t begin = 0; begin < pieces.size();) {
      std::size_t end = begin;
      while (end < pieces.size() && pieces[end].source == pieces[begin].source) ++end;
      finish_until(compute, of_round, pieces[begin].source);
      kernels::ExpertRowsGradients call = of_round;
      call.pieces.assign(pieces.begin() + static_cast<std::ptrdiff_t>(begin),
                         pieces.begin() + static_cast<std::ptrdiff_t>(end));
      run(compute, std::move(call));
      begin = end;
    }
  }
  /// Closes the gradients of the first `sources` sources, since ranks of other groups may wait for
  /// them.
  void complete(Stream& compute, const kernels::ExpertRowsGradients& of_round, int sources) {
    const int source = std::min(sources, part_.degree - 1);
    if (writes() && source > source_) finish_until(compute, of_round, source);
  }
  /// All sources that are left have no more rows.
  void finish(Stream& compute, const kernels::ExpertRowsGradients& of_round) {
    if (writes()) finish_until(compute, of_round, part_.degree - 1);
  }

 private:
  // Makes `source` the present one. Those before it are complete.
  void finish_until(Stream& compute, const kernels::ExpertRowsGradients& of_round, int source) {
    while (true) {
      if (!cleared_) {
        kernels::ExpertRowsGradients call = of_round;
        call.without_rows = without_rows();
        if (!call.without_rows.empty()) run(compute, std::move(call));
        cleared_ = true;
      }
      if (source_ == source) return;
      to_ = args_.next();
      ++source_;
      cleared_ = false;
    }
  }
  void run(Stream& compute, kernels::ExpertRowsGradients call) const {
    call.d_up = to_.up;
    call.d_down = to_.down;
    call.d_biases = {to_.up_bias, to_.down_bias};
    if (call.adapters) set_gradients(call.adapters, to_);
    kernels::expert_rows_gradients(compute, call);
  }
  std::vector<int> without_rows() const {
    std::vector<int> experts;
    const std::int64_t first = (source_ * part_.degree + part_.rank) * held_;
    for (std::int64_t e = 0; e < held_; ++e) {
      if (counts_[static_cast<std::size_t>(first + e)] == 0) experts.push_back(static_cast<int>(e));
    }
    return experts;
  }

  const ExpertExchange::Backward& args_;
  std::span<const std::int32_t> counts_;
  const ExpertPart part_;
  std::int64_t held_;
  ExpertGradients to_;
  int source_ = 0;
  bool cleared_ = false;
};

// A CPU reads what ranks have exchanged; of a GPU's it knows a copy.
std::span<const std::int32_t> counts_of(const Routing& decided,
                                        std::span<const std::int32_t> copied) {
  if (!copied.empty()) return copied;
  return {decided.rank_counts.as<std::int32_t>(),
          static_cast<std::size_t>(decided.rank_counts.numel)};
}

}  // namespace

Tensor ExpertExchange::home_rows() const {
  return rows(activations_.experts.home_rows, shape_.tokens() * shape_.moe.per_token, shape_.width);
}

Tensor ExpertExchange::home_numbers() const {
  return rows(activations_.experts.home_numbers, shape_.tokens(), shape_.moe.per_token);
}

Tensor ExpertExchange::order() const {
  return rows(activations_.experts.order, 1, kernels::experts_order_numel(shape_.experts()));
}

void ExpertExchange::sort(const Routing& decided, const Tensor& counts) {
  kernels::expert_order(
      compute_,
      {.shape = shape_.experts(), .chosen = decided.chosen, .order = order(), .counts = counts});
}

void ExpertExchange::begin(const Routing& decided, const ConstTensor& x_TD,
                           std::span<std::int32_t> counts) {
  const std::int64_t E = shape_.moe.experts;
  sort(decided, decided.rank_counts.part(shape_.expert.rank * E, E));
  if (shape_.moe.weighs_input) weights_to_rows(decided);
  collectives_.gather_counts("counts of experts", decided.rank_counts);
  collectives_.await_rows();
  kernels::expert_rank_counts(compute_, {shape_.experts(), decided.rank_counts, counts});
  begun_ = rounds(counts_of(decided, counts));
  if (!begun_->empty()) begin_round(x_TD, begun_->front());
}

void ExpertExchange::begin_round(const ConstTensor& x_TD, const ExpertRound& round) {
  const Tensor x_rows =
      rows(activations_.experts.x_rows, shape_.owned_experts().buffer_rows, shape_.width);
  pack(x_TD, round, shape_.moe.weighs_input);
  send("rows for experts", home_rows(), shape_.width, round, x_rows);
}

std::vector<ExpertRound> ExpertExchange::rounds(std::span<const std::int32_t> counts) const {
  return expert_rounds(counts, shape_.expert.degree, shape_.expert.rank,
                       shape_.owned_experts().buffer_rows);
}

void ExpertExchange::weights_to_rows(const Routing& decided) {
  kernels::expert_choices_to_rows(
      compute_,
      {.shape = shape_.experts(), .order = order(), .from = decided.weights, .to = home_numbers()});
}

void ExpertExchange::pack(const ConstTensor& from_TD, const ExpertRound& round, bool weighs) {
  kernels::expert_pack(compute_, {.shape = shape_.experts(),
                                  .order = order(),
                                  .x = from_TD,
                                  .ranges = round.sends,
                                  .out = home_rows(),
                                  .weights = weighs ? home_numbers() : ConstTensor{}});
}

void ExpertExchange::send(const char* what, const Tensor& home, std::int64_t width,
                          const ExpertRound& round, const Tensor& rows) {
  collectives_.exchange_rows(what, home, elements(round.sends, width), rows,
                             elements(round.receives, width));
}

void ExpertExchange::bring_back(const char* what, const Tensor& rows, std::int64_t width,
                                const ExpertRound& round, const Tensor& home) {
  collectives_.exchange_rows(what, rows, elements(round.receives, width), home,
                             elements(round.sends, width));
}

void ExpertExchange::forward(const Forward& args) {
  const kernels::ExpertsShape owned = shape_.owned_experts();
  const std::int64_t D = shape_.width;
  const auto begun = std::exchange(begun_, std::nullopt);
  if (!begun) {  // a recompute comes after other layers
    sort(args.decided);
    if (shape_.moe.weighs_input) weights_to_rows(args.decided);
  }
  const std::vector<ExpertRound> all =
      begun ? *begun : rounds(counts_of(args.decided, args.counts));
  for (const ExpertRound& round : all) {
    if (!begun || &round != &all.front()) begin_round(args.x_TD, round);
    collectives_.await_rows();
    kernels::expert_rows_forward(compute_,
                                 {.shape = owned,
                                  .pieces = round.pieces,
                                  .x = rows(activations_.experts.x_rows, owned.buffer_rows, D),
                                  .up = args.up,
                                  .down = args.down,
                                  .workspace = args.workspace,
                                  .adapters = args.adapters,
                                  .biases = args.biases});
    bring_back("rows from experts", args.workspace.rows, D, round, home_rows());
  }
  collectives_.await_rows();
  kernels::expert_combine(
      compute_, {.shape = shape_.experts(),
                 .order = order(),
                 .rows = home_rows(),
                 .weights = shape_.moe.weighs_input ? ConstTensor{} : args.decided.weights,
                 .shared = args.shared,
                 .sums = args.workspace.sums,
                 .y = args.out_TD});
}

// All of a round but the gradients of matrices. When it returns, results are on their way home.
void ExpertExchange::backward_round(const Backward& args, const ExpertRound& round) {
  const ExpertsBuffers& own = activations_.experts;
  const kernels::ExpertsShape owned = shape_.owned_experts();
  const std::int64_t C = owned.buffer_rows, D = shape_.width;
  const Tensor x_rows = rows(own.x_rows, C, D), dy_rows = rows(own.dy_rows, C, D);
  const Tensor row_weights = rows(own.row_weights, C, 1);
  const Tensor row_d_weights = rows(own.row_d_weights, C, 1);
  const bool weighs_input = shape_.moe.weighs_input;
  const bool input = args.d_sum || weighs_input;
  pack(args.x_TD, round, weighs_input);
  send("rows for experts, again", home_rows(), D, round, x_rows);
  collectives_.await_rows();
  pack(args.d_out_TD, round);
  send("gradients for experts", home_rows(), D, round, dy_rows);
  if (!weighs_input) send("weights for experts", home_numbers(), 1, round, row_weights);
  kernels::expert_rows_activate(compute_, {.shape = owned,
                                           .pieces = round.pieces,
                                           .x = x_rows,
                                           .up = args.up,
                                           .workspace = args.workspace,
                                           .adapters = args.adapters,
                                           .biases = args.biases});
  collectives_.await_rows();
  kernels::expert_rows_backward(compute_, {.shape = owned,
                                           .pieces = round.pieces,
                                           .dy = dy_rows,
                                           .weights = row_weights,
                                           .up = args.up,
                                           .down = args.down,
                                           .d_weights = row_d_weights,
                                           .input = input,
                                           .workspace = args.workspace,
                                           .adapters = args.adapters,
                                           .biases = args.biases});
  if (!weighs_input) {
    bring_back("gradients of weights", row_d_weights, 1, round, home_numbers());
  }
  if (input) {
    bring_back("gradients from experts", args.workspace.rows, D, round, home_rows());
  }
}

void ExpertExchange::backward(const Backward& args) {
  const ExpertsBuffers& own = activations_.experts;
  const kernels::ExpertsShape owned = shape_.owned_experts(), all = shape_.experts();
  const std::int64_t C = owned.buffer_rows, D = shape_.width;
  const kernels::ExpertRowsGradients of_round{.shape = owned,
                                              .pieces = {},
                                              .without_rows = {},
                                              .x = rows(own.x_rows, C, D),
                                              .dy = rows(own.dy_rows, C, D),
                                              .d_up = {},
                                              .d_down = {},
                                              .workspace = args.workspace,
                                              .adapters = args.adapters,
                                              .weights = rows(own.row_weights, C, 1)};
  sort(args.decided);
  weights_to_rows(args.decided);
  const std::span<const std::int32_t> counts = counts_of(args.decided, args.counts);
  LinkWriter links(args, counts, shape_.expert);
  for (const ExpertRound& round : rounds(counts)) {
    backward_round(args, round);
    links.add(compute_, of_round, round.pieces);
    links.complete(compute_, of_round, round.complete_sources);
  }
  links.finish(compute_, of_round);
  collectives_.await_rows();
  const bool weighs_input = shape_.moe.weighs_input;
  if (weighs_input) {
    kernels::expert_input_weights(compute_, {.shape = all,
                                             .order = order(),
                                             .rows = home_rows(),
                                             .x = args.x_TD,
                                             .d_weights = args.d_weights});
  } else {
    kernels::expert_rows_to_choices(
        compute_, {.shape = all, .order = order(), .from = home_numbers(), .to = args.d_weights});
  }
  if (!args.d_sum) return;
  kernels::expert_combine(compute_, {.shape = all,
                                     .order = order(),
                                     .rows = home_rows(),
                                     .weights = weighs_input ? args.decided.weights : ConstTensor{},
                                     .shared = {},
                                     .sums = args.d_sum});
}

}  // namespace sherd::model
