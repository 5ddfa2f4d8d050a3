#include "sharding/zero/parameter_gather.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>

#include "sharding/mesh/process_groups.h"
#include "tests/sharding/sharding_support.h"

namespace sherd::sharding {
namespace {

// Passes everything on and remembers whose all-gathers were asked for, in order.
class CountingCommunicator final : public Communicator {
 public:
  explicit CountingCommunicator(std::unique_ptr<Communicator> inner) : inner_(std::move(inner)) {}

  std::vector<std::string> gathers;

  int rank() const override { return inner_->rank(); }
  int world_size() const override { return inner_->world_size(); }
  void all_gather(Stream& stream, const std::string& label, Tensor full) override {
    gathers.push_back(label);
    inner_->all_gather(stream, label, full);
  }
  void reduce_scatter(Stream& stream, const std::string& label, Tensor full, Tensor out,
                      const Addends& addends) override {
    inner_->reduce_scatter(stream, label, full, out, addends);
  }
  void all_reduce(Stream& stream, const std::string& label, Tensor full, int tree) override {
    inner_->all_reduce(stream, label, full, tree);
  }
  void all_to_all(Stream& stream, const std::string& label, Tensor full, Tensor out) override {
    inner_->all_to_all(stream, label, full, out);
  }
  void all_to_all_v(Stream& stream, const std::string& label, Tensor from,
                    const std::vector<ElementRange>& sends, Tensor to,
                    const std::vector<ElementRange>& receives) override {
    inner_->all_to_all_v(stream, label, from, sends, to, receives);
  }
  void broadcast(Stream& stream, const std::string& label, Tensor data, int root) override {
    inner_->broadcast(stream, label, data, root);
  }
  void barrier(Stream& stream, const std::string& label) override {
    inner_->barrier(stream, label);
  }
  void abort(const std::string& reason) override { inner_->abort(reason); }

 private:
  std::unique_ptr<Communicator> inner_;
};

struct GatherCase {
  int stage = 3;
  int world_size = 2;
  int num_blocks = 4;
  bool tied = false;
  GatherOptions options = {};
  Precision precision = {};
  std::uint64_t delay_seed = 0;
};

// One rank's units and their gather, with parameters that are a function of the version.
struct Bench {
  Bench(const GatherCase& example_, Rank& rank_)
      : example(example_),
        rank(rank_),
        communicator(count_gathers(rank_)),
        units(test::make_units(test::small_units(example.num_blocks, example.tied),
                               placement_of(example.stage, GradSync::kEveryMicroStep), rank,
                               example.precision)),
        gather(rank, units, example.options) {}

  static CountingCommunicator& count_gathers(Rank& rank) {
    CountingCommunicator* communicator = nullptr;
    rank.groups->wrap_with([&](std::unique_ptr<Communicator> inner) {
      auto counting = std::make_unique<CountingCommunicator>(std::move(inner));
      communicator = counting.get();
      return counting;
    });
    rank.groups->get(zero_axes(), Purpose::kGather);
    rank.groups->wrap_with({});
    return *communicator;
  }

  int head() const { return example.tied ? 0 : example.num_blocks + 1; }

  /// Embedding, blocks, head, blocks backwards; once per micro-step.
  std::vector<int> uses(int num_micro_steps) const {
    std::vector<int> uses;
    for (int m = 0; m < num_micro_steps; ++m) {
      for (int unit = 0; unit <= example.num_blocks; ++unit) uses.push_back(unit);
      uses.push_back(head());
      for (int unit = example.num_blocks; unit >= 1; --unit) uses.push_back(unit);
    }
    return uses;
  }

  /// As an update does: new values in this rank's slices, then publish.
  void update(int new_version) {
    version = new_version;
    for (std::size_t u = 0; u < units.size(); ++u) {
      test::fill_slices(units[u], [&](auto p, auto i) { return value(p, i); });
      gather.publish(static_cast<int>(u));
    }
  }
  float value(std::uint64_t parameter, std::int64_t element) const {
    return test::number(parameter, static_cast<std::uint64_t>(element),
                        static_cast<std::uint64_t>(version));
  }

  void use(int unit) {
    const std::vector<Tensor> views = gather.get(unit);
    const auto& parameters = units[unit].spec().parameters;
    ASSERT_EQ(views.size(), parameters.size());
    for (std::size_t p = 0; p < views.size(); ++p) {
      ASSERT_EQ(views[p].numel, parameters[p].numel());
      for (std::int64_t i = 0; i < views[p].numel; ++i) {
        const float expected = value(parameters[p].index, i);
        if (example.precision.parameters == DType::kF32) {
          ASSERT_EQ(views[p].as<float>()[i], expected) << parameters[p].name << "[" << i << "]";
        } else {
          ASSERT_EQ(views[p].as<BFloat16>()[i].bits, BFloat16(expected).bits);
        }
      }
    }
    gather.release(unit);
  }
  void step(int num_micro_steps = 1) {
    gather.plan(uses(num_micro_steps));
    for (const int unit : uses(num_micro_steps)) use(unit);
  }

