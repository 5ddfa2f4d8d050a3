// Parameters of a group are updated as if its rates were everybody's, and the others as if there
// were no group, bit for bit, at every stage and world.

#include <gtest/gtest.h>

#include <cmath>
#include <map>

#include "optim/matrices/matrix_plan.h"
#include "tests/optim/optimizer_runs.h"

namespace sherd::optim {
namespace {

using sharding::Rank;
using sharding::UnitState;
using sherd::testing::RunShape;

constexpr int kSteps = 5;
constexpr float kLr = 0.05f;

using Values = std::map<std::uint32_t, std::vector<float>>;  // by parameter index

Values trained(const OptimizerOptions& options, const RunShape& shape, int num_steps = kSteps,
               float lr = kLr) {
  Values values;
  for (const UnitSpec& unit : straddling_units()) {
    for (const ParameterSpec& parameter : unit.parameters) {
      values[parameter.index].resize(static_cast<std::size_t>(parameter.numel()));
    }
  }
  sherd::testing::run_ranks(shape, [&](Rank& rank) {
    const auto units = test::make_units(
        straddling_units(),
        sharding::placement_of(shape.stage, sharding::GradSync::kEveryMicroStep), rank);
    for (const UnitState& unit : units) test::fill_slices(unit, initial_value);
    const auto optimizer = make_optimizer(options, rank, units);
    rank.guard([&] {
      for (int t = 1; t <= num_steps; ++t) {
        for (const UnitState& unit : units) {
          fill_gradients(unit, [&](std::uint32_t parameter, std::int64_t element) {
            return gradient_value(t, parameter, element);
          });
        }
        take_step(rank.compute(), *optimizer, units, update_step(lr, t));
      }
      if (shape.stage == 0 && rank.rank > 0) return;  // all ranks have all of it
      for (const UnitState& unit : units) {
        for (const int index : unit.updated_slices()) {
          const float* slice = unit.fp32_slice(index).as<float>();
          for (const sharding::Piece& piece : unit.layout().pieces(index)) {
            std::vector<float>& whole = values[unit.spec().parameters[piece.parameter].index];
            std::copy_n(slice + piece.position, piece.count, whole.begin() + piece.first_element);
          }
        }
      }
    });
  });
  return values;
}

OptimizerOptions group_options_of(OptimizerType type) {
  OptimizerOptions options;
  options.type = type;
  options.eps = 1e-6f;
  options.momentum = 0.9f;
  options.trust_coefficient = 0.02f;
  options.decay.rate = 0.1f;
  return options;
}

bool is_in_group(const std::string& name) {
  return name == "embedding.token" || name.ends_with(".up") || name.ends_with("qkv_bias");
}

class Groups : public ::testing::TestWithParam<OptimizerType> {};
INSTANTIATE_TEST_SUITE_P(Optimizers, Groups,
                         ::testing::Values(OptimizerType::kAdamW, OptimizerType::kAdam,
                                           OptimizerType::kSgd, OptimizerType::kLion,
                                           OptimizerType::kLamb, OptimizerType::kLars,
                                           OptimizerType::kMuon, OptimizerType::kAdafactor,
                                           OptimizerType::kDion));

// Factors that are powers of two, since some optimizers multiply the rate and the factor in another
// order.
TEST_P(Groups, AreUpdatedAsIfTheirRatesWereEverybodys) {
  const OptimizerOptions plain = group_options_of(GetParam());
  const bool has_betas = GetParam() == OptimizerType::kAdamW ||
                         GetParam() == OptimizerType::kAdam || GetParam() == OptimizerType::kLion;
  OptimizerOptions grouped = plain, all = plain;
  ParameterGroup group{.patterns = {"embedding.token", "*.up", "*.qkv_bias"},
                       .lr_factor = 0.5f,
                       .beta1 = plain.beta1,
                       .beta2 = plain.beta2,
                       .eps = plain.eps};
  if (has_betas) {
    group.beta1 = all.beta1 = 0.8f;
    group.beta2 = all.beta2 = 0.9f;
    group.eps = all.eps = 1e-3f;
  }
  grouped.groups = {group};
  ParameterGroup everything = group;
  everything.patterns = {"*"};
  all.groups = {everything};
  const Values without = trained(plain, {}), with_all = trained(all, {});
  for (const RunShape& shape : stages_and_worlds()) {
    SCOPED_TRACE(sherd::testing::name_of(shape));
    const Values values = trained(grouped, shape);
    for (const UnitSpec& unit : straddling_units()) {
      for (const ParameterSpec& parameter : unit.parameters) {
        const Values& expected = is_in_group(parameter.name) ? with_all : without;
        EXPECT_EQ(values.at(parameter.index), expected.at(parameter.index)) << parameter.name;
      }
    }
  }
  EXPECT_NE(with_all, without);
}

// The decay has the rate's factor, too.
TEST_P(Groups, WithFactor0StayAsTheyAre) {
  OptimizerOptions options = group_options_of(GetParam());
  options.decay.no_decay.clear();
  ParameterGroup still{.patterns = {"*"},
                       .lr_factor = 0.0f,
                       .beta1 = options.beta1,
                       .beta2 = options.beta2,
                       .eps = options.eps};
  options.groups = {still};
  const Values values = trained(options, {});
  for (const UnitSpec& unit : straddling_units()) {
    for (const ParameterSpec& parameter : unit.parameters) {
      for (std::int64_t i = 0; i < parameter.numel(); ++i) {
        ASSERT_EQ(values.at(parameter.index)[static_cast<std::size_t>(i)],
                  initial_value(parameter.index, i))
            << parameter.name;
      }
    }
  }
}

// Adafactor's rate has a limit of its own, and the rest under Muon and Dion a rate of its own.
TEST_P(Groups, OfHalfTheRateAreThoseOfARunAtHalfTheRate) {
  OptimizerOptions options = group_options_of(GetParam());
  ParameterGroup half{.patterns = {"*"},
                      .lr_factor = 0.5f,
                      .beta1 = options.beta1,
                      .beta2 = options.beta2,
                      .eps = options.eps};
  const Values expected = trained(options, {}, kSteps, 0.5f * kLr);
  options.groups = {half};
  EXPECT_EQ(trained(options, {}), expected);
}

// AdamW's first step with a tiny eps moves each element by lr x sign(g), after the decay.
TEST(ParameterGroups, OfFactor2MoveTwiceAsFarAndOfFactor0NotAtAll) {
  OptimizerOptions options = group_options_of(OptimizerType::kAdamW);
  options.eps = 1e-30f;
  options.decay.rate = 0.0f;
  const auto rates = [&](float factor) {
    return ParameterGroup{.lr_factor = factor, .beta1 = 0.9f, .beta2 = 0.999f, .eps = 1e-30f};
  };
  ParameterGroup twice = rates(2.0f), never = rates(0.0f);
  twice.patterns = {"block.0.*"};
  never.patterns = {"block.*"};  // block 0 is in the first group already
  options.groups = {twice, never};
  const Values values = trained(options, {}, 1);
  const double lr = update_step(kLr, 1).lr;
  for (const UnitSpec& unit : straddling_units()) {
    const double factor = unit.name == "block.0" ? 2.0 : unit.name == "block.1" ? 0.0 : 1.0;
    for (const ParameterSpec& parameter : unit.parameters) {
      for (std::int64_t i = 0; i < parameter.numel(); ++i) {
        const double sign = std::copysign(1.0, gradient_value(1, parameter.index, i));
        const float before = initial_value(parameter.index, i);
        const float after = values.at(parameter.index)[static_cast<std::size_t>(i)];
        if (factor == 0.0) {
          ASSERT_EQ(after, before);
        } else {
          ASSERT_NEAR(after, before - factor * lr * sign, 1e-6) << parameter.name;
        }
      }
    }
  }
}

// A rate that is a power of two of Muon's, since it is multiplied in another order.
TEST(ParameterGroups, ThatMuonLeavesToAdamWHaveItsBits) {
  OptimizerOptions muon = group_options_of(OptimizerType::kMuon),
                   adamw = group_options_of(OptimizerType::kAdamW);
  muon.adamw_lr_ratio = 0.5f;
  adamw.groups = {{.patterns = {"*"},
                   .lr_factor = 0.5f,
                   .beta1 = adamw.beta1,
                   .beta2 = adamw.beta2,
                   .eps = adamw.eps}};
  OptimizerOptions grouped = muon;
  grouped.groups = {{.patterns = {"*.up", "block.1.qkv"},
                     .beta1 = muon.beta1,
                     .beta2 = muon.beta2,
                     .eps = muon.eps,
                     .adamw = true}};
  const Values of_muon = trained(muon, {}), of_adamw = trained(adamw, {});
  for (const RunShape& shape : stages_and_worlds()) {
    SCOPED_TRACE(sherd::testing::name_of(shape));
    const Values values = trained(grouped, shape);
    for (const UnitSpec& unit : straddling_units()) {
      for (const ParameterSpec& parameter : unit.parameters) {
        const bool left = grouped.group_of(parameter) == 0;
        EXPECT_EQ(values.at(parameter.index), (left ? of_adamw : of_muon).at(parameter.index))
            << parameter.name;
        if (!left) continue;
        EXPECT_NE(of_adamw.at(parameter.index), of_muon.at(parameter.index)) << parameter.name;
      }
    }
  }
}

TEST(ParameterGroups, MatricesOfOneRowAreLeftToAdamW) {
  const OptimizerOptions options = group_options_of(OptimizerType::kMuon);
  const UnitSpec block{"block.0", UnitClass::kBlock, {}};
  EXPECT_FALSE(is_by_matrix(options, block, {"block.0.gate.weight", {1, 8}, {}, 0}));
  EXPECT_TRUE(is_by_matrix(options, block, {"block.0.up.weight", {2, 8}, {}, 0}));
}

TEST(ParameterGroups, DecideTheDecayOfVectorsToo) {
  OptimizerOptions options = group_options_of(OptimizerType::kAdamW);
  options.groups = {{.patterns = {"*.norm"}, .weight_decay = 0.3f}, {.patterns = {"*.up"}}};
  const auto decay = [&](const std::string& name, std::vector<std::int64_t> shape) {
    return options.decay_of({name, std::move(shape), {}, 0});
  };
  EXPECT_EQ(decay("block.0.norm", {13}), 0.3f);
  EXPECT_EQ(decay("block.0.up", {3, 4}), 0.1f) << "the group doesn't say";
  EXPECT_EQ(decay("block.0.bias", {4}), 0.0f);
}

}  // namespace
}  // namespace sherd::optim
