#include "sharding/zero/owner_exchange.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <mutex>
#include <set>

#include "tests/sharding/sharding_support.h"

namespace sherd::sharding {
namespace {

using testing::RunShape;

const RunShape kShapes[] = {{.world_size = 1, .owners = 1},
                            {.world_size = 3, .owners = 2},
                            {.world_size = 2, .owners = 3},
                            {.world_size = 4, .owners = 1}};

Placement placement_at(int stage, const Mesh& mesh, int rank) {
  return placement_of_rank(placement_of(stage), mesh, rank);
}

// ps-lite's rule: server j of N has the keys from j F/N on.
TEST(OwnerKeys, AreContiguousRangesThatCoverAUnitOnce) {
  for (const RunShape& shape : kShapes) {
    const Mesh mesh = testing::mesh_of(shape);
    for (const UnitSpec& spec : test::small_units(2, false)) {
      for (int stage = 1; stage <= 3; ++stage) {
        const UnitPlan unit(spec, placement_at(stage, mesh, 0), {}, mesh);
        const std::int64_t numel = unit.layout.numel();
        const UnitPlan of_owner(spec, placement_at(stage, mesh, mesh.num_workers()), {}, mesh);
        EXPECT_EQ(of_owner.layout.numel(), numel) << "both kinds of rank know the same keys";
        std::int64_t next = 0;
        for (int owner = 0; owner < shape.owners; ++owner) {
          EXPECT_EQ(keys_of_owner(unit, mesh, owner), (KeyRange{next, numel / shape.owners}));
          next += numel / shape.owners;
        }
        EXPECT_EQ(next, numel);
        const KeyRange last = keys_of_worker(unit, mesh, shape.world_size - 1);
        EXPECT_EQ(last.first + last.count, numel);
        EXPECT_EQ(last.count, stage == 3 ? numel / shape.world_size : numel);
      }
    }
  }
}

// A worker's gradient of key k: of a size at which the order of three shows.
float gradient(int unit, int worker, std::int64_t key) {
  return test::number(static_cast<std::uint64_t>(unit), static_cast<std::uint64_t>(worker),
                      static_cast<std::uint64_t>(key));
}

TEST(OwnerPushSmall, AddsKeyByKeyInTheOrderOfWorkersHoweverLateTheyAre) {
  for (RunShape shape : kShapes) {
    shape.delay_seed = 11;
    testing::run_ranks(shape, [&](Rank& rank) {
      const auto units = test::make_units(test::small_units(2, false),
                                          placement_at(2, rank.mesh, rank.rank), rank);
      OwnerPush push(rank, units, 1);
      rank.guard([&] {
        for (int u = 0; u < std::ssize(units); ++u) {
          const UnitPlan& unit = units[static_cast<std::size_t>(u)].plan();
          std::vector<float> full(static_cast<std::size_t>(unit.layout.numel()));
          for (std::size_t k = 0; k < full.size(); ++k) {
            full[k] = gradient(u, rank.rank, static_cast<std::int64_t>(k));
          }
          const Tensor all{full.data(), DType::kF32, unit.layout.numel()};
          if (!rank.mesh.is_owner(rank.rank)) {
            push.push(rank.reduce(), u, all, {}, false);
            push.push(rank.reduce(), u, all, {}, true);
            rank.reduce().synchronize();
            continue;
          }
          const KeyRange keys = keys_of_owner(unit, rank.mesh, rank.rank - rank.mesh.num_workers());
          std::vector<float> sum(static_cast<std::size_t>(keys.count));
          const Tensor to{sum.data(), DType::kF32, keys.count};
          push.push(rank.reduce(), u, {}, to, false);
          push.push(rank.reduce(), u, {}, to, true);
          rank.reduce().synchronize();
          for (std::int64_t i = 0; i < keys.count; ++i) {
            float expected = gradient(u, 0, keys.first + i);
            for (int worker = 1; worker < 2 * rank.mesh.num_workers(); ++worker) {
              expected += gradient(u, worker % rank.mesh.num_workers(), keys.first + i);
            }
            EXPECT_EQ(sum[static_cast<std::size_t>(i)], expected)
                << "key " << keys.first + i << " of " << unit.spec.name;
          }
        }
      });
    });
  }
}

TEST(OwnerPullSmall, GivesEachWorkerTheParametersOfItsKeys) {
  for (RunShape shape : kShapes) {
    shape.delay_seed = 12;
    for (const int stage : {1, 3}) {
      testing::run_ranks(shape, [&](Rank& rank) {
        const auto units = test::make_units(test::small_units(2, false),
                                            placement_at(stage, rank.mesh, rank.rank), rank);
        OwnerPull pull(rank, units);
        rank.guard([&] {
          for (int u = 0; u < std::ssize(units); ++u) {
            const UnitPlan& unit = units[static_cast<std::size_t>(u)].plan();
            const bool owns = rank.mesh.is_owner(rank.rank);
            const KeyRange keys =
                owns ? keys_of_owner(unit, rank.mesh, rank.rank - rank.mesh.num_workers())
                     : keys_of_worker(unit, rank.mesh, rank.rank);
            std::vector<float> values(static_cast<std::size_t>(keys.count));
            for (std::size_t i = 0; owns && i < values.size(); ++i) {
              values[i] = static_cast<float>(keys.first) + static_cast<float>(i);
            }
            pull.pull(rank.gather(), u, {values.data(), DType::kF32, keys.count});
            rank.gather().synchronize();
            for (std::int64_t i = 0; i < keys.count; ++i) {
              ASSERT_EQ(values[static_cast<std::size_t>(i)], static_cast<float>(keys.first + i))
                  << "rank " << rank.rank << " of " << unit.spec.name << " at stage " << stage;
            }
          }
        });
      });
    }
  }
}

// unit.h's table, with W = 3 and N = 2: bytes per parameter of 16-bit compute.
TEST(OwnerMemory, IsThatOfTheTable) {
  const RunShape shape{.world_size = 3, .owners = 2};
  const Mesh mesh = testing::mesh_of(shape);
  const Precision bf16{DType::kBF16, DType::kF32, DType::kF32};
  const auto bytes = [&](int stage, int rank) {
    const UnitPlan unit(test::small_units(2, false)[1], placement_at(stage, mesh, rank), bf16,
                        mesh);
    std::int64_t sum = 0;
    for (const BufferSpec& buffer : unit_buffers(unit).list()) sum += buffer.bytes();
    return std::pair(sum, unit.layout.numel());
  };
  for (int stage = 1; stage <= 3; ++stage) {
    const auto [worker, numel] = bytes(stage, 0);
    const auto [owner, same] = bytes(stage, 4);
    EXPECT_EQ(owner, same * (2 + 4 + 4) / 2);
    EXPECT_EQ(worker, stage == 1 ? numel * (2 + 4) : stage == 2 ? numel * 2 : numel * 2 / 3);
  }
}

}  // namespace
}  // namespace sherd::sharding
