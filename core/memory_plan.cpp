#include "core/memory_plan.h"

#include <algorithm>
#include <bit>
#include <limits>
#include <map>
#include <numeric>

#include "core/error.h"

namespace sherd {
namespace {

// A plan that is larger than its peak by less than this is good enough.
constexpr double kNoWorse = 1.005;

/// Buffers that have the same phases, one after another.
struct Region {
  Phases phases = 0;
  std::int64_t bytes = 0;
  std::int64_t offset = 0;
};

std::int64_t add(std::int64_t a, std::int64_t b) {
  std::int64_t result = 0;
  if (__builtin_add_overflow(a, b, &result)) {
    throw UsageError("the model needs more bytes than 64 bits can count; make it smaller.");
  }
  return result;
}

std::int64_t round_up(std::int64_t value, std::int64_t multiple) {
  return add(value, multiple - 1) / multiple * multiple;
}

/// Bytes that are taken, as intervals in order, none of which touches another.
class Taken {
 public:
  // Returns the lowest offset at which `bytes` bytes are free.
  std::int64_t lowest(std::int64_t bytes) const {
    std::int64_t offset = 0;
    for (const auto& [begin, end] : intervals_) {
      if (offset + bytes <= begin) break;
      offset = end;
    }
    return offset;
  }
  void take(std::int64_t begin, std::int64_t end) {
    const auto first = std::ranges::lower_bound(
        intervals_, begin, {}, [](const auto& interval) { return interval.second; });
    auto last = first;
    for (; last != intervals_.end() && last->first <= end; ++last) {
      begin = std::min(begin, last->first);
      end = std::max(end, last->second);
    }
    intervals_.insert(intervals_.erase(first, last), {begin, end});
  }

 private:
  std::vector<std::pair<std::int64_t, std::int64_t>> intervals_;
};

// Puts each region as low as the earlier ones allow; returns what all of them need. There are few
// kinds of phases, and what a kind may not use has few gaps, so this takes n log n for n regions.
std::int64_t stack(std::vector<Region>& regions, const std::vector<std::size_t>& order) {
  std::int64_t end = 0;
  std::map<Phases, Taken> taken_for;
  for (const Region& region : regions) taken_for[region.phases];
  for (const std::size_t index : order) {
    Region& region = regions[index];
    if (region.bytes == 0) continue;
    region.offset = taken_for[region.phases].lowest(region.bytes);
    const std::int64_t stop = add(region.offset, region.bytes);
    for (auto& [phases, taken] : taken_for) {
      if ((phases & region.phases) != 0) taken.take(region.offset, stop);
    }
    end = std::max(end, stop);
  }
  return end;
}

// No placement needs less.
std::int64_t peak_of(const std::vector<Region>& regions) {
  std::int64_t peak = 0;
  for (int phase = 0; phase < kNumPhases; ++phase) {
    std::int64_t bytes = 0;
    for (const Region& region : regions) {
      if ((region.phases & (1u << phase)) != 0) bytes = add(bytes, region.bytes);
    }
    peak = std::max(peak, bytes);
  }
  return peak;
}

/// Stacks regions in every order, and keeps the first order that needs least. Orders that begin alike
/// share that work, and what already needs as much as the best isn't completed.
class EveryOrder {
 public:
  explicit EveryOrder(std::vector<Region> regions)
      : regions_(std::move(regions)), best_(regions_), peak_(peak_of(regions_)) {
    place_next(0);
  }
  const std::vector<Region>& best() const { return best_; }

 private:
  void place_next(std::int64_t end) {
    if (placed_.size() == regions_.size()) {
      best_bytes_ = end;
      best_ = regions_;
      return;
    }
    for (Region& region : regions_) {
      if (std::ranges::find(placed_, &region) != placed_.end()) continue;
      region.offset = lowest(region);
      const std::int64_t stop = std::max(end, add(region.offset, region.bytes));
      if (stop >= best_bytes_) continue;
      placed_.push_back(&region);
      place_next(stop);
      placed_.pop_back();
      if (best_bytes_ == peak_) return;
    }
  }
  std::int64_t lowest(const Region& region) const {
    std::int64_t offset = 0;
    for (bool is_free = false; !is_free;) {
      is_free = true;
      for (const Region* other : placed_) {
        const std::int64_t end = other->offset + other->bytes;
        const bool meets = (other->phases & region.phases) != 0 && offset < end &&
                           other->offset < offset + region.bytes;
        if (!meets) continue;
        offset = end;
        is_free = false;
      }
    }
    return offset;
  }

