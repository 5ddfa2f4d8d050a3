#include "engine/schedule/balance.h"

#include <algorithm>
#include <deque>
#include <numeric>

#include "core/error.h"

namespace sherd::schedule {
namespace {

__extension__ using Squares = __int128;  // of nanoseconds: seconds squared don't fit in 64 bits

// Layers 0 to n as points on a line, a chunk as the way from one point to a later one. With the
// embedding before the first point and the head after the last one, a chunk's time is the distance
// of its ends.
//
// The least sum of squares with exactly k chunks: a chunk costs its square and a price, and the
// price is the one at which a cheapest way may have k chunks (Aggarwal, Klawe, Moran, Shor and
// Wilber 1987 for such a way; the price is Lagrange's multiplier). That is exact: squares of
// distances satisfy the quadrangle inequality, so the least sum is a convex function of k, with
// whole numbers as slopes, and a cheapest way to a point may have any number of chunks between its
// least and its most.
class Dealing {
 public:
  Dealing(const LayerTimes& times, int num_chunks)
      : num_chunks_(num_chunks), num_layers_(static_cast<int>(times.layers.size())), at_{0} {
    for (const Duration& layer : times.layers) at_.push_back(at_.back() + layer.count());
    at_.front() -= times.embedding.count();
    at_.back() += times.head.count();
    limit_ = least_maximum();
    furthest_ = furthest(limit_);
  }

  std::vector<int> best() const {
    const Squares price = least_price();
    const Ways least = cheapest(price, 1), most = cheapest(price, -1);
    // From the end: the more layers a late chunk takes, the fewer are left for the early ones.
    std::vector<int> layers(static_cast<std::size_t>(num_chunks_));
    int end = num_layers_;
    for (int chunk = num_chunks_ - 1; chunk >= 0; --chunk) {
      int begin = std::max(chunk, nearest_begin(end));
      while (!is_best(least, most, price, {begin, end, chunk})) ++begin;
      layers[index(chunk)] = end - begin;
      end = begin;
    }
    return layers;
  }

 private:
  // To a point: the cost, and the number of chunks.
  struct Way {
    Squares cost = 0;
    int chunks = 0;
  };
  using Ways = std::vector<Way>;
  struct Piece {
    int begin, end, chunks_before;
  };
  // From `begin` points are reached most cheaply, from point `first` on.
  struct Candidate {
    int begin, first;
  };

  static std::size_t index(int number) { return static_cast<std::size_t>(number); }
  std::int64_t time(int begin, int end) const { return at_[index(end)] - at_[index(begin)]; }
  Squares square(int begin, int end) const {
    return static_cast<Squares>(time(begin, end)) * time(begin, end);
  }
  // The first point from which a chunk within the limit reaches `end`.
  int nearest_begin(int end) const {
    return static_cast<int>(std::ranges::lower_bound(furthest_, end) - furthest_.begin());
  }

  // From each point but the last, the furthest that a chunk of at most `limit` reaches; itself:
  // none.
  std::vector<int> furthest(std::int64_t limit) const {
    std::vector<int> reach;
    for (int begin = 0, end = 0; begin < num_layers_; ++begin) {
      end = std::max(end, begin);
      while (end < num_layers_ && time(begin, end + 1) <= limit) ++end;
      reach.push_back(end);
    }
    return reach;
  }

  // Whether no more than `num_chunks_` chunks of at most `limit` each are needed. More of them
  // would do, too.
  bool suffices(std::int64_t limit) const {
    const std::vector<int> reach = furthest(limit);
    int point = 0;
    for (int chunk = 0; chunk < num_chunks_ && point < num_layers_; ++chunk) {
      point = reach[index(point)];
    }
    return point == num_layers_;
  }

  std::int64_t least_maximum() const {
    std::int64_t too_little = -1, enough = time(0, num_layers_);
    while (enough - too_little > 1) {
      const std::int64_t middle = too_little + (enough - too_little) / 2;
      (suffices(middle) ? enough : too_little) = middle;
    }
    return enough;
  }

  // At a lower price a cheapest way has more chunks. One more saves no more than all squares.
  Squares least_price() const {
    Squares too_low = -1, enough = static_cast<Squares>(limit_) * limit_ * num_chunks_ + 1;
    while (enough - too_low > 1) {
      const Squares middle = too_low + (enough - too_low) / 2;
      (cheapest(middle, 1).back().chunks <= num_chunks_ ? enough : too_low) = middle;
    }
    return enough;
  }

