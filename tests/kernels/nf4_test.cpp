// NF4 against bitsandbytes (tests/reference/nf4.py), and by hand.
#include "kernels/nf4.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>

#include "core/error.h"
#include "tests/support/values/tensors.h"
#include "tests/where.h"

namespace sherd::kernels {
namespace {

using test::Outputs;
using test::OwnedTensor;
using test::Values;

std::uint64_t mixed(std::uint64_t i) {
  std::uint64_t z = (i + 1) * 0x9e3779b97f4a7c15u;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
  return z ^ (z >> 31);
}

/// As in tests/reference/nf4.py.
Values numbers(std::int64_t count) {
  Values x(static_cast<std::size_t>(count));
  for (std::uint64_t i = 0; i < x.size(); ++i) {
    std::int64_t sum = -(1 << 23);
    for (std::uint64_t k = 0; k < 4; ++k) sum += static_cast<std::int64_t>(mixed(4 * i + k) >> 42);
    const float exact = static_cast<float>(sum) * 0x1p-22f;
    x[i] = exact * (1.0f + static_cast<float>(i / 64 % 97) / 64.0f);
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

/// codes, scales, codes of scales, ranges.
Outputs encoded(Stream& stream, const Values& values) {
  const OwnedTensor x(DType::kF32, values);
  const std::int64_t blocks = nf4_blocks(x.numel());
  Outputs out{{DType::kU8, (x.numel() + 1) / 2},
              {DType::kF32, blocks},
              {DType::kU8, blocks},
              {DType::kF32, nf4_ranges(x.numel())}};
  nf4_encode(stream, x, out[0], out[1]);
  nf4_encode_scales(stream, out[1], out[2], out[3]);
  stream.synchronize();
  return out;
}
Outputs encoded(const Values& values) {
  return test::on_any_number_of_threads([&](Stream& stream) { return encoded(stream, values); });
}

OwnedTensor decoded(const Outputs& of, std::int64_t numel, DType dtype,
                    std::int64_t first_block = 0) {
  const std::int64_t blocks = nf4_blocks(numel);
  Outputs out = test::on_any_number_of_threads([&](Stream& stream) {
    Outputs made{{dtype, numel}};
    nf4_decode(stream,
               {ConstTensor(of[0]).part(first_block * kNf4Block / 2, (numel + 1) / 2),
                ConstTensor(of[2]).part(first_block, blocks), of[3], first_block},
               made[0]);
    stream.synchronize();
    return made;
  });
  return std::move(out[0]);
}

TEST(Nf4, CodesScalesAndValuesOfAMillionNumbersAreThoseOfBitsandbytes) {
  std::ifstream file(std::string(SHERD_SOURCE_DIR) + "/tests/reference/nf4.json");
  const nlohmann::json expected = nlohmann::json::parse(file);
  const Values x = numbers(expected["numbers"]);
  ASSERT_EQ(digest(OwnedTensor(DType::kF32, x)), expected["x"].get<std::string>());
  const Outputs of = encoded(x);
  EXPECT_EQ(digest(of[0]), expected["codes"].get<std::string>());
  EXPECT_EQ(digest(of[1]), expected["scales"].get<std::string>());
  EXPECT_EQ(digest(of[2]), expected["scale_codes"].get<std::string>());
  EXPECT_EQ(ConstTensor(of[3]).as<float>()[0], expected["mean"].get<float>());
  EXPECT_EQ(digest(ConstTensor(of[3]).part(1, of[3].numel() - 1)),
            expected["ranges"].get<std::string>());
  for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF16}) {
    EXPECT_EQ(digest(decoded(of, std::ssize(x), dtype)),
              expected["values"][std::string(name_of(dtype))].get<std::string>())
        << name_of(dtype);
  }
  std::vector<float> dynamic;
  for (int code = 0; code < 256; ++code) dynamic.push_back(dynamic_value(code));
  EXPECT_EQ(digest({dynamic.data(), DType::kF32, 256}),
            expected["dynamic_values"].get<std::string>());
}

// With one scale for all blocks mean and scale are equal, and ranges are 0.
TEST(Nf4, TheSixteenValuesTimesAScaleComeBackAsTheyAre) {
  const OwnedTensor values(DType::kF32, Values{-2, -1.3923856, 0, 2, 1.1252340, 0.15916060});
  Values x;
  for (int i = 0; i < 640; ++i) {
    x.push_back(i % 64 == 5 ? -2.0 : values.values()[static_cast<std::size_t>(i % 6)]);
  }
  const Outputs of = encoded(x);
  const Values back = decoded(of, 640, DType::kF32).values();
  for (std::size_t i = 0; i < x.size(); ++i) EXPECT_NEAR(back[i], x[i], 1e-6) << i;
  EXPECT_EQ(of[0].values()[0], 0 * 16 + 1) << "the first in the high bits";
}

TEST(Nf4, NumbersComeBackWithinHalfTheirWidestGapAndHalfAStepOfTheScale) {
  const Values x = numbers(64 * 300 + 17);  // the last block has 17
  const Outputs of = encoded(x);
  const Values back = decoded(of, std::ssize(x), DType::kF32).values(), scales = of[1].values();
  for (std::size_t i = 0; i < x.size(); ++i) {
    // 0.152 is half of 1 - 0.696; a scale's code is off by 2 % of its range, which is below its mean.
    EXPECT_LE(std::abs(back[i] - x[i]), 0.152 * scales[i / 64] + 0.1) << i;
  }
}

TEST(Nf4, APartThatBeginsWithABlockIsDecodedAsInTheWhole) {
  const Values x = numbers(64 * 600);
  const Outputs of = encoded(x);
  const OwnedTensor whole = decoded(of, std::ssize(x), DType::kF32);
  for (const std::int64_t first : {1, 255, 256, 511, 599}) {
    const std::int64_t count = std::min<std::int64_t>(64 * 300, std::ssize(x) - first * 64);
    EXPECT_TRUE(test::same_bits(decoded(of, count, DType::kF32, first),
                                ConstTensor(whole).part(first * 64, count)))
        << first;
  }
}

TEST(Nf4, InTheMiddleOfTwoValuesTheLowerOneIsTaken) {
  Values x(64, 0.0);
  x[0] = 1;                          // the scale
  x[1] = 0.07958029955625534f / 2;   // of codes 7 and 8
  x[2] = -0.09105003625154495f / 2;  // of codes 6 and 7
  const Values codes = encoded(x)[0].values();
  EXPECT_EQ(codes[0], 15 * 16 + 7);
  EXPECT_EQ(codes[1], 6 * 16 + 7);
}

TEST(Nf4, ZerosStayZeros) {
  Values x = numbers(64 * 5);
  for (std::size_t i = 64; i < 128; ++i) x[i] = 0;
  const Values back = decoded(encoded(x), std::ssize(x), DType::kF32).values();
  for (std::size_t i = 64; i < 128; ++i) EXPECT_EQ(back[i], 0);
  EXPECT_EQ(decoded(encoded(Values(64, 0.0)), 64, DType::kF32).values(), Values(64, 0.0));
}

}  // namespace
}  // namespace sherd::kernels
