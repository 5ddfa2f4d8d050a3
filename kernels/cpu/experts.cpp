#include "kernels/cpu/experts.h"

#include <algorithm>
#include <vector>

#include "core/error.h"
#include "kernels/cpu/activation.h"
#include "kernels/cpu/blocks.h"
#include "kernels/cpu/lane_sum.h"
#include "kernels/cpu/matmul/matmul.h"
#include "kernels/cpu/round_up.h"
#include "kernels/dispatch_float.h"

namespace sherd::kernels::cpu {
namespace {

// Rows [first, first + count), all of one expert, which are multiplied at once.
struct Piece {
  std::int64_t expert, first, count;
};

// The rows of all tokens, sorted by expert, then by token.
class RowOrder {
 public:
  RowOrder(const ExpertsShape& shape, const ConstTensor& chosen, const Tensor& memory)
      : shape_(shape),
        token_(memory.as<std::int32_t>()),
        row_(token_ + shape.tokens * shape.per_token),
        begin_(row_ + shape.tokens * shape.per_token) {
    const auto* expert = chosen.as<std::int32_t>();
    const std::int64_t choices = shape.tokens * shape.per_token;
    std::fill_n(begin_, shape.experts + 1, 0);
    for (std::int64_t i = 0; i < choices; ++i) {
      if (expert[i] >= 0) ++begin_[expert[i] + 1];
    }
    for (std::int64_t e = 0; e < shape.experts; ++e) begin_[e + 1] += begin_[e];
    for (std::int64_t i = 0; i < choices; ++i) {
      if (expert[i] < 0) {
        row_[i] = -1;
        continue;
      }
      const std::int32_t row = begin_[expert[i]]++;
      token_[row] = static_cast<std::int32_t>(i / shape.per_token);
      row_[i] = row;
    }
    for (std::int64_t e = shape.experts; e > 0; --e) begin_[e] = begin_[e - 1];
    begin_[0] = 0;
  }

  /// Of each row.
  const std::int32_t* tokens() const { return token_; }
  /// Of choice t k + j; -1: the token isn't routed.
  std::int32_t row_of(std::int64_t choice) const { return row_[choice]; }
  std::int64_t first_row_of(std::int64_t expert) const { return begin_[expert]; }
  std::int64_t rows_of(std::int64_t expert) const { return begin_[expert + 1] - begin_[expert]; }

  /// Calls `round(pieces)` for all rows, as many whole pieces at a time as there is room for.
  template <class Round>
  void for_each_round(const Round& round) const {
    static thread_local std::vector<Piece> pieces;
    pieces.clear();
    std::int64_t rows = 0;
    for (std::int64_t e = 0; e < shape_.experts; ++e) {
      for (std::int64_t first = begin_[e]; first < begin_[e + 1]; first += kExpertPiece) {
        const std::int64_t count = std::min<std::int64_t>(kExpertPiece, begin_[e + 1] - first);
        if (rows + count > shape_.buffer_rows) {
          round(pieces);
          pieces.clear();
          rows = 0;
        }
        pieces.push_back({e, first, count});
        rows += count;
      }
    }
    if (rows > 0) round(pieces);
  }

 private:
  const ExpertsShape& shape_;
  std::int32_t *token_, *row_, *begin_;
};

const char* at(const ConstTensor& tensor, std::int64_t element) {
  return static_cast<const char*>(tensor.data) +
         element * static_cast<std::int64_t>(size_of(tensor.dtype));
}

// What both directions do in a round.
class Round {
 public:
  Round(ThreadTeam& team, const ExpertsShape& shape, const RowOrder& order,
        const std::vector<Piece>& pieces, const ExpertsWorkspace& workspace)
      : team_(team),
        shape_(shape),
        order_(order),
        pieces_(pieces),
        workspace_(workspace),
        first_(pieces.front().first),
        rows_(pieces.back().first + pieces.back().count - first_) {}

  std::int64_t first() const { return first_; }
  std::int64_t rows() const { return rows_; }

