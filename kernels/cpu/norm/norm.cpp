#include "kernels/cpu/norm/norm.h"

#include <cstring>

#include "kernels/cpu/norm/norm_rows.h"
#include "kernels/cpu/pointwise.h"
#include "kernels/dispatch_float.h"

namespace sherd::kernels::cpu {
namespace {

/// Writes r where the caller wants it and returns where it lies. What is normalised is r as stored,
/// rounded to T, because that is what the backward will read.
template <class T>
const T* write_residual_row(const NormForward& args, std::int64_t row) {
  const std::int64_t width = args.shape.width;
  const T* residual = args.residual.as<T>() + row * width;
  if (!args.residual_out) return residual;
  T* out = args.residual_out.as<T>() + row * width;
  if (!args.branch) {
    if (out != residual) std::memcpy(out, residual, static_cast<std::size_t>(width) * sizeof(T));
    return out;
  }
  const T* branch = args.branch.as<T>() + row * width;
  for_each_block(0, width, [&](std::int64_t first, int count) {
    residual_add_block(residual + first, branch + first, args.branch_dropout, args.branch_scale,
                       row * width + first, count, out + first);
  });
  return out;
}

// While a row is worked on, memory brings the next one: by itself it stops at what is asked for.
template <class T>
void fetch(const T* row, std::int64_t width) {
  constexpr std::int64_t kLine = 64 / sizeof(T);
  for (std::int64_t i = 0; i < width; i += kLine) __builtin_prefetch(row + i);
}

}  // namespace

void norm_forward(ThreadTeam& team, const NormForward& args) {
  const std::int64_t width = args.shape.width;
  dispatch_float(args.residual.dtype, [&]<class T>(T) {
    parallel_rows(team, args.shape.tokens, width, [&](std::int64_t row) {
      if (row + 1 < args.shape.tokens) fetch(args.residual.as<T>() + (row + 1) * width, width);
      const T* r = write_residual_row<T>(args, row);
      const RowStatistics statistics = row_statistics(args.shape, r);
      if (args.mean) args.mean.as<float>()[row] = statistics.mean;
      args.rstd.as<float>()[row] = statistics.rstd;
      normalise_row(args.shape, args.weight.as<T>(), args.bias.as<T>(), r, statistics,
                    args.y.as<T>() + row * width);
    });
  });
}

}  // namespace sherd::kernels::cpu
