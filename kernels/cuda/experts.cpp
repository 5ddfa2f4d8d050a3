// The rounds of kernels/experts.h on a GPU. A round's rows are gathered into its buffer `rows`,
// which afterwards holds what comes out. Products of neighbouring pieces of one expert are one
// product, but for gradients of matrices, which are sums over pieces.
#include "kernels/experts.h"

#include "kernels/cuda/expert_kernels.h"
#include "kernels/cuda/expert_products.h"
#include "kernels/cuda/forms.h"
#include "kernels/expert_pieces.h"

namespace sherd::kernels::cuda {
namespace {

using device_common::MatmulKey;

constexpr std::uintptr_t kAligned = 16;

bool aligned(std::int64_t bytes) {
  return bytes % static_cast<std::int64_t>(kAligned) == 0;
}
bool aligned(const void* data) {
  return reinterpret_cast<std::uintptr_t>(data) % kAligned == 0;
}

const char* element_of(const ConstTensor& tensor, std::int64_t element) {
  return static_cast<const char*>(tensor.data) +
         element * static_cast<std::int64_t>(size_of(tensor.dtype));
}
char* element_of(const Tensor& tensor, std::int64_t element) {
  return static_cast<char*>(tensor.data) +
         element * static_cast<std::int64_t>(size_of(tensor.dtype));
}

/// The rows of one round, and its products. An operand's place has no influence on the algorithm:
/// every row of it is aligned, or none counts as aligned.
class Round {
 public:
  Round(Stream& stream, const ExpertsShape& shape, const ExpertsWorkspace& workspace,
        const std::vector<ExpertPiece>& pieces)
      : stream_(stream),
        shape_(shape),
        workspace_(workspace),
        pieces_(pieces),
        range_(range_of(pieces)) {
    SHERD_CHECK(reinterpret_cast<std::uintptr_t>(workspace.matmuls.data) % 256 == 0,
                "experts: a workspace at {}", workspace.matmuls.data);
  }

  const RowRange& range() const { return range_; }
  Tensor of(const Tensor& buffer, std::int64_t width) const {
    return buffer.part(0, range_.count * width);
  }
  ActivationShape activation() const { return {shape_.activation, range_.count, shape_.ffn_width}; }

  /// Into the buffer `rows`.
  Tensor gather(const ConstTensor& x) const {
    const Tensor rows = of(workspace_.rows, shape_.width);
    gather_rows(stream_, shape_, workspace_.order, range_, x, rows);
    return rows;
  }

  /// out[r] = x[r] w^T, w [outputs, inputs] the row's expert's.
  void multiply(const ConstTensor& x, const ConstTensor& w, std::int64_t inputs,
                std::int64_t outputs, const Tensor& out) const {
    const MatmulKey key = key_of(device_common::forward_matmul({kExpertPiece, inputs, outputs}), x,
                                 w, out, inputs, outputs);
    for_each_expert([&](std::int64_t expert, const RowRange& rows) {
      launch(key, rows.count,
             {.a = element_of(w, expert * inputs * outputs),
              .b = element_of(x, rows.first * inputs),
              .d = element_of(out, rows.first * outputs)});
    });
  }
  /// out[r] = x[r] w, w [inputs, outputs] the row's expert's.
  void multiply_back(const ConstTensor& x, const ConstTensor& w, std::int64_t inputs,
                     std::int64_t outputs, const Tensor& out) const {
    const MatmulKey key =
        key_of(device_common::backward_input_matmul({kExpertPiece, outputs, inputs}), x, w, out,
               inputs, outputs);
    for_each_expert([&](std::int64_t expert, const RowRange& rows) {
      launch(key, rows.count,
             {.a = element_of(w, expert * inputs * outputs),
              .b = element_of(x, rows.first * inputs),
              .d = element_of(out, rows.first * outputs)});
    });
  }
  /// gradient[e] (+)= dy^T x over the expert's rows, piece after piece.
  void add_gradient(const ConstTensor& x, const ConstTensor& dy, std::int64_t inputs,
                    std::int64_t outputs, bool adds, const Tensor& gradient) const {
    MatmulKey key = key_of(device_common::backward_weight_matmul({kExpertPiece, inputs, outputs}),
                           x, dy, gradient, inputs, outputs);
    for (const ExpertPiece& piece : pieces_) {
      const std::int64_t first = piece.first - range_.first;
      key.add_to_output = adds || !piece.begins;
      launch(key, piece.count,
             {.a = element_of(x, first * inputs),
              .b = element_of(dy, first * outputs),
              .d = element_of(gradient, piece.expert * inputs * outputs)});
    }
  }

