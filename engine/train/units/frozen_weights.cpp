#include "engine/train/units/frozen_weights.h"

#include <fmt/core.h>
#include <xxhash.h>

#include <algorithm>

#include "engine/model/adapter.h"
#include "engine/model/initial_values.h"
#include "engine/train/units/cut_pieces.h"
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
      Home::kMirrored};
}

// What all tensor ranks have of it together.
ParameterSpec whole_of(ParameterSpec parameter) {
  if (parameter.cut) parameter.shape = parameter.cut->shape;
  parameter.cut.reset();
  return parameter;
}

// Of scales, codes and codes of scales; none where nothing is quantised.
std::vector<BufferSpec> encoding_buffers(const std::vector<sharding::UnitPlan>& units) {
  std::int64_t largest = 0;
  for (const sharding::UnitPlan& unit : units) {
    for (const ParameterSpec& parameter : unit.quantised) {
      largest = std::max(largest, whole_of(parameter).numel());
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
                                              bool any, int world_size) {
  if (!any) return {};
  std::vector<BufferSpec> buffers;
  if (const auto staging = staging_buffer(units)) buffers.push_back(*staging);
  buffers.push_back(sharding::Agreement<FrozenWeights::Word>::buffer(kName, world_size));
  for (BufferSpec& buffer : encoding_buffers(units)) buffers.push_back(std::move(buffer));
  return buffers;
}

FrozenWeights::FrozenWeights(const sharding::Rank& rank,
                             const std::vector<sharding::UnitState>& units, bool any)
    : rank_(&rank), units_(&units) {
  if (!any) return;
  const auto staging = staging_buffer(sharding::plans_of(units));
  holds_some_ = staging.has_value();
  if (staging) staging_ = {rank, *staging};
  if (const auto encoding = encoding_buffers(sharding::plans_of(units)); !encoding.empty()) {
    scales_ = rank.acquire(encoding[0]);
    codes_ = rank.acquire(encoding[1]);
    scale_codes_ = rank.acquire(encoding[2]);
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

// Of a matrix that is cut, each run of the whole has whole blocks (rules_adapter.cpp).
std::vector<FrozenWeights::Kept> FrozenWeights::kept_of(const Chunk& chunk) {
  const sharding::UnitState& unit = *chunk.unit;
  const ParameterSpec& spec = chunk.spec();
  const std::vector<Box> held = spec.cut ? spec.cut->boxes() : model::whole_box(spec);
  const std::int64_t columns = spec.cut ? spec.cut->columns() : held[0].num_columns;
  std::vector<Kept> kept;
  for (const int slice : unit.frozen_slices()) {
    for (const sharding::Piece& piece : unit.plan().quantised_layout.pieces(slice)) {
      if (piece.parameter != chunk.parameter) continue;
      const bool counts = !spec.cut && unit.contributes_frozen() && slice == unit.own_part();
      for_each_run(held, columns, piece.first_element, piece.count, [&](const BoxRun& run) {
        const std::int64_t first = std::max(run.in_tensor, chunk.first);
        const std::int64_t end = std::min(run.in_tensor + run.count, chunk.first + chunk.count);
        if (first >= end) return;
        const std::int64_t in_part = run.in_part + first - run.in_tensor;
        SHERD_CHECK(in_part % kernels::kNf4Block == 0 && first % kernels::kNf4Block == 0,
                    "{}: a cut inside of a block of four-bit codes", spec.name);
        const sharding::Piece part{piece.parameter, in_part, end - first,
                                   piece.position + in_part - piece.first_element};
        kept.push_back({first - chunk.first, end - first,
                        sharding::quantised_piece(unit.quantised_slice(slice), part), counts});
      });
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
      whole.count = whole_of(whole.spec()).numel();
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
  if (!holds_some_) return;
  Stream& stream = rank_->compute();
  each_batch([&](const std::vector<Part>& batch) {
    std::int64_t at = 0;
    for (const Part& part : batch) {
      const Tensor staged = staging_.device().part(at, part.count);
      const ParameterSpec& parameter = *part.parameter;
      const std::vector<Box> whole = model::whole_box(whole_of(parameter));
      model::fill_initial_values(stream, seed, parameter,
                                 parameter.cut ? parameter.cut->boxes() : whole,
                                 whole[0].num_columns, part.first_element, staged);
      kernels::cast(stream, staged, part.at_rest);
      at += padded(part.count);
    }
  });
  each_quantised([&](const Chunk& chunk) {
    const ParameterSpec spec = whole_of(chunk.spec());
    const std::vector<Box> whole = model::whole_box(spec);
    model::fill_initial_values(stream, seed, spec, whole, whole[0].num_columns, chunk.first,
                               staging_.device().part(0, chunk.count));
  });
}

// Of what every rank with a part of a matrix reads whole, the one that counts it.
bool FrozenWeights::holds_whole_digest(const sharding::UnitState& unit) const {
  const sharding::AxisSet boxes(unit.placement().boxes);
  return unit.contributes_frozen() && unit.own_part() == 0 &&
         rank_->mesh.coordinate(rank_->rank, sharding::kTensorAxis) == 0 &&
         rank_->mesh.index_in_group(rank_->rank, boxes) == 0;
}

// Parts of a parameter that is cut begin anywhere in a run: the ranks that hold them read the whole
// for it once more, each its share.
std::uint64_t FrozenWeights::digest_of_cut(const std::vector<sharding::StateTensor>& tensors,
                                           const Load& load) const {
  const std::int64_t room = staging_.host().numel;
  std::uint64_t digest = 0;
  int tensor = 0;
  for (const sharding::UnitState& unit : *units_) {
    sharding::AxisSet holders = unit.placement().group;
    holders.insert(std::string(sharding::kTensorAxis));
    holders.merge(sharding::AxisSet(unit.placement().boxes));
    const std::int64_t share = rank_->mesh.index_in_group(rank_->rank, holders);
    const std::int64_t shares = rank_->mesh.degree(holders);
    for (const ParameterSpec& parameter : unit.plan().frozen) {
      const int number = tensor++;
      if (!parameter.cut || !unit.contributes_frozen()) continue;
      const std::int64_t numel = whole_of(parameter).numel(), runs = padded(numel) / kRun;
      const std::int64_t end = std::min(runs * (share + 1) / shares * kRun, numel);
      for (std::int64_t first = runs * share / shares * kRun; first < end; first += room) {
        const Tensor values = staging_.host().part(0, std::min(room, end - first));
        load({tensors, {{number, first, values.numel, values}}});
        digest += digest_of_frozen(parameter.name, first, values.as<float>(), values.numel);
      }
    }
    tensor += static_cast<int>(unit.plan().quantised.size());
  }
  return digest;
}

// Returns this rank's share of the digest.
std::uint64_t FrozenWeights::load_own(const Load& load) {
  Stream& stream = rank_->compute();
  std::vector<sharding::StateTensor> tensors;
  for (const sharding::UnitState& unit : *units_) {
    for (const ParameterSpec& parameter : unit.plan().frozen) {
      tensors.push_back({parameter.name, "param", whole_of(parameter).shape, DType::kF32});
    }
    for (const ParameterSpec& parameter : unit.plan().quantised) {
      tensors.push_back({parameter.name, "param", whole_of(parameter).shape, DType::kF32});
    }
  }
  std::uint64_t own = digest_of_cut(tensors, load);
  each_batch([&](const std::vector<Part>& batch) {
    sharding::State wanted{tensors, {}};
    std::int64_t at = 0;
    for (const Part& part : batch) {
      const Tensor staged = staging_.host().part(at, part.count);
      at += padded(part.count);
      if (!part.parameter->cut) {
        wanted.pieces.push_back({part.tensor, part.first_element, part.count, staged});
        continue;
      }
      for (const CutPiece& piece :
           pieces_of(*part.parameter->cut, part.first_element, part.count, PiecesFor::kLoading)) {
        wanted.pieces.push_back({part.tensor, piece.first_element, piece.count,
                                 staged.part(piece.in_part - part.first_element, piece.count),
                                 piece.band});
      }
    }
    load(wanted);
    at = 0;
    for (const Part& part : batch) {
      if (part.counts && !part.parameter->cut) {
        own += digest_of_frozen(part.parameter->name, part.first_element,
                                staging_.host().part(at, part.count).as<float>(), part.count);
      }
      at += padded(part.count);
    }
    store(batch);
  });
  each_quantised([&](const Chunk& chunk) {
    stream.synchronize();  // the chunk before has been encoded
    const Tensor values = staging_.host().part(0, chunk.count);
    load({tensors, {{chunk.tensor, chunk.first, chunk.count, values}}});
    if (chunk.spec().cut && holds_whole_digest(*chunk.unit)) {
      own += digest_of_frozen(chunk.spec().name, chunk.first, values.as<float>(), chunk.count);
    }
    for (const Kept& kept : kept_of(chunk)) {
      if (!kept.counts) continue;
      own += digest_of_frozen(chunk.spec().name, chunk.first + kept.first,
                              values.as<float>() + kept.first, kept.count);
    }
    staging_.to_device(stream, 0, chunk.count);
  });
  return own;
}

std::string FrozenWeights::load(const Load& load) {
  if (!any()) return {};
  const std::uint64_t own = holds_some_ ? load_own(load) : 0;
  // Telling one another waits for the compute stream: the staging memory may be written again.
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