  /// Gathers of blocks since the last call; of the others.
  std::pair<int, int> count() {
    int blocks = 0;
    for (const std::string& name : communicator.gathers) blocks += name.starts_with("block");
    const int edges = static_cast<int>(communicator.gathers.size()) - blocks;
    communicator.gathers.clear();
    return {blocks, edges};
  }

  const GatherCase& example;
  Rank& rank;
  CountingCommunicator& communicator;
  std::vector<UnitState> units;
  ParameterGather gather;
  int version = 0;
};

void on_ranks(const GatherCase& example, const std::function<void(Bench&)>& body) {
  testing::run_ranks({.world_size = example.world_size, .delay_seed = example.delay_seed},
                     [&](Rank& rank) {
                       Bench bench(example, rank);
                       rank.guard([&] { body(bench); });
                     });
}

TEST(ParameterGather, GivesTheWholeParametersAtEveryStageWorldAndDepth) {
  for (int stage = 0; stage <= 3; ++stage) {
    for (int world = 1; world <= 4; ++world) {
      for (int depth = 0; depth <= 3; ++depth) {
        const GatherCase example{.stage = stage,
                                 .world_size = world,
                                 .tied = depth % 2 == 1,
                                 .options = {depth, world != 2}};
        on_ranks(example, [](Bench& bench) {
          for (int version = 1; version <= 3; ++version) {
            bench.update(version);
            bench.step(version);
          }
        });
      }
    }
  }
}

TEST(ParameterGather, RoundsParametersToTheComputeTypeAtEveryStage) {
  for (int stage = 0; stage <= 3; ++stage) {
    const GatherCase example{.stage = stage, .precision = {DType::kBF16, DType::kF32, DType::kF32}};
    on_ranks(example, [](Bench& bench) {
      for (int version = 1; version <= 2; ++version) {
        bench.update(version);
        bench.step();
      }
    });
  }
}

// No use may see the parameters of before the publish, however late a stream is.
TEST(ParameterGather, ShowsWhatWasPublishedThoughStreamsAreLate) {
  for (int stage = 0; stage <= 3; ++stage) {
    for (int depth = 0; depth <= 2; ++depth) {
      const GatherCase example{.stage = stage,
                               .world_size = 3,
                               .options = {depth, true},
                               .delay_seed = 11u + static_cast<unsigned>(depth)};
      on_ranks(example, [](Bench& bench) {
        for (int version = 1; version <= 4; ++version) {
          bench.update(version);
          bench.step();
        }
      });
    }
  }
}

// With S slots the last S blocks of a forward are still there when the backward begins, and the
// first S when the next forward does: L + (2 M - 1) (L - S) gathers for M micro-steps.
TEST(ParameterGather, GathersABlockOnlyIfItIsInNoSlot) {
  constexpr int kBlocks = 4;
  for (int depth = 0; depth <= 5; ++depth) {
    const GatherCase example{.num_blocks = kBlocks, .options = {depth, true}};
    on_ranks(example, [&](Bench& bench) {
      for (int micro_steps = 1; micro_steps <= 3; ++micro_steps) {
        bench.update(micro_steps);
        bench.step(micro_steps);
        const int slots = std::min(depth + 1, kBlocks);
        const auto [blocks, edges] = bench.count();
        EXPECT_EQ(blocks, kBlocks + (2 * micro_steps - 1) * (kBlocks - slots)) << "depth " << depth;
        EXPECT_EQ(edges, 2 * micro_steps) << "embedding and head take turns in one slot";
      }
    });
  }
}

// The first uses of a step, with nothing in any slot: what is asked for is the unit in use and the
// `depth` uses after it. At depth 0 nothing is gathered before the use.
TEST(ParameterGather, AsksForAsManyUsesAheadAsItsDepthAndNoMore) {
  constexpr int kBlocks = 4;
  for (int depth = 0; depth <= 3; ++depth) {
    on_ranks({.num_blocks = kBlocks, .options = {depth, true}}, [&](Bench& bench) {
      bench.update(1);
      bench.gather.plan(bench.uses(1));
      EXPECT_EQ(bench.communicator.gathers.size(), 0u) << "depth " << depth;
      for (int use = 0; use <= kBlocks; ++use) {
        // The blocks after the head are in slots already.
        const auto asked_for = static_cast<std::size_t>(std::min(use + depth, kBlocks + 1) + 1);
        bench.gather.get(use);
        EXPECT_EQ(bench.communicator.gathers.size(), asked_for) << "depth " << depth;
        bench.gather.release(use);
        EXPECT_EQ(bench.communicator.gathers.size(), asked_for) << "depth " << depth;
      }
      bench.gather.abandon();
    });
  }
}

TEST(ParameterGather, GathersTheBlockAtTheTurnOnce) {
  on_ranks({.num_blocks = 3, .options = {0, true}}, [](Bench& bench) {
    bench.update(1);
    bench.step();
    EXPECT_EQ(bench.communicator.gathers,
              (std::vector<std::string>{"embedding", "block.0", "block.1", "block.2", "head",
                                        "block.1", "block.0"}));
  });
}

TEST(ParameterGather, GathersEachUnitOncePerStepIfItIsKeptAfterTheForward) {
  for (const bool tied : {false, true}) {
    for (int depth = 0; depth <= 3; ++depth) {
      on_ranks({.tied = tied, .options = {depth, false}}, [&](Bench& bench) {
        for (int step = 1; step <= 2; ++step) {
          bench.update(step);
          bench.step();
          EXPECT_EQ(bench.count(), std::pair(4, tied ? 1 : 2)) << "depth " << depth;
        }
      });
    }
  }
}

TEST(ParameterGather, GathersATiedEdgeOnceUntilItIsUpdated) {
  on_ranks({.tied = true}, [](Bench& bench) {
    bench.update(1);
    bench.step(3);
    bench.step(1);
    EXPECT_EQ(bench.count().second, 1);
    bench.update(2);
    bench.step(1);
    EXPECT_EQ(bench.count().second, 1);
  });
}

TEST(ParameterGather, GathersOncePerUnitAndPublishAtStagesOneAndTwoAndNeverAtStageZero) {
  for (int stage = 0; stage <= 2; ++stage) {
    on_ranks({.stage = stage}, [&](Bench& bench) {
      bench.update(1);
      bench.step(3);
      EXPECT_EQ(bench.communicator.gathers.size(), stage == 0 ? 0u : 6u);
    });
  }
}

TEST(ParameterGather, HoldsDepthPlusOneBlocksAndOneEdge) {
  constexpr int kBlocks = 3;
  for (const bool reshard : {true, false}) {
    for (int depth = 0; depth <= 3; ++depth) {
      on_ranks({.num_blocks = kBlocks, .options = {depth, reshard}}, [&](Bench& bench) {
        const int block_slots = reshard ? std::min(depth + 1, kBlocks) : kBlocks;
        std::map<UnitClass, std::int64_t> largest;
        for (const UnitState& unit : bench.units) {
          std::int64_t& numel = largest[unit.spec().unit_class];
          numel = std::max(numel, test::padded_numel(unit.spec(), 2));
        }
        int num_slots = 0;
        for (const BufferSpec& buffer : bench.rank.memory->acquired()) {
          num_slots += buffer.category == Category::kGatheredParameters;
        }
        EXPECT_EQ(num_slots, block_slots + 1);
        EXPECT_EQ(
            bench.rank.memory->current()[static_cast<std::size_t>(Category::kGatheredParameters)],
            4 * (block_slots * largest[UnitClass::kBlock] + largest[UnitClass::kEdge]));
      });
    }
  }
}

TEST(ParameterGather, HoldsNoSlotsWhereParametersAreResident) {
  for (int stage = 0; stage <= 2; ++stage) {
    on_ranks({.stage = stage}, [](Bench& bench) {
      EXPECT_EQ(
          bench.rank.memory->current()[static_cast<std::size_t>(Category::kGatheredParameters)], 0);
    });
  }
}

TEST(ParameterGather, StartsAfreshAfterAnAbandonedPlan) {
  for (const int stage : {1, 3}) {
    on_ranks({.stage = stage, .options = {2, true}}, [](Bench& bench) {
      bench.update(1);
      bench.gather.plan(bench.uses(1));
      bench.use(0);
      bench.gather.get(1);
      bench.gather.abandon();
      bench.step(2);
    });
  }
}

// World 1, so that no peer waits for the rank that dies.
TEST(ParameterGatherDeathTest, MisuseIsOurBug) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  for (const int stage : {0, 3}) {
    on_ranks({.stage = stage, .world_size = 1}, [](Bench& bench) {
      bench.update(1);
      bench.gather.plan({0, 1, 2});
      EXPECT_DEATH(bench.gather.get(1), "get of block.0 out of the plan's order");
      EXPECT_DEATH(bench.gather.release(0), "release of embedding without a get");
      bench.gather.get(0);
      EXPECT_DEATH(bench.gather.get(1), "get of block.0 before the release of embedding");
      EXPECT_DEATH(bench.gather.release(1), "release of block.0 without a get");
      bench.gather.release(0);
      EXPECT_DEATH(bench.gather.plan({0}), "a new plan with 2 uses left of the old one");
      bench.use(1);
      bench.use(2);
      EXPECT_DEATH(bench.gather.get(3), "get of block.2 out of the plan's order");
    });
  }
}

}  // namespace
}  // namespace sherd::sharding
