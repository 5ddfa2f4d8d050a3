#include "kernels/cpu/nf4.h"

#include <algorithm>
#include <cmath>

#include "kernels/cpu/blocks.h"
#include "kernels/dispatch_float.h"
#include "kernels/nf4_codes.h"

namespace sherd::kernels::cpu {
namespace {

constexpr std::int64_t kBlocksOfTask = kChunk / kNf4Block;

template <class T>
void decode_block(const std::uint8_t* codes, float scale, std::int64_t count, T* out) {
  const float* values = nf4_tables().value;
  BlockScratch scratch;
  float* target = block_target(out, scratch);
  for (std::int64_t i = 0; i < count; ++i) {
    target[i] = nf4_value(values, codes, i) * scale;
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
  const float* middles = nf4_tables().middle;
  const float* values = x.as<float>();
  auto* bytes = codes.as<std::uint8_t>();
  float* scale = scales.as<float>();
  for_each_nf4_block(team, x.numel, [&](std::int64_t block, std::int64_t count) {
    scale[block] =
        nf4_encode_block(middles, values + block * kNf4Block, count, bytes + block * kNf4Block / 2);
  });
}

void nf4_encode_scales(ConstTensor scales, Tensor codes, Tensor ranges) {
  const float* middles = nf4_tables().dynamic_middle;
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
    const float factor = nf4_inverse(most);
    for (std::int64_t i = begin; i < end; ++i) {
      code[i] = nearest_code(middles, 255, within_one((scale[i] - mean) * factor));
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
      const float range = ranges[1 + part.number_of(block) / kNf4Group];
      const float from_mean = dynamic_value(scale_codes[block]) * range;
      decode_block(codes + block * kNf4Block / 2, from_mean + ranges[0], count,
                   target + block * kNf4Block);
    });
  });
}

}  // namespace sherd::kernels::cpu
