#include "engine/train/frozen_weights.h"

#include <fmt/core.h>
#include <xxhash.h>

#include <algorithm>

#include "engine/model/adapter.h"
#include "engine/model/initial_values.h"
#include "kernels/nf4.h"
#include "kernels/pointwise.h"

namespace sherd::engine {
namespace {

constexpr std::int64_t kMostStaged = 1 << 22;  ///< elements: 16 MiB
constexpr std::int64_t kRun = sharding::kAlignment;
constexpr const char* kName = "frozen";

std::optional<BufferSpec> staging_buffer(const std::vector<sharding::UnitPlan>& units) {
  std::int64_t largest = 0;  // of what is filled at once
  for (const sharding::UnitPlan& unit : units) {
    largest = std::max({largest, unit.frozen_layout.slice_numel(), unit.quantised_layout.numel()});
  }
  if (largest == 0) return std::nullopt;
  return BufferSpec{
      "frozen.staging", Category::kWorkspace, DType::kF32, std::min(largest, kMostStaged), kInit,
      /*mirrored=*/true};
}

// Of scales, codes and codes of scales; none where nothing is quantised.
std::vector<BufferSpec> encoding_buffers(const std::vector<sharding::UnitPlan>& units) {
  std::int64_t largest = 0;
  for (const sharding::UnitPlan& unit : units) {
    for (const ParameterSpec& parameter : unit.quantised) {
      largest = std::max(largest, parameter.numel());
    }
  }
  if (largest == 0) return {};
  const std::int64_t blocks = kernels::nf4_blocks(largest);
  return {
      {"frozen.scales", Category::kWorkspace, DType::kF32, blocks, kInit},
      {"frozen.codes", Category::kWorkspace, DType::kU8, staging_buffer(units)->numel / 2, kInit},
      {"frozen.scale_codes", Category::kWorkspace, DType::kU8, blocks, kInit}};
}

std::int64_t padded(std::int64_t count) {
  return (count + kRun - 1) / kRun * kRun;
}

}  // namespace

std::uint64_t digest_of_frozen(const std::string& parameter, std::int64_t first_element,
                               const float* values, std::int64_t count) {
  const std::uint64_t name = XXH3_64bits(parameter.data(), parameter.size());
  std::uint64_t digest = 0;
  for (std::int64_t at = 0; at < count; at += kRun) {
    const auto run = static_cast<std::uint64_t>((first_element + at) / kRun);
    const auto bytes = static_cast<std::size_t>(std::min(kRun, count - at)) * sizeof(float);
    digest += XXH3_64bits_withSeed(values + at, bytes, name + run);
  }
  return digest;
}

std::string digest_text(std::uint64_t digest) {
  return fmt::format("{:016x}", digest);
}

std::vector<BufferSpec> frozen_weight_buffers(const std::vector<sharding::UnitPlan>& units,
                                              int world_size) {
  const std::optional<BufferSpec> staging = staging_buffer(units);
  if (!staging) return {};
  std::vector<BufferSpec> buffers = {
      *staging, sharding::Agreement<FrozenWeights::Word>::buffer(kName, world_size)};
  for (BufferSpec& buffer : encoding_buffers(units)) buffers.push_back(std::move(buffer));
  return buffers;
}

FrozenWeights::FrozenWeights(const sharding::Rank& rank,
                             const std::vector<sharding::UnitState>& units)
    : rank_(&rank), units_(&units) {
  const auto staging = staging_buffer(sharding::plans_of(units));
  if (!staging) return;
  staging_ = {rank, *staging};
  if (const auto encoding = encoding_buffers(sharding::plans_of(units)); !encoding.empty()) {
    scales_ = rank.memory->acquire(encoding[0]);
    codes_ = rank.memory->acquire(encoding[1]);
    scale_codes_ = rank.memory->acquire(encoding[2]);
  }
  exchange_.emplace(rank, kName);
}

// What this rank holds, in parts that together fill the staging memory at most.
void FrozenWeights::each_batch(const std::function<void(const std::vector<Part>&)>& use) const {
  const std::int64_t room = staging_.host().numel;
  std::vector<Part> batch;
  std::int64_t filled = 0;
  const auto flush = [&] {
    if (!batch.empty()) use(batch);
    batch.clear();
    filled = 0;
  };
  int first_tensor = 0;
  for (const sharding::UnitState& unit : *units_) {
    const std::vector<ParameterSpec>& frozen = unit.plan().frozen;
    for (const int slice : unit.plan().has_frozen() ? unit.frozen_slices() : std::vector<int>()) {
      const Tensor at_rest = unit.frozen_slice(slice);
      const bool counts = unit.contributes_frozen() && slice == unit.own_part();
      for (const sharding::Piece& piece : unit.plan().frozen_layout.pieces(slice)) {
        for (std::int64_t done = 0; done < piece.count;) {
          if (filled == room) flush();
          // Whole runs, so that the next part begins with one.
          const std::int64_t count = std::min(piece.count - done, room - filled);
          batch.push_back({&unit, &frozen[static_cast<std::size_t>(piece.parameter)],
                           first_tensor + piece.parameter, piece.first_element + done, count,
                           at_rest.part(piece.position + done, count), counts});
          done += count;
          filled += padded(count);
        }
      }
    }
    first_tensor += static_cast<int>(frozen.size() + unit.plan().quantised.size());
  }
  flush();
}

std::vector<FrozenWeights::Kept> FrozenWeights::kept_of(const Chunk& chunk) {
  const sharding::UnitState& unit = *chunk.unit;
  std::vector<Kept> kept;
  for (const int slice : unit.frozen_slices()) {
    for (sharding::Piece piece : unit.plan().quantised_layout.pieces(slice)) {
      const std::int64_t first = std::max(piece.first_element, chunk.first);
      const std::int64_t end =
          std::min(piece.first_element + piece.count, chunk.first + chunk.count);
      if (piece.parameter != chunk.parameter || first >= end) continue;
      piece.position += first - piece.first_element;
      piece.count = end - first;
      kept.push_back({first - chunk.first, end - first,
                      sharding::quantised_piece(unit.quantised_slice(slice), piece),
                      unit.contributes_frozen() && slice == unit.own_part()});
    }
  }
  return kept;
}

void FrozenWeights::each_quantised(const std::function<void(const Chunk&)>& fill) const {
  int tensor = 0;
  for (const sharding::UnitState& unit : *units_) {
    tensor += static_cast<int>(unit.plan().frozen.size());
    for (int parameter = 0; parameter < std::ssize(unit.plan().quantised); ++parameter, ++tensor) {
      Chunk whole{&unit, parameter, tensor, 0, 0};
      whole.count = whole.spec().numel();
      encode(whole, fill);
    }
  }
}

// The scales of all chunks first, then what follows from all of them.
void FrozenWeights::encode(const Chunk& whole,
                           const std::function<void(const Chunk&)>& fill) const {
  Stream& stream = rank_->compute();
  const Tensor scales = scales_.tensor().part(0, kernels::nf4_blocks(whole.count));
  const std::int64_t room = staging_.host().numel / kernels::kNf4Block * kernels::kNf4Block;
  for (Chunk chunk = whole; chunk.first < whole.count; chunk.first += room) {
    chunk.count = std::min(room, whole.count - chunk.first);
    fill(chunk);
    const Tensor codes = codes_.tensor().part(0, (chunk.count + 1) / 2);
    kernels::nf4_encode(
        stream, staging_.device().part(0, chunk.count), codes,
        scales.part(chunk.first / kernels::kNf4Block, kernels::nf4_blocks(chunk.count)));
    for (const Kept& kept : kept_of(chunk)) {
      const Tensor& to = kept.at_rest.codes;
      stream.copy(codes.part(kept.first / 2, to.numel).data, to.data, to.bytes());
    }
  }
  const Tensor scale_codes = scale_codes_.tensor().part(0, scales.numel);
  kernels::nf4_encode_scales(stream, scales, scale_codes, whole.unit->ranges(whole.parameter));
  for (const Kept& kept : kept_of(whole)) {
    const Tensor& to = kept.at_rest.scale_codes;
    const std::int64_t first = kept.first / kernels::kNf4Block;
    stream.copy(scale_codes.part(first, to.numel).data, to.data, to.bytes());
  }
}

void FrozenWeights::fill_initial_values(std::uint64_t seed) {
  if (!any()) return;
  Stream& stream = rank_->compute();
  each_batch([&](const std::vector<Part>& batch) {
    std::int64_t at = 0;
    for (const Part& part : batch) {
      const Tensor staged = staging_.device().part(at, part.count);
      const std::vector<Box> whole = model::whole_box(*part.parameter);
      model::fill_initial_values(stream, seed, *part.parameter, whole, whole[0].num_columns,
                                 part.first_element, staged);
      kernels::cast(stream, staged, part.at_rest);
      at += padded(part.count);
    }
  });
  each_quantised([&](const Chunk& chunk) {
    const std::vector<Box> whole = model::whole_box(chunk.spec());
    model::fill_initial_values(stream, seed, chunk.spec(), whole, whole[0].num_columns, chunk.first,
                               staging_.device().part(0, chunk.count));
  });
}

std::string FrozenWeights::load(const Load& load) {
  if (!any()) return {};
  Stream& stream = rank_->compute();
  stream.synchronize();  // initial values aren't still on their way
  std::vector<sharding::StateTensor> tensors;
  for (const sharding::UnitState& unit : *units_) {
    for (const ParameterSpec& parameter : unit.plan().frozen) {
      tensors.push_back({parameter.name, "param", parameter.shape, DType::kF32});
    }
    for (const ParameterSpec& parameter : unit.plan().quantised) {
      tensors.push_back({parameter.name, "param", parameter.shape, DType::kF32});
    }
  }
  std::uint64_t own = 0;
  each_batch([&](const std::vector<Part>& batch) {
    sharding::State wanted{tensors, {}};
    std::int64_t at = 0;
    for (const Part& part : batch) {
      wanted.pieces.push_back(
          {part.tensor, part.first_element, part.count, staging_.host().part(at, part.count)});
      at += padded(part.count);
    }
    load(wanted);
    for (std::size_t i = 0; i < batch.size(); ++i) {
      if (!batch[i].counts) continue;
      own += digest_of_frozen(batch[i].parameter->name, batch[i].first_element,
                              wanted.pieces[i].data.as<float>(), batch[i].count);
    }
    store(batch);
  });
  each_quantised([&](const Chunk& chunk) {
    stream.synchronize();  // the chunk before has been encoded
    const Tensor values = staging_.host().part(0, chunk.count);
    load({tensors, {{chunk.tensor, chunk.first, chunk.count, values}}});
    for (const Kept& kept : kept_of(chunk)) {
      if (!kept.counts) continue;
      own += digest_of_frozen(chunk.spec().name, chunk.first + kept.first,
                              values.as<float>() + kept.first, kept.count);
    }
    staging_.to_device(stream, 0, chunk.count);
  });
  stream.synchronize();
  std::uint64_t digest = 0;
  for (const Word& word : exchange_->all_gather(
           kName, {static_cast<double>(own & 0xffffffffu), static_cast<double>(own >> 32)})) {
    digest += static_cast<std::uint64_t>(word.low) + (static_cast<std::uint64_t>(word.high) << 32);
  }
  return digest_text(digest);
}

// From host memory to where the parts rest; returns when the staging memory may be written again.
void FrozenWeights::store(const std::vector<Part>& batch) {
  Stream& stream = rank_->compute();
  staging_.to_device(stream);
  std::int64_t at = 0;
  for (const Part& part : batch) {
    kernels::cast(stream, staging_.device().part(at, part.count), part.at_rest);
    at += padded(part.count);
  }
  stream.synchronize();
}

}  // namespace sherd::engine
