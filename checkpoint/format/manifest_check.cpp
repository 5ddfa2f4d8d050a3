#include "checkpoint/format/manifest_check.h"

#include <fmt/core.h>

#include <algorithm>
#include <limits>
#include <set>
#include <tuple>
#include <utility>
#include <vector>

#include "core/error.h"

namespace sherd::checkpoint {
namespace {

using sharding::StateTensor;

bool only_from(std::string_view text, std::string_view allowed) {
  return text.find_first_not_of(allowed) == std::string_view::npos;
}

std::string label(const StateTensor& tensor) {
  return fmt::format("{}/{}", tensor.name, tensor.kind);
}

void check_tensors(const Manifest& manifest, const std::string& file) {
  std::set<std::pair<std::string_view, std::string_view>> seen;
  for (const StateTensor& tensor : manifest.tensors) {
    if (!is_tensor_name(tensor.name) || !is_state_kind(tensor.kind)) {
      throw DataError("{}: a tensor's name or kind has forbidden characters", file);
    }
    if (!seen.emplace(tensor.name, tensor.kind).second) {
      throw DataError("{}: tensor {} is listed twice", file, label(tensor));
    }
  }
}

std::string shard_label(const Manifest& manifest, std::size_t shard) {
  return shard_name(static_cast<int>(shard), static_cast<int>(manifest.shards.size()));
}

// Pieces are those of the first dataset, then those of the second, ..., each beginning where the
// one before it ended.
void check_pieces(const Manifest& manifest, std::size_t number, const std::string& file) {
  const ShardInfo& shard = manifest.shards[number];
  std::size_t next = 0;
  for (const ShardDataset& dataset : shard.datasets) {
    std::int64_t filled = 0;
    while (filled < dataset.numel && next < shard.pieces.size()) {
      const ShardPiece& piece = shard.pieces[next];
      if (piece.tensor < 0 || static_cast<std::size_t>(piece.tensor) >= manifest.tensors.size()) {
        throw DataError("{}: {}: piece {} belongs to tensor {} of {}", file,
                        shard_label(manifest, number), next, piece.tensor, manifest.tensors.size());
      }
      const StateTensor& tensor = manifest.tensors[static_cast<std::size_t>(piece.tensor)];
      if (tensor.kind != dataset.kind || tensor.dtype != dataset.dtype) {
        throw DataError("{}: {}: piece {} of {} ({}) is in dataset /{} ({})", file,
                        shard_label(manifest, number), next, label(tensor), name_of(tensor.dtype),
                        dataset.kind, name_of(dataset.dtype));
      }
      const sharding::Band& band = piece.band;
      const std::int64_t columns = tensor.shape.back();
      if (!band.is_whole() && (band.first < 0 || band.columns < 1 || band.columns >= columns ||
                               band.first > columns - band.columns)) {
        throw DataError("{}: {}: piece {} is of columns [{}, +{}) of {}, which has {}", file,
                        shard_label(manifest, number), next, band.first, band.columns,
                        label(tensor), columns);
      }
      const std::int64_t numel = sharding::numel_of(tensor, band);
      if (piece.count < 1 || piece.first_element < 0 || piece.first_element > numel - piece.count) {
        throw DataError("{}: {}: piece {} is elements [{}, +{}) of {}, which has {}", file,
                        shard_label(manifest, number), next, piece.first_element, piece.count,
                        label(tensor), numel);
      }
      if (piece.position != filled || piece.count > dataset.numel - filled) {
        throw DataError(
            "{}: {}: piece {} is at [{}, +{}) of dataset /{}, which has {} elements and is filled "
            "up to {}",
            file, shard_label(manifest, number), next, piece.position, piece.count, dataset.kind,
            dataset.numel, filled);
      }
      filled += piece.count;
      ++next;
    }
    if (filled != dataset.numel) {
      throw DataError("{}: {}: the pieces of dataset /{} end at {} of {}", file,
                      shard_label(manifest, number), dataset.kind, filled, dataset.numel);
    }
  }
  if (next != shard.pieces.size()) {
    throw DataError("{}: {}: {} pieces are in no dataset", file, shard_label(manifest, number),
                    shard.pieces.size() - next);
  }
}

// Sorted by tensor, band and first element, every piece must begin where the previous one ends. So
// must every band.
void check_cover(const Manifest& manifest, const std::string& file) {
  struct Run {
    int tensor;
    std::int64_t first, count;
    sharding::Band band;
  };
  std::vector<Run> runs;
  std::size_t num_pieces = 0;
  for (const ShardInfo& shard : manifest.shards) num_pieces += shard.pieces.size();
  runs.reserve(num_pieces);
  for (const ShardInfo& shard : manifest.shards) {
    for (const ShardPiece& piece : shard.pieces) {
      runs.push_back({piece.tensor, piece.first_element, piece.count, piece.band});
    }
  }
  std::sort(runs.begin(), runs.end(), [](const Run& a, const Run& b) {
    return std::tie(a.tensor, a.band.first, a.band.columns, a.first) <
           std::tie(b.tensor, b.band.first, b.band.columns, b.first);
  });
  std::size_t next = 0;
  for (std::size_t t = 0; t < manifest.tensors.size(); ++t) {
    const StateTensor& tensor = manifest.tensors[t];
    const auto is_of_tensor = [&] {
      return next < runs.size() && runs[next].tensor == static_cast<int>(t);
    };
    std::int64_t columns = 0;  // covered by the bands before
    do {
      if (columns > 0 && !is_of_tensor()) {
        throw DataError("{}: columns [{}, {}) of {} are in no shard", file, columns,
                        tensor.shape.back(), label(tensor));
      }
      const sharding::Band band = is_of_tensor() ? runs[next].band : sharding::Band{};
      const std::string of = band.is_whole() ? label(tensor)
                                             : fmt::format("{}, columns [{}, {})", label(tensor),
                                                           band.first, band.first + band.columns);
      if (band.first != columns) {
        throw DataError("{}: columns [{}, {}) of {} are in {}", file, std::min(columns, band.first),
                        std::max(columns, band.first), label(tensor),
                        band.first > columns ? "no shard" : "two pieces");
      }
      std::int64_t covered = 0;
      for (; is_of_tensor() && runs[next].band == band; ++next) {
        if (runs[next].first != covered) {
          throw DataError("{}: elements [{}, {}) of {} are in {}", file,
                          std::min(covered, runs[next].first), std::max(covered, runs[next].first),
                          of, runs[next].first > covered ? "no shard" : "two pieces");
        }
        covered += runs[next].count;
      }
      const std::int64_t numel = sharding::numel_of(tensor, band);
      if (covered != numel) {
        throw DataError("{}: elements [{}, {}) of {} are in no shard", file, covered, numel, of);
      }
      columns += band.is_whole() ? tensor.shape.back() : band.columns;
    } while (columns < tensor.shape.back() || is_of_tensor());
  }
}

// Shards and the index must not be larger than the manifest's contents explain.
void check_sizes(const Manifest& manifest, const std::string& file) {
  const auto most = [&manifest](std::size_t pieces) {
    return kMaxMetadataBytes +
           kMaxMetadataBytesPerPiece * static_cast<std::int64_t>(manifest.tensors.size() + pieces);
  };
  std::size_t all_pieces = 0;
  for (std::size_t i = 0; i < manifest.shards.size(); ++i) {
    const ShardInfo& shard = manifest.shards[i];
    std::int64_t rest = shard.bytes;
    for (const ShardDataset& dataset : shard.datasets) rest -= dataset.bytes();
    if (rest > most(shard.pieces.size())) {
      throw DataError("{}: {}: {} of its {} bytes belong to no dataset; at most {} are expected",
                      file, shard_label(manifest, i), rest, shard.bytes, most(shard.pieces.size()));
    }
    all_pieces += shard.pieces.size();
  }
  if (manifest.index_bytes > most(all_pieces)) {
    throw DataError("{}: index.h5 has {} bytes; at most {} are expected", file,
                    manifest.index_bytes, most(all_pieces));
  }
}

}  // namespace

bool is_tensor_name(std::string_view name) {
  if (name.empty() || name.size() > kMaxNameLength) return false;
  if (!only_from(name, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-.")) {
    return false;
  }
  return name.front() != '.' && name.back() != '.' && name.find("..") == std::string_view::npos;
}

bool is_state_kind(std::string_view kind) {
  return !kind.empty() && kind.size() <= kMaxKindLength &&
         only_from(kind, "abcdefghijklmnopqrstuvwxyz_");
}

bool is_save_uuid(std::string_view uuid) {
  return uuid.size() == 32 && only_from(uuid, "0123456789abcdef");
}

void check_shard_places(const ShardInfo& shard, const std::string& file) {
  std::set<std::string_view> kinds;
  std::int64_t end = kFileAlignment;  // the first page holds HDF5's superblock
  for (const ShardDataset& dataset : shard.datasets) {
    if (!is_state_kind(dataset.kind) || !kinds.insert(dataset.kind).second) {
      throw DataError("{}: dataset /{} is listed twice in one shard", file, dataset.kind);
    }
    if (dataset.offset % kFileAlignment != 0) {
      throw DataError("{}: dataset /{} begins at byte {}, which isn't a multiple of {}", file,
                      dataset.kind, dataset.offset, kFileAlignment);
    }
    if (dataset.offset < end) {
      throw DataError("{}: dataset /{} begins at byte {}, before byte {} where others end", file,
                      dataset.kind, dataset.offset, end);
    }
    if (dataset.bytes() > shard.bytes || dataset.offset > shard.bytes - dataset.bytes()) {
      throw DataError("{}: dataset /{} is bytes [{}, +{}) of a file of {}", file, dataset.kind,
                      dataset.offset, dataset.bytes(), shard.bytes);
    }
    end = dataset.offset + dataset.bytes();
  }
}

void check_consistent(const Manifest& manifest, const std::string& file) {
  check_tensors(manifest, file);
  for (std::size_t i = 0; i < manifest.shards.size(); ++i) {
    check_shard_places(manifest.shards[i], fmt::format("{}: {}", file, shard_label(manifest, i)));
    check_pieces(manifest, i, file);
  }
  check_cover(manifest, file);
  check_sizes(manifest, file);
}

}  // namespace sherd::checkpoint
