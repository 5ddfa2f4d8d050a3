/// Lays out a checkpoint by hand, for tests of the read side: cuts tensors into pieces, writes
/// shards with libhdf5 as any program might, and the manifest of them. It shares no code with the
/// Writer.
#pragma once

#include <hdf5.h>
#include <xxhash.h>

#include <algorithm>
#include <bit>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <nlohmann/json.hpp>
#include <random>
#include <string>
#include <vector>

#include "checkpoint/format/manifest.h"
#include "checkpoint/store/hdf5_index.h"
#include "core/error.h"
#include "sharding/state/state.h"

namespace sherd::test {

using checkpoint::Manifest;
using checkpoint::ShardDataset;
using checkpoint::ShardInfo;
using checkpoint::ShardPiece;
using sharding::StateTensor;

inline std::uint64_t mixed(std::uint64_t x) {  // splitmix64, Steele et al. 2014
  x += 0x9e3779b97f4a7c15;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
  x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
  return x ^ (x >> 31);
}

/// The bytes of elements [first, first + count) of a tensor, as every checkpoint made here has
/// them: finite, in both types.
inline std::string element_bytes(const StateTensor& tensor, std::int64_t first, std::int64_t count,
                                 std::uint64_t seed) {
  const std::uint64_t key =
      std::hash<std::string>()(tensor.name + "/" + tensor.kind) ^ mixed(seed + 1);
  std::string bytes;
  for (std::int64_t i = first; i < first + count; ++i) {
    const std::uint64_t random = mixed(key ^ mixed(static_cast<std::uint64_t>(i)));
    const auto exponent = static_cast<std::uint32_t>(90 + (random >> 40) % 70);
    std::uint32_t bits = (static_cast<std::uint32_t>(random) & 0x807fffffu) | exponent << 23;
    if (i % 5 == 0) bits = (bits & 0xffff0000u) | 0x8000u;  // half-way between two bf16
    if (tensor.dtype == DType::kBF16) bits >>= 16;
    char raw[4];
    std::memcpy(raw, &bits, 4);  // little-endian: the low half comes first
    bytes.append(raw, size_of(tensor.dtype));
  }
  return bytes;
}

/// Elements [first, first + count) of tensor `tensor`, or of a band of its columns, on one rank.
struct Range {
  int tensor = 0;
  std::int64_t first = 0, count = 0;
  sharding::Band band{};
};

/// The bytes of a range of a tensor, element by element where it is of a band.
inline std::string range_bytes(const StateTensor& tensor, std::int64_t first, std::int64_t count,
                               const sharding::Band& band, std::uint64_t seed) {
  if (band.is_whole()) return element_bytes(tensor, first, count, seed);
  std::string bytes;
  for (std::int64_t i = first; i < first + count; ++i) {
    const std::int64_t row = i / band.columns, column = band.first + i % band.columns;
    bytes += element_bytes(tensor, row * tensor.shape.back() + column, 1, seed);
  }
  return bytes;
}
using Cut = std::vector<std::vector<Range>>;  ///< by rank

/// All tensors of a kind end to end, in equal parts: cuts fall anywhere in a row.
inline Cut even_cut(const std::vector<StateTensor>& tensors, int world) {
  Cut cut(static_cast<std::size_t>(world));
  std::map<std::string, std::int64_t> total, begin;
  for (const StateTensor& tensor : tensors) total[tensor.kind] += tensor.numel();
  for (std::size_t t = 0; t < tensors.size(); ++t) {
    std::int64_t& at = begin[tensors[t].kind];
    for (int rank = 0; rank < world; ++rank) {
      const std::int64_t all = total[tensors[t].kind];
      const std::int64_t from = std::max(all * rank / world, at);
      const std::int64_t to = std::min(all * (rank + 1) / world, at + tensors[t].numel());
      if (from < to) {
        cut[static_cast<std::size_t>(rank)].push_back({static_cast<int>(t), from - at, to - from});
      }
    }
    at += tensors[t].numel();
  }
  return cut;
}

/// Every tensor in a few parts of any length, dealt to ranks in any order.
inline Cut random_cut(const std::vector<StateTensor>& tensors, int world, unsigned seed) {
  std::mt19937 random(seed);
  Cut cut(static_cast<std::size_t>(world));
  for (std::size_t t = 0; t < tensors.size(); ++t) {
    for (std::int64_t at = 0; at < tensors[t].numel();) {
      const std::int64_t left = tensors[t].numel() - at;
      const std::int64_t count = 1 + static_cast<std::int64_t>(random()) % left;
      cut[random() % cut.size()].push_back({static_cast<int>(t), at, count});
      at += count;
    }
  }
  for (auto& ranges : cut) std::shuffle(ranges.begin(), ranges.end(), random);
  return cut;
}

/// The columns of every tensor that has several in two or three bands, and each band in a few parts of any
/// length, dealt to ranks in any order.
inline Cut column_cut(const std::vector<StateTensor>& tensors, int world, unsigned seed) {
  std::mt19937 random(seed);
  Cut cut(static_cast<std::size_t>(world));
  for (std::size_t t = 0; t < tensors.size(); ++t) {
    const std::int64_t columns = tensors[t].shape.back();
    const std::int64_t bands = std::min<std::int64_t>(columns, 2 + random() % 2);
    for (std::int64_t b = 0; b < bands; ++b) {
      sharding::Band band{columns * b / bands, 0};
      band.columns = columns * (b + 1) / bands - band.first;
      if (band.columns == columns) band = {};
      const std::int64_t numel =
          band.is_whole() ? tensors[t].numel() : tensors[t].numel() / columns * band.columns;
      for (std::int64_t at = 0; at < numel;) {
        const auto count = 1 + static_cast<std::int64_t>(random()) % (numel - at);
        cut[random() % cut.size()].push_back({static_cast<int>(t), at, count, band});
        at += count;
      }
    }
  }
  for (auto& ranges : cut) std::shuffle(ranges.begin(), ranges.end(), random);
  return cut;
}

inline void must(std::int64_t result) {
  SHERD_CHECK(result >= 0, "libhdf5 failed in a test");
}

/// Fills in the size of a shard's file, and its checksums.
inline void add_checksums(const std::string& path, ShardInfo& shard) {
  std::ifstream in(path, std::ios::binary);
  const std::string bytes{std::istreambuf_iterator<char>(in), {}};
  shard.bytes = std::ssize(bytes);
  std::string outside;
  std::size_t at = 0;
  for (ShardDataset& dataset : shard.datasets) {
    const auto offset = static_cast<std::size_t>(dataset.offset);
    const auto size = static_cast<std::size_t>(dataset.bytes());
    outside += bytes.substr(at, offset - at);
    at = offset + size;
    for (std::size_t block = 0; block < size; block += checkpoint::kBlockBytes) {
      dataset.checksums.push_back(
          XXH3_64bits(bytes.data() + offset + block,
                      std::min<std::size_t>(checkpoint::kBlockBytes, size - block)));
    }
  }
  outside += bytes.substr(at);
  shard.metadata_checksum = XXH3_64bits(outside.data(), outside.size());
}

/// Writes one shard's file and fills in what the manifest says of it.
inline ShardInfo write_shard(const std::string& path, const std::string& uuid,
                             const std::vector<StateTensor>& tensors,
                             const std::vector<Range>& ranges, std::uint64_t seed) {
  ShardInfo shard;
  std::map<std::string, std::string> data;  // by kind
  std::vector<std::string> kinds;
  for (const StateTensor& tensor : tensors) {
    if (std::find(kinds.begin(), kinds.end(), tensor.kind) == kinds.end()) {
      kinds.push_back(tensor.kind);
    }
  }
  for (const std::string& kind : kinds) {
    ShardDataset dataset;
    dataset.kind = kind;
    for (const Range& range : ranges) {
      const StateTensor& tensor = tensors[static_cast<std::size_t>(range.tensor)];
      if (tensor.kind != kind) continue;
      dataset.dtype = tensor.dtype;
      shard.pieces.push_back({range.tensor, range.first, range.count, dataset.numel, range.band});
      dataset.numel += range.count;
      data[kind] += range_bytes(tensor, range.first, range.count, range.band, seed);
    }
    if (dataset.numel > 0) shard.datasets.push_back(dataset);
  }

  const hid_t access = H5Pcreate(H5P_FILE_ACCESS);
  must(H5Pset_libver_bounds(access, H5F_LIBVER_V110, H5F_LIBVER_V110));
  must(H5Pset_alignment(access, 1, checkpoint::kFileAlignment));
  const hid_t file = H5Fcreate(path.c_str(), H5F_ACC_EXCL, H5P_DEFAULT, access);
  must(file);
  const hid_t scalar = H5Screate(H5S_SCALAR);
  const hid_t text = H5Tcopy(H5T_C_S1);
  must(H5Tset_size(text, uuid.size()));
  const hid_t attribute = H5Acreate2(file, "save_uuid", text, scalar, H5P_DEFAULT, H5P_DEFAULT);
  must(H5Awrite(attribute, text, uuid.data()));
  must(H5Aclose(attribute));
  const hid_t creation = H5Pcreate(H5P_DATASET_CREATE);
  must(H5Pset_alloc_time(creation, H5D_ALLOC_TIME_EARLY));
  must(H5Pset_fill_time(creation, H5D_FILL_TIME_NEVER));
  for (ShardDataset& dataset : shard.datasets) {
    const hid_t type = H5Tcopy(H5T_IEEE_F32LE);
    if (dataset.dtype == DType::kBF16) {
      must(H5Tset_fields(type, 15, 7, 8, 0, 7));
      must(H5Tset_size(type, 2));
      must(H5Tset_ebias(type, 127));
    }
    const auto numel = static_cast<hsize_t>(dataset.numel);
    const hid_t space = H5Screate_simple(1, &numel, nullptr);
    const hid_t made =
        H5Dcreate2(file, dataset.kind.c_str(), type, space, H5P_DEFAULT, creation, H5P_DEFAULT);
    must(made);
    must(H5Dwrite(made, type, H5S_ALL, H5S_ALL, H5P_DEFAULT, data[dataset.kind].data()));
    dataset.offset = static_cast<std::int64_t>(H5Dget_offset(made));
    must(H5Dclose(made));
    must(H5Sclose(space));
    must(H5Tclose(type));
  }
  must(H5Pclose(creation));
  must(H5Tclose(text));
  must(H5Sclose(scalar));
  must(H5Fclose(file));
  must(H5Pclose(access));

  add_checksums(path, shard);
  return shard;
}

inline void write_text(const std::string& path, const std::string& text) {
  std::ofstream(path, std::ios::binary | std::ios::trunc) << text;
}

inline std::string read_text(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

struct Built {
  std::string path;
  Manifest manifest;
};

/// `checkpoints`/step-..., complete. `seed` makes its values.
inline Built build_checkpoint(const std::string& checkpoints, std::int64_t step,
                              const std::vector<StateTensor>& tensors, const Cut& cut,
                              std::uint64_t seed = 0) {
  Built built;
  built.path = checkpoints + "/" + checkpoint::step_directory_name(step);
  std::filesystem::create_directories(built.path);
  Manifest& manifest = built.manifest;
  manifest.save_uuid = fmt::format("{:016x}{:016x}", mixed(seed), mixed(seed + 1000));
  manifest.step = step;
  manifest.tensors = tensors;
  manifest.global = std::make_shared<const nlohmann::json>(
      nlohmann::json{{"seed", 7}, {"scaler", {{"scale", 65536.0}, {"good_steps", 3}}}});
  const int world = static_cast<int>(cut.size());
  for (int rank = 0; rank < world; ++rank) {
    manifest.shards.push_back(write_shard(built.path + "/" + checkpoint::shard_name(rank, world),
                                          manifest.save_uuid, tensors,
                                          cut[static_cast<std::size_t>(rank)], seed));
  }
  const std::string index = checkpoint::build_hdf5_index(manifest);
  write_text(built.path + "/index.h5", index);
  manifest.index_bytes = std::ssize(index);
  manifest.index_checksum = XXH3_64bits(index.data(), index.size());
  write_text(built.path + "/manifest.json", checkpoint::manifest_to_json(manifest));
  return built;
}

/// A model in little: matrices whose rows don't divide by anything, vectors, an odd total.
inline std::vector<StateTensor> sample_tensors(DType moments = DType::kF32) {
  const std::vector<std::pair<std::string, std::vector<std::int64_t>>> parameters = {
      {"embedding.token.weight", {37, 11}},
      {"block.0.norm1.weight", {11}},
      {"block.0.mlp.up.weight", {5, 7, 3}},
      {"final_norm.bias", {1}}};
  std::vector<StateTensor> tensors;
  for (const char* kind : {"param", "exp_avg", "exp_avg_sq"}) {
    for (const auto& [name, shape] : parameters) {
      tensors.push_back({name, kind, shape, kind == std::string("param") ? DType::kF32 : moments});
    }
  }
  return tensors;
}

/// The tensors that one rank requests, in memory of its own.
struct WantedState {
  sharding::State state;
  std::vector<std::string> memory;

  WantedState(const std::vector<StateTensor>& tensors, const std::vector<Range>& ranges) {
    state.tensors = tensors;
    for (const Range& range : ranges) {
      const DType dtype = tensors[static_cast<std::size_t>(range.tensor)].dtype;
      memory.emplace_back(static_cast<std::size_t>(range.count) * size_of(dtype), '\x5a');
      state.pieces.push_back({range.tensor, range.first, range.count, {}, range.band});
    }
    for (std::size_t i = 0; i < memory.size(); ++i) {
      const DType dtype = tensors[static_cast<std::size_t>(ranges[i].tensor)].dtype;
      state.pieces[i].data = {memory[i].data(), dtype, ranges[i].count};
    }
  }
  /// How many pieces don't hold exactly the elements of a checkpoint built with `seed`.
  int wrong_pieces(std::uint64_t seed) const {
    int wrong = 0;
    for (std::size_t i = 0; i < memory.size(); ++i) {
      const sharding::StatePiece& piece = state.pieces[i];
      const StateTensor& tensor = state.tensors[static_cast<std::size_t>(piece.tensor)];
      wrong += memory[i] != range_bytes(tensor, piece.first_element, piece.count, piece.band, seed);
    }
    return wrong;
  }
};

inline std::vector<Range> whole(const std::vector<StateTensor>& tensors) {
  return even_cut(tensors, 1)[0];
}

}  // namespace sherd::test
