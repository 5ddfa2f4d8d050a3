#include "engine/plan/ledger/gpu_rates.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <span>

#include "core/error.h"

namespace sherd::engine {
namespace {

struct Point {
  double x, y;
};

// Straight between points over log x; beyond them as the nearest.
double interpolated(std::span<const Point> points, double x) {
  if (x <= points.front().x) return points.front().y;
  for (std::size_t i = 1; i < points.size(); ++i) {
    if (x > points[i].x) continue;
    const auto [x0, y0] = points[i - 1];
    const auto [x1, y1] = points[i];
    return y0 + (y1 - y0) * std::log(x / x0) / std::log(x1 / x0);
  }
  return points.back().y;
}

// Of the best rate, by how long the matmul would take at it. Source: Calculon's a100_80g.json by
// flops (128, 16, 1 Gflop: 0.97, 0.9, 0.6 of 312 Tflop/s; below, 0.1), taken as times, since a GPU
// that is faster needs larger ones.
constexpr std::array kMatmulShares = {Point{0.3e-6, 0.1}, Point{3.2e-6, 0.6}, Point{51e-6, 0.9},
                                      Point{410e-6, 0.97}};

// A wave is a tile of 128 x 256 for each multiprocessor; the last one of a matmul takes as long as
// a whole one (PARALLELISM.md E.2, recalled). A short matmul over a long depth, as weight gradients
// are, is cut along it into parts of at least kShortestDepth, and what leaves the multiprocessors
// busiest is taken: an assumption.
constexpr std::int64_t kTileRows = 128, kTileColumns = 256, kShortestDepth = 512;

double share_of_waves(const Launch& launch, double multiprocessors) {
  const auto tiles_of = [](std::int64_t m, std::int64_t n) {
    return static_cast<double>((m + kTileRows - 1) / kTileRows) *
           static_cast<double>((n + kTileColumns - 1) / kTileColumns);
  };
  const double tiles = std::min(tiles_of(launch.m, launch.n), tiles_of(launch.n, launch.m));
  const double useful = static_cast<double>(launch.m) * static_cast<double>(launch.n) /
                        static_cast<double>(kTileRows * kTileColumns);
  double best = 0.0;
  const std::int64_t most = std::max<std::int64_t>(1, launch.k / kShortestDepth);
  for (std::int64_t parts = 1; parts <= std::min<std::int64_t>(most, 64); ++parts) {
    const double waves = tiles * static_cast<double>(parts) / multiprocessors;
    best = std::max(best, useful * static_cast<double>(parts) / multiprocessors / std::ceil(waves));
  }
  return best;
}

// Tflop/s of cuDNN's causal attention in bf16 at 1,024 positions, heads of 64 and of 128: measured
// on an H100 (docs/measured/gpu_log.md, 22 November 2026), where only pairs that a query sees
// count.
struct AttentionRate {
  double of_64, of_128;
};
constexpr double kH100Flops =
    794.5e12;  // other GPUs: in proportion to their matmuls, an assumption
constexpr AttentionRate kForward{297e12, 363e12}, kBackward{214e12, 282e12};
constexpr AttentionRate kDeterministicBackward{186e12, 230e12};
// Our own attention has no tensor cores: a tenth of what the multiprocessors reach in f32. An
// assumption, not timed yet.
constexpr double kOwnAttentionShare = 0.1;

// Of a copy's rate. Source: docs/measured/gpu_log.md, the same day; the middle of a range,
// everything else 0.97.
struct MemoryShare {
  std::string_view kernel;  // a name that begins so
  double share;
};
constexpr std::array kMemoryShares = {
    MemoryShare{"embedding_backward (order)", 0.02},  // comparisons, not bytes: an assumption
    MemoryShare{"embedding_backward", 0.22},
    MemoryShare{"norm_backward", 0.46},
    MemoryShare{"cross_entropy", 0.50},
    MemoryShare{"exponential_sums", 0.50},   // as cross_entropy: an assumption
    MemoryShare{"cut_cross_entropy", 0.50},  // as cross_entropy: an assumption
    MemoryShare{"sum_of_squares", 0.45},
    MemoryShare{"linear_backward_weight (bias", 0.55},
    MemoryShare{"attention_sinks_gradient", 0.1},  // few blocks: an assumption
    MemoryShare{"experts (bias gradient)", 0.3},   // rows one after another: an assumption
};
constexpr double kOtherMemoryShare = 0.97;
// Between a kernel and the next: an assumption.
constexpr double kSecondsOfALaunch = 1e-6;

// Seconds of an all-reduce of this many bytes over eight H100: dgxc-benchmarking's nccl README
// (PARALLELISM.md E.3).
constexpr std::array kAllReduce = {Point{8, 13e-6},
                                   Point{64 << 10, 19.5e-6},
                                   Point{1 << 20, 27e-6},
                                   Point{4 << 20, 1.75 * (4 << 20) / 135e9},
                                   Point{16 << 20, 1.75 * (16 << 20) / 237e9},
                                   Point{64 << 20, 1.75 * (64 << 20) / 362e9},
                                   Point{256 << 20, 1.75 * (256 << 20) / 422e9},
                                   Point{1024.0 * (1 << 20), 1.75 * 1024.0 * (1 << 20) / 466e9},
                                   Point{16384.0 * (1 << 20), 1.75 * 16384.0 * (1 << 20) / 480e9}};
// Rings through several machines take a latency for each rank that a slice passes. An all-reduce of
// many ranks goes through trees instead. On four machines of eight (PARALLELISM.md E.3) 6 us and
// 0.74 of the card's rate are within 20 % of what was measured from 1 MiB to 16 GiB.
constexpr double kRanksOfATree = 8.0;      // steps for each doubling of the ranks: an assumption
constexpr double kPairShareOfCard = 0.86;  // of 4 MB and more: 80-92 % (PARALLELISM.md E.4)

// Times grow with bytes in proportion where bandwidth decides, so the logarithms are what lies on a
// line. Another machine's bandwidth and latency scale what isn't latency, and what is.
double all_reduce_seconds(double bytes, const GpuLinks& links) {
  double seconds = kAllReduce.front().y;
  if (bytes > kAllReduce.front().x) {
    static const auto logs = [] {
      std::array<Point, kAllReduce.size()> made{};
      for (std::size_t i = 0; i < made.size(); ++i) {
        made[i] = {kAllReduce[i].x, std::log(kAllReduce[i].y)};
      }
      return made;
    }();
    seconds = std::exp(interpolated(logs, bytes)) * std::max(1.0, bytes / kAllReduce.back().x);
  }
  return links.latency +
         (seconds - kAllReduce.front().y) * (GpuLinks{}.all_reduce / links.all_reduce);
}

}  // namespace

double GpuRates::seconds(const Launch& launch, bool allow_tf32) const {
  const auto bytes = static_cast<double>(launch.read + launch.written);
  const bool half = size_of(launch.dtype) == 2;
  if (launch.kernel == kHostCopy) return 0.5 * bytes / links.host + kSecondsOfALaunch;
  if (launch.kernel == kHostWork) return bytes / links.host_memory + kSecondsOfALaunch;
  if (launch.kind == LaunchKind::kMatmul) {
    const double best = half ? matmul_flops : allow_tf32 ? tf32_flops : f32_flops;
    const double share = matmul_share * std::min(share_of_waves(launch, multiprocessors),
                                                 interpolated(kMatmulShares, launch.flops / best));
    return std::max(launch.flops / (best * share), bytes / (copy_bytes * memory_share)) +
           kSecondsOfALaunch;
  }
  if (launch.kind == LaunchKind::kAttention) {
    const AttentionRate& rate = !launch.backward       ? kForward
                                : launch.deterministic ? kDeterministicBackward
                                                       : kBackward;
    const double best = half
                            ? (launch.k > 64 ? rate.of_128 : rate.of_64) * matmul_flops / kH100Flops
                            : kOwnAttentionShare * f32_flops;
    return std::max(launch.flops / (best * attention_share), bytes / (copy_bytes * memory_share)) +
           kSecondsOfALaunch;
  }
  double share = kOtherMemoryShare;
  for (const MemoryShare& row : kMemoryShares) {
    if (!launch.kernel.starts_with(row.kernel)) continue;
    share = row.share;
    break;
  }
  return bytes / (copy_bytes * share * memory_share) + kSecondsOfALaunch;
}

double GpuRates::seconds(const Exchange& exchange, int ranks_per_machine) const {
  int machines = 0, last = -1;
  for (const int rank : exchange.ranks) {
    if (rank / ranks_per_machine != last) ++machines;
    last = rank / ranks_per_machine;
  }
  return seconds(GroupExchange{exchange.collective, static_cast<double>(exchange.bytes),
                               static_cast<double>(exchange.ranks.size()),
                               static_cast<double>(machines), 1.0});
}

double GpuRates::seconds(const GroupExchange& exchange) const {
  const auto& [collective, bytes, n, machines, at_once] = exchange;  // a GPU has its own card
  const bool sums = collective == "all_reduce";
  const double factor = (sums ? 2.0 : 1.0) * (n - 1) / n;
  double seconds = 0.0;
  if (collective == "broadcast" && n == 2.0) {
    seconds = (machines > 1 ? links.far_latency : links.latency) +
              bytes / (machines > 1 ? kPairShareOfCard * links.card : links.pair);
  } else {
    // As much on the wire as an all-reduce of eight would have.
    const double on_wire = factor * bytes;
    if (n > machines) {
      seconds = all_reduce_seconds(on_wire / 1.75, links);
      if (!sums) seconds = std::max(seconds, on_wire / links.one_way);
    }
    // Between machines each carries what is another's for all of its ranks.
    if (machines > 1) {
      const double steps = sums ? 2.0 * std::min(n - 1, kRanksOfATree * std::log2(n)) : n - 1;
      const double rail = links.card_share * links.card;
      seconds = std::max(seconds,
                         links.far_latency * steps + on_wire / (rail * (n - 1) / (machines - 1)));
    }
  }
  return seconds / exchange_share;
}

GpuRates h100_rates() {
  return {.name = "H100 SXM 80GB",
          .stated_flops = 989e12,    // NVIDIA's datasheet
          .matmul_flops = 794.5e12,  // ml-engineering, the best shape; 798e12 on ours at 8192 cubed
          .tf32_flops = 0.8 * 494e12,  // the datasheet's, at bf16's share: an assumption
          .f32_flops = 0.8 * 67e12,    // the same
          .copy_bytes = 2980e9,        // docs/measured/gpu_log.md
          .memory_bytes = std::int64_t{80} << 30};
}

GpuRates h200_rates() {
  GpuRates rates = h100_rates();
  rates.name = "H200 SXM 141GB";
  rates.copy_bytes = 4300e9;  // PARALLELISM.md E.1, measured for Sherd
  rates.memory_bytes = std::int64_t{141} * 1'000'000'000;
  return rates;
}

GpuRates a100_rates() {
  return {
      .name = "A100 SXM 80GB",
      .stated_flops = 312e12,       // NVIDIA's datasheet
      .matmul_flops = 271.2e12,     // ml-engineering, the best shape
      .tf32_flops = 0.87 * 156e12,  // the datasheet's, at bf16's share: an assumption
      .f32_flops = 0.87 * 19.5e12,  // the same
      .copy_bytes = 0.89 * 2039e9,  // the datasheet's, at the H100's share: an assumption
      .multiprocessors = 108.0,
      .memory_bytes = std::int64_t{80} << 30,
      // nccl-tests' README and ml-engineering (PARALLELISM.md E.3); E.1 for the card
      .links = {.all_reduce = 235e9, .one_way = 235e9, .pair = 270e9, .host = 25e9, .card = 25e9}};
}

}  // namespace sherd::engine
