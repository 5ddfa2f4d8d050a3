#include "kernels/cpu/experts/expert_round.h"

#include <algorithm>

#include "kernels/cpu/activation.h"
#include "kernels/dispatch_float.h"

namespace sherd::kernels::cpu {
namespace {

std::vector<Matmul>& empty_list() {
  static thread_local std::vector<Matmul> list;
  list.clear();
  return list;
}

}  // namespace

ExpertRowOrder::ExpertRowOrder(const ExpertsShape& shape, const ConstTensor& chosen,
                               const Tensor& memory)
    : ExpertRowOrder(shape, memory) {
  auto* token = memory.as<std::int32_t>();
  auto* row = token + shape.tokens * shape.per_token;
  auto* begin = row + shape.tokens * shape.per_token;
  const auto* expert = chosen.as<std::int32_t>();
  const std::int64_t choices = shape.tokens * shape.per_token;
  std::fill_n(begin, shape.experts + 1, 0);
  for (std::int64_t i = 0; i < choices; ++i) {
    if (expert[i] >= 0) ++begin[expert[i] + 1];
  }
  for (std::int64_t e = 0; e < shape.experts; ++e) begin[e + 1] += begin[e];
  for (std::int64_t i = 0; i < choices; ++i) {
    if (expert[i] < 0) {
      row[i] = -1;
      continue;
    }
    const std::int32_t at = begin[expert[i]]++;
    token[at] = static_cast<std::int32_t>(i / shape.per_token);
    row[i] = at;
  }
  for (std::int64_t e = shape.experts; e > 0; --e) begin[e] = begin[e - 1];
  begin[0] = 0;
}

MatmulOperand ExpertRound::of_tokens(const ConstTensor& x, std::int64_t width,
                                     const ExpertPiece& piece, bool transposed) const {
  if (tokens_ == nullptr) return of_rows(x, width, piece, transposed);
  return {x.data, width, transposed, 0, tokens_ + piece.first};
}

MatmulOperand ExpertRound::of_rows(const ConstTensor& x, std::int64_t width,
                                   const ExpertPiece& piece, bool transposed) const {
  return {element_of(x, (piece.first - first_) * width), width, transposed};
}

void ExpertRound::multiply_tokens(const ConstTensor& x, const ConstTensor& matrix,
                                  std::int64_t inputs, std::int64_t outputs, bool transposed,
                                  const Tensor& out) const {
  multiply(matrix, inputs, outputs, transposed, out,
           [&](const ExpertPiece& piece) { return of_tokens(x, inputs, piece, false); });
}

void ExpertRound::multiply_rows(const ConstTensor& x, const ConstTensor& matrix,
                                std::int64_t inputs, std::int64_t outputs, bool transposed,
                                const Tensor& out, const ConstTensor& bias) const {
  multiply(
      matrix, inputs, outputs, transposed, out,
      [&](const ExpertPiece& piece) { return of_rows(x, inputs, piece, false); }, bias);
}

void ExpertRound::multiply(const ConstTensor& matrix, std::int64_t inputs, std::int64_t outputs,
                           bool transposed, const Tensor& out, const Operand& operand,
                           const ConstTensor& bias) const {
  std::vector<Matmul>& list = empty_list();
  for (const ExpertPiece& piece : pieces_) {
    const char* own = element_of(matrix, piece.expert * inputs * outputs);
    list.push_back(
        {.rows = piece.count,
         .columns = outputs,
         .depth = inputs,
         .dtype = matrix.dtype,
         .a = operand(piece),
         .b = transposed ? MatmulOperand{own, outputs} : MatmulOperand{own, inputs, true},
         .c = out.part((piece.first - first_) * outputs, piece.count * outputs),
         .bias = bias ? element_of(bias, piece.expert * outputs) : nullptr});
  }
  matmul_list(team_, list, workspace_.matmuls);
}

void ExpertRound::activate(const ConstTensor& x, const ConstTensor& up_matrix,
                           const ConstTensor& bias) const {
  const Tensor up = of(workspace_.up, shape_.up_width());
  multiply(
      up_matrix, shape_.width, shape_.up_width(), false, up,
      [&](const ExpertPiece& piece) { return of_tokens(x, shape_.width, piece, false); }, bias);
  activation_forward(team_, {activation(), up, of(workspace_.activated, shape_.ffn_width)});
}

void ExpertRound::add_gradients(const std::vector<ExpertPiece>& pieces,
                                const Gradients& args) const {
  const std::int64_t D = shape_.width, F = shape_.ffn_width, U = shape_.up_width();
  const DType dtype = args.x.dtype;
  if (args.d_down) {
    const Tensor activated = of(workspace_.activated, F);
    add_gradient(
        pieces, args.d_down, D, F, args.adds_down, dtype,
        [&](const ExpertPiece& piece) { return of_tokens(args.dy, D, piece, true); },
        [&](const ExpertPiece& piece) { return of_rows(activated, F, piece, false); });
  }
  if (args.d_up) {
    const Tensor up = of(workspace_.up, U);
    add_gradient(
        pieces, args.d_up, U, D, args.adds_up, dtype,
        [&](const ExpertPiece& piece) { return of_rows(up, U, piece, true); },
        [&](const ExpertPiece& piece) { return of_tokens(args.x, D, piece, false); });
  }
}

void ExpertRound::add_bias_gradient(const std::vector<ExpertPiece>& pieces, const Tensor& gradient,
                                    std::int64_t width, bool adds, DType dtype,
                                    const std::function<WeighedRow(std::int64_t)>& row) const {
  constexpr std::int64_t kColumns = kBlock;
  const std::int64_t blocks = (width + kColumns - 1) / kColumns;
  // A task has some columns of all pieces, so pieces of one expert are added in order.
  team_.parallel_for(blocks, [&](std::int64_t block, int) {
    const std::int64_t first = block * kColumns;
    const auto count = static_cast<int>(std::min(kColumns, width - first));
    for (const ExpertPiece& piece : pieces) {
      alignas(64) float sum[kColumns] = {};
      for (std::int64_t r = 0; r < piece.count; ++r) {
        const WeighedRow source = row(piece.first + r - first_);
        dispatch_float(dtype, [&]<class T>(T) {
          BlockScratch scratch;
          const float* values =
              load_block(static_cast<const T*>(source.values) + first, count, scratch);
#pragma omp simd
          for (int i = 0; i < count; ++i) sum[i] += source.weight * values[i];
        });
      }
      dispatch_float(gradient.dtype, [&]<class G>(G) {
        G* to = gradient.as<G>() + piece.expert * width + first;
        BlockScratch scratch;
        const float* old = load_block(to, count, scratch);
        for (int i = 0; i < count && (adds || !piece.begins); ++i) sum[i] += old[i];
        narrow(sum, to, count);
      });
    }
  });
}

void ExpertRound::add_gradient(const std::vector<ExpertPiece>& pieces, const Tensor& gradient,
                               std::int64_t outputs, std::int64_t inputs, bool adds, DType dtype,
                               const Operand& left, const Operand& right) const {
  std::vector<Matmul>& list = empty_list();
  for (const ExpertPiece& piece : pieces) {
    list.push_back({.rows = outputs,
                    .columns = inputs,
                    .depth = piece.count,
                    .dtype = dtype,
                    .a = left(piece),
                    .b = right(piece),
                    .c = gradient.part(piece.expert * outputs * inputs, outputs * inputs),
                    .add = adds || !piece.begins});
  }
  // Pieces of one expert are added in order: each list has at most one of it.
  for (std::size_t begin = 0; begin < list.size();) {
    std::size_t end = begin + 1;
    while (end < list.size() && pieces[end].expert != pieces[end - 1].expert) ++end;
    matmul_list(team_, std::span(list).subspan(begin, end - begin), workspace_.matmuls);
    begin = end;
  }
}

void combine_rows(ThreadTeam& team, const ExpertsShape& shape, const ExpertRowOrder& order,
                  const CombineRows& args) {
  const std::int64_t D = shape.width, k = shape.per_token;
  const bool rounds = args.ends && args.y;
  dispatch_float(args.out.dtype, [&]<class T>(T) {
    const auto combine_block = [&](std::int64_t t, std::int64_t first, int count) {
      alignas(64) float sum[kBlock] = {};
      float* sums = args.sums.as<float>() + t * D + first;
      if (!args.begins) std::copy_n(sums, count, sum);
      for (std::int64_t i = t * k; i < (t + 1) * k; ++i) {
        const std::int64_t row = order.row_of(i) - args.range.first;
        if (order.row_of(i) < 0 || row < 0 || row >= args.range.count) continue;
        const float weight = args.weights ? args.weights.as<float>()[i] : 1.0f;
        BlockScratch scratch;
        const float* value = load_block(args.out.as<T>() + row * D + first, count, scratch);
#pragma omp simd
        for (int j = 0; j < count; ++j) sum[j] += weight * value[j];
      }
      if (!rounds) return static_cast<void>(std::copy_n(sum, count, sums));
      if (args.shared) {
        BlockScratch scratch;
        const float* addend = load_block(args.shared.as<T>() + t * D + first, count, scratch);
#pragma omp simd
        for (int j = 0; j < count; ++j) sum[j] += addend[j];
      }
      narrow(sum, args.y.as<T>() + t * D + first, count);
    };
    parallel_rows(team, shape.tokens, D, [&](std::int64_t t) {
      for_each_block(0, D, [&](std::int64_t first, int count) { combine_block(t, first, count); });
    });
  });
}

void clear_f32(ThreadTeam& team, const Tensor& sums) {
  parallel_blocks(team, sums.numel, [&](std::int64_t first, int count) {
    std::fill_n(sums.as<float>() + first, count, 0.0f);
  });
}

void clear_expert(const Tensor& gradient, std::int64_t expert, std::int64_t numel) {
  const Tensor own = gradient.part(expert * numel, numel);
  std::fill_n(static_cast<char*>(own.data), own.bytes(), '\0');
}

}  // namespace sherd::kernels::cpu