 private:
  MatmulKey key_of(MatmulKey key, const ConstTensor& a, const ConstTensor& b, const Tensor& out,
                   std::int64_t inputs, std::int64_t outputs) const {
    key.in = a.dtype;
    key.out = out.dtype;
    const auto narrow = static_cast<std::int64_t>(std::min(size_of(key.in), size_of(key.out)));
    const bool all = aligned(a.data) && aligned(b.data) && aligned(out.data) &&
                     aligned(inputs * narrow) && aligned(outputs * narrow);
    key.alignment = all ? static_cast<int>(kAligned) : static_cast<int>(narrow);
    key.workspace_bytes =
        std::min(workspace_.matmuls.bytes(), device_common::kMatmulWorkspaceBytes);
    return key;
  }
  void launch(const MatmulKey& key, std::int64_t rows, const MatmulOperands& operands) const {
    multiply_expert_rows(cuda_stream(stream_), key, rows, operands, workspace_.matmuls.data);
  }
  /// `each(expert, rows)`: all rows of an expert in this round, from the round's first one.
  template <class Each>
  void for_each_expert(const Each& each) const {
    for (std::size_t begin = 0; begin < pieces_.size();) {
      std::size_t end = begin;
      RowRange rows{pieces_[begin].first - range_.first, 0};
      for (; end < pieces_.size() && pieces_[end].expert == pieces_[begin].expert; ++end) {
        rows.count += pieces_[end].count;
      }
      each(pieces_[begin].expert, rows);
      begin = end;
    }
  }

  Stream& stream_;
  const ExpertsShape& shape_;
  const ExpertsWorkspace& workspace_;
  const std::vector<ExpertPiece>& pieces_;
  RowRange range_;
};

template <class Args, class Each>
void for_each_round(Stream& stream, const Args& args, const Each& each) {
  for_each_expert_round(
      args.shape,
      [&](std::int64_t e) -> std::int64_t { return args.rows[static_cast<std::size_t>(e)]; },
      [&](const std::vector<ExpertPiece>& pieces) {
        each(Round(stream, args.shape, args.workspace, pieces));
      });
}

// up = x times the experts' up, of gathered rows; activated = the activation of it.
void activate(Stream& stream, const Round& round, const ExpertsShape& shape, const ConstTensor& x,
              const ConstTensor& matrix, const ExpertsWorkspace& buffers) {
  const Tensor up = round.of(buffers.up, shape.up_width());
  round.multiply(round.gather(x), matrix, shape.width, shape.up_width(), up);
  activation_forward(stream,
                     {round.activation(), up, round.of(buffers.activated, shape.ffn_width)});
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
  order_by_expert(stream, shape, args.chosen, args.order);
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
  order_by_expert(stream, shape, args.chosen, buffers.order);
  fill_zero(stream, buffers.sums);
  for_each_round(stream, args, [&](const Round& round) {
    activate(stream, round, shape, args.x, args.up, buffers);
    const Tensor out = round.of(buffers.rows, shape.width);
    round.multiply(buffers.activated, args.down, shape.ffn_width, shape.width, out);
    combine_rows(stream, shape, buffers.order, round.range(), out, args.weights, buffers.sums);
  });
  finish_sums(stream, buffers.sums, {}, args.shared, args.y);
}

void experts_backward(Stream& stream, const ExpertsBackward& args) {
  const ExpertsShape& shape = args.shape;
  const ExpertsWorkspace& buffers = args.workspace;
  const std::int64_t D = shape.width, F = shape.ffn_width, U = shape.up_width();
  order_by_expert(stream, shape, args.chosen, buffers.order);
  fill_zero(stream, args.d_weights);
  if (args.d_sum) fill_zero(stream, args.d_sum);
  clear_gradients(stream, args.d_up, U * D, args.adds_up, args.rows);
  clear_gradients(stream, args.d_down, D * F, args.adds_down, args.rows);
  for_each_round(stream, args, [&](const Round& round) {
    const Tensor up = round.of(buffers.up, U), activated = round.of(buffers.activated, F);
    const Tensor d_activated = round.of(buffers.d_activated, F);
    activate(stream, round, shape, args.x, args.up, buffers);
    const Tensor dy = round.gather(args.dy);
    round.multiply_back(dy, args.down, D, F, d_activated);
    weigh_rows(stream, {.shape = shape,
                        .order = buffers.order,
                        .range = round.range(),
                        .weights = args.weights,
                        .d_weights = args.d_weights,
                        .activated = activated,
                        .d_activated = d_activated});
    activation_backward(stream, {round.activation(), up, d_activated, up});
    if (args.d_down) round.add_gradient(activated, dy, F, D, args.adds_down, args.d_down);
    if (args.d_up) round.add_gradient(round.gather(args.x), up, D, U, args.adds_up, args.d_up);
    if (!args.d_sum) return;
    const Tensor d_rows = round.of(buffers.rows, D);
    round.multiply_back(up, args.up, U, D, d_rows);
    combine_rows(stream, shape, buffers.order, round.range(), d_rows, {}, args.d_sum);
  });
}

void experts_input_gradient(Stream& stream, const ExpertsInputGradient& args) {
  finish_sums(stream, args.d_sum, args.router, args.shared, args.d_x);
}

}  // namespace sherd::kernels::cuda
