/// The rows of one round of experts on a GPU, and their products.
///
/// Products of neighbouring pieces of one expert are one product, but for gradients of matrices,
/// which are sums over pieces. Forward products of all experts may be grouped (grouped_products.h). An operand's place has no influence on the algorithm: every row of
/// it is aligned, or none counts as aligned.
#pragma once

#include <algorithm>
#include <vector>

#include "kernels/activation.h"
#include "kernels/cuda/expert_products.h"
#include "kernels/cuda/grouped_products.h"
#include "kernels/expert_pieces.h"

namespace sherd::kernels::cuda {

inline constexpr std::int64_t kExpertAlignment = 16;

/// Element `element` of a tensor of any type.
inline const char* element_of(const ConstTensor& tensor, std::int64_t element) {
  return static_cast<const char*>(tensor.data) +
         element * static_cast<std::int64_t>(size_of(tensor.dtype));
}
inline char* element_of(const Tensor& tensor, std::int64_t element) {
  return static_cast<char*>(tensor.data) +
         element * static_cast<std::int64_t>(size_of(tensor.dtype));
}

class ExpertRound {
 public:
  /// Row `range.first` is the first one of the buffers.
  ExpertRound(Stream& stream, const ExpertsShape& shape, const ExpertsWorkspace& workspace,
              const std::vector<ExpertPiece>& pieces, const RowRange& range)
      : stream_(stream), shape_(shape), workspace_(workspace), pieces_(pieces), range_(range) {
    SHERD_CHECK(reinterpret_cast<std::uintptr_t>(workspace.matmuls.data) % 256 == 0,
                "experts: a workspace at {}", workspace.matmuls.data);
  }

  const RowRange& range() const { return range_; }
  const std::vector<ExpertPiece>& pieces() const { return pieces_; }
  Tensor of(const Tensor& buffer, std::int64_t width) const {
    return buffer.part(0, range_.count * width);
  }
  ActivationShape activation() const { return {shape_.activation, range_.count, shape_.ffn_width}; }

  /// out[r] = x[r] w^T (+ bias), w [outputs, inputs] and the bias the row's expert's.
  void multiply(const ConstTensor& x, const ConstTensor& w, const ConstTensor& bias,
                std::int64_t inputs, std::int64_t outputs, const Tensor& out) const {
    if (!bias && device_common::groups_products(shape_, x.dtype)) {
      return multiply_grouped(x, w, inputs, outputs, out);
    }
    device_common::MatmulKey key = key_of(
        device_common::forward_matmul({kExpertPiece, inputs, outputs}), x, w, out, inputs, outputs);
    if (bias) {
      key.epilogue = device_common::MatmulEpilogue::kBias;
      if (!is_aligned(bias.data)) key.alignment = static_cast<int>(size_of(key.in));
    }
    for_each_expert([&](std::int64_t expert, const RowRange& rows) {
      launch(key, rows.count,
             {.a = element_of(w, expert * inputs * outputs),
              .b = element_of(x, rows.first * inputs),
              .d = element_of(out, rows.first * outputs),
              .bias = bias ? element_of(bias, expert * outputs) : nullptr});
    });
  }
  /// out[r] = x[r] w, w [inputs, outputs] the row's expert's.
  void multiply_back(const ConstTensor& x, const ConstTensor& w, std::int64_t inputs,
                     std::int64_t outputs, const Tensor& out) const {
    const device_common::MatmulKey key =
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
    device_common::MatmulKey key =
        key_of(device_common::backward_weight_matmul({kExpertPiece, inputs, outputs}), x, dy,
               gradient, inputs, outputs);
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
  static bool is_aligned(const void* data) {
    return reinterpret_cast<std::uintptr_t>(data) % kExpertAlignment == 0;
  }
  device_common::MatmulKey key_of(device_common::MatmulKey key, const ConstTensor& a,
                                  const ConstTensor& b, const Tensor& out, std::int64_t inputs,
                                  std::int64_t outputs) const {
    key.in = a.dtype;
    key.out = out.dtype;
    const auto narrow = static_cast<std::int64_t>(std::min(size_of(key.in), size_of(key.out)));
    const bool all = is_aligned(a.data) && is_aligned(b.data) && is_aligned(out.data) &&
                     inputs * narrow % kExpertAlignment == 0 &&
                     outputs * narrow % kExpertAlignment == 0;
    key.alignment = all ? static_cast<int>(kExpertAlignment) : static_cast<int>(narrow);
    key.workspace_bytes =
        std::min(workspace_.matmuls.bytes(), device_common::kMatmulWorkspaceBytes);
    return key;
  }
  void multiply_grouped(const ConstTensor& x, const ConstTensor& w, std::int64_t inputs,
                        std::int64_t outputs, const Tensor& out) const {
    SHERD_CHECK(workspace_.matmuls.bytes() >= device_common::kMatmulWorkspaceBytes,
                "grouped products with a workspace of {} bytes", workspace_.matmuls.bytes());
    device_common::for_each_grouped_launch(
        expert_runs(pieces_), range_.first, shape_.buffer_rows,
        [&](std::span<const ExpertRun> runs, const device_common::GroupedRows& rows) {
          multiply_grouped_rows(
              stream_, {shape_.experts, rows.rows, inputs, outputs, x.dtype},
              device_common::group_offsets(runs, rows, range_.first, shape_.experts),
              {.x = element_of(x, rows.first * inputs),
               .w = w.data,
               .out = element_of(out, rows.first * outputs)},
              workspace_.matmuls.data);
        });
  }
  void launch(const device_common::MatmulKey& key, std::int64_t rows,
              const MatmulOperands& operands) const {
    multiply_expert_rows(cuda_stream(stream_), key, rows, operands, workspace_.matmuls.data);
  }
  /// `each(expert, rows)`: all rows of an expert in this round, from the round's first one.
  template <class Each>
  void for_each_expert(const Each& each) const {
    for (const ExpertRun& run : expert_runs(pieces_)) {
      each(run.expert, RowRange{run.rows.first - range_.first, run.rows.count});
    }
  }

  Stream& stream_;
  const ExpertsShape& shape_;
  const ExpertsWorkspace& workspace_;
  const std::vector<ExpertPiece>& pieces_;
  RowRange range_;
};

}  // namespace sherd::kernels::cuda
