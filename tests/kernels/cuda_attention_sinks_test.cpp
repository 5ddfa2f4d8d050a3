// Attention sinks on a GPU, in cuDNN's form and in ours, compared with the CPU's; and values that are
// narrower than their heads.
#include <gtest/gtest.h>

#include "kernels/attention.h"
#include "kernels/device_common/attention.h"
#include "kernels/kv_cache.h"
#include "tests/support/devices/attention_work.h"
#include "tests/support/devices/place.h"
#include "tests/support/models/documents.h"

// B sequences, S positions, H query heads, G key/value heads, K head width, V value width.
namespace sherd::kernels {
namespace {

using test::Outputs;
using test::OwnedTensor;
using test::Place;
using test::Tolerance;
using test::Values;

// Heads that cuDNN computes in 16 bits, others, and a window.
constexpr AttentionShape kShapes[] = {
    {2, 65, 4, 2, 8}, {1, 130, 6, 2, 64}, {2, 37, 4, 2, 7}, {1, 70, 4, 1, 16, 0.3f, 9}};

Tolerance of_kernels(DType type, double times = 2.0) {
  Tolerance tolerance = test::rounded_once(type).times(times);
  tolerance.absolute += 4e-6;
  tolerance.floor += test::weights_of_other_kernels(type);
  return tolerance;
}

OwnedTensor sinks_of(DType type, std::int64_t heads) {
  Values values;
  for (std::int64_t h = 0; h < heads; ++h) values.push_back(h % 3 == 1 ? -2.0 : 0.5 * h);
  return {type, values};
}

class CudaAttentionSinks : public test::OnGpuInEveryType {
 protected:
  enum Output { kOut, kLse, kDqkv, kDSinks };
  // Both directions, from given numbers.
  test::Work both_ways(const AttentionShape& shape) const {
    return [=, this](Place& place) {
      const DType type = GetParam();
      const OwnedTensor qkv = filled(shape.tokens() * shape.packed_width(), 1, 1.5);
      const OwnedTensor dout = filled(shape.tokens() * shape.query_heads * shape.head_width, 2);
      const OwnedTensor sinks = sinks_of(type, shape.query_heads);
      Outputs out{{type, dout.numel()},
                  {DType::kF32, shape.tokens() * shape.query_heads},
                  {type, qkv.numel()},
                  {DType::kF32, shape.query_heads}};
      const ConstTensor in = place.in(qkv), d_in = place.in(dout), own = place.in(sinks);
      const Tensor result = place.out(out[kOut]), lse = place.out(out[kLse]);
      const std::int64_t bytes = attention_workspace_bytes(shape, type, place.device());
      attention_forward(place.stream(), {.shape = shape,
                                         .qkv = in,
                                         .dropout = {},
                                         .out = result,
                                         .lse = lse,
                                         .workspace = place.scratch(bytes),
                                         .documents = {},
                                         .keys_values = {},
                                         .maxima = {},
                                         .sinks = own});
      attention_backward(place.stream(), {.shape = shape,
                                          .qkv = in,
                                          .out = result,
                                          .lse = lse,
                                          .dout = d_in,
                                          .dropout = {},
                                          .dqkv = place.out(out[kDqkv]),
                                          .workspace = place.scratch(bytes),
                                          .documents = {}});
      attention_sinks_gradient(place.stream(), {.shape = shape,
                                                .out = result,
                                                .lse = lse,
                                                .dout = d_in,
                                                .sinks = own,
                                                .d_sinks = place.out(out[kDSinks])});
      place.finish();
      return out;
    };
  }
};
INSTANTIATE_TEST_SUITE_P(Types, CudaAttentionSinks, test::compute_types(), test::type_name);

TEST_P(CudaAttentionSinks, FollowTheCpuInBothDirections) {
  for (const AttentionShape& shape : kShapes) {
    SCOPED_TRACE(fmt::format("K {} window {}", shape.head_width, shape.window));
    const Outputs gpu = test::on_gpu(both_ways(shape)), cpu = test::on_cpu(both_ways(shape));
    EXPECT_TRUE(test::close(gpu[kOut], cpu[kOut].values(), of_kernels(GetParam())));
    EXPECT_TRUE(test::close(gpu[kLse], cpu[kLse].values(), {1e-5, 1e-5, 1e-5}));
    // The output is rounded once or twice before the backward reads it: what differs there counts
    // once more.
    const double rounding = test::rounded_once(GetParam()).relative;
    Tolerance tolerance = of_kernels(GetParam());
    tolerance.floor += 8 * rounding;
    EXPECT_TRUE(test::close(gpu[kDqkv], cpu[kDqkv].values(), tolerance));
    EXPECT_TRUE(test::close(gpu[kDSinks], cpu[kDSinks].values(), {1e-5, 1e-5, 16 * rounding}))
        << "a sum over queries";
  }
}

// One step of rounding between them: the softmax of our kernels is f32.
TEST_P(CudaAttentionSinks, ThatJoinAfterwardsHaveTheCpusBits) {
  for (const AttentionShape& shape : kShapes) {
    for (const DType out_type : {GetParam(), DType::kF32}) {
      const std::int64_t rows = shape.tokens() * shape.query_heads;
      const OwnedTensor attended(out_type, test::random_values(rows * shape.head_width, 1));
      const OwnedTensor lse(DType::kF32, test::random_values(rows, 2, 4.0));
      const OwnedTensor sinks = sinks_of(GetParam(), shape.query_heads);
      same_bits_as_cpu(
          [&](Place& place) {
            Outputs out{attended, lse};
            join_attention_sinks(place.stream(),
                                 {shape, place.in(sinks), place.out(out[0]), place.out(out[1])});
            place.finish();
            return out;
          },
          fmt::format("K {}", shape.head_width));
    }
  }
}

TEST_P(CudaAttentionSinks, LeaveThePaddingOfDocumentsAlone) {
  const test::OwnedDocuments where = test::documents_in_rows();
  const AttentionShape shape{2, test::kDocumentPositions, 4, 2, 12};
  const OwnedTensor qkv = filled(shape.tokens() * shape.packed_width(), 1);
  const OwnedTensor sinks = sinks_of(GetParam(), shape.query_heads);
  const test::Work work = [&](Place& place) {
    Outputs out{{GetParam(), shape.tokens() * shape.query_heads * shape.head_width},
                {DType::kF32, shape.tokens() * shape.query_heads}};
    const std::int64_t bytes = attention_workspace_bytes(shape, GetParam(), place.device());
    attention_forward(
        place.stream(),
        {.shape = shape,
         .qkv = place.in(qkv),
         .dropout = {},
         .out = place.out(out[0]),
         .lse = place.out(out[1]),
         .workspace = place.scratch(bytes),
         .documents = {place.in(where.starts), place.in(where.lengths), place.in(where.positions)},
         .keys_values = {},
         .maxima = {},
         .sinks = place.in(sinks)});
    place.finish();
    return out;
  };
  const Outputs gpu = test::on_gpu(work), cpu = test::on_cpu(work);
  EXPECT_TRUE(test::close(gpu[0], cpu[0].values(), of_kernels(GetParam())));
  EXPECT_TRUE(test::close(gpu[1], cpu[1].values(), {1e-5, 1e-5, 1e-5}));
}

TEST_P(CudaAttentionSinks, AreThoseOfTheWholeTextWithACache) {
  AttentionShape shape = kShapes[3];
  const std::int64_t width = shape.query_heads * shape.head_width;
  const OwnedTensor qkv = filled(shape.tokens() * shape.packed_width(), 1, 2.0);
  const OwnedTensor sinks = sinks_of(GetParam(), shape.query_heads);
  const test::Work work = [&](Place& place) {
    Outputs out{{GetParam(), shape.tokens() * width}};
    const Tensor cache{place.scratch(kv_cache_numel(shape) * 4).data, DType::kF32,
                       kv_cache_numel(shape)};
    const ConstTensor in = place.in(qkv), own = place.in(sinks);
    const Tensor result = place.out(out[0]);
    const Tensor scratch =
        place.scratch(cached_attention_workspace_bytes(shape, place.device()) + 1);
    for (std::int64_t first = 0, count = 30; first < shape.positions; first += count) {
      count = std::min<std::int64_t>(first == 0 ? 30 : 7, shape.positions - first);
      cached_attention(place.stream(),
                       {.shape = shape,
                        .first = first,
                        .count = count,
                        .qkv = in.part(first * shape.packed_width(), count * shape.packed_width()),
                        .cache = cache,
                        .out = result.part(first * width, count * width),
                        .workspace = scratch,
                        .sinks = own});
    }
    place.finish();
    return out;
  };
  EXPECT_TRUE(
      test::close(test::on_gpu(work)[0], test::on_cpu(work)[0].values(), of_kernels(GetParam())));
}

// Values of V columns, then zeros: what is computed of the first V doesn't depend on whether the
// kernels know. cuDNN leaves the others as they are.
TEST_P(CudaAttentionSinks, NarrowValuesHaveTheResultsOfWideOnes) {
  for (const auto& [K, V] : {std::pair{24, 16}, {64, 8}, {24, 19}, {12, 7}}) {
    AttentionShape shape{2, 66, 3, 3, K};
    Values qkv = test::random_values(shape.tokens() * shape.packed_width(), 1, 1.5);
    Values dout = test::random_values(shape.tokens() * 3 * K, 2);
    const auto clear = [&](Values& values, std::int64_t heads) {
      for (std::size_t i = 0; i < values.size(); ++i) {
        const auto place = static_cast<std::int64_t>(i);
        if (place % K >= V && place / K % heads >= heads - 3) values[i] = 0.0;
      }
    };
    clear(qkv, 9);
    clear(dout, 3);
    const OwnedTensor in(GetParam(), qkv), d_in(GetParam(), dout);
    const auto attended = [&] {
      Outputs out = test::on_gpu(test::attention_both_ways(shape, in, d_in, {}));
      Values result = out[test::kOut].values(), gradient = out[test::kDqkv].values();
      clear(result, 3);
      clear(gradient, 9);
      return std::pair(result, gradient);
    };
    const auto wide = attended();
    shape.value_width = V;
    const auto narrow = attended();
    EXPECT_TRUE(test::close(narrow.first, wide.first, of_kernels(GetParam()))) << "V " << V;
    EXPECT_TRUE(test::close(narrow.second, wide.second, of_kernels(GetParam(), 4.0))) << "V " << V;
  }
}

}  // namespace
}  // namespace sherd::kernels
