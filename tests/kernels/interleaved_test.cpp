// Interleaved weights give results that are bit-identical to those of plain rows, on every instruction set.
#include "kernels/interleaved.h"

#include <gtest/gtest.h>

#include "kernels/isa.h"
#include "kernels/linear.h"
#include "kernels/token.h"
#include "tests/support/values/tensors.h"

namespace sherd::kernels {
namespace {

using test::OwnedTensor;
using test::random_values;

class Interleaved : public ::testing::TestWithParam<DType> {
 protected:
  template <class Test>
  void on_each_isa(std::int64_t inputs, const Test& run) const {
    for (const Isa isa : available_isas()) {
      const ForcedIsa forced(isa);
      SCOPED_TRACE(name_of(isa));
      EXPECT_EQ(can_interleave(GetParam(), inputs), isa != Isa::kAmx || GetParam() == DType::kF32);
      if (!can_interleave(GetParam(), inputs)) continue;
      for (const int threads : {1, 3}) run(*test::compute_stream(threads));
    }
  }
  static OwnedTensor interleaved(Stream& stream, const OwnedTensor& w, std::int64_t inputs) {
    OwnedTensor turned = w;
    interleave(stream, turned, inputs);
    return turned;
  }
};
INSTANTIATE_TEST_SUITE_P(Types, Interleaved, ::testing::Values(DType::kF32, DType::kBF16),
                         test::type_name);

// Rows as in the header's picture: units of 32 bits, sixteen rows side by side; rows after the last whole 32 are
// unchanged.
TEST_P(Interleaved, StandsAsTheHeaderSays) {
  constexpr std::int64_t kOutputs = 91, kInputs = 22;
  const std::int64_t units = kInputs * static_cast<std::int64_t>(size_of(GetParam())) / 4;
  const OwnedTensor w(GetParam(), random_values(kOutputs * kInputs, 1));
  on_each_isa(kInputs, [&](Stream& stream) {
    const OwnedTensor turned = interleaved(stream, w, kInputs);
    const auto* before = static_cast<const std::uint32_t*>(ConstTensor(w).data);
    const auto* after = static_cast<const std::uint32_t*>(ConstTensor(turned).data);
    for (std::int64_t row = 0; row < kOutputs; ++row) {
      for (std::int64_t unit = 0; unit < units; ++unit) {
        const std::int64_t at =
            row < 64 ? row / 16 * 16 * units + unit * 16 + row % 16 : row * units + unit;
        ASSERT_EQ(after[at], before[row * units + unit]) << "row " << row << ", unit " << unit;
      }
    }
  });
}

// One row of x, few, and many; depths of several pieces (kernels/cpu/matmul/matmul.h); outputs that are all side by side, none,
// some, and more than a block's.
TEST_P(Interleaved, ProductsHaveTheBitsOfRowsOneByOne) {
  for (const auto& [inputs, outputs] : {std::pair<std::int64_t, std::int64_t>{2, 32},
                                        {30, 31},
                                        {576, 96},
                                        {770, 65},
                                        {1536, 33},
                                        {3074, 64},
                                        {64, 1700},
                                        {1536, 1100}}) {
    const OwnedTensor w(GetParam(), random_values(outputs * inputs, 2));
    const OwnedTensor bias(GetParam(), random_values(outputs, 3));
    for (const std::int64_t tokens : {1, 2, 12, 13, 80}) {
      const OwnedTensor x(GetParam(), random_values(tokens * inputs, 4));
      const LinearShape shape{tokens, inputs, outputs};
      on_each_isa(inputs, [&](Stream& stream) {
        SCOPED_TRACE(fmt::format("{} x {} x {}", tokens, inputs, outputs));
        OwnedTensor workspace = test::workspace(
            linear_workspace_bytes(shape, GetParam(), GetParam(), compute_device(stream)));
        const auto product = [&](const OwnedTensor& weight, bool turned, bool with_bias) {
          OwnedTensor y(GetParam(), tokens * outputs);
          linear_forward(stream, {.shape = shape,
                                  .x = x,
                                  .w = weight,
                                  .bias = with_bias ? ConstTensor(bias) : ConstTensor(),
                                  .y = y,
                                  .workspace = workspace,
                                  .interleaved = turned});
          stream.synchronize();
          return y.values();
        };
        const OwnedTensor turned = interleaved(stream, w, inputs);
        for (const bool with_bias : {false, true}) {
          EXPECT_EQ(product(turned, true, with_bias), product(w, false, with_bias));
        }
      });
    }
  }
}

TEST_P(Interleaved, TokensHaveTheirRows) {
  constexpr std::int64_t kVocabulary = 43, kWidth = 300;
  const OwnedTensor weight(GetParam(), random_values(kVocabulary * kWidth, 5));
  OwnedTensor tokens(DType::kI32, kVocabulary);
  for (std::int32_t i = 0; i < kVocabulary; ++i) Tensor(tokens).as<std::int32_t>()[i] = i;
  on_each_isa(kWidth, [&](Stream& stream) {
    OwnedTensor y(GetParam(), kVocabulary * kWidth);
    embedding_forward(stream, {.sequences = 1,
                               .positions = kVocabulary,
                               .width = kWidth,
                               .vocab_size = kVocabulary,
                               .tokens = tokens,
                               .token_weight = interleaved(stream, weight, kWidth),
                               .position_weight = {},
                               .dropout = {},
                               .y = y,
                               .interleaved = true});
    stream.synchronize();
    EXPECT_EQ(y.values(), weight.values());
  });
}

TEST(InterleavedTypes, PairsNeedAnEvenNumberOfInputsAndF16HasNone) {
  EXPECT_TRUE(can_interleave(DType::kF32, 7));
  EXPECT_FALSE(can_interleave(DType::kBF16, 7));
  EXPECT_FALSE(can_interleave(DType::kF16, 8));
}

}  // namespace
}  // namespace sherd::kernels
