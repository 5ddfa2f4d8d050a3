// Heads of latent attention on a GPU: the CPU's bits.
#include <gtest/gtest.h>

#include "kernels/latent_heads.h"
#include "tests/support/devices/place.h"

namespace sherd::kernels {
namespace {

using test::Outputs;
using test::OwnedTensor;
using test::Place;

// Numbers that are packs of 16 bytes in every type, in 16 bits alone, and others; values as wide as
// heads; one head.
constexpr LatentHeads kShapes[] = {
    {.tokens = 5, .heads = 3, .plain = 4, .rotated = 2, .value = 5, .first = 7, .columns = 10},
    {.tokens = 70, .heads = 4, .plain = 32, .rotated = 16, .value = 32, .first = 64, .columns = 80},
    {.tokens = 33, .heads = 2, .plain = 16, .rotated = 8, .value = 20, .first = 4, .columns = 12},
    {.tokens = 9,
     .heads = 16,
     .plain = 128,
     .rotated = 64,
     .value = 128,
     .first = 512,
     .columns = 576},
    {.tokens = 1, .heads = 1, .plain = 6, .rotated = 10, .value = 16, .first = 0, .columns = 10}};

class CudaLatentHeads : public test::OnGpuInEveryType {};
INSTANTIATE_TEST_SUITE_P(Types, CudaLatentHeads, test::compute_types(), test::type_name);

TEST_P(CudaLatentHeads, AreJoinedAndSplitWithTheCpusBits) {
  for (const LatentHeads& shape : kShapes) {
    const std::int64_t T = shape.tokens, H = shape.heads, K = shape.head_width();
    const std::int64_t parts = T * H * (shape.plain + shape.value);
    const OwnedTensor query = filled(T * H * K, 1), keys_values = filled(parts, 2);
    const OwnedTensor down = filled(T * shape.columns, 3), d_qkv = filled(T * 3 * H * K, 4);
    same_bits_as_cpu(
        [&](Place& place) {
          Outputs out{
              {GetParam(), T * 3 * H * K}, {GetParam(), T * H * K}, {GetParam(), parts}, down};
          join_latent_heads(place.stream(), shape, place.in(query), place.in(keys_values),
                            place.in(down), place.out(out[0]));
          split_latent_heads(place.stream(), shape, place.in(d_qkv), place.out(out[1]),
                             place.out(out[2]), place.out(out[3]));
          place.finish();
          return out;
        },
        fmt::format("{} heads of {}", H, K));
  }
}

TEST_P(CudaLatentHeads, LoseTheZerosOfTheirValuesAndGetThemBack) {
  for (const LatentHeads& shape : kShapes) {
    const std::int64_t heads = shape.tokens * shape.heads, K = shape.head_width();
    const OwnedTensor padded = filled(heads * K, 1), values = filled(heads * shape.value, 2);
    same_bits_as_cpu(
        [&](Place& place) {
          Outputs out{{GetParam(), heads * shape.value}, {GetParam(), heads * K}};
          take_values(place.stream(), shape, place.in(padded), place.out(out[0]));
          spread_values(place.stream(), shape, place.in(values), place.out(out[1]));
          place.finish();
          return out;
        },
        fmt::format("values of {} in {}", shape.value, K));
  }
}

}  // namespace
}  // namespace sherd::kernels
