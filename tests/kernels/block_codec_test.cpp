// Blocks of int8 and int4 against NumPy (tests/reference/block_codec.py), and by algebra.
#include "kernels/block_codec.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>

#include "kernels/block_codes.h"
#include "tests/support/values/tensors.h"
#include "tests/where.h"

namespace sherd::kernels {
namespace {

using test::Outputs;
using test::OwnedTensor;
using test::Values;

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();
const std::vector<BlockFormat> kFormats = {BlockFormat::kF32, BlockFormat::kInt8,
                                           BlockFormat::kInt4};
const std::vector<BlockFormat> kCoded = {BlockFormat::kInt8, BlockFormat::kInt4};

std::uint64_t mixed(std::uint64_t i) {
  std::uint64_t z = (i + 1) * 0x9e3779b97f4a7c15u;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
  return z ^ (z >> 31);
}

/// As in tests/reference/block_codec.py.
Values numbers(std::int64_t count, std::uint64_t draw) {
  Values x(static_cast<std::size_t>(count));
  for (std::uint64_t i = 0; i < x.size(); ++i) {
    const auto bits = static_cast<std::int64_t>(mixed(i * 64 + draw) >> 40);
    const std::uint64_t block = i / 64;
    const double exact =
        std::ldexp(static_cast<double>(bits - (1 << 23)), -23 + static_cast<int>(block % 61) - 40);
    x[i] = block % 17 == 3 ? 0.0 : exact;
  }
  return x;
}

std::string digest(ConstTensor bytes) {
  std::uint64_t value = 0xcbf29ce484222325u;
  for (std::int64_t i = 0; i < bytes.bytes(); ++i) {
    value = (value ^ static_cast<const std::uint8_t*>(bytes.data)[i]) * 0x100000001b3u;
  }
  return fmt::format("{:016x}", value);
}

/// With every number of threads and every instruction set.
OwnedTensor encoded(BlockFormat format, const Values& values) {
  const OwnedTensor x(DType::kF32, values);
  Outputs out = test::on_any_number_of_threads([&](Stream& stream) {
    Outputs made{{DType::kU8, coded_bytes(format, x.numel())}};
    encode_blocks(stream, format, x, made[0]);
    stream.synchronize();
    return made;
  });
  return std::move(out[0]);
}

OwnedTensor summed(BlockFormat format, const CodedParts& parts, const OwnedTensor& before,
                   bool onto_out) {
  Outputs out = test::on_any_number_of_threads([&](Stream& stream) {
    Outputs made{OwnedTensor(before)};
    sum_blocks(stream, format, parts, made[0], onto_out);
    stream.synchronize();
    return made;
  });
  return std::move(out[0]);
}

OwnedTensor decoded(BlockFormat format, const OwnedTensor& bytes, std::int64_t numel,
                    DType dtype = DType::kF32) {
  return summed(format, {.first = bytes}, OwnedTensor(dtype, numel), false);
}

Values back_from(BlockFormat format, const Values& x) {
  return decoded(format, encoded(format, x), std::ssize(x)).values();
}

TEST(BlockCodec, BytesValuesAndSumsAreThoseOfNumPy) {
  std::ifstream file(std::string(SHERD_SOURCE_DIR) + "/tests/reference/block_codec.json");
  const nlohmann::json expected = nlohmann::json::parse(file);
  const std::int64_t numel = expected["numbers"];
  const int parts = expected["parts"];
  ASSERT_EQ(digest(OwnedTensor(DType::kF32, numbers(numel, 0))), expected["x"].get<std::string>());
  for (const BlockFormat format : kCoded) {
    const nlohmann::json& of = expected[std::string(name_of(format))];
    const OwnedTensor first = encoded(format, numbers(numel, 0));
    EXPECT_EQ(digest(first), of["bytes"].get<std::string>()) << name_of(format);
    EXPECT_EQ(digest(decoded(format, first, numel)), of["values"].get<std::string>());
    const std::int64_t stride = (first.numel() + 63) / 64 * 64;
    OwnedTensor all(DType::kU8, parts * stride);
    for (int part = 0; part < parts; ++part) {
      const OwnedTensor bytes = encoded(format, numbers(numel, static_cast<std::uint64_t>(part)));
      std::memcpy(static_cast<char*>(all.tensor().data) + part * stride, bytes.tensor().data,
                  static_cast<std::size_t>(bytes.numel()));
    }
    const OwnedTensor sum =
        summed(format,
               {.first = ConstTensor(all).part(0, first.numel()), .stride = stride, .count = parts},
               OwnedTensor(DType::kF32, numbers(numel, static_cast<std::uint64_t>(parts))), true);
    EXPECT_EQ(digest(sum), of["sum_onto_fourth"].get<std::string>()) << name_of(format);
  }
}

TEST(BlockCodec, MultiplesOfAScaleComeBackAsTheyAre) {
  for (const BlockFormat format : kCoded) {
    const int most = format == BlockFormat::kInt8 ? 127 : 7;
    Values x;
    for (int i = 0; i < 64; ++i) x.push_back((i % (2 * most + 1) - most) * 0.75);
    x[63] = most * 0.75;
    EXPECT_EQ(back_from(format, x), x) << name_of(format);
  }
}

TEST(BlockCodec, AnElementChangesByAtMostHalfAScaleWhichIsLittleMoreThanItsBlocksShare) {
  const Values x = test::random_values(64 * 50 + 9, 7, 3.0);
  for (const BlockFormat format : kCoded) {
    const double most = format == BlockFormat::kInt8 ? 127 : 7;
    const Values back = back_from(format, x);
    for (std::size_t i = 0; i < x.size(); ++i) {
      double largest = 0;
      for (std::size_t k = i / 64 * 64; k < std::min(x.size(), i / 64 * 64 + 64); ++k) {
        largest = std::max(largest, std::abs(test::rounded(DType::kF32, x[k])));
      }
      EXPECT_LE(std::abs(back[i] - x[i]), largest / most / 2 * (1 + 0x1p-7) + 1e-7) << i;
    }
  }
}

TEST(BlockCodec, ATieGoesToTheEvenCode) {
  Values x(64, 0.0);
  x[0] = 127.0;  // scale 1
  const Values values = {0.5, 1.5, 2.5, -0.5, -1.5, 0.49999997, 126.5};
  std::copy(values.begin(), values.end(), x.begin() + 1);
  const Values back = back_from(BlockFormat::kInt8, x);
  EXPECT_EQ(Values(back.begin() + 1, back.begin() + 8), (Values{0, 2, 2, 0, -2, 0, 126}));
}

TEST(BlockCodec, ZerosStayZeroOfEitherSignAndInShortBlocks) {
  Values x(64 * 3 + 5, 0.0);
  x[3] = -0.0;
  x[64] = 7.0 * 127.0;  // whose scale is exact
  x[65] = -1e-12;       // rounds to zero, which has no sign
  for (const BlockFormat format : kCoded) {
    const OwnedTensor bytes = encoded(format, x);
    const Values back = decoded(format, bytes, std::ssize(x)).values();
    for (std::size_t i = 0; i < x.size(); ++i) {
      EXPECT_EQ(back[i], i == 64 ? 889.0 : 0.0) << name_of(format) << i;
      EXPECT_FALSE(std::signbit(back[i])) << i;
    }
    const auto codes = bytes.values();
    EXPECT_EQ(codes[static_cast<std::size_t>(code_bytes(format, 3))], 0.0);
  }
}

TEST(BlockCodec, ABlockThatIsNotFiniteSaysWhereAndTheOthersAreUntouched) {
  for (const BlockFormat format : kCoded) {
    Values x(64 * 3, 1.0);
    x[70] = kInfinity;
    x[71] = -kInfinity;
    x[100] = kNaN;
    const Values back = back_from(format, x);
    for (std::size_t i = 0; i < x.size(); ++i) {
      if (i == 100) {
        EXPECT_TRUE(std::isnan(back[i]));
      } else if (i / 64 == 1) {
        EXPECT_EQ(back[i], i == 70 ? kInfinity : i == 71 ? -kInfinity : 0.0) << i;
      } else {
        EXPECT_EQ(back[i], x[0] * back[0]) << i;
        EXPECT_NEAR(back[i], 1.0, 0x1p-7);
      }
    }
  }
}

TEST(BlockCodec, TheSmallestAndLargestNumbersHaveScales) {
  const double least = std::numeric_limits<float>::denorm_min(), large = 0x1p127;
  for (const BlockFormat format : kCoded) {
    const Values tiny = back_from(format, Values(64, least));
    EXPECT_TRUE(tiny[0] == 0.0 || tiny[0] == least);
    EXPECT_NEAR(back_from(format, Values(64, -large))[5] / large, -1.0, 0x1p-7);
    EXPECT_NEAR(back_from(format, Values(64, 0x1p-120))[63] / 0x1p-120, 1.0, 0x1p-7);
  }
}

TEST(BlockCodec, RoundingInPlaceAndInto16BitsEqualsEncodingAndDecoding) {
  const Values values = test::random_values(64 * 5 + 33, 3);
  for (const BlockFormat format : kFormats) {
    for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF16}) {
      const OwnedTensor x(DType::kF32, values);
      OwnedTensor out(dtype, x.numel());
      const auto stream = test::compute_stream(2);
      round_to_blocks(*stream, format, x, out);
      stream->synchronize();
      EXPECT_TRUE(test::same_bits(out, decoded(format, encoded(format, values), x.numel(), dtype)));
    }
    OwnedTensor x(DType::kF32, values);
    const auto stream = test::compute_stream(1);
    round_to_blocks(*stream, format, x, x);
    stream->synchronize();
    EXPECT_TRUE(test::same_bits(x, decoded(format, encoded(format, values), x.numel())));
  }
}

