#include "kernels/cpu/block_codec.h"

#include <algorithm>
#include <cstring>

#include "kernels/block_codes.h"
#include "kernels/cpu/blocks.h"
#include "kernels/dispatch_float.h"

namespace sherd::kernels::cpu {
namespace {

constexpr int kWidth = static_cast<int>(kCodecBlock);
constexpr std::int64_t kBlocksOfTask = kChunk / kCodecBlock;

struct Block {
  alignas(64) float value[kWidth];
};
// Codes before they are packed.
struct Codes {
  alignas(64) std::int8_t value[kWidth];
};

// Where a block's codes and scale are.
struct CodePlaces {
  BlockFormat format;
  std::uint8_t* codes;
  std::uint8_t* scales;  // bf16

  CodePlaces(BlockFormat format_, const void* bytes, std::int64_t numel)
      : format(format_),
        codes(static_cast<std::uint8_t*>(const_cast<void*>(bytes))),
        scales(codes + code_bytes(format, codec_blocks(numel))) {}
  std::uint8_t* codes_of(std::int64_t block) const { return codes + code_bytes(format, block); }
  std::uint16_t scale(std::int64_t block) const {
    std::uint16_t bits = 0;
    std::memcpy(&bits, scales + 2 * block, sizeof bits);
    return bits;
  }
  void set_scale(std::int64_t block, std::uint16_t bits) const {
    std::memcpy(scales + 2 * block, &bits, sizeof bits);
  }
};

// The block at `x` as 64 floats: in place, or followed by zeros.
const float* whole_block(const float* x, int count, Block& scratch) {
  if (count == kWidth) return x;
  std::copy(x, x + count, scratch.value);
  std::fill(scratch.value + count, scratch.value + kWidth, 0.0f);
  return scratch.value;
}

std::uint32_t most_of(const float* x) {
  std::uint32_t most = 0;
#pragma omp simd reduction(max : most)
  for (int i = 0; i < kWidth; ++i) {
    most = std::max(most, std::bit_cast<std::uint32_t>(x[i]) & 0x7fffffffu);
  }
  return most;
}

// Returns the scale.
std::uint16_t encode(BlockFormat format, const float* x, Codes& codes) {
  const std::uint16_t bits = scale_bits(format, most_of(x));
  const float scale = scale_value(bits);
  if (bits == 0) {
    std::fill_n(codes.value, kWidth, std::int8_t{0});
  } else if (bits == kFlaggedScale) {
    for (int i = 0; i < kWidth; ++i) codes.value[i] = static_cast<std::int8_t>(flagged_code(x[i]));
  } else {
#pragma omp simd
    for (int i = 0; i < kWidth; ++i)
      codes.value[i] = static_cast<std::int8_t>(code_of(x[i], scale));
  }
  return bits;
}

void decode(const Codes& codes, std::uint16_t bits, float* out) {
  const float scale = scale_value(bits);
  if (bits == kFlaggedScale) {
    for (int i = 0; i < kWidth; ++i) out[i] = flagged_value(codes.value[i]);
    return;
  }
#pragma omp simd
  for (int i = 0; i < kWidth; ++i) out[i] = static_cast<float>(codes.value[i]) * scale;
}

void pack(BlockFormat format, const Codes& codes, std::uint8_t* out) {
  if (format == BlockFormat::kInt8) {
    std::memcpy(out, codes.value, sizeof codes.value);
    return;
  }
#pragma omp simd
  for (int i = 0; i < kWidth / 2; ++i) {
    out[i] = two_codes(codes.value[2 * i], codes.value[2 * i + 1]);
  }
}

void unpack(BlockFormat format, const std::uint8_t* bytes, Codes& codes) {
  if (format == BlockFormat::kInt8) {
    std::memcpy(codes.value, bytes, sizeof codes.value);
    return;
  }
#pragma omp simd
  for (int i = 0; i < kWidth / 2; ++i) {
    codes.value[2 * i] = static_cast<std::int8_t>(first_code(bytes[i]));
    codes.value[2 * i + 1] = static_cast<std::int8_t>(second_code(bytes[i]));
  }
}

// A rank's block, decoded. kF32: where it is.
const float* decoded(BlockFormat format, const void* bytes, std::int64_t numel, std::int64_t block,
                     Block& scratch) {
  if (format == BlockFormat::kF32) {
    return static_cast<const float*>(bytes) + block * kWidth;
  }
  const CodePlaces places(format, bytes, numel);
  Codes codes;
  unpack(format, places.codes_of(block), codes);
  decode(codes, places.scale(block), scratch.value);
  return scratch.value;
}

// Calls work(block, number of its elements), some blocks to a task.
template <class Work>
void for_each_codec_block(ThreadTeam& team, std::int64_t numel, const Work& work) {
  const std::int64_t blocks = codec_blocks(numel);
  team.parallel_for((blocks + kBlocksOfTask - 1) / kBlocksOfTask, [&](std::int64_t task, int) {
    const std::int64_t end = std::min(blocks, (task + 1) * kBlocksOfTask);
    for (std::int64_t block = task * kBlocksOfTask; block < end; ++block) {
      work(block, static_cast<int>(std::min<std::int64_t>(kWidth, numel - block * kWidth)));
    }
  });
}

template <class T>
void sum_block(BlockFormat format, const CodedParts& parts, std::int64_t numel, std::int64_t block,
               int count, T* out, bool onto_out) {
  Block sum, scratch;
  if (onto_out) widen(out, sum.value, count);
  const auto* bytes = static_cast<const char*>(parts.first.data);
  for (int part = 0; part < parts.count; ++part) {
    const float* x = decoded(format, bytes + part * parts.stride, numel, block, scratch);
    if (part == 0 && !onto_out) {
      std::copy(x, x + count, sum.value);
      continue;
    }
#pragma omp simd
    for (int i = 0; i < count; ++i) sum.value[i] += x[i];
  }
  narrow(sum.value, out, count);
}

}  // namespace

void encode_blocks(ThreadTeam& team, BlockFormat format, ConstTensor x, Tensor bytes) {
  const float* values = x.as<float>();
  if (format == BlockFormat::kF32) {
    for_each_codec_block(team, x.numel, [&](std::int64_t block, int count) {
      std::copy_n(values + block * kWidth, count, static_cast<float*>(bytes.data) + block * kWidth);
    });
    return;
  }
  const CodePlaces places(format, bytes.data, x.numel);
  for_each_codec_block(team, x.numel, [&](std::int64_t block, int count) {
    Block scratch;
    Codes codes;
    const float* whole = whole_block(values + block * kWidth, count, scratch);
    places.set_scale(block, encode(format, whole, codes));
    pack(format, codes, places.codes_of(block));
  });
}

void sum_blocks(ThreadTeam& team, BlockFormat format, const CodedParts& parts, Tensor out,
                bool onto_out) {
  dispatch_float(out.dtype, [&]<class T>(T) {
    T* target = out.as<T>();
    for_each_codec_block(team, out.numel, [&](std::int64_t block, int count) {
      sum_block(format, parts, out.numel, block, count, target + block * kWidth, onto_out);
    });
  });
}

void round_to_blocks(ThreadTeam& team, BlockFormat format, ConstTensor x, Tensor out) {
  const float* values = x.as<float>();
  dispatch_float(out.dtype, [&]<class T>(T) {
    T* target = out.as<T>();
    for_each_codec_block(team, out.numel, [&](std::int64_t block, int count) {
      Block scratch;
      Codes codes;
      const float* whole = whole_block(values + block * kWidth, count, scratch);
      if (format != BlockFormat::kF32) {
        decode(codes, encode(format, whole, codes), scratch.value);
        whole = scratch.value;
      }
      narrow(whole, target + block * kWidth, count);
    });
  });
}

}  // namespace sherd::kernels::cpu
