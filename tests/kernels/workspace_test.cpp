// What is planned for a shape must be enough for every smaller one: sampling, the last chunk of
// logits and a short batch run fewer rows through the workspace that was made for all of them.
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <random>
#include <vector>

#include "kernels/attention.h"
#include "kernels/linear.h"
#include "kernels/norm.h"
#include "kernels/orthogonalise.h"
#include "kernels/pointwise.h"
#include "kernels/token.h"
#include "tests/support/values/tensors.h"

namespace sherd::kernels {
namespace {

using test::OwnedTensor;
using Sizes = std::vector<std::int64_t>;

constexpr DType kTypes[] = {DType::kF32, DType::kBF16, DType::kF16};

std::vector<ComputeDevice> devices() {
  return {{DeviceKind::kCpu, 1, true},
          {DeviceKind::kCpu, 3, true},
          {DeviceKind::kCuda, 1, true},
          {DeviceKind::kCuda, 1, false}};
}

// Sizes at which kernels change how they cut, and a size next to each.
std::int64_t edge_size(std::mt19937_64& random) {
  const int power = static_cast<int>(random() % 13);
  const auto size = static_cast<std::int64_t>((1 << power) * (random() % 2 ? 3 : 1) +
                                              static_cast<std::int64_t>(random() % 3) - 1);
  return std::max<std::int64_t>(size, 1);
}

// 20,000 pairs of sizes, none of the second above the first's.
void expect_never_less(std::size_t num_sizes,
                       const std::function<std::int64_t(const Sizes&)>& bytes_of) {
  std::mt19937_64 random(11);
  for (int i = 0; i < 20'000 && !testing::Test::HasFailure(); ++i) {
    Sizes most(num_sizes), fewer(num_sizes);
    for (std::size_t j = 0; j < num_sizes; ++j) {
      most[j] = edge_size(random);
      fewer[j] = random() % 2 ? most[j] : std::min(most[j], edge_size(random));
    }
    EXPECT_LE(bytes_of(fewer), bytes_of(most))
        << testing::PrintToString(fewer) << " needs more than " << testing::PrintToString(most);
  }
}

TEST(Workspace, OfAProductIsEnoughForEveryProductWithNoLargerSize) {
  for (const DType type : kTypes) {
    for (const ComputeDevice& device : devices()) {
      expect_never_less(3, [&](const Sizes& s) {
        return linear_workspace_bytes({s[0], s[1], s[2]}, type, DType::kF32, device);
      });
    }
  }
}

TEST(Workspace, OfAttentionIsEnoughForFewerAndShorterSequences) {
  for (const DType type : kTypes) {
    for (const ComputeDevice& device : devices()) {
      for (const auto& [heads, kv_heads, width] : {std::tuple(4, 2, 64), std::tuple(3, 3, 20)}) {
        expect_never_less(2, [&, h = heads, g = kv_heads, k = width](const Sizes& s) {
          return attention_workspace_bytes({s[0], s[1], h, g, k}, type, device);
        });
      }
    }
  }
}

TEST(Workspace, OfNormsEmbeddingsAndSumsIsEnoughForFewerRows) {
  for (const ComputeDevice& device : devices()) {
    expect_never_less(1, [&](const Sizes& s) {
      return norm_backward_workspace_bytes({.tokens = s[0], .width = 3}, device);
    });
    expect_never_less(
        1, [&](const Sizes& s) { return embedding_backward_workspace_bytes(s[0], 77, device); });
  }
  expect_never_less(1, [](const Sizes& s) { return sum_of_squares_workspace_bytes(s[0]); });
  for (const DType type : {DType::kF32, DType::kBF16}) {
    expect_never_less(
        2, [&](const Sizes& s) { return orthogonalise_workspace_numel(s[0], s[1], type); });
  }
}

// The three products of `shape` in `planned`, no byte of which lies beyond its fences. A kernel
// that needs more than it gets ends the process (CHECK).
void run_matmuls(Stream& stream, const LinearShape& shape, DType type, OwnedTensor& planned) {
  const auto [T, I, O] = shape;
  const OwnedTensor x(type, test::random_values(T * I, 1)), w(type, test::random_values(O * I, 2)),
      dy(type, test::random_values(T * O, 3));
  OwnedTensor y(type, T * O), dx(type, T * I), dw(DType::kF32, O * I), dbias(DType::kF32, O);
  linear_forward(stream, {shape, x, w, {}, y, planned});
  linear_backward_input(stream, {shape, dy, w, dx, false, planned});
  linear_backward_weight(stream, {shape, dy, x, dw, dbias, false, planned});
  const OwnedTensor expected = [&] {
    const auto device = compute_device(stream);
    OwnedTensor own = test::workspace(linear_workspace_bytes(shape, type, DType::kF32, device));
    OwnedTensor again(type, T * O);
    linear_forward(stream, {shape, x, w, {}, again, own});
    return again;
  }();
  EXPECT_EQ(y.values(), expected.values()) << "the room offered changes the bits";
}

TEST(Workspace, PlannedForManyRowsCarriesEveryProductOfFewer) {
  // The first is a recipe that used to abort: hidden 192, 128 tokens planned, sampling from 1 on.
  for (const LinearShape& most :
       {LinearShape{128, 192, 512}, LinearShape{100, 64, 1100}, LinearShape{1030, 24, 40}}) {
    for (const DType type : kTypes) {
      for (const int num_threads : {1, 2}) {
        const auto stream = test::compute_stream(num_threads);
        OwnedTensor planned = test::workspace(
            linear_workspace_bytes(most, type, DType::kF32, compute_device(*stream)));
        for (std::int64_t tokens = most.tokens; tokens >= 1;
             tokens -= std::max<std::int64_t>(1, tokens / 5)) {
          run_matmuls(*stream, {tokens, most.inputs, most.outputs}, type, planned);
        }
      }
    }
  }
}

}  // namespace
}  // namespace sherd::kernels
