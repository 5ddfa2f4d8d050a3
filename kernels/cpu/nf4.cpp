#include "kernels/cpu/nf4.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "kernels/cpu/blocks.h"
#include "kernels/dispatch_float.h"

namespace sherd::kernels {
namespace {

// Quantiles of a normal distribution, equally many on each side of 0 (the paper's appendix E).
constexpr std::array<float, 16> kValues = {-1.0f,
                                           -0.6961928009986877f,
                                           -0.5250730514526367f,
                                           -0.39491748809814453f,
                                           -0.28444138169288635f,
                                           -0.18477343022823334f,
                                           -0.09105003625154495f,
                                           0.0f,
                                           0.07958029955625534f,
                                           0.16093020141124725f,
                                           0.24611230194568634f,
                                           0.33791524171829224f,
                                           0.44070982933044434f,
                                           0.5626170039176941f,
                                           0.7229568362236023f,
                                           1.0f};

template <std::size_t N>
std::array<float, N - 1> middles_of(const std::array<float, N>& values) {
  std::array<float, N - 1> middles;
  for (std::size_t i = 0; i + 1 < N; ++i) middles[i] = (values[i] + values[i + 1]) / 2.0f;
  return middles;
}

// How many middles are below x: of the values that they separate, the index of the nearest.
template <std::size_t N>
std::uint8_t nearest(const std::array<float, N>& middles, float x) {
  return static_cast<std::uint8_t>(std::lower_bound(middles.begin(), middles.end(), x) -
                                   middles.begin());
}

// In f32, as bitsandbytes makes them: the last bits count where a scale is between two values.
std::array<float, 256> make_dynamic_values() {
  std::array<float, 256> values;
  std::size_t count = 0;
  for (int exponent = 0; exponent <= 6; ++exponent) {
    const int parts = 1 << exponent;
    const double power = std::pow(10.0, exponent - 6);
    const float step = (1.0f - 0.1f) / static_cast<float>(parts);
    const auto bound = [&](int i) {  // the second half is counted from the end
      return i < (parts + 1) / 2 ? std::fma(step, static_cast<float>(i), 0.1f)
                                 : std::fma(-step, static_cast<float>(parts - i), 1.0f);
    };
    for (int i = 0; i < parts; ++i) {
      const float middle = (bound(i) + bound(i + 1)) / 2.0f;
      const float value = static_cast<float>(power) * middle;
      values[count++] = value;
      values[count++] = -value;
    }
  }
  values[count++] = 0.0f;
  values[count++] = 1.0f;
  std::sort(values.begin(), values.end());
  return values;
}
const std::array<float, 256> kDynamicValues = make_dynamic_values();

constexpr float kTiny = 1e-38f;

float inverse(float scale) {
  return 1.0f / std::max(scale, kTiny);
}

}  // namespace

float dynamic_value(int code) {
  return kDynamicValues[static_cast<std::size_t>(code)];
}

namespace cpu {
namespace {

constexpr std::int64_t kBlocksOfTask = kChunk / kNf4Block;

void encode_block(const float* x, std::int64_t count, std::uint8_t* codes, float& scale) {
  static const auto kMiddles = middles_of(kValues);
  scale = 0.0f;
  for (std::int64_t i = 0; i < count; ++i) scale = std::max(scale, std::abs(x[i]));
  const float factor = inverse(scale);
  const auto code = [&](std::int64_t i) {
    return i < count ? nearest(kMiddles, std::clamp(x[i] * factor, -1.0f, 1.0f)) : 7;
  };
  for (std::int64_t i = 0; i < count; i += 2) {
    codes[i / 2] = static_cast<std::uint8_t>(code(i) << 4 | code(i + 1));
  }
}

template <class T>
void decode_block(const std::uint8_t* codes, float scale, std::int64_t count, T* out) {
  BlockScratch scratch;
  float* target = block_target(out, scratch);
  for (std::int64_t i = 0; i < count; ++i) {
    const int byte = codes[i / 2];
    target[i] = kValues[static_cast<std::size_t>(i % 2 == 0 ? byte >> 4 : byte & 15)] * scale;
  }
  store_block(out, static_cast<int>(count), scratch);
}

// Calls `work` with each block and its number of elements, some of them to a task.
template <class Work>
void for_each_nf4_block(ThreadTeam& team, std::int64_t numel, const Work& work) {
  const std::int64_t blocks = nf4_blocks(numel);
  team.parallel_for((blocks + kBlocksOfTask - 1) / kBlocksOfTask, [&](std::int64_t task, int) {
    const std::int64_t end = std::min(blocks, (task + 1) * kBlocksOfTask);
    for (std::int64_t block = task * kBlocksOfTask; block < end; ++block) {
      work(block, std::min(kNf4Block, numel - block * kNf4Block));
    }
  });
}

}  // namespace

void nf4_encode(ThreadTeam& team, ConstTensor x, Tensor codes, Tensor scales) {
  const float* values = x.as<float>();
  auto* bytes = codes.as<std::uint8_t>();
  float* scale = scales.as<float>();
  for_each_nf4_block(team, x.numel, [&](std::int64_t block, std::int64_t count) {
    encode_block(values + block * kNf4Block, count, bytes + block * kNf4Block / 2, scale[block]);
  });
}

void nf4_encode_scales(ConstTensor scales, Tensor codes, Tensor ranges) {
  static const auto kMiddles = middles_of(kDynamicValues);
  const float* scale = scales.as<float>();
  auto* code = codes.as<std::uint8_t>();
  float* range = ranges.as<float>();
  double sum = 0.0;
  for (std::int64_t block = 0; block < scales.numel; ++block) sum += scale[block];
  const auto mean = static_cast<float>(sum / static_cast<double>(scales.numel));
  range[0] = mean;
  for (std::int64_t begin = 0; begin < scales.numel; begin += kNf4Group) {
    const std::int64_t end = std::min(begin + kNf4Group, scales.numel);
    float most = 0.0f;
    for (std::int64_t i = begin; i < end; ++i) most = std::max(most, std::abs(scale[i] - mean));
    const float factor = inverse(most);
    for (std::int64_t i = begin; i < end; ++i) {
      code[i] = nearest(kMiddles, std::clamp((scale[i] - mean) * factor, -1.0f, 1.0f));
    }
    range[1 + begin / kNf4Group] = most;
  }
}

void nf4_decode(ThreadTeam& team, const Nf4Part& part, Tensor out) {
  const auto* codes = part.codes.as<std::uint8_t>();
  const auto* scale_codes = part.scale_codes.as<std::uint8_t>();
  const float* ranges = part.ranges.as<float>();
  dispatch_float(out.dtype, [&]<class T>(T) {
    T* target = out.as<T>();
    for_each_nf4_block(team, out.numel, [&](std::int64_t block, std::int64_t count) {
      const float range = ranges[1 + (part.first_block + block) / kNf4Group];
      const float from_mean = dynamic_value(scale_codes[block]) * range;
      decode_block(codes + block * kNf4Block / 2, from_mean + ranges[0], count,
                   target + block * kNf4Block);
    });
  });
}

}  // namespace cpu
}  // namespace sherd::kernels
