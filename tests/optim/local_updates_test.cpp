// Local updates: torchft's fixture of made-up inner steps, the schedule, and the outer step on ranks.
#include "optim/local_updates.h"

#include <gtest/gtest.h>

#include <mutex>
#include <utility>

#include "optim/outer_update.h"
#include "tests/optim/optimizer_runs.h"

namespace sherd::optim {
namespace {

using sharding::Placement;
using sharding::Rank;
using sharding::UnitState;
using sherd::testing::RunShape;

/// A value before each step.
using Trace = std::vector<double>;

Placement apart(int stage) {
  Placement placement = sharding::placement_of(stage);
  placement.replicas_apart = true;
  return placement;
}

RunShape replicas_of(int replicas, int shards = 1, int stage = 1) {
  return {.world_size = replicas * shards,
          .axes = {{"replicate", replicas}, {"shard", shards}},
          .stage = stage,
          .delay_seed = 5};
}

/// Units of one parameter of one element, each a fragment.
std::vector<UnitSpec> single_elements(int count) {
  std::vector<UnitSpec> units;
  for (int i = 0; i < count; ++i) {
    const std::string name = fmt::format("block.{}", i);
    units.push_back({name,
                     UnitClass::kBlock,
                     {ParameterSpec{name + ".bias", {1}, {}, static_cast<std::uint32_t>(i)}}});
  }
  return units;
}

void subtract(const UnitState& unit, const std::function<float(std::uint32_t, std::int64_t)>& by) {
  for (const int index : unit.updated_slices()) {
    float* slice = unit.fp32_slice(index).as<float>();
    for (const sharding::Piece& piece : unit.layout().pieces(index)) {
      const std::uint32_t parameter = unit.spec().parameters[piece.parameter].index;
      for (std::int64_t i = 0; i < piece.count; ++i) {
        slice[piece.position + i] -= by(parameter, piece.first_element + i);
      }
    }
  }
}

void synchronise(const LocalUpdates& options, OuterUpdate& outer, std::int64_t steps_done) {
  if (const auto sent = options.sent(steps_done)) outer.send(*sent);
  if (const auto applied = options.applied(steps_done)) outer.apply(*applied);
}

/// By replica and fragment. Each replica has a constant gradient, and an inner rate of 1.
std::vector<std::vector<Trace>> trace(LocalUpdates options, const std::vector<float>& gradients,
                                      int num_steps) {
  options.num_replicas = static_cast<int>(gradients.size());
  std::vector<std::vector<Trace>> traces(gradients.size());
  sherd::testing::run_ranks(replicas_of(options.num_replicas), [&](Rank& rank) {
    const int fragments = static_cast<int>(options.num_fragments);
    const auto units = test::make_units(single_elements(fragments), apart(1), rank);
    std::vector<int> fragment_of;
    for (const UnitState& unit : units) {
      test::fill_slices(unit, [](auto, auto) { return 1.0f; });
      fragment_of.push_back(options.fragment_of(static_cast<int>(fragment_of.size()), fragments));
    }
    OuterUpdate outer(options, {}, rank, units, fragment_of);
    std::vector<Trace> own(units.size());
    rank.guard([&] {
      rank.memory->enter(kUpdate);
      for (int step = 0; step < num_steps; ++step) {
        for (std::size_t i = 0; i < units.size(); ++i) {
          own[i].push_back(static_cast<double>(units[i].fp32_slice(0).as<float>()[0]));
          subtract(units[i],
                   [&](auto, auto) { return gradients[static_cast<std::size_t>(rank.rank)]; });
        }
        synchronise(options, outer, step + 1);
      }
    });
    traces[static_cast<std::size_t>(rank.rank)] = own;
  });
  return traces;
}

struct Table {
  std::int64_t delay = 0;
  double alpha = 0.0;
  Trace first, second;  // fragments
};

/// Values that fall by 2 in each step, except where `jumps` says what one is before a step.
Trace falling(const std::vector<std::pair<int, double>>& jumps) {
  Trace values = {1.0};
  for (int step = 1; step < 16; ++step) {
    values.push_back(values.back() - 2.0);
    for (const auto& [at, value] : jumps) {
      if (at == step) values.back() = value;
    }
  }
  return values;
}

// torchft's diloco_regression_test.py: two fragments, sync_every 6, gradient 2, inner rate 1, an
// outer plain SGD of rate 2.
std::vector<Table> tables() {
  return {{0,
           0.0,
           {1, -1, -3, -11, -13, -15, -17, -19, -21, -35, -37, -39, -41, -43, -45, -59},
           {1, -1, -3, -5, -7, -9, -23, -25, -27, -29, -31, -33, -47, -49, -51, -53}},
          {0, 0.5, falling({{3, -8}, {9, -24.5}, {15, -40.25}}), falling({{6, -17}, {12, -32}})},
          {0, 1.0, falling({}), falling({})},
          {1, 0.0, falling({{3, -7}, {9, -27}, {15, -47}}), falling({{6, -19}, {12, -39}})},
          {1, 0.5, falling({{3, -6}, {9, -21.5}, {15, -35.75}}), falling({{6, -15}, {12, -29}})},
          {1, 1.0, falling({}), falling({})}};
}

LocalUpdates options_of(const Table& table) {
  return {.sync_every = 6,
          .outer_lr = 2.0,
          .outer_momentum = 0.0,
          .num_fragments = 2,
          .fragment_sync_delay = table.delay,
          .fragment_update_alpha = table.alpha};
}

TEST(LocalUpdates, HaveTheValuesOfTorchftsSixTables) {
  for (const Table& table : tables()) {
    SCOPED_TRACE(fmt::format("delay {} alpha {}", table.delay, table.alpha));
    const auto values = trace(options_of(table), {2.0f}, 16);
    EXPECT_EQ(values[0][0], table.first);
    EXPECT_EQ(values[0][1], table.second);
  }
}

// The outer step is linear, so replicas whose gradients are 2 on average have the tables' mean.
TEST(LocalUpdates, OfReplicasWithOtherGradientsHaveThemOnAverage) {
  for (const Table& table : tables()) {
    for (const std::vector<float>& gradients :
         {std::vector<float>{1.5f, 2.5f}, {2.0f, 1.25f, 3.5f, 1.25f}}) {
      SCOPED_TRACE(fmt::format("delay {} alpha {}, {} replicas", table.delay, table.alpha,
                               gradients.size()));
      const auto values = trace(options_of(table), gradients, 16);
      for (const std::size_t fragment : {0, 1}) {
        const Trace& expected = fragment == 0 ? table.first : table.second;
        for (std::size_t step = 0; step < expected.size(); ++step) {
          double sum = 0.0;
          for (const auto& of_replica : values) sum += of_replica[fragment][step];
          EXPECT_EQ(sum / static_cast<double>(gradients.size()), expected[step]) << step;
        }
      }
    }
  }
}

// With alpha 0 and no delay, all have the same weights whenever a fragment was applied.
TEST(LocalUpdates, LeaveReplicasEqualAfterAnExchange) {
  const auto values = trace(options_of(tables()[0]), {1.5f, 2.5f}, 16);
  for (const int step : {3, 9, 15}) EXPECT_EQ(values[0][0][step], values[1][0][step]);
  for (const int step : {6, 12}) EXPECT_EQ(values[0][1][step], values[1][1][step]);
  EXPECT_NE(values[0][0][4], values[1][0][4]);
}

TEST(LocalUpdates, WithAlphaOneReplicasNeverInfluenceEachOther) {
  for (const std::int64_t delay : {0, 2}) {
    LocalUpdates options{.sync_every = 6,
                         .num_fragments = 2,
                         .fragment_sync_delay = delay,
                         .fragment_update_alpha = 1.0};
    const auto values = trace(options, {0.5f, 3.0f}, 14);
    for (int step = 0; step < 14; ++step) {
      EXPECT_EQ(values[0][0][static_cast<std::size_t>(step)], 1.0 - 0.5 * step);
      EXPECT_EQ(values[1][1][static_cast<std::size_t>(step)], 1.0 - 3.0 * step);
    }
  }
}

// Rate 0.7 and momentum 0.9: a constant change of 1 gives outer steps 1.33, 1.897, 2.4073, 2.86657.
TEST(LocalUpdates, HaveNesterovsOuterMomentum) {
  const auto values = trace({.sync_every = 1}, {1.0f}, 5);
  const double expected[] = {1.33, 1.897, 2.4073, 2.86657};
  for (std::size_t i = 0; i < 4; ++i) {
    EXPECT_NEAR(values[0][0][i] - values[0][0][i + 1], expected[i], 2e-6);
  }
}

TEST(LocalUpdates, SendAFragmentInTurnAndApplyItAfterTheDelay) {
  const LocalUpdates options{.sync_every = 12, .num_fragments = 3, .fragment_sync_delay = 1};
  std::vector<std::pair<int, int>> sent, applied;  // after a number of steps, a fragment
  for (int done = 0; done <= 16; ++done) {
    if (const auto fragment = options.sent(done)) sent.emplace_back(done, *fragment);
    if (const auto fragment = options.applied(done)) applied.emplace_back(done, *fragment);
  }
  using Pairs = std::vector<std::pair<int, int>>;
  EXPECT_EQ(sent, (Pairs{{3, 0}, {7, 1}, {11, 2}, {15, 0}}));
  EXPECT_EQ(applied, (Pairs{{4, 0}, {8, 1}, {12, 2}, {16, 0}}));
}

TEST(LocalUpdates, DivideUnitsIntoGroupsOfNeighboursNoneOfWhichIsEmpty) {
  for (int units = 1; units <= 9; ++units) {
    for (int fragments = 1; fragments <= units; ++fragments) {
      const LocalUpdates options{.sync_every = fragments, .num_fragments = fragments};
      int before = 0;
      for (int i = 0; i < units; ++i) {
        const int fragment = options.fragment_of(i, units);
        EXPECT_TRUE(fragment == before || fragment == before + 1) << units << " " << fragments;
        before = fragment;
      }
      EXPECT_EQ(options.fragment_of(0, units), 0);
      EXPECT_EQ(before, fragments - 1);
    }
  }
}

/// The parameters of replica 0 after some steps; gradients by replica, step, parameter and element.
using Gradient = std::function<float(int, int, std::uint32_t, std::int64_t)>;
std::vector<std::vector<float>> after_steps(LocalUpdates options, const RunShape& shape,
                                            int num_steps, const Gradient& gradient) {
  options.num_replicas = shape.axes[0].degree;
  std::vector<std::vector<float>> parameters;
  for (const UnitSpec& unit : straddling_units()) {
    for (const ParameterSpec& parameter : unit.parameters) {
      parameters.emplace_back(static_cast<std::size_t>(parameter.numel()));
    }
  }
  sherd::testing::run_ranks(shape, [&](Rank& rank) {
    const auto units = test::make_units(straddling_units(), apart(shape.stage), rank);
    const int replica = rank.mesh.coordinate(rank.rank, sharding::kReplicateAxis);
    for (const UnitState& unit : units) test::fill_slices(unit, initial_value);
    OuterUpdate outer(options, {}, rank, units, {0, 0, 0});
    rank.guard([&] {
      rank.memory->enter(kUpdate);
      for (int step = 0; step < num_steps; ++step) {
        for (const UnitState& unit : units) {
          subtract(unit, [&](std::uint32_t parameter, std::int64_t i) {
            return gradient(replica, step, parameter, i);
          });
        }
        synchronise(options, outer, step + 1);
      }
      rank.compute().synchronize();
      if (replica != 0) return;
      for (const UnitState& unit : units) {
        const int index = unit.own_slice();
        for (const sharding::Piece& piece : unit.layout().pieces(index)) {
          const auto parameter = unit.spec().parameters[piece.parameter].index;
          std::copy_n(unit.fp32_slice(index).as<float>() + piece.position, piece.count,
                      parameters[parameter].begin() + piece.first_element);
        }
      }
    });
  });
  return parameters;
}

// Gradients of few bits, so that every sum is exact: the mean of four replicas' weights is what one
// that follows the mean gradient has.
TEST(OuterUpdate, AfterEveryStepAtRateOneIsSynchronousSgdBitForBit) {
  const Gradient of_replica = [](int replica, int step, std::uint32_t parameter, std::int64_t i) {
    return static_cast<float>((replica * 7 + step * 3 + parameter + i) % 16) / 1024.0f;
  };
  const Gradient mean = [&](int, int step, std::uint32_t parameter, std::int64_t i) {
    float sum = 0.0f;
    for (int replica = 0; replica < 4; ++replica) sum += of_replica(replica, step, parameter, i);
    return sum / 4.0f;
  };
  const LocalUpdates options{.sync_every = 1, .outer_lr = 1.0, .outer_momentum = 0.0};
  EXPECT_EQ(after_steps(options, replicas_of(4), 5, of_replica),
            after_steps({.sync_every = 100}, replicas_of(1), 5, mean));
}

// Changes that are exact (to less than twice, and more than half of it) come back exactly.
TEST(OuterUpdate, OfOneReplicaAtRateOneChangesNothing) {
  const Gradient gradient = [](int, int step, std::uint32_t parameter, std::int64_t i) {
    return initial_value(parameter, i) * 0.05f * static_cast<float>(step % 3 - 1);
  };
  const auto expected = after_steps({.sync_every = 1000}, replicas_of(1), 8, gradient);
  for (const std::int64_t every : {1, 3, 8}) {
    const LocalUpdates options{.sync_every = every, .outer_lr = 1.0, .outer_momentum = 0.0};
    EXPECT_EQ(after_steps(options, replicas_of(1), 8, gradient), expected) << every;
  }
}

TEST(OuterUpdate, HasTheSameBitsAtEveryStageAndOnAnyNumberOfShards) {
  const Gradient gradient = [](int replica, int step, std::uint32_t parameter, std::int64_t i) {
    return 0.1f * test::number(parameter, static_cast<std::uint64_t>(i),
                               static_cast<std::uint64_t>(step),
                               static_cast<std::uint64_t>(replica));
  };
  const LocalUpdates options{
      .sync_every = 3, .fragment_sync_delay = 1, .fragment_update_alpha = 0.25};
  const auto expected = after_steps(options, replicas_of(3, 1, 1), 8, gradient);
  for (int stage = 0; stage <= 3; ++stage) {
    for (const int shards : {1, 2}) {
      EXPECT_EQ(after_steps(options, replicas_of(3, shards, stage), 8, gradient), expected)
          << "stage " << stage << ", " << shards << " shards";
    }
  }
}

// A change is rounded once on each replica and once as a sum: each time by half of a scale, which is
// the largest number of a block / 127 or 7, times at most 1 + 2^-7 (kernels/block_codec.h).
TEST(OuterUpdate, InFewBitsIsOffByHalfAScaleOfEachRounding) {
  const Gradient gradient = [](int replica, int step, std::uint32_t parameter, std::int64_t i) {
    return 0.1f * test::number(parameter, static_cast<std::uint64_t>(i),
                               static_cast<std::uint64_t>(step),
                               static_cast<std::uint64_t>(replica));
  };
  LocalUpdates options{.sync_every = 1, .outer_lr = 1.0, .outer_momentum = 0.0};
  const auto exact = after_steps(options, replicas_of(3), 1, gradient);
  for (const auto& [quantize, levels] :
       {std::pair(Quantize::kInt8, 127.0), {Quantize::kInt4, 7.0}}) {
    options.quantize = quantize;
    const auto rounded = after_steps(options, replicas_of(3), 1, gradient);
    EXPECT_NE(rounded, exact);
    const double most = 2.0 * 0.1 / levels / 2.0 * (1.0 + 1.0 / 128.0) + 1e-6;
    for (std::size_t p = 0; p < exact.size(); ++p) {
      for (std::size_t i = 0; i < exact[p].size(); ++i) {
        ASSERT_NEAR(rounded[p][i], exact[p][i], most) << p << " " << i;
      }
    }
  }
}

TEST(OuterUpdate, InFewBitsMovesNothingWhereNothingHasChanged) {
  const Gradient none = [](int, int, std::uint32_t, std::int64_t) { return 0.0f; };
  LocalUpdates options{.sync_every = 1};
  const auto still = after_steps({.sync_every = 1000}, replicas_of(2), 1, none);
  for (const Quantize quantize : {Quantize::kInt8, Quantize::kInt4}) {
    options.quantize = quantize;
    EXPECT_EQ(after_steps(options, replicas_of(2), 200, none), still);
  }
}

TEST(OuterUpdate, IsExchangedWithTheParametersAndBack) {
  for (const int stage : {0, 1}) {
    sherd::testing::run_ranks(replicas_of(2, 2, stage), [&](Rank& rank) {
      const auto units = test::make_units(straddling_units(), apart(stage), rank);
      for (const UnitState& unit : units) test::fill_slices(unit, initial_value);
      const LocalUpdates options{.sync_every = 100, .num_replicas = 2};
      OuterUpdate outer(options, {}, rank, units, {0, 0, 0});
      const auto values = [&] {
        std::vector<float> all;
        for (const UnitState& unit : units) {
          for (const int index : unit.updated_slices()) {
            const Tensor slice = unit.fp32_slice(index);
            all.insert(all.end(), slice.as<float>(), slice.as<float>() + slice.numel);
          }
        }
        return all;
      };
      rank.guard([&] {
        const std::vector<float> before = values();
        for (const UnitState& unit : units) {
          subtract(unit, [&](auto, auto) { return 1.0f + static_cast<float>(rank.rank / 2); });
        }
        const std::vector<float> trained = values();
        for (const auto* expected : {&before, &trained}) {
          outer.settle();
          for (int unit = 0; unit < 3; ++unit) outer.exchange(unit);
          rank.compute().synchronize();
          EXPECT_EQ(values(), *expected) << "stage " << stage;
        }
      });
    });
  }
}

}  // namespace
}  // namespace sherd::optim
