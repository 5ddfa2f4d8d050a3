/// Shared by all updates: iteration over a slice's segments in blocks, and moments as floats.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <utility>

#include "core/exact_sum.h"
#include "kernels/cpu/blocks.h"
#include "kernels/cpu/random.h"
#include "kernels/dispatch_float.h"
#include "kernels/eight_bits.h"
#include "kernels/stochastic_rounding.h"
#include "kernels/update.h"

namespace sherd::kernels::cpu {

/// Calls `function(segment_index, first, count)` for blocks of at most kBlock elements that cover
/// the segments; tasks are cut at multiples of kChunk from the start of the slice.
template <class Function>
void parallel_segment_blocks(ThreadTeam& team, const UpdateCommon& common, Function&& function) {
  const std::int64_t numel = common.parameter.numel;
  const auto segments = common.segments;
  team.parallel_for((numel + kChunk - 1) / kChunk, [&](std::int64_t task, int) {
    const std::int64_t begin = task * kChunk;
    const std::int64_t end = std::min(numel, begin + kChunk);
    auto segment =
        std::partition_point(segments.begin(), segments.end(),
                             [=](const UpdateSegment& s) { return s.first + s.count <= begin; });
    for (; segment != segments.end() && segment->first < end; ++segment) {
      for_each_block(std::max(begin, segment->first),
                     std::min(end, segment->first + segment->count),
                     [&](std::int64_t first, int count) {
                       function(static_cast<std::size_t>(segment - segments.begin()), first, count);
                     });
    }
  });
}

/// Writes a block of updated parameters to UpdateCommon::rounded.
inline void round_block(const UpdateCommon& common, std::int64_t first, int count) {
  if (!common.rounded) return;
  const float* p = common.parameter.as<float>() + first;
  if (common.rounded.dtype == DType::kBF16) {
    narrow(p, common.rounded.as<BFloat16>() + first, count);
  } else {
    narrow(p, common.rounded.as<Float16>() + first, count);
  }
}

/// Two exact sums per segment, first all of a^2, then all of b^2, of what
/// `function(segment, first, count, a, b)` writes as f32 terms a and b.
template <class Function>
void segment_sums(ThreadTeam& team, const UpdateCommon& common, const Tensor& sums,
                  Function&& function) {
  const auto num_segments = static_cast<std::int64_t>(common.segments.size());
  team.parallel_for(num_segments, [&](std::int64_t index, int) {
    const UpdateSegment& segment = common.segments[static_cast<std::size_t>(index)];
    ExactSum sum[2];
    {
      ExactSquares a_squares(sum[0]), b_squares(sum[1]);
      for_each_block(segment.first, segment.first + segment.count,
                     [&](std::int64_t first, int count) {
                       alignas(64) float a[kBlock], b[kBlock];
                       function(segment, first, count, a, b);
                       a_squares.add(a, count);
                       b_squares.add(b, count);
                     });
    }
    for (int which = 0; which < 2; ++which) {
      const std::int64_t at = (which * num_segments + index) * ExactSum::kNumbers;
      std::ranges::copy(sum[which].numbers(), sums.as<double>() + at);
    }
  });
}

/// A moment in storage type S, a block at a time: open it as floats, change them, then close it.
template <class S>
class Moment {
 public:
  Moment(const Tensor& tensor, const UpdateCommon& common, std::uint32_t kind)
      : data_(tensor.as<S>()), rounding_(common.rounding), kind_(kind) {}

  float* open(std::int64_t first, int count, BlockScratch& scratch) const {
    if constexpr (std::is_same_v<S, float>) {
      return data_ + first;
    } else {
      widen(data_ + first, scratch.value, count);
      return scratch.value;
    }
  }
  const float* read(std::int64_t first, int count, BlockScratch& scratch) const {
    return open(first, count, scratch);
  }
  void close(const UpdateSegment& segment, std::int64_t first, int count,
             const BlockScratch& scratch) const {
    if constexpr (!std::is_same_v<S, float>) {
      if (rounding_.stochastic) {
        store_stochastic(segment, first, count, scratch);
      } else {
        store_block(data_ + first, count, scratch);
      }
    }
  }

 private:
  void store_stochastic(const UpdateSegment& segment, std::int64_t first, int count,
                        const BlockScratch& scratch) const {
    RandomAddress address = rounding_.address;
    address.site = 4 * segment.parameter + kind_;
    WordScratch words;
    const std::uint32_t* word = random_words(
        address, segment.first_element + segment.random_shift + (first - segment.first), count,
        words);
    for (int i = 0; i < count; ++i) {
      const auto bits = std::bit_cast<std::uint32_t>(scratch.value[i]);
      data_[first + i].bits = is_finite_f32(bits) ? round_stochastically(bits, word[i])
                                                  : BFloat16(scratch.value[i]).bits;
    }
  }

  S* data_;
  MomentRounding rounding_;
  std::uint32_t kind_;
};

/// In 8 bits. Blocks of the update begin with a block of 64.
template <>
class Moment<std::uint8_t> {
 public:
  Moment(const Tensor& tensor, const UpdateCommon& common, std::uint32_t kind)
      : codes_(tensor.as<std::uint8_t>()),
        scales_((kind == 0 ? common.scales : common.second_scales).as<float>()),
        map_(&eight_bit_map(kind == 0)) {}

