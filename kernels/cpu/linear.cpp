// T tokens, I inputs, O outputs. All three are C [M, N] = A [M, L] B [L, N] with the depth L
// summed: forward (T, O, I), backward_input (T, I, O), backward_weight (O, I, T).
#include "kernels/cpu/linear.h"

#include <algorithm>

#include "kernels/cpu/convert.h"
#include "kernels/cpu/matmul/matmul.h"
#include "kernels/cpu/pointwise.h"
#include "kernels/dispatch_float.h"
#include "kernels/interleaved.h"

namespace sherd::kernels::cpu {
namespace {

constexpr std::int64_t kBiasColumns = 128;

// dbias for columns [first, first + kBiasColumns): rows are added within blocks, then the blocks.
template <class T, class R>
void sum_rows(const T* dy, const LinearShape& shape, std::int64_t first, R* dbias, bool add) {
  constexpr std::int64_t kBlock = 64;
  const std::int64_t columns = std::min(kBiasColumns, shape.outputs - first);
  float total[kBiasColumns] = {}, row[kBiasColumns];
  for (std::int64_t begin = 0; begin < shape.tokens; begin += kBlock) {
    float block[kBiasColumns] = {};
    const std::int64_t end = std::min(begin + kBlock, shape.tokens);
    for (std::int64_t t = begin; t < end; ++t) {
      widen(dy + t * shape.outputs + first, row, columns);
#pragma omp simd
      for (std::int64_t j = 0; j < columns; ++j) block[j] += row[j];
    }
#pragma omp simd
    for (std::int64_t j = 0; j < columns; ++j) total[j] += block[j];
  }
  if (add) {
    add_narrowed(total, dbias + first, columns);
  } else {
    narrow(total, dbias + first, columns);
  }
}

void sum_bias_gradient(ThreadTeam& team, const LinearBackwardWeight& args) {
  const std::int64_t tasks = (args.shape.outputs + kBiasColumns - 1) / kBiasColumns;
  dispatch_float(args.dy.dtype, [&]<class T>(T) {
    dispatch_float(args.dbias.dtype, [&]<class R>(R) {
      team.parallel_for(tasks, [&](std::int64_t task, int) {
        sum_rows(args.dy.as<T>(), args.shape, task * kBiasColumns, args.dbias.as<R>(),
                 args.add_to_output);
      });
    });
  });
}

}  // namespace

void linear_forward(ThreadTeam& team, const LinearForward& args) {
  const auto [T, I, O] = args.shape;
  matmul(team,
         {.rows = T,
          .columns = O,
          .depth = I,
          .dtype = args.x.dtype,
          .a = {args.x.data, I, false},
          .b = {args.w.data, I, true, args.interleaved ? interleaved_rows(O) : 0},
          .c = args.y,
          .bias = args.bias.data},
         args.workspace);
  if (args.residual) residual_add(team, args.residual, args.y, {}, 1.0f, args.y);
}

void linear_backward_input(ThreadTeam& team, const LinearBackwardInput& args) {
  const auto [T, I, O] = args.shape;
  matmul(team,
         {.rows = T,
          .columns = I,
          .depth = O,
          .dtype = args.dy.dtype,
          .a = {args.dy.data, O, false},
          .b = {args.w.data, I, false},
          .c = args.dx,
          .add = args.add_to_output},
         args.workspace);
}

void linear_backward_weight(ThreadTeam& team, const LinearBackwardWeight& args) {
  const auto [T, I, O] = args.shape;
  matmul(team,
         {.rows = O,
          .columns = I,
          .depth = T,
          .dtype = args.dy.dtype,
          .a = {args.dy.data, O, true},
          .b = {args.x.data, I, false},
          .c = args.dw,
          .add = args.add_to_output},
         args.workspace);
  if (args.dbias) sum_bias_gradient(team, args);
}

std::int64_t linear_workspace_bytes(const LinearShape& most, DType dtype, DType grad_dtype) {
  const auto [T, I, O] = most;
  // Gradients of 16-bit parameters may have either width.
  if (dtype != DType::kF32) grad_dtype = dtype;
  return std::max({matmul_workspace_bytes(T, O, I, dtype), matmul_workspace_bytes(T, I, O, dtype),
                   matmul_workspace_bytes(O, I, T, grad_dtype)});
}

}  // namespace sherd::kernels::cpu
