/// What experts do with the rows of one round, wherever these came from.
#pragma once

#include <functional>
#include <span>
#include <vector>

#include "core/thread_team.h"
#include "kernels/activation.h"
#include "kernels/cpu/blocks.h"
#include "kernels/cpu/convert.h"
#include "kernels/cpu/experts/expert_order.h"
#include "kernels/cpu/lane_sum.h"
#include "kernels/cpu/matmul/matmul.h"
#include "kernels/expert_rows.h"

namespace sherd::kernels::cpu {

/// Element `element` of a tensor of any type.
inline const char* element_of(const ConstTensor& tensor, std::int64_t element) {
  return static_cast<const char*>(tensor.data) +
         element * static_cast<std::int64_t>(size_of(tensor.dtype));
}

class ExpertRound {
 public:
  /// `tokens`: the token of each row, if rows are read where tokens are; null: rows are in buffers.
  /// Row `range.first` is the first one of the buffers.
  ExpertRound(ThreadTeam& team, const ExpertsShape& shape, const std::int32_t* tokens,
              const RowRange& range, const std::vector<ExpertPiece>& pieces,
              const ExpertsWorkspace& workspace)
      : team_(team),
        shape_(shape),
        tokens_(tokens),
        pieces_(pieces),
        workspace_(workspace),
        first_(range.first),
        rows_(range.count) {}

  RowRange range() const { return {first_, rows_}; }
  ActivationShape activation() const { return {shape_.activation, rows_, shape_.ffn_width}; }
  /// The round's rows of one of its buffers.
  Tensor of(const Tensor& buffer, std::int64_t width) const {
    return buffer.part(0, rows_ * width);
  }

  /// What a product reads: rows of `width` elements, of which it takes some columns.
  struct Rows {
    ConstTensor values;
    std::int64_t width = 0;
    bool of_tokens = false;         ///< values has rows of tokens (or of the round, without tokens)
    std::int64_t first_column = 0;  ///< as many columns as the product has inputs
  };
  /// out[r] (+)= row r times the expert's matrix [outputs, inputs] (+ bias), or with `transposed`
  /// its transpose [inputs, outputs].
  struct Product {
    ConstTensor matrix;
    std::int64_t inputs = 0, outputs = 0;
    bool transposed = false;
    Tensor out{};
    ConstTensor bias{};
    bool add = false;
  };
  void multiply(const Product& product, const Rows& rows) const;
  /// The rows that experts read: those of x, or what `weigh_inputs` has made of them.
  Rows inputs(const ConstTensor& x) const;
  /// With `weighs_input`, where rows are read from tokens: each row times its weight, into the
  /// buffer `rows`. Weights are of choices.
  void weigh_inputs(const ExpertRowOrder& order, const ConstTensor& x,
                    const ConstTensor& weights) const;
  /// gradient[e] [outputs, inputs] (+)= left^T right, over the rows of `pieces`, some of the round's.
  struct Gradient {
    Tensor gradient;
    std::int64_t outputs = 0, inputs = 0;
    bool adds = false;  ///< to what was there before the first piece
  };
  void add_gradient(const std::vector<ExpertPiece>& pieces, const Gradient& args, const Rows& left,
                    const Rows& right) const;
  /// gradient[e] (+)= the sum of the expert's rows, in order; `row(i)`: row i of the round and its
  /// factor, or null.
  struct WeighedRow {
    const void* values = nullptr;
    float weight = 1.0f;
  };
  void add_bias_gradient(const std::vector<ExpertPiece>& pieces, const Tensor& gradient,
                         std::int64_t width, bool adds, DType dtype,
                         const std::function<WeighedRow(std::int64_t)>& row) const;

  /// The gradients of `pieces`: d_down (+)= dy^T activated, d_up (+)= up^T x.
  struct Gradients {
    ConstTensor x, dy;
    Tensor d_up, d_down;
    bool adds_up = false, adds_down = false;
  };
  void add_gradients(const std::vector<ExpertPiece>& pieces, const Gradients& args) const;

  ThreadTeam& team() const { return team_; }
  const ExpertsShape& shape() const { return shape_; }
  const ExpertsWorkspace& buffers() const { return workspace_; }

 private:
  MatmulOperand of(const Rows& rows, const ExpertPiece& piece, bool transposed) const;

  ThreadTeam& team_;
  const ExpertsShape& shape_;
  const std::int32_t* tokens_;
  const std::vector<ExpertPiece>& pieces_;
  const ExpertsWorkspace& workspace_;
  std::int64_t first_, rows_;
};

/// Adds a round's rows to the sums of their tokens, in the order of experts.
struct CombineRows {
  RowRange range{};  ///< of the round
  ConstTensor out{},
      weights{};         ///< what came out of these rows; of each choice, or empty: all are 1
  Tensor sums{};         ///< f32 [tokens, width]; not touched by a single round that has a y
  bool begins = false;   ///< the first round: sums begin at 0
  bool ends = false;     ///< the last round
  ConstTensor shared{};  ///< added after all experts, or empty
  Tensor y{};            ///< the sums, rounded once by the last round; empty: none
};
void combine_rows(ThreadTeam& team, const ExpertsShape& shape, const ExpertRowOrder& order,
                  const CombineRows& args);
void clear_f32(ThreadTeam& team, const Tensor& sums);
/// Zeros for one expert's gradient of `numel` elements.
void clear_expert(const Tensor& gradient, std::int64_t expert, std::int64_t numel);

/// <a, b> of two rows.
template <class T>
float dot_row(const T* a, const T* b, std::int64_t width) {
  LaneSum dot;
  for_each_block(0, width, [&](std::int64_t first, int count) {
    alignas(64) float left[kBlock], right[kBlock];
    widen(a + first, left, count);
    widen(b + first, right, count);
    dot.add(
        count, [&](int j) { return load8(left + j) * load8(right + j); },
        [&](int j) { return left[j] * right[j]; });
  });
  return dot.total();
}

/// to = from times the weight, rounded to the type.
template <class T>
void scale_row(const T* from, std::int64_t width, float weight, T* to) {
  for_each_block(0, width, [&](std::int64_t first, int count) {
    alignas(64) float value[kBlock];
    widen(from + first, value, count);
#pragma omp simd
    for (int j = 0; j < count; ++j) value[j] *= weight;
    narrow(value, to + first, count);
  });
}

/// One row: multiplies a and d_a by the weight, and returns the weight's gradient <a, d_a>.
template <class T>
float weigh_row(T* a, T* d_a, std::int64_t width, float weight) {
  LaneSum dot;
  for_each_block(0, width, [&](std::int64_t first, int count) {
    alignas(64) float value[kBlock], gradient[kBlock];
    widen(a + first, value, count);
    widen(d_a + first, gradient, count);
    dot.add(
        count, [&](int j) { return load8(value + j) * load8(gradient + j); },
        [&](int j) { return value[j] * gradient[j]; });
#pragma omp simd
    for (int j = 0; j < count; ++j) {
      value[j] *= weight;
      gradient[j] *= weight;
    }
    narrow(value, a + first, count);
    narrow(gradient, d_a + first, count);
  });
  return dot.total();
}

}  // namespace sherd::kernels::cpu