  // The cheapest ways to all points, in time n log n; of several, those with the fewest chunks
  // (`sign` 1) or the most (-1). If one of two begins is better for a point, the later one is
  // better for all points after some other one.
  Ways cheapest(Squares price, int sign) const {
    Ways ways(index(num_layers_) + 1);
    std::deque<Candidate> candidates = {{0, 1}};
    for (int end = 1; end <= num_layers_; ++end) {
      while (candidates.size() > 1 && candidates[1].first <= end) candidates.pop_front();
      ways[index(end)] = way_over(ways, candidates.front().begin, end, price);
      if (end == num_layers_) break;
      const auto better = [&](int begin, int other, int point) {  // begin > other
        if (point > furthest_[index(other)]) return true;
        const Way a = way_over(ways, begin, point, price), b = way_over(ways, other, point, price);
        return a.cost != b.cost ? a.cost < b.cost : sign * a.chunks < sign * b.chunks;
      };
      while (!candidates.empty() && candidates.back().first > end &&
             better(end, candidates.back().begin, candidates.back().first)) {
        candidates.pop_back();
      }
      if (candidates.empty() || better(end, candidates.back().begin, end + 1)) {
        candidates.push_back({end, end + 1});
        continue;
      }
      int no = std::max(candidates.back().first, end + 1), yes = num_layers_ + 1;
      while (yes - no > 1) {
        const int middle = no + (yes - no) / 2;
        (better(end, candidates.back().begin, middle) ? yes : no) = middle;
      }
      if (yes <= num_layers_) candidates.push_back({end, yes});
    }
    return ways;
  }

  Way way_over(const Ways& ways, int begin, int end, Squares price) const {
    const Way& before = ways[index(begin)];
    return {before.cost + square(begin, end) + price, before.chunks + 1};
  }

  bool is_best(const Ways& least, const Ways& most, Squares price, const Piece& piece) const {
    SHERD_CHECK(piece.begin < piece.end, "layers that can't be dealt");
    const Way &fewest = least[index(piece.begin)], &end = least[index(piece.end)];
    return time(piece.begin, piece.end) <= limit_ && fewest.chunks <= piece.chunks_before &&
           piece.chunks_before <= most[index(piece.begin)].chunks &&
           fewest.cost + square(piece.begin, piece.end) + price == end.cost;
  }

  int num_chunks_, num_layers_;
  std::vector<std::int64_t> at_;  // the points
  std::int64_t limit_ = 0;        // the time of the slowest chunk
  std::vector<int> furthest_;
};

void refuse_more_chunks_than_layers(int num_layers, int num_chunks) {
  if (num_chunks < 1) throw UsageError("layers need at least 1 chunk, not {}.", num_chunks);
  if (num_chunks <= num_layers) return;
  throw UsageError("{} layers can't fill {} chunks: each needs one; {} chunks are the most.",
                   num_layers, num_chunks, num_layers);
}

}  // namespace

std::vector<int> balanced_layers(const LayerTimes& times, int num_chunks) {
  refuse_more_chunks_than_layers(static_cast<int>(times.layers.size()), num_chunks);
  return Dealing(times, num_chunks).best();
}

void check_layers_per_chunk(const std::vector<int>& layers_per_chunk, int num_layers,
                            int num_chunks) {
  refuse_more_chunks_than_layers(num_layers, num_chunks);
  if (std::ssize(layers_per_chunk) != num_chunks) {
    throw UsageError("the list of layers per chunk has {} entries for {} chunks.",
                     layers_per_chunk.size(), num_chunks);
  }
  for (std::size_t chunk = 0; chunk < layers_per_chunk.size(); ++chunk) {
    if (layers_per_chunk[chunk] >= 1) continue;
    throw UsageError("the list of layers per chunk gives chunk {} {} layers; 1 is the least.",
                     chunk, layers_per_chunk[chunk]);
  }
  const int sum = std::accumulate(layers_per_chunk.begin(), layers_per_chunk.end(), 0);
  if (sum != num_layers) {
    throw UsageError("the list of layers per chunk has {} layers; the model has {}.", sum,
                     num_layers);
  }
}

std::vector<Duration> chunk_times(const LayerTimes& times,
                                  const std::vector<int>& layers_per_chunk) {
  std::vector<Duration> chunks;
  auto layer = times.layers.begin();
  for (const int count : layers_per_chunk) {
    chunks.push_back(std::accumulate(layer, layer + count, Duration{}));
    layer += count;
  }
  chunks.front() += times.embedding;
  chunks.back() += times.head;
  return chunks;
}

}  // namespace sherd::schedule
