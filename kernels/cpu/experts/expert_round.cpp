#include "kernels/cpu/experts/expert_round.h"

#include <algorithm>

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

MatmulOperand ExpertRound::of(const Rows& rows, const ExpertPiece& piece, bool transposed) const {
  if (rows.of_tokens && tokens_ != nullptr) {
    return {element_of(rows.values, rows.first_column), rows.width, transposed, 0,
            tokens_ + piece.first};
  }
  const std::int64_t row = piece.first - first_;
  return {element_of(rows.values, row * rows.width + rows.first_column), rows.width, transposed};
}

void ExpertRound::multiply(const Product& product, const Rows& rows) const {
  const std::int64_t inputs = product.inputs, outputs = product.outputs;
  std::vector<Matmul>& list = empty_list();
  for (const ExpertPiece& piece : pieces_) {
    const char* own = element_of(product.matrix, piece.expert * inputs * outputs);
    list.push_back(
        {.rows = piece.count,
         .columns = outputs,
         .depth = inputs,
         .dtype = product.matrix.dtype,
         .a = of(rows, piece, false),
         .b = product.transposed ? MatmulOperand{own, outputs} : MatmulOperand{own, inputs, true},
         .c = product.out.part((piece.first - first_) * outputs, piece.count * outputs),
         .bias = product.bias ? element_of(product.bias, piece.expert * outputs) : nullptr,
         .add = product.add});
  }
  matmul_list(team_, list, workspace_.matmuls);
}

ExpertRound::Rows ExpertRound::inputs(const ConstTensor& x) const {
  const std::int64_t D = shape_.width;
  if (shape_.weighs_input && tokens_ != nullptr) return {of(workspace_.rows, D), D};
  return {x, D, true};
}

void ExpertRound::weigh_inputs(const ExpertRowOrder& order, const ConstTensor& x,
                               const ConstTensor& weights) const {
  if (!shape_.weighs_input) return;
  const std::int64_t D = shape_.width, k = shape_.per_token;
  dispatch_float(x.dtype, [&]<class T>(T) {
    parallel_rows(team_, shape_.tokens, D, [&](std::int64_t t) {
      for (std::int64_t i = t * k; i < (t + 1) * k; ++i) {
        const std::int64_t row = order.row_of(i) - first_;
        if (order.row_of(i) < 0 || row < 0 || row >= rows_) continue;
        scale_row(x.as<T>() + t * D, D, weights.as<float>()[i], workspace_.rows.as<T>() + row * D);
      }
    });
  });
}

void ExpertRound::add_gradients(const std::vector<ExpertPiece>& pieces,
                                const Gradients& args) const {
  const std::int64_t D = shape_.width, F = shape_.ffn_width, U = shape_.up_width();
  if (args.d_down) {
    add_gradient(pieces, {args.d_down, D, F, args.adds_down}, {args.dy, D, true},
                 {of(workspace_.activated, F), F});
  }
  if (args.d_up) {
    add_gradient(pieces, {args.d_up, U, D, args.adds_up}, {of(workspace_.up, U), U},
                 inputs(args.x));
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

void ExpertRound::add_gradient(const std::vector<ExpertPiece>& pieces, const Gradient& args,
                               const Rows& left, const Rows& right) const {
  const std::int64_t numel = args.outputs * args.inputs;
  std::vector<Matmul>& list = empty_list();
  for (const ExpertPiece& piece : pieces) {
    list.push_back({.rows = args.outputs,
                    .columns = args.inputs,
                    .depth = piece.count,
                    .dtype = left.values.dtype,
                    .a = of(left, piece, true),
                    .b = of(right, piece, false),
                    .c = args.gradient.part(piece.expert * numel, numel),
                    .add = args.adds || !piece.begins});
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
