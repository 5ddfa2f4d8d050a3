/// State with known contents, cut over ranks, and a reader of checkpoints that shares no code with
/// the writer: what it finds is compared with the function that made the contents.
#pragma once

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <new>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "checkpoint/format/manifest.h"
#include "core/error.h"
#include "sharding/state/state.h"

namespace sherd::test {

/// Bytes at an address that direct writes take; not set, so that what isn't used costs nothing.
class AlignedBytes {
 public:
  explicit AlignedBytes(std::int64_t bytes)
      : data_(static_cast<char*>(::operator new(static_cast<std::size_t>(bytes), kAlignment))),
        bytes_(bytes) {}
  char* data() const { return data_.get(); }
  Tensor tensor() const { return {data_.get(), DType::kU8, bytes_}; }

 private:
  static constexpr std::align_val_t kAlignment{4096};
  struct Free {
    void operator()(char* data) const { ::operator delete(data, kAlignment); }
  };
  std::unique_ptr<char, Free> data_;
  std::int64_t bytes_;
};

/// The bits of element `i` of tensor `t` at a step: different everywhere, finite always.
inline std::uint32_t known_bits(std::int64_t step, int t, std::int64_t i, DType dtype) {
  std::uint64_t mixed = static_cast<std::uint64_t>(step) * 0x9e3779b97f4a7c15u +
                        static_cast<std::uint64_t>(t) * 0xc2b2ae3d27d4eb4fu +
                        static_cast<std::uint64_t>(i) * 0x165667b19e3779f9u;
  mixed = (mixed ^ (mixed >> 29)) * 0xbf58476d1ce4e5b9u;
  const auto bits = static_cast<std::uint32_t>(mixed >> 32);
  // Clearing one exponent bit keeps it finite.
  return dtype == DType::kF32 ? bits & 0xbfffffffu : bits & 0xbfffu;
}

/// A small model's tensors: several kinds, two types, a single element.
inline std::vector<sharding::StateTensor> small_tensors(std::int64_t scale = 1) {
  return {
      {"embedding.weight", "param", {37, 8 * scale}, DType::kF32},
      {"block.0.up.weight", "param", {16 * scale, 8}, DType::kF32},
      {"block.0.up.bias", "param", {5}, DType::kF32},
      {"embedding.weight", "exp_avg", {37, 8 * scale}, DType::kBF16},
      {"block.0.up.weight", "exp_avg", {16 * scale, 8}, DType::kBF16},
      {"block.0.up.bias", "exp_avg", {5}, DType::kBF16},
      {"embedding.weight", "exp_avg_sq", {37, 8 * scale}, DType::kF32},
      {"block.0.up.weight", "exp_avg_sq", {16 * scale, 8}, DType::kF32},
      {"scale", "statistics", {1}, DType::kF32},
  };
}

/// What the crash tests save: large enough that a save has a middle.
inline std::vector<sharding::StateTensor> crash_tensors() {
  return small_tensors(24);
}

/// One rank's pieces: of every tensor an uneven run, so that cuts fall anywhere.
class KnownState {
 public:
  KnownState(const std::vector<sharding::StateTensor>& tensors, std::int64_t step, int rank,
             int world) {
    state_.tensors = tensors;
    for (int t = 0; t < static_cast<int>(tensors.size()); ++t) {
      const sharding::StateTensor& tensor = tensors[static_cast<std::size_t>(t)];
      const auto cut = [&](int r) {
        return r == world ? tensor.numel() : tensor.numel() * r / world / 3 * 3;
      };
      const std::int64_t first = cut(rank);
      const std::int64_t count = cut(rank + 1) - first;
      if (count == 0) continue;
      memory_.emplace_back(count * static_cast<std::int64_t>(size_of(tensor.dtype)));
      state_.pieces.push_back({t, first, count, {memory_.back().data(), tensor.dtype, count}});
    }
    fill(step);
  }

  void fill(std::int64_t step) {
    for (const sharding::StatePiece& piece : state_.pieces) {
      for (std::int64_t i = 0; i < piece.count; ++i) {
        const std::uint32_t bits =
            known_bits(step, piece.tensor, piece.first_element + i, piece.data.dtype);
        const std::size_t size = size_of(piece.data.dtype);
        std::memcpy(static_cast<char*>(piece.data.data) + static_cast<std::size_t>(i) * size, &bits,
                    size);
      }
    }
  }

