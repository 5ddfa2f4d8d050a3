#include "tests/fake_cuda/grouped.h"

#include <atomic>
#include <cstring>

#include "core/thread_team.h"
#include "kernels/cpu/linear.h"
#include "tests/support/devices/host_scratch.h"

namespace {
std::atomic<int> num_products = 0;
}

int fake_cuda::grouped_products() {
  return num_products;
}

namespace sherd::kernels::cuda {
namespace {

constexpr std::size_t kScratchBytes = 1 << 12;  // what a plan here wants

void multiply_rows(const GroupedKey& key, const GroupedOperands& operands, std::int64_t expert,
                   std::int64_t first, std::int64_t count) {
  if (count == 0) return;
  const auto size = static_cast<std::int64_t>(size_of(key.dtype));
  const auto part = [&](const void* data, std::int64_t element, std::int64_t numel) {
    auto* begin = static_cast<char*>(const_cast<void*>(data)) + element * size;
    return Tensor{begin, key.dtype, numel};
  };
  const std::int64_t D = key.inputs, U = key.outputs;
  const LinearShape shape{count, D, U};
  ThreadTeam team(1);
  cpu::linear_forward(team, {.shape = shape,
                             .x = part(operands.x, first * D, count * D),
                             .w = part(operands.w, expert * U * D, U * D),
                             .bias = {},
                             .y = part(operands.out, first * U, count * U),
                             .workspace = test::host_scratch(shape, key.dtype)});
}

}  // namespace

fake_cuda::Operation grouped_of(const GroupedKey& key, const GroupedOperands& operands,
                                const std::int32_t* offsets, void* scratch) {
  ++num_products;
  SHERD_CHECK(size_of(key.dtype) == 2, "cuDNN multiplies {} as TF32", name_of(key.dtype));
  const auto bytes = [&](std::int64_t numel) {
    return static_cast<std::size_t>(numel) * size_of(key.dtype);
  };
  fake_cuda::Operation operation{.name = "grouped products", .run = {}};
  operation.operands = {
      {operands.x, bytes(key.rows * key.inputs), false},
      {operands.w, bytes(key.experts * key.inputs * key.outputs), false},
      {offsets, static_cast<std::size_t>(key.experts) * sizeof(std::int32_t), false},
      {operands.out, bytes(key.rows * key.outputs), true},
      {scratch, kScratchBytes, true}};
  operation.run = [=] {
    std::memset(scratch, 0xff, kScratchBytes);  // cuDNN does as it likes with its scratch
    SHERD_CHECK(offsets[0] == 0, "the first expert's rows begin at {}", offsets[0]);
    for (std::int64_t e = 0; e < key.experts; ++e) {
      const std::int64_t end = e + 1 < key.experts ? offsets[e + 1] : key.rows;
      SHERD_CHECK(offsets[e] <= end && end <= key.rows, "expert {}: rows {} to {}", e, offsets[e],
                  end);
      multiply_rows(key, operands, e, offsets[e], end - offsets[e]);
    }
  };
  return operation;
}

}  // namespace sherd::kernels::cuda
