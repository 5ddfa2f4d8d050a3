#include "checkpoint/store/block_reader.h"

#include <fmt/core.h>
#include <xxhash.h>

#include <algorithm>
#include <iterator>
#include <limits>
#include <tuple>

#include "checkpoint/format/finite.h"
#include "core/error.h"

namespace sherd::checkpoint {
namespace {

// The tensors in elements [begin, end) of a shard's dataset, for the message about a bad block.
std::string describe(const Manifest& manifest, const ShardInfo& shard, const ShardDataset& dataset,
                     std::int64_t begin, std::int64_t end) {
  constexpr int kMostNamed = 4;
  std::string text;
  int num_named = 0, num_tensors = 0;
  for (const ShardPiece& piece : shard.pieces) {
    const auto& tensor = manifest.tensors[static_cast<std::size_t>(piece.tensor)];
    if (tensor.kind != dataset.kind) continue;
    const std::int64_t first = std::max(begin, piece.position);
    const std::int64_t last = std::min(end, piece.position + piece.count);
    if (first >= last) continue;
    if (++num_tensors > kMostNamed) continue;
    const std::int64_t shift = piece.first_element - piece.position;
    text += fmt::format("{}{}/{}[{}, {})", num_named++ ? ", " : "", tensor.name, tensor.kind,
                        first + shift, last + shift);
    if (!piece.band.is_whole()) {
      text += fmt::format(" of columns [{}, {})", piece.band.first,
                          piece.band.first + piece.band.columns);
    }
  }
  if (num_tensors > kMostNamed) text += fmt::format(" and {} more", num_tensors - kMostNamed);
  return text;
}

std::tuple<int, std::int64_t, std::int64_t> place_in_order(const StoredRun& run) {
  return {run.tensor, run.band.first, run.first_element};
}

// The elements of a run from `begin` on, before `end`.
StoredRun part_of(const StoredRun& run, std::int64_t begin, std::int64_t end) {
  StoredRun part = run;
  part.first_element = begin;
  part.count = std::min(end, run.first_element + run.count) - begin;
  part.position = run.position + begin - run.first_element;
  return part;
}

}  // namespace

std::int64_t in_order_buffer_bytes(const Manifest& manifest) {
  return kBlockBytes * std::min<std::int64_t>(std::ssize(manifest.shards), 64);
}

StoredElements::StoredElements(const Manifest& manifest) {
  for (const sharding::StateTensor& tensor : manifest.tensors) {
    whole_.push_back({0, tensor.shape.back()});
    numel_.push_back(tensor.numel());
  }
  std::size_t num_pieces = 0;
  for (const ShardInfo& shard : manifest.shards) num_pieces += shard.pieces.size();
  runs_.reserve(num_pieces);
  for (std::size_t s = 0; s < manifest.shards.size(); ++s) {
    // The manifest lists pieces dataset by dataset.
    std::size_t dataset = 0;
    const ShardInfo& shard = manifest.shards[s];
    for (const ShardPiece& piece : shard.pieces) {
      while (shard.datasets[dataset].kind !=
             manifest.tensors[static_cast<std::size_t>(piece.tensor)].kind) {
        ++dataset;
      }
      const auto& whole = whole_[static_cast<std::size_t>(piece.tensor)];
      runs_.push_back({piece.tensor, piece.first_element, piece.count, static_cast<int>(s),
                       static_cast<int>(dataset), piece.position,
                       piece.band.is_whole() ? whole : piece.band});
    }
  }
  std::sort(runs_.begin(), runs_.end(), [](const StoredRun& a, const StoredRun& b) {
    return place_in_order(a) < place_in_order(b);
  });
}

std::span<const StoredRun> StoredElements::pieces(int tensor) const {
  const auto begin =
      std::lower_bound(runs_.begin(), runs_.end(), tensor,
                       [](const StoredRun& run, int number) { return run.tensor < number; });
  const auto end =
      std::upper_bound(begin, runs_.end(), tensor,
                       [](int number, const StoredRun& run) { return number < run.tensor; });
  return {begin, end};
}

void StoredElements::visit(int tensor, const std::function<void(const StoredRun&)>& visit) const {
  this->visit(tensor, {}, 0, numel_[static_cast<std::size_t>(tensor)], visit);
}

void StoredElements::visit(int tensor, const sharding::Band& band, std::int64_t first,
                           std::int64_t count,
                           const std::function<void(const StoredRun&)>& visit) const {
  if (count == 0) return;
  const sharding::Band wanted = band.is_whole() ? whole_[static_cast<std::size_t>(tensor)] : band;
  const StoredRun* run =
      &run_with(tensor, wanted.first + first % wanted.columns, first / wanted.columns);
  if (run->band != wanted) return visit_rows(tensor, wanted, first, count, visit);
  for (const std::int64_t end = first + count; first < end; ++run) {
    visit(part_of(*run, first, end));
    first = std::min(end, run->first_element + run->count);
  }
}

void StoredElements::visit_rows(int tensor, const sharding::Band& band, std::int64_t first,
                                std::int64_t count,
                                const std::function<void(const StoredRun&)>& visit) const {
  for (const std::int64_t end = first + count; first < end;) {
    const std::int64_t row = first / band.columns, column = band.first + first % band.columns;
    const StoredRun& run = run_with(tensor, column, row);
    const std::int64_t element = row * run.band.columns + column - run.band.first;
    const std::int64_t of_row =
        std::min(band.first + band.columns, run.band.first + run.band.columns) - column;
    const StoredRun part = part_of(run, element, element + std::min(of_row, end - first));
    visit(part);
    first += part.count;
  }
}

// The run that has the element at a row and column of a tensor.
const StoredRun& StoredElements::run_with(int tensor, std::int64_t column, std::int64_t row) const {
  const auto last_before = [&](std::int64_t band_first, std::int64_t element) {
    const auto next = std::upper_bound(
        runs_.begin(), runs_.end(), std::tuple{tensor, band_first, element},
        [](const auto& place, const StoredRun& run) { return place < place_in_order(run); });
    return std::prev(next);
  };
  const sharding::Band band = last_before(column, std::numeric_limits<std::int64_t>::max())->band;
  return *last_before(band.first, row * band.columns + column - band.first);
}

BlockReader::BlockReader(const Checkpoint& checkpoint, Tensor buffer)
    : checkpoint_(checkpoint), buffer_(buffer) {
  SHERD_CHECK(buffer.bytes() >= kBlockBytes, "a buffer of {} bytes; a block has {}", buffer.bytes(),
              kBlockBytes);
  slots_.resize(static_cast<std::size_t>(buffer.bytes() / kBlockBytes));
}

std::string_view BlockReader::block(int shard, int dataset, std::int64_t number) {
  ++uses_;
  std::size_t oldest = 0;
  for (std::size_t i = 0; i < slots_.size(); ++i) {
    Slot& slot = slots_[i];
    if (slot.shard == shard && slot.dataset == dataset && slot.number == number) {
      slot.last_used = uses_;
      return {memory_of(i), static_cast<std::size_t>(slot.bytes)};
    }
    if (slot.last_used < slots_[oldest].last_used) oldest = i;
  }
  Slot& slot = slots_[oldest];
  slot = {};  // holds nothing if the read fails
  Slot wanted{shard, dataset, number, 0, uses_};
  read(wanted, memory_of(oldest));
  slot = wanted;
  return {memory_of(oldest), static_cast<std::size_t>(slot.bytes)};
}

void BlockReader::read(Slot& slot, char* to) {
  const Manifest& manifest = checkpoint_.manifest();
  const ShardInfo& shard = manifest.shards[static_cast<std::size_t>(slot.shard)];
  const ShardDataset& dataset = shard.datasets[static_cast<std::size_t>(slot.dataset)];
  const std::int64_t begin = slot.number * kBlockBytes;
  SHERD_CHECK(begin >= 0 && begin < dataset.bytes(), "block {} of {} bytes", slot.number,
              dataset.bytes());
  slot.bytes = std::min(kBlockBytes, dataset.bytes() - begin);
  if (file_shard_ != slot.shard) {
    file_ = checkpoint_.open_shard(slot.shard);
    file_shard_ = slot.shard;
  }
  file_.read_at(to, slot.bytes, dataset.offset + begin);
  ++blocks_read_;
  const std::uint64_t found = XXH3_64bits(to, static_cast<std::size_t>(slot.bytes));
  const std::uint64_t stated = dataset.checksums[static_cast<std::size_t>(slot.number)];
  const auto element_bytes = static_cast<std::int64_t>(size_of(dataset.dtype));
  if (found == stated) {
    const std::int64_t at =
        first_not_finite({to, static_cast<std::size_t>(slot.bytes)}, dataset.dtype);
    if (at < 0) return;
    const std::int64_t element = begin / element_bytes + at;
    throw DataError("{}: {} isn't finite; a state with a NaN or an infinity is never saved",
                    file_.path(), describe(manifest, shard, dataset, element, element + 1));
  }
  throw DataError(
      "{}: bytes [{}, {}) are damaged: their checksum is {:016x}, the manifest states {:016x}; "
      "they "
      "hold {}",
      file_.path(), dataset.offset + begin, dataset.offset + begin + slot.bytes, found, stated,
      describe(manifest, shard, dataset, begin / element_bytes,
               (begin + slot.bytes) / element_bytes));
}

void BlockReader::each(const StoredRun& run, const std::function<void(std::string_view)>& use) {
  const ShardDataset& dataset = checkpoint_.manifest()
                                    .shards[static_cast<std::size_t>(run.shard)]
                                    .datasets[static_cast<std::size_t>(run.dataset)];
  const auto element_bytes = static_cast<std::int64_t>(size_of(dataset.dtype));
  std::int64_t at = run.position * element_bytes;
  const std::int64_t end = at + run.count * element_bytes;
  while (at < end) {
    const std::int64_t number = at / kBlockBytes;
    const std::string_view bytes = block(run.shard, run.dataset, number);
    const std::int64_t from = at - number * kBlockBytes;
    const std::int64_t count =
        std::min<std::int64_t>(end - at, static_cast<std::int64_t>(bytes.size()) - from);
    use(bytes.substr(static_cast<std::size_t>(from), static_cast<std::size_t>(count)));
    at += count;
  }
}

}  // namespace sherd::checkpoint
