// Moments in 8 bits against NumPy (tests/reference/eight_bits.py), and by hand.
#include "kernels/eight_bits.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>

#include "kernels/device_common/eight_bit_update.h"
#include "kernels/update.h"
#include "tests/support/values/tensors.h"
#include "tests/where.h"

namespace sherd::kernels {
namespace {

using test::Outputs;
using test::OwnedTensor;
using test::Values;

constexpr std::int64_t kEightBitsNumel = 300, kNumBlocks = 5;

// FNV-1a, 64 bits.
std::string digest(ConstTensor tensor) {
  const auto* bytes = static_cast<const unsigned char*>(tensor.data);
  std::uint64_t value = 0xcbf29ce484222325ull;
  for (std::int64_t i = 0; i < tensor.bytes(); ++i) value = (value ^ bytes[i]) * 0x100000001b3ull;
  return fmt::format("{:016x}", value);
}

std::uint64_t mixed(std::uint64_t i) {
  std::uint64_t z = (i + 1) * 0x9e3779b97f4a7c15ull;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
  return z ^ (z >> 31);
}

// As in tests/reference/eight_bits.py.
Values numbers(std::uint64_t draw) {
  Values values;
  for (std::uint64_t i = 0; i < kEightBitsNumel; ++i) {
    const auto bits = static_cast<std::int64_t>(mixed(i * 64 + draw) >> 40);
    values.push_back(static_cast<double>(bits - (1 << 23)) * 0x1p-23);
  }
  return values;
}
Values gradients(std::int64_t step) {
  Values values = numbers(static_cast<std::uint64_t>(step));
  for (int i = 0; i < kEightBitsNumel; ++i) {
    double& value = values[static_cast<std::size_t>(i)];
    value = i >= 128 && i < 192 ? 0.0 : std::ldexp(value, -(i % 29));
  }
  return values;
}

nlohmann::json reference() {
  std::ifstream file(std::string(SHERD_SOURCE_DIR) + "/tests/reference/eight_bits.json");
  return nlohmann::json::parse(file);
}

// A tensor's parameters, codes and scales.
Outputs begin() {
  return {{DType::kF32, numbers(0)},
          {DType::kU8, Values(kEightBitsNumel, 0.0)},
          {DType::kU8, Values(kEightBitsNumel, 0.0)},
          {DType::kF32, Values(kNumBlocks, 0.0)},
          {DType::kF32, Values(kNumBlocks, 0.0)}};
}

// One step on elements [first, first + count), whose slice begins with the first.
void take_step(Stream& stream, const std::string& optimizer, const OwnedTensor& gradient,
               std::int64_t step, std::int64_t first, std::int64_t count, Outputs& state) {
  const UpdateSegment segment = {0, count, 0.1f, 3, first};
  const auto scales = [&](OwnedTensor& all) {
    return all.tensor().part(first / kEightBitBlock, eight_bit_blocks(count));
  };
  UpdateCommon common = {.parameter = state[0].tensor().part(first, count),
                         .gradient = ConstTensor(gradient).part(first, count),
                         .segments = {&segment, 1},
                         .lr = 0.01f};
  common.scales = scales(state[3]);
  common.second_scales = scales(state[4]);
  const Tensor exp_avg = state[1].tensor().part(first, count);
  if (optimizer == "lion") {
    lion_update(stream, {common, exp_avg, 0.9f, 0.99f});
  } else {
    adam_update(stream, {.common = common,
                         .exp_avg = exp_avg,
                         .exp_avg_sq = state[2].tensor().part(first, count),
                         .beta1 = 0.9f,
                         .beta2 = 0.95f,
                         .eps = 1e-8f,
                         .update_number = step});
  }
  stream.synchronize();
}

Outputs after_twenty_steps(Stream& stream, const std::string& optimizer,
                           const std::vector<std::int64_t>& cuts) {
  Outputs state = begin();
  for (std::int64_t step = 1; step <= 20; ++step) {
    const OwnedTensor gradient(DType::kF32, gradients(step));
    for (std::size_t i = 0; i + 1 < cuts.size(); ++i) {
      take_step(stream, optimizer, gradient, step, cuts[i], cuts[i + 1] - cuts[i], state);
    }
  }
  return state;
}

TEST(EightBits, TheMapsAreThoseOfThePaper) {
  const nlohmann::json expected = reference();
  for (const bool has_signs : {true, false}) {
    const std::array<float, 256> values = dynamic_values(has_signs);
    EXPECT_EQ(digest({values.data(), DType::kF32, 256}),
              expected[has_signs ? "with_signs" : "without"].get<std::string>());
  }
}

TEST(EightBits, TwentyStepsHaveTheBitsOfNumpyHoweverSlicesAreCut) {
  const nlohmann::json expected = reference();
  ASSERT_EQ(digest(OwnedTensor(DType::kF32, gradients(7))),
            expected["gradient_of_step_7"].get<std::string>());
  for (const std::string optimizer : {"adamw", "lion"}) {
    for (const std::vector<std::int64_t>& cuts :
         {std::vector<std::int64_t>{0, 300}, {0, 64, 300}, {0, 128, 192, 256, 300}}) {
      const Outputs state = test::on_any_number_of_threads(
          [&](Stream& stream) { return after_twenty_steps(stream, optimizer, cuts); });
      const nlohmann::json& of = expected[optimizer];
      EXPECT_EQ(digest(state[0]), of["parameters"].get<std::string>()) << optimizer;
      for (std::size_t moment = 0; moment < of["codes"].size(); ++moment) {
        EXPECT_EQ(digest(state[1 + moment]), of["codes"][moment].get<std::string>()) << optimizer;
        EXPECT_EQ(digest(state[3 + moment]), of["scales"][moment].get<std::string>()) << optimizer;
      }
    }
  }
}

// The GPU's update, compiled for the host.
TEST(EightBits, TheGpusBodiesHaveTheBitsToo) {
  const nlohmann::json expected = reference();
  const EightBitMap maps[] = {eight_bit_map(true), eight_bit_map(false)};
  const std::vector<UpdateSegment> segments = {{0, 128, 0.1f, 3, 0}, {128, 172, 0.1f, 3, 128}};
  const auto walk = [&](const auto& work) {
    const device_common::SegmentTable table = device_common::make_segment_table(segments, {});
    for (std::int64_t block = 0; block < table.num_blocks(); ++block) {
      for (int thread = 0; thread < device_common::kEightBitThreads; ++thread) {
        device_common::walk_eight_bit_blocks(table, block, thread, device_common::kEightBitThreads,
                                             maps, work);
      }
    }
  };
  for (const std::string optimizer : {"adamw", "lion"}) {
    Outputs state = begin();
    for (std::int64_t step = 1; step <= 20; ++step) {
      const OwnedTensor gradient(DType::kF32, gradients(step));
      UpdateCommon common = {
          .parameter = state[0], .gradient = gradient, .segments = segments, .lr = 0.01f};
      common.scales = state[3];
      common.second_scales = state[4];
      if (optimizer == "lion") {
        walk(device_common::LionIn8Bits<float>({common, state[1], 0.9f, 0.99f}));
      } else {
        walk(device_common::AdamIn8Bits<float>(
            {common, state[1], state[2], true, 0.9f, 0.95f, 1e-8f, step}));
      }
    }
    const nlohmann::json& of = expected[optimizer];
    EXPECT_EQ(digest(state[0]), of["parameters"].get<std::string>()) << optimizer;
    for (std::size_t moment = 0; moment < of["codes"].size(); ++moment) {
      EXPECT_EQ(digest(state[1 + moment]), of["codes"][moment].get<std::string>()) << optimizer;
      EXPECT_EQ(digest(state[3 + moment]), of["scales"][moment].get<std::string>()) << optimizer;
    }
  }
}

TEST(EightBits, ABlockOfZerosStaysZero) {
  const Outputs state =
      after_twenty_steps(*test::compute_stream(), "adamw", {0, 300});  // elements 128 to 191
  for (std::size_t i = 128; i < 192; ++i) {
    EXPECT_EQ(ConstTensor(state[1]).as<std::uint8_t>()[i], 0);
    EXPECT_EQ(ConstTensor(state[2]).as<std::uint8_t>()[i], 0);
  }
  EXPECT_EQ(state[3].values()[2], 0.0);
  EXPECT_EQ(state[4].values()[2], 0.0);
}

// Where it were 0, m / eps would be a step.
TEST(EightBits, APositiveSecondMomentIsNeverZero) {
  const EightBitMap& map = eight_bit_map(false);
  EXPECT_EQ(eight_bit_code(map, 1e-30f, 1.0f), 1);
  EXPECT_EQ(eight_bit_code(map, std::numeric_limits<float>::denorm_min(), 1e10f), 1);
  EXPECT_EQ(eight_bit_code(map, 0.0f, 1.0f), 0);
  EXPECT_GT(map.value[1], 0.0f);
  EXPECT_EQ(eight_bit_code(eight_bit_map(true), 1e-30f, 1.0f), 0);
}

TEST(EightBits, EveryValueHasItsOwnByteAndZeroIsByteZero) {
  for (const bool has_signs : {true, false}) {
    const EightBitMap& map = eight_bit_map(has_signs);
    EXPECT_EQ(map.value[0], 0.0f);
    for (int byte = 0; byte < 256; ++byte) {
      EXPECT_EQ(eight_bit_code(map, map.value[byte], 1.0f), byte);
      EXPECT_EQ(eight_bit_code(map, map.value[byte] * 0x1p-60f, 0x1p-60f), byte);
    }
  }
}

// A middle is a tie.
TEST(EightBits, ATieGivesTheLowerValueAndTheNextNumberTheUpper) {
  for (const bool has_signs : {true, false}) {
    const EightBitMap& map = eight_bit_map(has_signs);
    const std::array<float, 256> values = dynamic_values(has_signs);
    for (int i = has_signs ? 0 : 1; i < 255; ++i) {
      EXPECT_EQ(map.value[eight_bit_code(map, map.middle[i], 1.0f)], values[i]);
      const float above = std::nextafter(map.middle[i], 2.0f);
      EXPECT_EQ(map.value[eight_bit_code(map, above, 1.0f)], values[i + 1]);
    }
  }
}

TEST(EightBits, ANanIsNotHidden) {
  Outputs state = begin();
  Values gradient = gradients(1);
  gradient[70] = std::numeric_limits<double>::quiet_NaN();
  take_step(*test::compute_stream(), "adamw", {DType::kF32, gradient}, 1, 0, kEightBitsNumel,
            state);
  EXPECT_TRUE(std::isnan(state[3].values()[1]));
  EXPECT_FALSE(std::isnan(state[3].values()[0]));
}

// The square of a finite gradient may overflow. The parameters become NaN then, which a run reports.
TEST(EightBits, AnInfinityIsNotHidden) {
  Outputs state = begin();
  Values gradient = gradients(1);
  gradient[70] = 1e30;
  take_step(*test::compute_stream(), "adamw", {DType::kF32, gradient}, 1, 0, kEightBitsNumel,
            state);
  take_step(*test::compute_stream(), "adamw", {DType::kF32, gradients(2)}, 2, 0, kEightBitsNumel,
            state);
  const Values parameters = state[0].values();
  for (const std::size_t i : {64u, 70u, 127u}) EXPECT_TRUE(std::isnan(parameters[i])) << i;
  for (const std::size_t i : {0u, 63u, 128u}) EXPECT_FALSE(std::isnan(parameters[i])) << i;
}

}  // namespace
}  // namespace sherd::kernels
