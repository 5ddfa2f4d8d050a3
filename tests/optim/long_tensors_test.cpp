// Tensors that take many segments (optim/slices.h cuts them at 65,536 elements): each optimizer
// against the one that knows whole tensors only.

#include <gtest/gtest.h>

#include <cmath>

#include "tests/optim/optimizer_runs.h"
#include "tests/support/runs/whole_tensor_optimizer.h"

namespace sherd::optim {
namespace {

using sharding::Rank;
using sharding::UnitState;
using sherd::testing::RunShape;

constexpr int kLongSteps = 2;

// Four segments of an embedding; of a block, three of a wide matrix, and two tall ones, stacked, of
// which the first takes two.
std::vector<UnitSpec> long_units() {
  return {{"embedding", UnitClass::kEdge, {{"embedding.token", {3, 70000}, {}, 0}}},
          {"block.0",
           UnitClass::kBlock,
           {{"block.0.norm", {13}, {}, 1},
            {"block.0.down", {20, 8000}, {}, 2},
            {"block.0.qkv", {12000, 12}, {}, 3, {9000, 3000}}}}};
}

OptimizerOptions long_options_of(OptimizerType type) {
  OptimizerOptions options;
  options.type = type;
  options.beta2 = 0.95f;
  options.eps = 0.01f;  // large enough to be seen
  options.momentum = 0.9f;
  options.trust_coefficient = 0.1f;
  options.adamw_lr_ratio = 0.5f;
  options.decay.rate = 0.1f;
  return options;
}

struct Compared {
  std::int64_t num_values = 0;
  double worst = 0.0;
  std::string where;
};

void compare(const UnitState& unit, const oracle::WholeTensorOptimizer& whole, Compared& compared) {
  for (const int slice_index : unit.updated_slices()) {
    const float* slice = unit.fp32_slice(slice_index).as<float>();
    for (const sharding::Piece& piece : unit.layout().pieces(slice_index)) {
      const ParameterSpec& parameter = unit.spec().parameters[piece.parameter];
      for (std::int64_t i = 0; i < piece.count; ++i) {
        const std::int64_t element = piece.first_element + i;
        // Where Lion's direction is nearly 0, its sign is rounding's.
        if (whole.smallest_direction(parameter.index, element) < 1e-6) continue;
        const double expected = whole.parameter(parameter.index)[static_cast<std::size_t>(element)];
        const double error = std::abs(slice[piece.position + i] - expected);
        ++compared.num_values;
        if (error <= compared.worst) continue;
        compared.worst = error;
        compared.where = fmt::format("{}[{}]", parameter.name, element);
      }
    }
  }
}

Compared compare_after_steps(OptimizerType type, const RunShape& shape,
                             const oracle::WholeTensorOptimizer& whole) {
  std::vector<Compared> of_rank(static_cast<std::size_t>(shape.world_size));
  sherd::testing::run_ranks(shape, [&](Rank& rank) {
    const auto units = test::make_units(
        long_units(), sharding::placement_of(shape.stage, sharding::GradSync::kEveryMicroStep),
        rank);
    for (const UnitState& unit : units) test::fill_slices(unit, initial_value);
    const auto optimizer = make_optimizer(long_options_of(type), rank, units);
    rank.guard([&] {
      for (int t = 1; t <= kLongSteps; ++t) {
        for (const UnitState& unit : units) {
          fill_gradients(unit, [t](std::uint32_t parameter, std::int64_t element) {
            return gradient_value(t, parameter, element);
          });
        }
        take_step(rank.compute(), *optimizer, units, update_step(0.01f, t));
      }
      Compared& mine = of_rank[static_cast<std::size_t>(rank.rank)];
      for (const UnitState& unit : units) compare(unit, whole, mine);
    });
  });
  Compared all;
  for (const Compared& one : of_rank) {
    all.num_values += one.num_values;
    if (one.worst >= all.worst) all.worst = one.worst, all.where = one.where;
  }
  return all;
}

TEST(LongTensors, EveryOptimizerTreatsManySegmentsAsTheOneTensorThatTheyAre) {
  for (const OptimizerType type :
       {OptimizerType::kAdamW, OptimizerType::kAdam, OptimizerType::kSgd, OptimizerType::kLion,
        OptimizerType::kLamb, OptimizerType::kLars, OptimizerType::kMuon, OptimizerType::kAdafactor,
        OptimizerType::kDion}) {
    oracle::WholeTensorOptimizer whole(long_options_of(type), long_units(), initial_value);
    for (int t = 1; t <= kLongSteps; ++t) {
      whole.step(update_step(0.01f, t), [t](std::uint32_t parameter, std::int64_t element) {
        return static_cast<double>(gradient_value(t, parameter, element));
      });
    }
    for (const RunShape& shape :
         {RunShape{.world_size = 1, .stage = 0, .threads_per_rank = 2},
          RunShape{.world_size = 2, .stage = 0}, RunShape{.world_size = 2, .stage = 3}}) {
      const Compared compared = compare_after_steps(type, shape, whole);
      EXPECT_LE(compared.worst, 2e-6) << "optimizer " << static_cast<int>(type) << ", "
                                      << sherd::testing::name_of(shape) << ": " << compared.where;
      EXPECT_GT(compared.num_values, 500000);
    }
  }
}

}  // namespace
}  // namespace sherd::optim
