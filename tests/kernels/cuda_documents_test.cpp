// Rows of several documents on a GPU (kernels/documents.h). What the CPU computes of them is what each
// document has alone (documents_test.cpp).
#include <gtest/gtest.h>

#include "kernels/rotary.h"
#include "kernels/token.h"
#include "tests/support/devices/attention_work.h"
#include "tests/support/devices/place.h"
#include "tests/support/models/documents.h"

// B sequences, S positions, H query heads, G key/value heads, K head width.
namespace sherd::kernels {
namespace {

using test::Outputs;
using test::OwnedTensor;
using test::Place;
using test::random_values;

constexpr std::int64_t kPositions = test::kDocumentPositions, kTokens = 2 * kPositions;
constexpr Dropout kDropout{0.3f, {0xfeedfaceull, 3, 5}, 7 * 4 * kPositions* kPositions};

class CudaDocuments : public test::OnGpuInEveryType {
 protected:
  const test::OwnedDocuments where = test::documents_in_rows();

  Documents on(Place& place) const {
    return {place.in(where.starts), place.in(where.lengths), place.in(where.positions)};
  }
};
INSTANTIATE_TEST_SUITE_P(Types, CudaDocuments, test::compute_types(), test::type_name);

TEST_P(CudaDocuments, AttentionStaysInsideEachAndPaddingIsZeros) {
  const DType type = GetParam();
  const AttentionShape forms[] = {{2, kPositions, 4, 2, 8},
                                  {2, kPositions, 2, 2, 12, 0.3f, 30},
                                  {2, kPositions, 3, 1, 5, 0.0f, 200, 1.5f},
                                  {2, kPositions, 2, 1, 64}};
  for (const AttentionShape& shape : forms) {
    for (const Dropout& dropout : {Dropout{}, kDropout}) {
      SCOPED_TRACE(fmt::format("K {} dropout {}", shape.head_width, dropout.probability));
      const std::int64_t numel = kTokens * shape.query_heads * shape.head_width;
      const OwnedTensor qkv(type, random_values(kTokens * shape.packed_width(), 1));
      const OwnedTensor dout(type, random_values(numel, 2));
      const test::Work work = test::attention_both_ways(shape, qkv, dout, dropout,
                                                        [this](Place& place) { return on(place); });
      const Outputs gpu = test::on_gpu(work), cpu = test::on_cpu(work);
      test::Tolerance tolerance = test::rounded_once(type).times(2);
      tolerance.absolute += 4e-6;
      tolerance.floor += test::weights_of_other_kernels(type);
      EXPECT_TRUE(test::close(gpu[test::kOut], cpu[test::kOut].values(), tolerance));
      EXPECT_TRUE(test::close(gpu[test::kLse], cpu[test::kLse].values(), {1e-5, 1e-5, 1e-5}));
      // The output is rounded before the backward reads it: what differs there counts once more.
      tolerance.floor += test::rounded_once(type).relative;
      EXPECT_TRUE(test::close(gpu[test::kDqkv], cpu[test::kDqkv].values(), tolerance));
      for (const std::int64_t t : test::padding_tokens()) {
        for (const std::size_t output : {test::kOut, test::kDqkv}) {
          const std::int64_t width = gpu[output].numel() / kTokens;
          const ConstTensor row = ConstTensor(gpu[output]).part(t * width, width);
          EXPECT_EQ(test::values_of(row), test::Values(static_cast<std::size_t>(width), 0.0)) << t;
        }
      }
    }
  }
}

TEST_P(CudaDocuments, PositionsBeginAnewWithTheCpusBits) {
  const DType type = GetParam();
  constexpr std::int64_t kWidth = 24, kVocab = 40, kHeads = 3;
  const OwnedTensor tokens(test::random_tokens(kTokens, kVocab, 5));
  const OwnedTensor weight(type, random_values(kVocab * kWidth, 1));
  const OwnedTensor position(type, random_values(kPositions * kWidth, 2));
  const OwnedTensor dy(type, random_values(kTokens * kWidth, 3));
  const OwnedTensor qkv(type, random_values(kTokens * kHeads * kWidth, 4));
  OwnedTensor table(DType::kF32, kPositions * kWidth);
  rotary_table(*test::compute_stream(), table, kPositions, kWidth, {});
  for (const Dropout& dropout : {Dropout{}, kDropout}) {
    const test::Work work = [&](Place& place) {
      Outputs out{qkv,
                  {type, kTokens * kWidth},
                  {DType::kF32, kVocab * kWidth},
                  {DType::kF32, kPositions * kWidth}};
      const Documents documents = on(place);
      const ConstTensor ids = place.in(tokens);
      rotary(place.stream(), {2, kPositions, 1, 1, kWidth, place.in(table), place.out(out[0]),
                              false, documents.positions});
      embedding_forward(place.stream(), {.sequences = 2,
                                         .positions = kPositions,
                                         .width = kWidth,
                                         .vocab_size = kVocab,
                                         .tokens = ids,
                                         .token_weight = place.in(weight),
                                         .position_weight = place.in(position),
                                         .dropout = dropout,
                                         .y = place.out(out[1]),
                                         .documents = documents});
      embedding_backward(place.stream(),
                         {.sequences = 2,
                          .positions = kPositions,
                          .width = kWidth,
                          .vocab_size = kVocab,
                          .position_rows = kPositions,
                          .tokens = ids,
                          .dy = place.in(dy),
                          .dropout = dropout,
                          .d_token_weight = place.out(out[2]),
                          .d_position_weight = place.out(out[3]),
                          .workspace = place.scratch(
                              embedding_backward_workspace_bytes(kTokens, kVocab, place.device())),
                          .documents = documents});
      place.finish();
      return out;
    };
    EXPECT_TRUE(test::same_bits(test::on_gpu(work), test::on_cpu(work)));
  }
}

}  // namespace
}  // namespace sherd::kernels
