#include "engine/schedule/balance.h"

#include <algorithm>
#include <numeric>

#include "core/error.h"

namespace sherd::schedule {
namespace {

__extension__ using Squares = __int128;  // of nanoseconds: seconds squared don't fit in 64 bits

constexpr Duration kImpossible = Duration::max();
constexpr Squares kNoSquares = -1;

Squares square(Duration time) {
  return static_cast<Squares>(time.count()) * time.count();
}

template <class Measure>
using Table = std::vector<std::vector<Measure>>;

class Dealing {
 public:
  Dealing(const LayerTimes& times, int num_chunks)
      : chunks_(static_cast<std::size_t>(num_chunks)), until_{Duration{}} {
    for (const Duration& layer : times.layers) until_.push_back(until_.back() + layer);
    embedding_ = times.embedding;
    head_ = times.head;
  }

  std::vector<int> best() const {
    const Duration limit = least_maximum();
    const Table<Squares> squares = least_squares(limit);
    // From the end: the more layers a late chunk takes, the fewer are left for the early ones.
    std::vector<int> layers(chunks_);
    std::size_t end = num_layers();
    for (std::size_t chunk = chunks_; chunk > 0; --chunk) {
      std::size_t begin = chunk - 1;
      while (!reaches(squares, chunk, begin, end, limit)) ++begin;
      layers[chunk - 1] = static_cast<int>(end - begin);
      end = begin;
    }
    return layers;
  }

 private:
  std::size_t num_layers() const { return until_.size() - 1; }

  Duration time(std::size_t chunk, std::size_t begin, std::size_t end) const {
    Duration time = until_[end] - until_[begin];
    if (chunk == 1) time += embedding_;
    if (chunk == chunks_) time += head_;
    return time;
  }

  // Of the first `end` layers dealt to the first `chunk` chunks, the least of a measure; calls
  // join(measure without the last chunk, its time, least so far).
  template <class Measure, class Join>
  Table<Measure> table(Measure impossible, const Join& join) const {
    Table<Measure> best(chunks_ + 1, std::vector<Measure>(num_layers() + 1, impossible));
    best[0][0] = Measure{};
    for (std::size_t chunk = 1; chunk <= chunks_; ++chunk) {
      for (std::size_t end = chunk; end <= num_layers(); ++end) {
        for (std::size_t begin = chunk - 1; begin < end; ++begin) {
          const Measure& before = best[chunk - 1][begin];
          if (before != impossible) join(before, time(chunk, begin, end), best[chunk][end]);
        }
      }
    }
    return best;
  }

  Duration least_maximum() const {
    return table(kImpossible, [](Duration before, Duration time, Duration& least) {
      least = std::min(least, std::max(before, time));
    })[chunks_][num_layers()];
  }

  Table<Squares> least_squares(Duration limit) const {
    return table(kNoSquares, [&](Squares before, Duration time, Squares& least) {
      const Squares sum = before + square(time);
      if (time <= limit && (least == kNoSquares || sum < least)) least = sum;
    });
  }

  bool reaches(const Table<Squares>& squares, std::size_t chunk, std::size_t begin, std::size_t end,
               Duration limit) const {
    const Squares before = squares[chunk - 1][begin];
    const Duration takes = time(chunk, begin, end);
    return before != kNoSquares && takes <= limit && before + square(takes) == squares[chunk][end];
  }

  std::size_t chunks_;
  std::vector<Duration> until_;  // the time of the layers before each
  Duration embedding_{}, head_{};
};

void refuse_more_chunks_than_layers(int num_layers, int num_chunks) {
  if (num_chunks < 1) throw UsageError("layers are dealt to at least 1 chunk, not {}.", num_chunks);
  if (num_chunks <= num_layers) return;
  throw UsageError("{} layers can't be dealt to {} chunks: each needs one; {} chunks are the most.",
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
    throw UsageError("the list of layers per chunk deals {} layers; the model has {}.", sum,
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
