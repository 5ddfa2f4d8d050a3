#include "kernels/sparse.h"

#include <algorithm>
#include <cmath>

#include "kernels/check_tensor.h"
#include "kernels/cpu/sparse.h"
#include "kernels/device.h"

namespace sherd::kernels {
namespace {

std::int64_t entries_in(ConstTensor bytes) {
  SHERD_CHECK(bytes.dtype == DType::kU8 && bytes.numel % entry_bytes(1) == 0,
              "entries in {} numbers of {}", bytes.numel, name_of(bytes.dtype));
  return bytes.numel / entry_bytes(1);
}
const SparseEntry* entries_of(ConstTensor bytes) {
  return static_cast<const SparseEntry*>(bytes.data);
}

}  // namespace

// A ratio that is a decimal fraction of numel isn't rounded up by its own rounding.
std::int64_t num_chosen(double ratio, std::int64_t numel) {
  const double exact = ratio * static_cast<double>(numel);
  return std::clamp(static_cast<std::int64_t>(std::ceil(exact * (1.0 - 1e-12))), std::int64_t{1},
                    numel);
}

void squares_of_blocks(Stream& stream, ConstTensor x, Tensor sums) {
  SHERD_CHECK(!is_cuda(stream), "sparse gradients on a GPU");
  check_tensor("x", x, DType::kF32, sums.numel * 64);
  check_tensor("sums", sums, DType::kF64, sums.numel);
  stream.run("squares_of_blocks", [=, &stream] { cpu::squares_of_blocks(stream.team(), x, sums); });
}

void accumulate_sparsely(Stream& stream, const SparseAccumulation& args) {
  SHERD_CHECK(!is_cuda(stream), "sparse gradients on a GPU");
  check_tensor("gradient", args.gradient, DType::kF32, args.error.numel);
  check_tensor("error", args.error, DType::kF32, args.error.numel);
  if (args.velocity) check_tensor("velocity", args.velocity, DType::kF32, args.error.numel);
  stream.run("accumulate_sparsely",
             [=, &stream] { cpu::accumulate_sparsely(stream.team(), args); });
}

void choose_largest(Stream& stream, const SparseRules& rules, ConstTensor chunk, std::int64_t first,
                    Tensor entries) {
  SHERD_CHECK(!is_cuda(stream), "sparse gradients on a GPU");
  check_tensor("chunk", chunk, DType::kF32, chunk.numel);
  SHERD_CHECK(entries_in(entries) == num_chosen(rules.ratio, chunk.numel),
              "{} entries of {} elements", entries_in(entries), chunk.numel);
  SHERD_CHECK(first + chunk.numel < SparseEntry::kNone, "element {} has no index",
              first + chunk.numel);
  stream.run("choose_largest", [=] {
    cpu::choose_largest(rules, chunk.as<float>(), chunk.numel, first,
                        static_cast<SparseEntry*>(entries.data));
  });
}

void add_entries(Stream& stream, ConstTensor entries, std::int64_t first, Tensor out) {
  SHERD_CHECK(!is_cuda(stream), "sparse gradients on a GPU");
  check_tensor("out", out, DType::kF32, out.numel);
  const std::int64_t count = entries_in(entries);
  stream.run("add_entries", [=] { cpu::add_entries(entries_of(entries), count, first, out); });
}

void zero_entries(Stream& stream, ConstTensor entries, std::int64_t first, Tensor x) {
  SHERD_CHECK(!is_cuda(stream), "sparse gradients on a GPU");
  check_tensor("x", x, DType::kF32, x.numel);
  const std::int64_t count = entries_in(entries);
  stream.run("zero_entries", [=] { cpu::zero_entries(entries_of(entries), count, first, x); });
}

}  // namespace sherd::kernels
