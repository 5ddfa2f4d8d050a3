#include "sharding/mesh/traffic.h"

#include <algorithm>
#include <limits>

#include "core/error.h"

namespace sherd::sharding {
namespace {

__extension__ using Wide = __int128;

std::int64_t narrowed(Wide bytes) {
  if (bytes > std::numeric_limits<std::int64_t>::max()) {
    throw UsageError("a step sends more bytes than 64 bits can count; make the model smaller.");
  }
  return static_cast<std::int64_t>(bytes);
}

}  // namespace

std::string_view name_of(Collective collective) {
  switch (collective) {
    case Collective::kAllGather:
      return "all_gather";
    case Collective::kReduceScatter:
      return "reduce_scatter";
    case Collective::kAllReduce:
      return "all_reduce";
    case Collective::kBroadcast:
      return "broadcast";
    case Collective::kAllToAll:
      return "all_to_all";
    case Collective::kAllToAllV:
      return "all_to_all_v";
  }
  return "?";
}

Callers group_along(const Mesh& mesh, const AxisSet& axes) {
  return {.count = mesh.degree(axes), .axes = axes};
}

std::vector<int> Callers::ranks(const Mesh& mesh, int rank) const {
  if (peer) return {std::min(rank, *peer), std::max(rank, *peer)};
  const std::vector<int> all = mesh.group(rank, axes);
  const auto first = all.begin() + mesh.index_in_group(rank, axes) / count * count;
  return {first, first + count};
}

void Traffic::add(const std::string& label, Collective collective, DType dtype,
                  std::int64_t full_numel, const Callers& callers, std::int64_t calls) {
  const int group_size = callers.count;
  const Wide slice = full_numel / group_size;
  Wide numel = 0;
  switch (collective) {
    case Collective::kAllGather:
    case Collective::kReduceScatter:
    case Collective::kAllToAll:
    case Collective::kAllToAllV:
      numel = (group_size - 1) * slice;
      break;
    case Collective::kAllReduce:
      numel = 2 * (group_size - 1) * slice;
      break;
    case Collective::kBroadcast:
      numel = static_cast<Wide>(group_size - 1) * full_numel;
      break;
  }
  Sent& sent = line(label, collective, dtype, callers);
  sent.calls += calls;
  // Each factor but the last is far below 2^63, and their product below 2^127.
  const Wide each = narrowed(numel * static_cast<Wide>(size_of(dtype)));
  sent.bytes = narrowed(sent.bytes + each * calls);
}

void Traffic::add_silent(const std::string& label, Collective collective, DType dtype,
                         const Callers& callers, std::int64_t calls) {
  line(label, collective, dtype, callers).calls += calls;
}

void Traffic::add_elements(const std::string& label, Collective collective, DType dtype,
                           std::int64_t numel, const Callers& callers, std::int64_t calls) {
  Sent& sent = line(label, collective, dtype, callers);
  sent.calls += calls;
  const Wide each = narrowed(static_cast<Wide>(numel) * static_cast<Wide>(size_of(dtype)));
  sent.bytes = narrowed(sent.bytes + each * calls);
}

void Traffic::add(const Traffic& other) {
  for (const Sent& sent : other.sent_) {
    Sent& mine = line(sent.label, sent.collective, sent.dtype, sent.callers);
    mine.calls += sent.calls;
    mine.bytes = narrowed(static_cast<Wide>(mine.bytes) + sent.bytes);
  }
}

std::int64_t Traffic::total_bytes() const {
  Wide total = 0;
  for (const Sent& sent : sent_) total += sent.bytes;
  return narrowed(total);
}

Sent& Traffic::line(const std::string& label, Collective collective, DType dtype,
                    const Callers& callers) {
  for (Sent& sent : sent_) {
    if (sent.label == label && sent.collective == collective && sent.dtype == dtype &&
        sent.callers == callers) {
      return sent;
    }
  }
  sent_.push_back({label, collective, dtype, callers, 0, 0});
  return sent_.back();
}

}  // namespace sherd::sharding