  /// out[r] = x[token of r] times the expert's matrix [outputs, inputs], or with `transposed` its transpose
  /// [inputs, outputs].
  void multiply_tokens(const ConstTensor& x, const ConstTensor& matrix, std::int64_t inputs,
                       std::int64_t outputs, bool transposed, const Tensor& out) const {
    multiply(matrix, inputs, outputs, transposed, out, [&](const Piece& piece) {
      return MatmulOperand{x.data, inputs, false, 0, order_.tokens() + piece.first};
    });
  }
  /// The same of rows that lie in a buffer of the round.
  void multiply_rows(const ConstTensor& x, const ConstTensor& matrix, std::int64_t inputs,
                     std::int64_t outputs, bool transposed, const Tensor& out) const {
    multiply(matrix, inputs, outputs, transposed, out, [&](const Piece& piece) {
      return MatmulOperand{at(x, (piece.first - first_) * inputs), inputs};
    });
  }
  /// gradient of an expert's [outputs, inputs] (+)= left^T right, over the rows of its pieces.
  void add_gradients(const Tensor& gradient, std::int64_t outputs, std::int64_t inputs, bool adds,
                     DType dtype, const auto& left, const auto& right) const {
    std::vector<Matmul>& list = empty_list();
    for (const Piece& piece : pieces_) {
      const bool is_first = piece.first == order_.first_row_of(piece.expert);
      list.push_back({.rows = outputs,
                      .columns = inputs,
                      .depth = piece.count,
                      .dtype = dtype,
                      .a = left(piece),
                      .b = right(piece),
                      .c = gradient.part(piece.expert * outputs * inputs, outputs * inputs),
                      .add = adds || !is_first});
    }
    // Pieces of one expert are added in order: each list has at most one of it.
    for (std::size_t begin = 0; begin < list.size();) {
      std::size_t end = begin + 1;
      while (end < list.size() && pieces_[end].expert != pieces_[end - 1].expert) ++end;
      matmul_list(team_, std::span(list).subspan(begin, end - begin), workspace_.matmuls);
      begin = end;
    }
  }
  MatmulOperand tokens_of(const ConstTensor& x, std::int64_t width, const Piece& piece,
                          bool transposed) const {
    return {x.data, width, transposed, 0, order_.tokens() + piece.first};
  }
  MatmulOperand rows_of(const ConstTensor& x, std::int64_t width, const Piece& piece,
                        bool transposed) const {
    return {at(x, (piece.first - first_) * width), width, transposed};
  }

  /// sums[t] += weight of each of its rows in this round times what came out, in the order of experts.
  /// `weights` may be empty: 1.
  void combine(const ConstTensor& out, const ConstTensor& weights, const Tensor& sums) const {
    const std::int64_t D = shape_.width, k = shape_.per_token;
    dispatch_float(out.dtype, [&]<class T>(T) {
      parallel_rows(team_, shape_.tokens, D, [&](std::int64_t t) {
        for (std::int64_t i = t * k; i < (t + 1) * k; ++i) {
          const std::int64_t row = order_.row_of(i) - first_;
          if (order_.row_of(i) < 0 || row < 0 || row >= rows_) continue;
          const float weight = weights ? weights.as<float>()[i] : 1.0f;
          const T* from = out.as<T>() + row * D;
          float* sum = sums.as<float>() + t * D;
          for_each_block(0, D, [&](std::int64_t first, int count) {
            BlockScratch scratch;
            const float* value = load_block(from + first, count, scratch);
            float* to = sum + first;
#pragma omp simd
            for (int j = 0; j < count; ++j) to[j] += weight * value[j];
          });
        }
      });
    });
  }

  ActivationShape activation() const {
    return {shape_.activation, rows_, shape_.ffn_width};
  }

 private:
  static std::vector<Matmul>& empty_list() {
    static thread_local std::vector<Matmul> list;
    list.clear();
    return list;
  }
  void multiply(const ConstTensor& matrix, std::int64_t inputs, std::int64_t outputs,
                bool transposed, const Tensor& out, const auto& operand) const {
    std::vector<Matmul>& list = empty_list();
    for (const Piece& piece : pieces_) {
      const char* own = at(matrix, piece.expert * inputs * outputs);
      list.push_back(
          {.rows = piece.count,
           .columns = outputs,
           .depth = inputs,
           .dtype = matrix.dtype,
           .a = operand(piece),
           .b = transposed ? MatmulOperand{own, outputs} : MatmulOperand{own, inputs, true},
           .c = out.part((piece.first - first_) * outputs, piece.count * outputs)});
    }
    matmul_list(team_, list, workspace_.matmuls);
  }

