#include "kernels/rotary.h"

#include <utility>

#include "core/error.h"
#include "kernels/cpu/rotary.h"
#include "kernels/device.h"
#include "kernels/launches/on_gpu.h"

namespace sherd::kernels {

bool takes_long_factors(const RotaryFrequencies& rope, std::int64_t length) {
  return rope.scaling == RotaryScaling::kLongrope && length > rope.original_length;
}

RotaryFrequencies for_length(RotaryFrequencies rope, std::int64_t length) {
  if (takes_long_factors(rope, length)) {
    rope.short_factors = rope.long_factors;
  } else {
    rope.long_factors = rope.short_factors;
  }
  return rope;
}

void rotary_table(Stream& stream, Tensor table, std::int64_t positions, std::int64_t head_width,
                  const RotaryFrequencies& frequencies) {
  SHERD_CHECK(head_width >= 2 && head_width % 2 == 0, "head width {}", head_width);
  SHERD_CHECK(table.dtype == DType::kF32 && table.numel == positions * head_width,
              "a table of {} {} for [{}, {}]", table.numel, name_of(table.dtype), positions,
              head_width);
  if (!frequencies.rotates()) {
    if (is_cuda(stream)) {
      return on_gpu(stream, cuda::query_growth_table, launches::query_growth_table, table,
                    head_width, frequencies);
    }
    return stream.run("query_growth_table", [=, &stream] {
      cpu::query_growth_table(stream.team(), table, positions, head_width, frequencies);
    });
  }
  const double factor = rotary_factor(frequencies);
  std::vector<double> of_pairs = frequencies_of_pairs(frequencies, head_width, positions);
  if (is_cuda(stream)) {
    return on_gpu(stream, cuda::rotary_table, launches::rotary_table, table, positions, of_pairs,
                  factor);
  }
  stream.run("rotary_table", [=, of_pairs = std::move(of_pairs), &stream] {
    cpu::rotary_table(stream.team(), table, positions, of_pairs, factor);
  });
}

void rotary(Stream& stream, const Rotary& args) {
  SHERD_CHECK(args.head_width >= 2 && args.head_width % 2 == 0, "head width {}", args.head_width);
  SHERD_CHECK(
      args.table.dtype == DType::kF32 && args.table.numel >= args.positions * args.head_width,
      "a table of {} {} for [{}, {}]", args.table.numel, name_of(args.table.dtype), args.positions,
      args.head_width);
  const std::int64_t heads = args.query_heads + 2 * args.kv_heads;
  SHERD_CHECK(args.qkv.numel == args.sequences * args.positions * heads * args.head_width,
              "{} elements for {} x {} tokens of {} heads of {}", args.qkv.numel, args.sequences,
              args.positions, heads, args.head_width);
  SHERD_CHECK(
      !args.token_positions || args.token_positions.numel == args.sequences * args.positions,
      "{} positions for {} x {} tokens", args.token_positions.numel, args.sequences,
      args.positions);
  if (is_cuda(stream)) return on_gpu(stream, cuda::rotary, launches::rotary, args);
  stream.run("rotary", [=, &stream] { cpu::rotary(stream.team(), args); });
}

}  // namespace sherd::kernels