  const sharding::State& state() const { return state_; }

 private:
  std::vector<AlignedBytes> memory_;
  sharding::State state_;
};

inline std::string file_bytes(const std::string& path) {
  std::ifstream in(path, std::ios::binary | std::ios::ate);
  if (!in) return "";
  std::string bytes(static_cast<std::size_t>(in.tellg()), '\0');
  in.seekg(0);
  in.read(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  return bytes;
}

inline std::string checksum_complaint(const std::string& bytes,
                                      const checkpoint::ShardInfo& shard) {
  std::string outside;
  std::int64_t position = 0;
  for (const checkpoint::ShardDataset& dataset : shard.datasets) {
    outside += bytes.substr(static_cast<std::size_t>(position),
                            static_cast<std::size_t>(dataset.offset - position));
    position = dataset.offset + dataset.bytes();
    for (std::size_t i = 0; i < dataset.checksums.size(); ++i) {
      const std::int64_t begin = static_cast<std::int64_t>(i) * checkpoint::kBlockBytes;
      const std::int64_t length = std::min(checkpoint::kBlockBytes, dataset.bytes() - begin);
      if (XXH3_64bits(bytes.data() + dataset.offset + begin, static_cast<std::size_t>(length)) !=
          dataset.checksums[i]) {
        return "the checksum of block " + std::to_string(i) + " of " + dataset.kind;
      }
    }
  }
  outside += bytes.substr(static_cast<std::size_t>(position));
  if (XXH3_64bits(outside.data(), outside.size()) != shard.metadata_checksum)
    return "metadata checksum";
  return "";
}

/// "" if the directory is a checkpoint of `small_tensors` at `step`, right in every byte; otherwise
/// what is wrong.
inline std::string complaint_about(const std::string& directory, std::int64_t step,
                                   const std::vector<sharding::StateTensor>& tensors) try {
  namespace fs = std::filesystem;
  const checkpoint::Manifest manifest =
      checkpoint::parse_manifest(file_bytes(directory + "/manifest.json"), directory);
  if (manifest.step != step) return "step " + std::to_string(manifest.step);
  if (manifest.tensors.size() != tensors.size()) return "another number of tensors";
  const std::string index = file_bytes(directory + "/index.h5");
  if (XXH3_64bits(index.data(), index.size()) != manifest.index_checksum) {
    return "index.h5";
  }
  const int world = static_cast<int>(manifest.shards.size());
  for (int r = 0; r < world; ++r) {
    const checkpoint::ShardInfo& shard = manifest.shards[static_cast<std::size_t>(r)];
    const std::string name = checkpoint::shard_name(r, world);
    const std::string bytes = file_bytes(directory + "/" + name);
    if (static_cast<std::int64_t>(bytes.size()) != shard.bytes) return name + " has another size";
    if (bytes.find(manifest.save_uuid) == std::string::npos) return name + " has no uuid";
    if (std::string sums = checksum_complaint(bytes, shard); !sums.empty())
      return name + ": " + sums;
    for (const checkpoint::ShardPiece& piece : shard.pieces) {
      const sharding::StateTensor& tensor = tensors[static_cast<std::size_t>(piece.tensor)];
      const auto dataset = std::find_if(shard.datasets.begin(), shard.datasets.end(),
                                        [&](const auto& d) { return d.kind == tensor.kind; });
      const std::size_t size = size_of(tensor.dtype);
      for (std::int64_t i = 0; i < piece.count; ++i) {
        const std::uint32_t expected =
            known_bits(step, piece.tensor, piece.first_element + i, tensor.dtype);
        const std::size_t at = static_cast<std::size_t>(dataset->offset) +
                               static_cast<std::size_t>(piece.position + i) * size;
        if (std::memcmp(bytes.data() + at, &expected, size) != 0) {
          return name + ": element " + std::to_string(piece.first_element + i) + " of " +
                 tensor.kind + " " + tensor.name;
        }
      }
    }
  }
  const auto num_files = std::distance(fs::directory_iterator(directory), fs::directory_iterator());
  if (num_files != world + 2)
    return std::to_string(num_files) + " files for " + std::to_string(world) + " shards";
  return "";
} catch (const Error& error) {
  return error.what();
}

}  // namespace sherd::test