  ThreadTeam& team_;
  const ExpertsShape& shape_;
  const RowOrder& order_;
  const std::vector<Piece>& pieces_;
  const ExpertsWorkspace& workspace_;
  std::int64_t first_, rows_;
};

// The first rows of a buffer of the round.
Tensor rows_of(const Tensor& buffer, std::int64_t rows, std::int64_t width) {
  return buffer.part(0, rows * width);
}

void activate(ThreadTeam& team, const Round& round, const ExpertsShape& shape, const ConstTensor& x,
              const ConstTensor& up_matrix, const ExpertsWorkspace& buffers) {
  const Tensor up = rows_of(buffers.up, round.rows(), shape.up_width());
  round.multiply_tokens(x, up_matrix, shape.width, shape.up_width(), false, up);
  activation_forward(
      team, {round.activation(), up, rows_of(buffers.activated, round.rows(), shape.ffn_width)});
}

// Of each row: the gradient of its weight, and both a and d_a times the weight.
void weigh(ThreadTeam& team, const ExpertsBackward& args, const RowOrder& order,
           const Round& round) {
  const std::int64_t F = args.shape.ffn_width, k = args.shape.per_token;
  dispatch_float(args.x.dtype, [&]<class T>(T) {
    parallel_rows(team, args.shape.tokens, F, [&](std::int64_t t) {
      for (std::int64_t i = t * k; i < (t + 1) * k; ++i) {
        const std::int64_t row = order.row_of(i) - round.first();
        if (order.row_of(i) < 0 || row < 0 || row >= round.rows()) continue;
        T* a = args.workspace.activated.as<T>() + row * F;
        T* d_a = args.workspace.d_activated.as<T>() + row * F;
        const float weight = args.weights.as<float>()[i];
        LaneSum dot;
        for_each_block(0, F, [&](std::int64_t first, int count) {
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
        args.d_weights.as<float>()[i] = dot.total();
      }
    });
  });
}

// Gradients of experts that no row reaches.
void clear_gradients(ThreadTeam& team, const Tensor& gradient, std::int64_t numel, bool adds,
                     const ExpertsShape& shape, const RowOrder& order) {
  if (!gradient || adds) return;
  const auto bytes = static_cast<std::int64_t>(size_of(gradient.dtype)) * numel;
  team.parallel_for(shape.experts, [&](std::int64_t e, int) {
    if (order.rows_of(e) > 0) return;
    std::fill_n(static_cast<char*>(gradient.data) + e * bytes, bytes, '\0');
  });
}

void clear(ThreadTeam& team, const Tensor& sums) {
  parallel_blocks(team, sums.numel, [&](std::int64_t first, int count) {
    std::fill_n(sums.as<float>() + first, count, 0.0f);
  });
}

}  // namespace

void experts_forward(ThreadTeam& team, const ExpertsForward& args) {
  const ExpertsShape& shape = args.shape;
  const ExpertsWorkspace& buffers = args.workspace;
  const std::int64_t D = shape.width;
  const RowOrder order(shape, args.chosen, buffers.order);
  clear(team, buffers.sums);
  order.for_each_round([&](const std::vector<Piece>& pieces) {
    const Round round(team, shape, order, pieces, buffers);
    activate(team, round, shape, args.x, args.up, buffers);
    const Tensor out = rows_of(buffers.rows, round.rows(), D);
    round.multiply_rows(buffers.activated, args.down, shape.ffn_width, D, false, out);
    round.combine(out, args.weights, buffers.sums);
  });
  dispatch_float(args.y.dtype, [&]<class T>(T) {
    parallel_blocks(team, args.y.numel, [&](std::int64_t first, int count) {
      float* sum = buffers.sums.as<float>() + first;
      if (args.shared) {
        BlockScratch scratch;
        const float* shared = load_block(args.shared.as<T>() + first, count, scratch);
#pragma omp simd
        for (int i = 0; i < count; ++i) sum[i] += shared[i];
      }
      narrow(sum, args.y.as<T>() + first, count);
    });
  });
}

void experts_backward(ThreadTeam& team, const ExpertsBackward& args) {
  const ExpertsShape& shape = args.shape;
  const ExpertsWorkspace& buffers = args.workspace;
  const std::int64_t D = shape.width, F = shape.ffn_width, U = shape.up_width();
  const DType dtype = args.x.dtype;
  const RowOrder order(shape, args.chosen, buffers.order);
  clear(team, args.d_weights);
  if (args.d_sum) clear(team, args.d_sum);
  clear_gradients(team, args.d_up, U * D, args.adds_up, shape, order);
  clear_gradients(team, args.d_down, D * F, args.adds_down, shape, order);
  order.for_each_round([&](const std::vector<Piece>& pieces) {
    const Round round(team, shape, order, pieces, buffers);
    const Tensor up = rows_of(buffers.up, round.rows(), U);
    const Tensor activated = rows_of(buffers.activated, round.rows(), F);
    const Tensor d_activated = rows_of(buffers.d_activated, round.rows(), F);
    activate(team, round, shape, args.x, args.up, buffers);
    round.multiply_tokens(args.dy, args.down, D, F, true, d_activated);
    weigh(team, args, order, round);
    if (args.d_down) {
      round.add_gradients(
          args.d_down, D, F, args.adds_down, dtype,
          [&](const Piece& piece) { return round.tokens_of(args.dy, D, piece, true); },
          [&](const Piece& piece) { return round.rows_of(activated, F, piece, false); });
    }
    activation_backward(team, {round.activation(), up, d_activated, up});
    if (args.d_up) {
      round.add_gradients(
          args.d_up, U, D, args.adds_up, dtype,
          [&](const Piece& piece) { return round.rows_of(up, U, piece, true); },
          [&](const Piece& piece) { return round.tokens_of(args.x, D, piece, false); });
    }
    if (!args.d_sum) return;
    const Tensor d_rows = rows_of(buffers.rows, round.rows(), D);
    round.multiply_rows(up, args.up, U, D, true, d_rows);
    round.combine(d_rows, {}, args.d_sum);
  });
}

void experts_input_gradient(ThreadTeam& team, const ExpertsInputGradient& args) {
  dispatch_float(args.d_x.dtype, [&]<class T>(T) {
    parallel_blocks(team, args.d_x.numel, [&](std::int64_t first, int count) {
      alignas(64) float sum[kBlock];
      std::copy_n(args.d_sum.as<float>() + first, count, sum);
      if (args.router) {
        const float* router = args.router.as<float>() + first;
#pragma omp simd
        for (int i = 0; i < count; ++i) sum[i] += router[i];
      }
      if (args.shared) {
        BlockScratch scratch;
        const float* shared = load_block(args.shared.as<T>() + first, count, scratch);
#pragma omp simd
        for (int i = 0; i < count; ++i) sum[i] += shared[i];
      }
      narrow(sum, args.d_x.as<T>() + first, count);
    });
  });
}

std::int64_t experts_workspace_bytes(const ExpertsShape& shape, DType dtype, DType grad_dtype) {
  const std::int64_t C = std::min(shape.buffer_rows, kExpertPiece);
  const std::int64_t D = shape.width, F = shape.ffn_width, U = shape.up_width();
  if (dtype != DType::kF32)
    grad_dtype = dtype;  // gradients of 16-bit parameters may have either width
  return std::max(
      {matmul_list_workspace_bytes(C, U, D, dtype), matmul_list_workspace_bytes(C, D, F, dtype),
       matmul_list_workspace_bytes(C, F, D, dtype), matmul_list_workspace_bytes(C, D, U, dtype),
       matmul_list_workspace_bytes(D, F, C, grad_dtype),
       matmul_list_workspace_bytes(U, D, C, grad_dtype)});
}

}  // namespace sherd::kernels::cpu
