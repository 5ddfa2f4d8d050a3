#include "kernels/grouped_linear.h"

#include <algorithm>
#include <bit>

#include "core/thread_team.h"
#include "kernels/check_tensor.h"
#include "kernels/cpu/grouped_linear.h"
#include "kernels/pointwise.h"

namespace sherd::kernels {
namespace {

void check_depth(const Stream& stream, const GroupedDepth& depth, std::int64_t elements) {
  SHERD_CHECK(stream.device() != DeviceKind::kCuda, "a depth in groups on a GPU");
  SHERD_CHECK(depth.groups >= 1 && std::has_single_bit(static_cast<unsigned>(depth.groups)),
              "a balanced tree of {} groups", depth.groups);
  for (const DepthRange& range : depth.ranges) {
    SHERD_CHECK(range.first >= 0 && range.first + range.count <= elements &&
                    range.of_a_group * depth.groups >= range.count,
                "{} groups of {} of the depth [{}, +{}) of {}", depth.groups, range.of_a_group,
                range.first, range.count, elements);
  }
}

}  // namespace

void grouped_forward(Stream& stream, const GroupedForward& args) {
  const auto [T, I, O] = args.shape;
  check_depth(stream, args.depth, I);
  check_tensor("grouped linear: x", args.x, args.x.dtype, T * I);
  check_tensor("grouped linear: w", args.w, args.x.dtype, O * I);
  check_tensor("grouped linear: sum", args.sum, DType::kF32, T * O);
  stream.run("grouped_forward", [&stream, args] { cpu::grouped_forward(stream.team(), args); });
}

void grouped_backward_input(Stream& stream, const GroupedBackwardInput& args) {
  const auto [T, I, O] = args.shape;
  check_depth(stream, args.depth, O);
  check_tensor("grouped linear: dy", args.dy, args.dy.dtype, T * O);
  check_tensor("grouped linear: w", args.w, args.dy.dtype, O * I);
  check_tensor("grouped linear: sum", args.sum, DType::kF32, T * I);
  stream.run("grouped_backward_input",
             [&stream, args] { cpu::grouped_backward_input(stream.team(), args); });
}

void grouped_backward_weight(Stream& stream, const GroupedBackwardWeight& args) {
  const auto [T, I, O] = args.shape;
  SHERD_CHECK(stream.device() != DeviceKind::kCuda, "tokens in groups on a GPU");
  check_token_groups(args.tokens, T);
  check_tensor("grouped linear: dy", args.dy, args.dy.dtype, T * O);
  const std::int64_t after = std::max<std::int64_t>(0, args.x_positions - args.tokens.positions);
  check_tensor("grouped linear: x", args.x, args.dy.dtype,
               (T + (args.tokens.sequences - 1) * after) * I);
  check_tensor("grouped linear: dw", args.dw, DType::kF32, O * I);
  if (args.dbias) check_tensor("grouped linear: dbias", args.dbias, DType::kF32, O);
  stream.run("grouped_backward_weight",
             [&stream, args] { cpu::grouped_backward_weight(stream.team(), args); });
}

void grouped_finish(Stream& stream, const GroupedFinish& args) {
  check_tensor("grouped linear: sum", args.sum, DType::kF32, args.tokens * args.width);
  check_tensor("grouped linear: y", args.y, args.y.dtype, args.tokens * args.width);
  SHERD_CHECK(!args.bias || !args.add, "grouped linear: a bias is added to a gradient");
  if (args.add) return add(stream, args.sum, args.y);
  if (!args.bias) return cast(stream, args.sum, args.y);
  check_tensor("grouped linear: bias", args.bias, args.y.dtype, args.width);
  stream.run("grouped_finish", [&stream, args] { cpu::add_bias(stream.team(), args); });
}

std::int64_t grouped_linear_workspace_bytes(std::int64_t rows, std::int64_t width,
                                            std::int64_t depth, int groups,
                                            const ComputeDevice& device) {
  return cpu::grouped_linear_workspace_bytes(rows, width, depth, groups) * device.num_threads;
}

}  // namespace sherd::kernels