  float* open(std::int64_t first, int count, BlockScratch& scratch) const {
    for (int begin = 0; begin < count; begin += kEightBitBlock) {
      const float scale = scales_[(first + begin) / kEightBitBlock];
      const int end = std::min<int>(count, begin + kEightBitBlock);
#pragma omp simd
      for (int i = begin; i < end; ++i) {
        scratch.value[i] = map_->value[codes_[first + i]] * scale;
      }
    }
    return scratch.value;
  }
  void close(const UpdateSegment& /*segment*/, std::int64_t first, int count,
             const BlockScratch& scratch) const {
    for (int begin = 0; begin < count; begin += kEightBitBlock) {
      scales_[(first + begin) / kEightBitBlock] =
          encode(scratch.value + begin, std::min<int>(kEightBitBlock, count - begin),
                 codes_ + first + begin);
    }
  }

 private:
  // Returns the scale. Loops over elements inside, so that they vectorise.
  float encode(const float* x, int count, std::uint8_t* codes) const {
    std::int32_t most = 0;  // bits of the absolute value; NaN's are the largest
#pragma omp simd reduction(max : most)
    for (int i = 0; i < count; ++i) {
      most = std::max(most, std::bit_cast<std::int32_t>(x[i]) & 0x7fffffff);
    }
    const auto scale = std::bit_cast<float>(most);
    alignas(64) float ratio[kEightBitBlock];
    alignas(64) std::int32_t below[kEightBitBlock];
#pragma omp simd
    for (int i = 0; i < count; ++i) {
      ratio[i] = x[i] / scale;
      below[i] = 0;
    }
    for (int step = 128; step > 0; step /= 2) {
#pragma omp simd
      for (int i = 0; i < count; ++i) {
        below[i] += map_->middle[below[i] + step - 1] < ratio[i] ? step : 0;
      }
    }
    const int positive = map_->keeps_positive ? 1 : 0;
#pragma omp simd
    for (int i = 0; i < count; ++i) {
      const int code = below[i] == 0 && x[i] > 0.0f ? positive : below[i];
      codes[i] = static_cast<std::uint8_t>(code - map_->zero);
    }
    // Zeros stay zeros. With an infinity, all become NaN.
    constexpr std::int32_t kInfinity = 0x7f800000;
    if (most == 0 || most == kInfinity) std::fill_n(codes, count, std::uint8_t{0});
    return scale;
  }

  std::uint8_t* codes_;
  float* scales_;
  const EightBitMap* map_;
};

/// Calls `function(G{}, S{})` with the types of the gradient and of the moments. `kIn8Bits`: they
/// may be in 8 bits.
template <bool kIn8Bits = false, class Function>
void dispatch_update(const UpdateCommon& common, DType moment, Function&& function) {
  dispatch_float(common.gradient.dtype, [&](auto gradient_type) {
    if constexpr (kIn8Bits) {
      if (moment == DType::kU8) return function(gradient_type, std::uint8_t{});
    }
    if (moment == DType::kF32) {
      function(gradient_type, float{});
    } else {
      function(gradient_type, BFloat16{});
    }
  });
}

static_assert(kChunk % kEightBitBlock == 0 && kBlock % kEightBitBlock == 0);

/// A block of a segment, with its gradient and moments as floats.
template <std::size_t N>
struct UpdateBlock {
  const UpdateSegment& segment;
  std::size_t index;  ///< of the segment
  std::int64_t first;
  int count;
  const float* gradient;
  std::array<float*, N> moment;  ///< to be changed in place
  float* parameter;
};

/// Calls `function(UpdateBlock<N>)` for all blocks of an update with N moments, and rounds what it
/// leaves in them. `kIn8Bits`: moments may be in 8 bits.
template <std::size_t N, bool kIn8Bits = false, class Function>
void update_blocks(ThreadTeam& team, const UpdateCommon& common,
                   const std::array<Tensor, N>& moments, Function&& function) {
  dispatch_update<kIn8Bits>(common, moments[0].dtype, [&](auto gradient_type, auto moment_type) {
    using G = decltype(gradient_type);
    using S = decltype(moment_type);
    const G* gradient = common.gradient.as<G>();
    float* parameter = common.parameter.as<float>();
    const auto stored = [&]<std::size_t... i>(std::index_sequence<i...>) {
      return std::array<Moment<S>, N>{Moment<S>(moments[i], common, i)...};
    }
    (std::make_index_sequence<N>());
    parallel_segment_blocks(team, common, [&](std::size_t index, std::int64_t first, int count) {
      const UpdateSegment& segment = common.segments[index];
      BlockScratch gradient_scratch;
      std::array<BlockScratch, N> scratch;
      std::array<float*, N> opened;
      for (std::size_t i = 0; i < N; ++i) opened[i] = stored[i].open(first, count, scratch[i]);
      function(UpdateBlock<N>{segment, index, first, count,
                              load_block(gradient + first, count, gradient_scratch), opened,
                              parameter + first});
      for (std::size_t i = 0; i < N; ++i) stored[i].close(segment, first, count, scratch[i]);
    });
  });
}

/// The bias-corrected Adam direction's constants, formed in f64 and rounded once.
struct AdamConstants {
  AdamConstants(double beta1, double beta2, std::int64_t update_number)
      : fresh1(static_cast<float>(1.0 - beta1)),
        fresh2(static_cast<float>(1.0 - beta2)),
        correction1(1.0 / (1.0 - std::pow(beta1, static_cast<double>(update_number)))),
        root_correction2(static_cast<float>(
            1.0 / std::sqrt(1.0 - std::pow(beta2, static_cast<double>(update_number))))) {}
  float fresh1, fresh2;
  double correction1;
  float root_correction2;
};

}  // namespace sherd::kernels::cpu
