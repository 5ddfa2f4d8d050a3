// AdamW and SGD at every stage and world against the textbook in double precision, on whole
// tensors.

#include "optim/optimizer.h"

#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <map>

#include "tests/sharding/sharding_support.h"

namespace sherd::optim {
namespace {

using sharding::GradSync;
using sharding::Rank;
using sharding::UnitState;

constexpr int kOptimizerSteps = 20;
constexpr float kLr = 0.02f;
constexpr float kScale = 0.75f;  // a clip factor
// Parameters of about 1 move by at most 0.02 a step. Each step rounds the parameter (2^-24) and the
// update (some 2^-24 of 0.02, more where moments nearly cancel): 20 steps stay below 5e-6.
constexpr double kOptimizerTolerance = 5e-6;

float initial(std::uint64_t parameter, std::int64_t i) {
  return test::number(parameter, static_cast<std::uint64_t>(i), 1000);
}
float gradient(std::uint64_t parameter, std::int64_t i, int step) {
  return 0.3f *
         test::number(parameter, static_cast<std::uint64_t>(i), static_cast<std::uint64_t>(step));
}

struct Element {
  double parameter = 0, first = 0, second = 0;
};
using ElementStep = std::function<void(Element&, double gradient, double decay, int t)>;
// Embeddings' positions don't decay by pattern; norms and biases don't by dimension.
const WeightDecay kDecay{0.1f, {"*.position", "block.1.w*"}};
OptimizerOptions adamw_options() {
  OptimizerOptions options;
  options.type = OptimizerType::kAdamW;
  options.beta2 = 0.95f;
  options.decay = kDecay;
  return options;
}
OptimizerOptions sgd_options(float momentum) {
  OptimizerOptions options;
  options.type = OptimizerType::kSgd;
  options.momentum = momentum;
  options.decay = kDecay;
  return options;
}
double decay_of(const ParameterSpec& parameter) {
  const bool excluded =
      parameter.name == "embedding.position" || parameter.name == "block.1.weight";
  return parameter.shape.size() < 2 || excluded ? 0.0 : static_cast<double>(0.1f);
}

void set_gradients(const UnitState& unit, int step) {
  for (const int slice_index : unit.updated_slices()) {
    auto* slice = unit.gradient(slice_index).as<float>();
    for (const sharding::Piece& piece : unit.layout().pieces(slice_index)) {
      const std::uint32_t parameter = unit.spec().parameters[piece.parameter].index;
      for (std::int64_t i = 0; i < piece.count; ++i) {
        slice[piece.position + i] = gradient(parameter, piece.first_element + i, step);
      }
    }
  }
}

double element_after(const ParameterSpec& parameter, std::int64_t i,
                     const ElementStep& element_step) {
  Element element{initial(parameter.index, i), 0, 0};
  for (int t = 1; t <= kOptimizerSteps; ++t) {
    const double g = static_cast<double>(kScale) * gradient(parameter.index, i, t);
    element_step(element, g, decay_of(parameter), t);
  }
  return element.parameter;
}

void check_parameters(const UnitState& unit, const ElementStep& element_step) {
  for (const int slice_index : unit.updated_slices()) {
    const Tensor slice = unit.fp32_slice(slice_index);
    std::vector<double> expected(static_cast<std::size_t>(slice.numel), 0.0);  // padding stays zero
    for (const sharding::Piece& piece : unit.layout().pieces(slice_index)) {
      const ParameterSpec& parameter = unit.spec().parameters[piece.parameter];
      for (std::int64_t i = 0; i < piece.count; ++i) {
        expected[static_cast<std::size_t>(piece.position + i)] =
            element_after(parameter, piece.first_element + i, element_step);
      }
    }
    for (std::int64_t i = 0; i < slice.numel; ++i) {
      const double value = expected[static_cast<std::size_t>(i)];
      ASSERT_NEAR(slice.as<float>()[i], value, value == 0.0 ? 0.0 : kOptimizerTolerance)
          << unit.name() << " slice " << slice_index << " of " << unit.layout().num_slices();
    }
  }
}

void expect_textbook(const OptimizerOptions& options, const ElementStep& element_step) {
  const auto stream = make_cpu_compute_stream({});
  for (int stage = 0; stage <= 3; ++stage) {
    for (int world = 1; world <= 4; ++world) {
      for (int r = 0; r < world; ++r) {
        const Rank rank = test::lone_rank(r, world);
        const auto units =
            test::make_units(test::small_units(2, /*tied=*/false),
                             sharding::placement_of(stage, GradSync::kEveryMicroStep), rank);
        const auto optimizer = make_optimizer(options, rank, units);
        for (const UnitState& unit : units) test::fill_slices(unit, initial);
        for (int t = 1; t <= kOptimizerSteps; ++t) {
          for (const UnitState& unit : units) set_gradients(unit, t);
          optimizer->prepare(*stream, {kLr, t, kScale});
          for (std::size_t u = 0; u < units.size(); ++u) {
            optimizer->update(*stream, static_cast<int>(u), {kLr, t, kScale});
          }
        }
        for (const UnitState& unit : units) check_parameters(unit, element_step);
      }
    }
  }
}

// Loshchilov & Hutter 2019, Algorithm 2.
TEST(AdamW, IsTheTextbookAtEveryStageAndWorld) {
  const OptimizerOptions options = adamw_options();
  const double beta1 = options.beta1, beta2 = options.beta2, eps = options.eps, lr = kLr;
  expect_textbook(options, [=](Element& e, double g, double decay, int t) {
    e.first = beta1 * e.first + (1 - beta1) * g;
    e.second = beta2 * e.second + (1 - beta2) * g * g;
    const double m = e.first / (1 - std::pow(beta1, t));
    const double v = e.second / (1 - std::pow(beta2, t));
    e.parameter -= lr * (decay * e.parameter + m / (std::sqrt(v) + eps));
  });
}

TEST(Sgd, WithMomentumIsTheTextbookAtEveryStageAndWorld) {
  const OptimizerOptions options = sgd_options(0.9f);
  const double momentum = options.momentum, lr = kLr;
  expect_textbook(options, [=](Element& e, double g, double decay, int) {
    e.first = momentum * e.first + g + decay * e.parameter;
    e.parameter -= lr * e.first;
  });
}

TEST(Sgd, WithoutMomentumIsTheTextbook) {
  const double lr = kLr;
  expect_textbook(sgd_options(0.0f), [=](Element& e, double g, double decay, int) {
    e.parameter -= lr * (g + decay * e.parameter);
  });
}

// A zero gradient leaves parameters without decay bit-identical.
TEST(WeightDecay, SparesTensorsOfOneDimensionAndThoseThatMatchAPattern) {
  const auto stream = make_cpu_compute_stream({});
  const Rank rank = test::lone_rank(0, 1);
  const auto units = test::make_units(test::small_units(2, false), sharding::placement_of(0), rank);
  const auto adamw = make_optimizer(adamw_options(), rank, units);
  int spared = 0, decayed = 0;
  for (std::size_t u = 0; u < units.size(); ++u) {
    test::fill_slices(units[u], initial);
    adamw->update(*stream, static_cast<int>(u), {kLr, 1, 1.0f});
    const std::vector<Tensor> views = units[u].layout().views(units[u].resident_parameters());
    for (std::size_t p = 0; p < views.size(); ++p) {
      const ParameterSpec& parameter = units[u].spec().parameters[p];
      const bool decays = decay_of(parameter) != 0.0;
      (decays ? decayed : spared) += 1;
      for (std::int64_t i = 0; i < views[p].numel; ++i) {
        const float before = initial(parameter.index, i), after = views[p].as<float>()[i];
        if (decays) {
          ASSERT_LT(std::abs(after), std::abs(before)) << parameter.name;
        } else {
          ASSERT_EQ(after, before) << parameter.name;
        }
      }
    }
  }
  EXPECT_EQ(decayed, 3);  // embedding.token, block.0.weight, head.weight
  EXPECT_EQ(spared, 7);   // two by pattern, three norms, two biases
}

TEST(WeightDecay, RateFollowsDimensionsAndShellPatterns) {
  const WeightDecay decay{0.1f, {"*.position", "head.*", "block.?.x"}};
  const auto rate = [&](const std::string& name, std::vector<std::int64_t> shape) {
    return decay.rate_of({name, std::move(shape), {}, 0});
  };
  EXPECT_EQ(rate("block.0.weight", {3, 4}), 0.1f);
  EXPECT_EQ(rate("block.0.weight", {3, 4, 5}), 0.1f);
  EXPECT_EQ(rate("block.0.bias", {4}), 0.0f);
  EXPECT_EQ(rate("embedding.position", {3, 4}), 0.0f);
  EXPECT_EQ(rate("position", {3, 4}), 0.1f);
  EXPECT_EQ(rate("head.weight", {3, 4}), 0.0f);
  EXPECT_EQ(rate("block.7.x", {3, 4}), 0.0f);
  EXPECT_EQ(rate("block.17.x", {3, 4}), 0.1f);
}

// FACTS §1: 8 bytes of AdamW moments per padded parameter, 4 of SGD's, over N where sharded.
TEST(Moments, ShrinkWithTheWorldWhereTheOptimizerIsSharded) {
  const auto specs = test::small_units(2, false);
  for (int stage = 0; stage <= 3; ++stage) {
    for (int world = 1; world <= 4; ++world) {
      std::int64_t padded = 0;
      for (const UnitSpec& spec : specs) padded += test::padded_numel(spec, world);
      const std::int64_t own = stage == 0 ? padded : padded / world;
      const Rank rank = test::lone_rank(world - 1, world);
      const auto units =
          test::make_units(specs, sharding::placement_of(stage, GradSync::kEveryMicroStep), rank);
      const auto moments = [&] {
        return rank.memory->current()[static_cast<std::size_t>(Category::kOptimizer)];
      };
      const auto adamw = make_optimizer(adamw_options(), rank, units);
      EXPECT_EQ(moments(), 8 * own);
      const auto sgd = make_optimizer(sgd_options(0.9f), rank, units);
      EXPECT_EQ(moments(), 12 * own);
      const auto plain = make_optimizer(sgd_options(0.0f), rank, units);
      EXPECT_EQ(moments(), 12 * own) << "without momentum there is nothing to keep";
    }
  }
}

}  // namespace
}  // namespace sherd::optim
