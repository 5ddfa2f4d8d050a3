// What only Llama 4 has of norms and rotation, on a GPU.
#include <gtest/gtest.h>

#include "kernels/qk_norm.h"
#include "kernels/rotary.h"
#include "tests/support/devices/place.h"

namespace sherd::kernels {
namespace {

using test::Outputs;
using test::OwnedTensor;
using test::Place;
using test::random_values;

class CudaRotatedNorm : public test::OnGpuInEveryType {};
INSTANTIATE_TEST_SUITE_P(Types, CudaRotatedNorm, test::compute_types(), test::type_name);

// Without weights there are no gradients of any.
TEST_P(CudaRotatedNorm, NormsOfHeadsWithoutWeightsFollowTheCpu) {
  const DType type = GetParam();
  QkNormShape shape{NormKind::kRmsNorm, QkRows::kHeads, 70, 4, 2, 24, 1e-6f, 0.0f};
  shape.weightless = true;
  const std::int64_t numel = shape.tokens * shape.packed_width();
  const OwnedTensor qkv(type, random_values(numel, 1)), dy(type, random_values(numel, 2));
  const test::Work work = [&](Place& place) {
    Outputs out{qkv,
                {type, shape.tokens * shape.raw_width()},
                {DType::kF32, shape.tokens * shape.rows_per_token()},
                dy};
    const Tensor raw = place.out(out[1]), rstd = place.out(out[2]);
    qk_norm_forward(place.stream(), {shape, place.out(out[0]), {}, {}, raw, {}, rstd});
    qk_norm_backward(place.stream(),
                     {shape,
                      raw,
                      {},
                      rstd,
                      {},
                      {},
                      place.out(out[3]),
                      {},
                      {},
                      place.scratch(qk_norm_backward_workspace_bytes(shape, place.device()) + 1)});
    place.finish();
    return out;
  };
  const Outputs gpu = test::on_gpu(work), cpu = test::on_cpu(work);
  EXPECT_TRUE(test::same_bits(gpu[1], cpu[1]));
  for (const std::size_t output : {0u, 2u, 3u}) {
    test::Tolerance tolerance = test::rounded_once(output == 2 ? DType::kF32 : type).times(2);
    tolerance.absolute += 4e-6;
    EXPECT_TRUE(test::close(gpu[output], cpu[output].values(), tolerance)) << output;
  }
}

// In layers that don't rotate; keys and values stay as they are.
TEST_P(CudaRotatedNorm, QueriesThatGrowHaveTheCpusBits) {
  const RotaryFrequencies growth{.query_growth = 0.3, .query_step = 7};
  const OwnedTensor before = filled(2 * 65 * (4 + 2 * 2) * 10, 7);
  const test::Work work = [&](Place& place) {
    Outputs out{before, {DType::kF32, 65 * 10}};
    const Tensor table = place.out(out[1]);
    rotary_table(place.stream(), table, 65, 10, growth);
    rotary(place.stream(), {.sequences = 2,
                            .positions = 65,
                            .query_heads = 4,
                            .kv_heads = 2,
                            .head_width = 10,
                            .table = table,
                            .qkv = place.out(out[0]),
                            .queries_only = true});
    place.finish();
    return out;
  };
  same_bits_as_cpu(work, "growth");
  EXPECT_FALSE(test::same_bits(ConstTensor(test::on_cpu(work)[0]), before));
}

}  // namespace
}  // namespace sherd::kernels