  std::vector<Region> regions_, best_;
  std::vector<const Region*> placed_;
  std::int64_t peak_, best_bytes_ = std::numeric_limits<std::int64_t>::max();
};

// All orders of few regions, else the given one and two that begin with what is hardest to place.
std::vector<Region> stacked(std::vector<Region> regions) {
  constexpr std::size_t kMostOrders = 8;
  if (regions.size() <= kMostOrders) return EveryOrder(std::move(regions)).best();
  std::vector<std::size_t> order(regions.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::vector<Region> best = regions;
  std::int64_t best_bytes = stack(best, order);
  const auto try_order = [&] {
    const std::int64_t bytes = stack(regions, order);
    if (bytes >= best_bytes) return;
    best_bytes = bytes;
    best = regions;
  };
  const auto try_largest_first = [&](const auto& size) {
    std::stable_sort(order.begin(), order.end(), [&](std::size_t x, std::size_t y) {
      return size(regions[x]) > size(regions[y]);
    });
    try_order();
  };
  try_largest_first([](const Region& region) { return region.bytes; });
  try_largest_first(
      [](const Region& region) { return std::pair(std::popcount(region.phases), region.bytes); });
  return best;
}

std::int64_t end_of(const std::vector<Region>& regions) {
  std::int64_t end = 0;
  for (const Region& region : regions) end = std::max(end, add(region.offset, region.bytes));
  return end;
}

}  // namespace

std::int64_t sum(const BytesByCategory& bytes) {
  return std::accumulate(bytes.begin(), bytes.end(), std::int64_t{0});
}

MemoryPlan::MemoryPlan(std::vector<BufferSpec> buffers) {
  buffers_.reserve(buffers.size());
  for (BufferSpec& spec : buffers) {
    std::int64_t bytes = 0;
    if (spec.numel < 0 || __builtin_mul_overflow(
                              spec.numel, static_cast<std::int64_t>(size_of(spec.dtype)), &bytes)) {
      throw UsageError("buffer {} needs more bytes than 64 bits can count; make the model smaller.",
                       spec.name);
    }
    for (int phase = 0; phase < kNumPhases; ++phase) {
      if ((spec.phases & (1u << phase)) == 0) continue;
      std::int64_t& total = by_phase_[phase][static_cast<std::size_t>(spec.category)];
      total = add(total, bytes);
    }
    if (spec.phases == kAlways) at_rest_[static_cast<std::size_t>(spec.category)] += bytes;
    buffers_.push_back({std::move(spec), 0});
  }
  place();
}

// Buffers with the same phases lie together, unless that leaves gaps that placing them one by one
// avoids.
void MemoryPlan::place() {
  const std::int64_t together = place_in_regions(false);
  if (static_cast<double>(together) <= kNoWorse * static_cast<double>(peak_bytes())) return;
  if (place_in_regions(true) >= together) place_in_regions(false);
}

// `alone`: a buffer that isn't always alive is its own region.
std::int64_t MemoryPlan::place_in_regions(bool alone) {
  std::map<std::pair<Phases, std::size_t>, std::size_t> numbers;
  std::vector<Region> regions;
  std::vector<std::size_t> region_of;
  for (std::size_t i = 0; i < buffers_.size(); ++i) {
    PlannedBuffer& buffer = buffers_[i];
    const Phases phases = buffer.spec.phases;
    const std::size_t among = alone && phases != kAlways ? i + 1 : 0;
    const auto number = numbers.emplace(std::pair(phases, among), regions.size()).first->second;
    if (number == regions.size()) regions.push_back({.phases = phases});
    Region& region = regions[number];
    buffer.offset = round_up(region.bytes, alignment_of(buffer.spec));
    region.bytes = add(buffer.offset, buffer.spec.bytes());
    region_of.push_back(number);
  }
  // This lets any region follow any other.
  for (Region& region : regions) region.bytes = round_up(region.bytes, 4096);
  const std::vector<Region> placed = stacked(std::move(regions));
  for (std::size_t i = 0; i < buffers_.size(); ++i) {
    buffers_[i].offset += placed[region_of[i]].offset;
  }
  arena_bytes_ = end_of(placed);
  return arena_bytes_;
}

std::int64_t MemoryPlan::live_bytes(Phase phase) const {
  for (int i = 0; i < kNumPhases; ++i) {
    if (phase == (1u << i)) return sum(by_phase_[i]);
  }
  SHERD_CHECK(false, "{} is not one phase", static_cast<unsigned>(phase));
  __builtin_unreachable();
}

std::int64_t MemoryPlan::peak_bytes() const {
  return live_bytes(peak_phase());
}

Phase MemoryPlan::peak_phase() const {
  Phase peak = kInit;
  for (int i = 1; i < kNumPhases; ++i) {
    const auto phase = static_cast<Phase>(1u << i);
    if (live_bytes(phase) > live_bytes(peak)) peak = phase;
  }
  return peak;
}

BytesByCategory MemoryPlan::peak_by_category() const {
  BytesByCategory peak{};
  for (const BytesByCategory& phase : by_phase_) {
    for (int i = 0; i < kNumCategories; ++i) peak[i] = std::max(peak[i], phase[i]);
  }
  return peak;
}

}  // namespace sherd