TEST(BlockCodec, ASumIsAddedInF32InOrderAndRoundedOnceToItsType) {
  const Values a = test::random_values(200, 1), b = test::random_values(200, 2),
               start = test::rounded(DType::kBF16, test::random_values(200, 3));
  for (const BlockFormat format : kFormats) {
    const OwnedTensor first = encoded(format, a), second = encoded(format, b);
    const std::int64_t stride = (first.numel() + 3) / 4 * 4;
    OwnedTensor both(DType::kU8, 2 * stride);
    auto* bytes = static_cast<char*>(both.tensor().data);
    std::memcpy(bytes, first.tensor().data, static_cast<std::size_t>(first.numel()));
    std::memcpy(bytes + stride, second.tensor().data, static_cast<std::size_t>(first.numel()));
    const Values x = back_from(format, a), y = back_from(format, b);
    Values expected;
    for (std::size_t i = 0; i < x.size(); ++i) {
      const float sum = static_cast<float>(start[i]) + static_cast<float>(x[i]);
      expected.push_back(sum + static_cast<float>(y[i]));
    }
    EXPECT_TRUE(test::same_bits(
        summed(format,
               {.first = ConstTensor(both).part(0, first.numel()), .stride = stride, .count = 2},
               OwnedTensor(DType::kBF16, start), true),
        OwnedTensor(DType::kBF16, expected)))
        << name_of(format);
  }
}

TEST(BlockCodec, AnElementTakesEightOrFourBitsAndAQuarterOfOne) {
  EXPECT_EQ(coded_bytes(BlockFormat::kInt8, 64 * 1000), 66 * 1000);
  EXPECT_EQ(coded_bytes(BlockFormat::kInt4, 64 * 1000), 34 * 1000);
  EXPECT_EQ(coded_bytes(BlockFormat::kF32, 65), 260);
  EXPECT_EQ(coded_bytes(BlockFormat::kInt8, 65), 2 * 66) << "a short block is whole";
  EXPECT_EQ(coded_bytes(BlockFormat::kInt4, 0), 0);
}

}  // namespace
}  // namespace sherd::kernels
