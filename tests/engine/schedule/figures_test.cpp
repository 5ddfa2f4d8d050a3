// Idle time and peaks of the schedules against the formulas of their papers, and against figures that
// another simulator gave.
#include <fmt/core.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "engine/schedule/peaks.h"
#include "tests/engine/schedule/schedule_support.h"

namespace sherd::schedule {
namespace {

using test::executable;
using test::kUnit;
using test::request;
using test::unit_times;
using test::units;

struct Figures {
  double extra;  ///< time beyond the ideal, as part of it
  double kept;   ///< on the worst rank, in shares of a rank's layers
  double idle;   ///< inside a rank's own window, on the worst rank
};

Figures figures_of(const OrderRequest& of, int forward = 1, int input = 1, int weight = 1) {
  const Schedule schedule = executable(of);
  const Simulation run = simulate(schedule, unit_times(schedule.layout, forward, input, weight));
  const double ideal = of.num_micro_batches * (forward + input + weight);
  Figures figures{units(run.makespan) / ideal - 1.0, 0.0, 0.0};
  for (const Peak& peak : peaks_by_rank(schedule)) {
    figures.kept =
        std::max(figures.kept, static_cast<double>(peak.kept) / schedule.layout.chunks_per_rank);
  }
  for (const RankTimes& rank : run.ranks) {
    figures.idle = std::max(figures.idle, units(rank.idle_inside()));
  }
  return figures;
}

struct Column {
  Order order;
  int chunks_per_rank;
};

constexpr Column kColumns[] = {
    {Order::kGPipe, 1},           {Order::k1F1B, 1}, {Order::kInterleaved1F1B, 2},
    {Order::kInterleaved1F1B, 4}, {Order::kZbH1, 1}, {Order::kZbV, 2},
    {Order::kDualPipeV, 2}};

struct FigureRow {
  int ranks, micro_batches;
  Figures figures[7];  ///< extra in per cent
};

// Forward, input gradient and weight gradient of a rank's share take 1 each; messages nothing.
constexpr FigureRow kFigureRows[] = {
    {2,
     4,
     {{25.0, 4, 3},
      {25.0, 2, 3},
      {12.5, 2.5, 1.5},
      {6.25, 2.25, .75},
      {8.3, 2, 1},
      {4.2, 2, 0},
      {8.3, 2.5, 1}}},
    {4,
     8,
     {{37.5, 8, 9},
      {37.5, 4, 9},
      {18.8, 5.5, 4.5},
      {9.4, 4.75, 2.25},
      {12.5, 4, 3},
      {6.3, 4, 0},
      {12.5, 4.5, 3}}},
    {4,
     16,
     {{18.8, 16, 9},
      {18.8, 4, 9},
      {9.4, 5.5, 4.5},
      {4.7, 4.75, 2.25},
      {6.3, 4, 3},
      {3.1, 4, 0},
      {6.3, 4.5, 3}}},
    {8,
     16,
     {{43.8, 16, 21},
      {43.8, 8, 21},
      {21.9, 11.5, 10.5},
      {10.9, 9.75, 5.25},
      {14.6, 8, 7},
      {7.3, 8, 0},
      {14.6, 8.5, 7}}},
    {8,
     32,
     {{21.9, 32, 21},
      {21.9, 8, 21},
      {10.9, 11.5, 10.5},
      {5.5, 9.75, 5.25},
      {7.3, 8, 7},
      {3.6, 8, 0},
      {7.3, 8.5, 7}}},
    {8,
     64,
     {{10.9, 64, 21},
      {10.9, 8, 21},
      {5.5, 11.5, 10.5},
      {2.7, 9.75, 5.25},
      {3.6, 8, 7},
      {1.8, 8, 0},
      {3.6, 8.5, 7}}},
};

TEST(Figures, AreThoseOfAnotherSimulator) {
  for (const FigureRow& row : kFigureRows) {
    for (std::size_t i = 0; i < std::size(kColumns); ++i) {
      const auto [order, chunks] = kColumns[i];
      SCOPED_TRACE(fmt::format("{} on {} ranks, {} micro-batches, {} chunks", name_of(order),
                               row.ranks, row.micro_batches, chunks));
      const Figures figures = figures_of(request(order, row.ranks, row.micro_batches, chunks));
      EXPECT_NEAR(100.0 * figures.extra, row.figures[i].extra, 0.051);  // one decimal was given
      EXPECT_EQ(figures.kept, row.figures[i].kept);
      EXPECT_EQ(figures.idle, row.figures[i].idle);
    }
  }
}

std::vector<Peak> peaks(const OrderRequest& of) {
  return peaks_by_rank(executable(of));
}

TEST(Figures, KeptActivationsAreTheFormulasOnEveryRank) {
  for (const int p : {2, 3, 4, 8}) {
    for (const int m : {2 * p, 3 * p, 8 * p}) {
      for (int r = 0; r < p; ++r) {
        SCOPED_TRACE(fmt::format("rank {} of {}, {} micro-batches", r, p, m));
        const auto rank = static_cast<std::size_t>(r);
        EXPECT_EQ(peaks(request(Order::kLayerParallel, p, m))[rank].kept, 1);
        EXPECT_EQ(peaks(request(Order::kGPipe, p, m))[rank].kept, m);
        EXPECT_EQ(peaks(request(Order::k1F1B, p, m))[rank].kept, p - r);
        for (const int v : {2, 3, 4}) {
          EXPECT_EQ(peaks(request(Order::kInterleaved1F1B, p, m, v))[rank].kept,
                    p * v + p - 1 - 2 * r);
        }
        EXPECT_EQ(peaks(request(Order::kZbH1, p, m))[rank].kept, p);
        EXPECT_EQ(peaks(request(Order::kZbV, p, m))[rank].kept, 2 * p);  // half a share each
        EXPECT_EQ(peaks(request(Order::kDualPipeV, p, m))[rank].kept, 2 * p + 1);
      }
    }
  }
  EXPECT_EQ(peaks(request(Order::k1F1B, 8, 3))[0].kept, 3);  // fewer micro-batches than ranks
}

// zb_h1's rank r has postponed r weight gradients, and is about to postpone another when it computes one.
TEST(Figures, WeightGradientsWaitInSlotsOfTheirOwn) {
  for (const int p : {2, 4, 8}) {
    const std::vector<Peak> zb_h1 = peaks(request(Order::kZbH1, p, 4 * p));
    for (int r = 0; r < p; ++r) {
      EXPECT_EQ(zb_h1[static_cast<std::size_t>(r)].activations, p - r);
      EXPECT_EQ(zb_h1[static_cast<std::size_t>(r)].waiting, r + 1);
    }
    for (const Peak& peak : peaks(request(Order::k1F1B, p, 4 * p))) EXPECT_EQ(peak.waiting, 0);
  }
}

TEST(Figures, PeaksCountBytesOfUnequalChunks) {
  // Rank 0's first chunk is twice the second: 2 forwards of one, then 1 of the other.
  const Schedule schedule = schedule_from(
      "pipeline 1 chunks_per_rank 2 placement v micro_batches 2 gathers no reduces never\n"
      "rank 0: 0F0 0F1 1F0 1I0 0I0 1W0 1F1 1B1 0B1 0W0\n");
  const auto peaks = peaks_by_rank(schedule, {{200, 20}, {100, 10}});
  EXPECT_EQ(peaks[0].activations, 500);
  EXPECT_EQ(peaks[0].waiting, 30);
  EXPECT_EQ(peaks[0].kept, 500);
  const auto by_chunk = peaks_by_chunk(schedule);
  EXPECT_EQ(by_chunk[0], (Peak{2, 1, 2}));
  EXPECT_EQ(by_chunk[1], (Peak{1, 1, 1}));
}

struct Halves {
  int forward, input, weight;
};

TEST(Figures, IdleTimeIsTheFormulasForUnequalHalvesToo) {
  for (const auto [f, i, w] : {Halves{1, 1, 1}, {2, 3, 2}, {4, 4, 3}}) {
    for (const int p : {2, 4, 6}) {
      const int m = 3 * p, whole = f + i + w;
      const auto idle = [&](Order order, int chunks = 0) {
        return figures_of(request(order, p, m, chunks), f, i, w).extra * m * whole;
      };
      SCOPED_TRACE(fmt::format("{} ranks, F {}, I {}, W {}", p, f, i, w));
      EXPECT_NEAR(idle(Order::kLayerParallel), (p - 1) * m * whole, 1e-9);
      EXPECT_NEAR(idle(Order::kGPipe), (p - 1) * whole, 1e-9);
      EXPECT_NEAR(idle(Order::k1F1B), (p - 1) * whole, 1e-9);
      EXPECT_NEAR(idle(Order::kInterleaved1F1B, 2), (p - 1) * whole / 2.0, 1e-9);
      EXPECT_NEAR(idle(Order::kInterleaved1F1B, 4), (p - 1) * whole / 4.0, 1e-9);
      EXPECT_NEAR(idle(Order::kZbH1), (p - 1) * (f + i - w), 1e-9);
    }
  }
}

// Their formula, where nothing is gained by overlapping and a forward takes as long as an input gradient.
TEST(Figures, DualPipesIdleTimeIsItsAuthors) {
  for (const auto [f, i, w] : {Halves{1, 1, 1}, {2, 2, 1}, {4, 4, 3}}) {
    for (const int p : {2, 4, 8}) {
      const Schedule schedule = executable(request(Order::kDualPipeV, p, 4 * p));
      const Simulation run = simulate(schedule, unit_times(schedule.layout, f, i, w));
      EXPECT_NEAR(units(run.idle(0)), (p - 1) * ((f + i + w) + (i + w) - 3 * w) / 2.0, 1e-9)
          << p << " ranks, F " << f << ", I " << i << ", W " << w;
    }
  }
}

int count(const std::vector<Action>& actions, ActionKind kind) {
  return static_cast<int>(std::count_if(actions.begin(), actions.end(),
                                        [&](const Action& action) { return action.kind == kind; }));
}

TEST(Figures, EveryBoundaryBetweenRanksCarriesAMessagePerMicroBatchAndDirection) {
  constexpr int kRanks = 4, kMicroBatches = 8;
  for (const auto [order, chunks] : kColumns) {
    const Schedule schedule = executable(request(order, kRanks, kMicroBatches, chunks));
    int sent = 0, received = 0;
    for (const std::vector<Action>& actions : schedule.ranks) {
      sent += count(actions, ActionKind::kSendActivations);
      sent += count(actions, ActionKind::kSendGradients);
      received += count(actions, ActionKind::kReceiveActivations);
      received += count(actions, ActionKind::kReceiveGradients);
    }
    const bool is_v = order == Order::kZbV || order == Order::kDualPipeV;
    const int boundaries = kRanks * chunks - 1 - (is_v ? 1 : 0);  // a V's turn is inside a rank
    EXPECT_EQ(sent, 2 * kMicroBatches * boundaries) << name_of(order);
    EXPECT_EQ(received, sent) << name_of(order);
  }
}

}  // namespace
}  // namespace sherd::schedule
