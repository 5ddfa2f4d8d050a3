/// Adam and Lion with moments in 8 bits (kernels/eight_bits.h): a thread does a block of 64 elements.
/// It computes the new moments twice, first for their scale, then for their codes. The equations are
/// those of device_common/update.h.
#pragma once

#include "kernels/device_common/update.h"
#include "kernels/eight_bits.h"

namespace sherd::kernels::device_common {

/// Blocks of a chunk.
inline constexpr int kEightBitThreads = static_cast<int>(kSegmentChunk / kEightBitBlock);

/// A moment's codes and scales.
struct EightBitMoment {
  std::uint8_t* codes;
  float* scales;

  SHERD_HOST_DEVICE float value(const EightBitMap& map, std::int64_t element, float scale) const {
    return map.value[codes[element]] * scale;
  }
  SHERD_HOST_DEVICE void store(const EightBitMap& map, std::int64_t element, float x,
                               float scale) const {
    const bool keeps_zero = scale == 0.0f || bits_of(scale) == 0x7f800000u;
    codes[element] = keeps_zero ? std::uint8_t{0} : eight_bit_code(map, x, scale);
  }
};

/// The largest absolute value so far, as bits: a NaN is larger than all numbers.
SHERD_HOST_DEVICE inline std::uint32_t larger_of(std::uint32_t most, float x) {
  const std::uint32_t bits = bits_of(x) & 0x7fffffffu;
  return bits > most ? bits : most;
}

template <class G>
struct AdamIn8Bits {
  Adam<G, float> adam;  ///< without moments
  EightBitMoment exp_avg, exp_avg_sq;

  explicit AdamIn8Bits(const AdamUpdate& args)
      : adam(without_moments(args)),
        exp_avg{args.exp_avg.as<std::uint8_t>(), args.common.scales.as<float>()},
        exp_avg_sq{args.exp_avg_sq.as<std::uint8_t>(), args.common.second_scales.as<float>()} {}

  SHERD_HOST_DEVICE void apply(const EightBitMap* maps, const Segment& segment, std::int64_t first,
                               std::int64_t count) const {
    const std::int64_t block = first / kEightBitBlock;
    const float old_m = exp_avg.scales[block], old_v = exp_avg_sq.scales[block];
    std::uint32_t most_m = 0, most_v = 0;
    float p, m, v;
    for (std::int64_t i = first; i < first + count; ++i) {
      step(maps, segment, i, old_m, old_v, p, m, v);
      most_m = larger_of(most_m, m);
      most_v = larger_of(most_v, v);
    }
    const float scale_m = float_of(most_m), scale_v = float_of(most_v);
    for (std::int64_t i = first; i < first + count; ++i) {
      step(maps, segment, i, old_m, old_v, p, m, v);
      exp_avg.store(maps[0], i, m, scale_m);
      exp_avg_sq.store(maps[1], i, v, scale_v);
      adam.parameter[i] = p;
      adam.rounded.template store<1>(i, {p});
    }
    exp_avg.scales[block] = scale_m;
    exp_avg_sq.scales[block] = scale_v;
  }

 private:
  static AdamUpdate without_moments(AdamUpdate args) {
    args.exp_avg = {};
    args.exp_avg_sq = {};
    return args;
  }
  SHERD_HOST_DEVICE void step(const EightBitMap* maps, const Segment& segment, std::int64_t i,
                              float old_m, float old_v, float& p, float& m, float& v) const {
    float g[1];
    load_wide<1>(adam.gradient + i, g);
    p = adam.parameter[i];
    m = exp_avg.value(maps[0], i, old_m);
    v = exp_avg_sq.value(maps[1], i, old_v);
    adam.step(segment, g[0], p, m, v);
  }
};

template <class G>
struct LionIn8Bits {
  Lion<G, float> lion;  ///< without moments
  EightBitMoment exp_avg;

  explicit LionIn8Bits(const LionUpdate& args)
      : lion(without_moments(args)),
        exp_avg{args.exp_avg.as<std::uint8_t>(), args.common.scales.as<float>()} {}

  SHERD_HOST_DEVICE void apply(const EightBitMap* maps, const Segment& segment, std::int64_t first,
                               std::int64_t count) const {
    const std::int64_t block = first / kEightBitBlock;
    const float old_m = exp_avg.scales[block];
    std::uint32_t most = 0;
    float p, m;
    for (std::int64_t i = first; i < first + count; ++i) {
      step(maps, segment, i, old_m, p, m);
      most = larger_of(most, m);
    }
    const float scale = float_of(most);
    for (std::int64_t i = first; i < first + count; ++i) {
      step(maps, segment, i, old_m, p, m);
      exp_avg.store(maps[0], i, m, scale);
      lion.parameter[i] = p;
      lion.rounded.template store<1>(i, {p});
    }
    exp_avg.scales[block] = scale;
  }

 private:
  static LionUpdate without_moments(LionUpdate args) {
    args.exp_avg = {};
    return args;
  }
  SHERD_HOST_DEVICE void step(const EightBitMap* maps, const Segment& segment, std::int64_t i,
                              float old_m, float& p, float& m) const {
    float g[1];
    load_wide<1>(lion.gradient + i, g);
    p = lion.parameter[i];
    m = exp_avg.value(maps[0], i, old_m);
    lion.step(segment, g[0], p, m);
  }
};

/// Calls body.apply(maps, segment, first, count) for the blocks of 64 of this thread of this block.
template <class Body>
SHERD_HOST_DEVICE void walk_eight_bit_blocks(const SegmentTable& table, std::int64_t block,
                                             int thread, int num_threads, const EightBitMap* maps,
                                             const Body& body) {
  int index = 0;
  while (table.first_block[index + 1] <= block) ++index;
  const Segment& segment = table.segment[index];
  const std::int64_t begin = (block - table.first_block[index]) * kSegmentChunk;
  const std::int64_t rest = segment.count - begin;
  const std::int64_t count = rest < kSegmentChunk ? rest : kSegmentChunk;
  for (std::int64_t i = thread * kEightBitBlock; i < count; i += num_threads * kEightBitBlock) {
    const std::int64_t here = count - i < kEightBitBlock ? count - i : kEightBitBlock;
    body.apply(maps, segment, segment.first + begin + i, here);
  }
}

}  // namespace sherd::kernels::device_common
