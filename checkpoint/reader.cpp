#include "checkpoint/reader.h"

#include <fmt/core.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "checkpoint/store/block_reader.h"
#include "core/error.h"
#include "core/shape_text.h"

namespace sherd::checkpoint {
namespace {

using sharding::State;
using sharding::StatePiece;
using sharding::StateTensor;
using Name = std::pair<std::string_view, std::string_view>;  // and kind

std::map<Name, int> by_name(const std::vector<StateTensor>& tensors) {
  std::map<Name, int> numbers;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    numbers.emplace(Name{tensors[i].name, tensors[i].kind}, static_cast<int>(i));
  }
  return numbers;
}

std::set<std::string_view> kinds_of(const std::vector<StateTensor>& tensors) {
  std::set<std::string_view> kinds;
  for (const StateTensor& tensor : tensors) kinds.insert(tensor.kind);
  return kinds;
}

// Part of a dataset that goes to one place in memory.
struct Copy {
  int shard, dataset;
  std::int64_t begin, end;  // bytes of the dataset
  char* to;
};

std::vector<Copy> plan_copies(const Manifest& manifest, const State& wanted) {
  const StoredElements elements(manifest);
  const std::map<Name, int> stored = by_name(manifest.tensors);
  std::vector<Copy> copies;
  for (const StatePiece& piece : wanted.pieces) {
    const StateTensor& tensor = wanted.tensors[static_cast<std::size_t>(piece.tensor)];
    SHERD_CHECK(piece.first_element >= 0 && piece.count >= 0 &&
                    piece.first_element <= sharding::numel_of(tensor, piece.band) - piece.count &&
                    piece.data.numel == piece.count && piece.data.dtype == tensor.dtype,
                "wanted piece [{}, +{}) of {}", piece.first_element, piece.count, tensor.name);
    const int number = stored.at({tensor.name, tensor.kind});
    const auto element_bytes = static_cast<std::int64_t>(size_of(tensor.dtype));
    auto* to = static_cast<char*>(piece.data.data);
    elements.visit(number, piece.band, piece.first_element, piece.count, [&](const StoredRun& run) {
      const std::int64_t begin = run.position * element_bytes, bytes = run.count * element_bytes;
      copies.push_back({run.shard, run.dataset, begin, begin + bytes, to});
      to += bytes;
    });
  }
  std::sort(copies.begin(), copies.end(), [](const Copy& a, const Copy& b) {
    return std::tie(a.shard, a.dataset, a.begin) < std::tie(b.shard, b.dataset, b.begin);
  });
  return copies;
}

// `copies` of one dataset, ascending in begin. `active` are those that the current block is part
// of.
void copy_dataset(BlockReader& reader, const Copy* next, const Copy* end,
                  const sharding::CopyState& copy_state) {
  std::vector<Copy> active;
  std::int64_t number = 0;
  while (next != end || !active.empty()) {
    number = active.empty() ? next->begin / kBlockBytes : number + 1;
    const std::int64_t block_begin = number * kBlockBytes;
    const std::int64_t block_end = block_begin + kBlockBytes;
    while (next != end && next->begin < block_end) active.push_back(*next++);
    const std::string_view bytes = reader.block(active[0].shard, active[0].dataset, number);
    for (const Copy& copy : active) {
      const std::int64_t from = std::max(copy.begin, block_begin);
      const std::int64_t to = std::min(copy.end, block_end);
      const char* source = bytes.data() + (from - block_begin);
      char* target = copy.to + (from - copy.begin);
      if (copy_state) {
        copy_state(source, target, to - from);
      } else {
        std::memcpy(target, source, static_cast<std::size_t>(to - from));
      }
    }
    std::erase_if(active, [block_end](const Copy& copy) { return copy.end <= block_end; });
  }
}

}  // namespace

void check_match(const Checkpoint& checkpoint, const std::vector<StateTensor>& wanted,
                 Match match) {
  const std::vector<StateTensor>& stored = checkpoint.manifest().tensors;
  const std::string& path = checkpoint.path();
  const std::map<Name, int> stored_by_name = by_name(stored);
  const std::set<std::string_view> stored_kinds = kinds_of(stored);
  const std::set<std::string_view> wanted_kinds = kinds_of(wanted);
  for (const StateTensor& tensor : wanted) {
    if (!stored_kinds.contains(tensor.kind)) {
      throw DataError(
          "{}: holds no {} of any tensor; this run needs {}'s. Is the optimizer different?", path,
          tensor.kind, tensor.name);
    }
    const auto found = stored_by_name.find({tensor.name, tensor.kind});
    if (found == stored_by_name.end()) {
      throw DataError("{}: holds no {} of {}, which this run's model has", path, tensor.kind,
                      tensor.name);
    }
    const StateTensor& other = stored[static_cast<std::size_t>(found->second)];
    if (other.shape != tensor.shape) {
      throw DataError("{}: {} ({}) is {} there and {} in this run", path, tensor.name, tensor.kind,
                      shape_text(other.shape), shape_text(tensor.shape));
    }
    if (other.dtype != tensor.dtype) {
      throw DataError("{}: {} of {} is {} there and {} in this run", path, tensor.kind, tensor.name,
                      name_of(other.dtype), name_of(tensor.dtype));
    }
  }
  if (match == Match::kNone) return;
  const std::map<Name, int> wanted_by_name = by_name(wanted);
  for (const StateTensor& tensor : stored) {
    if (!wanted_kinds.contains(tensor.kind)) {
      if (match == Match::kListedKinds) continue;
      throw DataError(
          "{}: holds {} of {}, which this run has for no tensor. Is the optimizer different?", path,
          tensor.kind, tensor.name);
    }
    if (!wanted_by_name.contains({tensor.name, tensor.kind})) {
      throw DataError("{}: holds {} of {}, which this run's model lacks", path, tensor.kind,
                      tensor.name);
    }
  }
}

LoadStatistics load(const Checkpoint& checkpoint, const State& wanted, Match match, Tensor buffer,
                    const sharding::CopyState& copy) {
  check_match(checkpoint, wanted.tensors, match);
  const std::vector<Copy> copies = plan_copies(checkpoint.manifest(), wanted);
  BlockReader reader(checkpoint, buffer);
  LoadStatistics statistics;
  for (std::size_t begin = 0; begin < copies.size();) {
    std::size_t end = begin;
    for (; end < copies.size() && copies[end].shard == copies[begin].shard &&
           copies[end].dataset == copies[begin].dataset;
         ++end) {
      statistics.bytes_copied += copies[end].end - copies[end].begin;
    }
    copy_dataset(reader, copies.data() + begin, copies.data() + end, copy);
    begin = end;
  }
  statistics.blocks_read = reader.blocks_read();
  return statistics;
}

}  // namespace sherd::checkpoint
