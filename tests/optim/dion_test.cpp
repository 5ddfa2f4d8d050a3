// Dion against NumPy (tests/reference/dion.py), and by algebra. Stages and worlds: optimizer_oracle_test.cpp.
#include "optim/matrices/dion.h"

#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <map>
#include <mutex>
#include <nlohmann/json.hpp>

#include "tests/optim/formula_values.h"
#include "tests/optim/optimizer_runs.h"
#include "tests/where.h"

namespace sherd::optim {
namespace {

using sharding::Rank;
using sharding::UnitState;
using sherd::testing::RunShape;

constexpr float kDionLr = 0.02f;

std::vector<UnitSpec> dion_units() {
  return {{"block.0",
           UnitClass::kBlock,
           {ParameterSpec{"block.0.norm", {13}, {}, 0},
            ParameterSpec{"block.0.qkv", {27, 13}, {}, 1, {13, 7, 7}},
            ParameterSpec{"block.0.down", {13, 19}, {}, 2},
            ParameterSpec{"block.0.up", {24, 8}, {}, 3}}}};
}

OptimizerOptions dion_options() {
  OptimizerOptions options;
  options.type = OptimizerType::kDion;
  options.momentum = 0.95f;
  options.decay.rate = 0.1f;
  return options;
}

UpdateStep dion_step(int step) {
  return {kDionLr * (1.0f - 0.01f * static_cast<float>(step)), step + 1, 1.0f};
}

// By kind and parameter: whole tensors.
using StateOfRun = std::map<std::pair<std::string, std::uint32_t>, std::vector<float>>;

// A training with gradients by formula. `first_basis` may write the first bases.
struct DionRun {
  OptimizerOptions options = dion_options();
  RunShape shape{};
  std::function<float(int step, std::uint32_t parameter, std::int64_t element)> gradient;
  std::function<float(std::uint32_t parameter, std::int64_t element)> initial;
  std::function<float(std::uint32_t parameter, int matrix, std::int64_t element)> first_basis{};
};

class DionRuns {
 public:
  explicit DionRuns(const DionRun& run, std::vector<int> looks) {
    sherd::testing::run_ranks(run.shape, [&](Rank& rank) {
      const auto units = test::make_units(
          dion_units(),
          sharding::placement_of(run.shape.stage, sharding::GradSync::kEveryMicroStep), rank);
      for (const UnitState& unit : units) test::fill_slices(unit, run.initial);
      const auto optimizer = make_optimizer(run.options, rank, units);
      rank.compute().synchronize();
      if (run.first_basis) write_bases(run, *optimizer);
      rank.guard([&] {
        for (int t = 0; t <= looks.back(); ++t) {
          for (const UnitState& unit : units) {
            fill_gradients(unit, [&](std::uint32_t parameter, std::int64_t element) {
              return run.gradient(t, parameter, element);
            });
          }
          take_step(rank.compute(), *optimizer, units, dion_step(t));
          if (std::ranges::count(looks, t) == 0) continue;
          const std::lock_guard lock(mutex_);
          collect(units, *optimizer, states_[t]);
        }
      });
    });
  }

  const StateOfRun& after(int step) const { return states_.at(step); }

 private:
  static void write_bases(const DionRun& run, const Optimizer& optimizer) {
    std::map<std::uint32_t, int> number;
    for (const MomentPiece& piece : optimizer.moment_pieces()) {
      if (piece.kind != kDionBasisKind) continue;
      const int matrix = number[piece.parameter]++;
      for (std::int64_t i = 0; i < piece.data.numel; ++i) {
        piece.data.as<float>()[i] = run.first_basis(piece.parameter, matrix, i);
      }
    }
  }

  static void put(std::vector<float>& whole, std::int64_t first, const Tensor& data) {
    const auto end = static_cast<std::size_t>(first + data.numel);
    if (whole.size() < end) whole.resize(end);
    std::copy_n(data.as<float>(), data.numel, whole.begin() + static_cast<std::ptrdiff_t>(first));
  }

  static void collect(const std::vector<UnitState>& units, const Optimizer& optimizer,
                      StateOfRun& state) {
    for (const MomentPiece& piece : optimizer.moment_pieces()) {
      put(state[{piece.kind, piece.parameter}], piece.first_element, piece.data);
    }
    for (const UnitState& unit : units) {
      for (const int slice_index : unit.updated_slices()) {
        for (const sharding::Piece& piece : unit.layout().pieces(slice_index)) {
          put(state[{"param", unit.spec().parameters[piece.parameter].index}], piece.first_element,
              unit.fp32_slice(slice_index).part(piece.position, piece.count));
        }
      }
    }
  }

  std::mutex mutex_;
  std::map<int, StateOfRun> states_;
};

// As in tests/reference/dion.py.
DionRun run_of_numpy(const RunShape& shape) {
  DionRun run{.shape = shape,
              .gradient = [](int step, std::uint32_t parameter,
                             std::int64_t element) { return formula(0, step, parameter, element); },
              .initial = [](std::uint32_t parameter,
                            std::int64_t element) { return formula(8, 0, parameter, element); },
              .first_basis =
                  [](std::uint32_t parameter, int matrix, std::int64_t element) {
                    // The script's numbers are of [vectors, columns], too.
                    return formula(9, matrix, parameter, element);
                  }};
  return run;
}

TEST(Dion, HasTheWeightsMomentaAndBasesOfNumpy) {
  std::ifstream file(std::string(SHERD_SOURCE_DIR) + "/tests/reference/dion.json");
  const nlohmann::json expected = nlohmann::json::parse(file);
  std::vector<int> looks;
  for (const auto& step : expected) looks.push_back(step["step"]);
  for (const RunShape& shape : {RunShape{}, RunShape{.world_size = 3, .stage = 2}}) {
    const DionRuns runs(run_of_numpy(shape), looks);
    for (const auto& step : expected) {
      const StateOfRun& state = runs.after(step["step"]);
      for (const std::uint32_t parameter : {1u, 2u, 3u}) {
        const auto label = fmt::format("parameter {} after step {} on {} ranks", parameter,
                                       step["step"].get<int>(), shape.world_size);
        const auto of = [&](const char* what) {
          return step[fmt::format("{}.{}", parameter, what)];
        };
        expect_digest(of("param"), state.at({"param", parameter}), label);
        expect_digest(of("momentum"), state.at({"momentum", parameter}), label);
        std::vector<float> basis = state.at({std::string(kDionBasisKind), parameter});
        for (float& number : basis) number = std::abs(number);
        expect_digest(of("basis"), basis, label);
      }
    }
  }
}

TEST(Dion, MovesNothingWithoutGradientsAndKeepsItsBases) {
  DionRun run{.gradient = [](int, std::uint32_t, std::int64_t) { return 0.0f; },
              .initial = initial_value};
  run.options.decay.rate = 0.0f;
  const DionRuns runs(run, {0, 1000});
  EXPECT_EQ(runs.after(1000), runs.after(0));
  for (const auto& [name, values] : runs.after(1000)) {
    if (name.first != "param") continue;
    for (std::size_t i = 0; i < values.size(); ++i) {
      ASSERT_EQ(values[i], initial_value(name.second, static_cast<std::int64_t>(i)));
    }
  }
}

// Gradients of rank one: the other columns of R are zero or rounding, and none of them spoils the update.
TEST(Dion, AGradientOfOneDirectionMovesWeightsAlongIt) {
  DionRun run{.gradient =
                  [](int, std::uint32_t parameter, std::int64_t element) {
                    return parameter == 3 ? (element / 8 % 2 == 0 ? 1.0f : -0.5f) *
                                                (element % 8 == 0 ? 2.0f : -1.0f)
                                          : 0.0f;
                  },
              .initial = [](std::uint32_t, std::int64_t) { return 0.0f; }};
  run.options.decay.rate = 0.0f;
  const DionRuns runs(run, {0, 20});
  for (const int step : {0, 20}) {
    const auto& x = runs.after(step).at({"param", 3});
    double along = 0.0, squares = 0.0, gradient_squares = 0.0;
    for (std::size_t i = 0; i < x.size(); ++i) {
      const double g = run.gradient(0, 3, static_cast<std::int64_t>(i));
      along -= g * x[i];
      squares += static_cast<double>(x[i]) * x[i];
      gradient_squares += g * g;
    }
    ASSERT_GT(squares, 0.0);
    EXPECT_NEAR(along / std::sqrt(squares * gradient_squares), 1.0, 1e-4) << step;
  }
}

TEST(Dion, OfFullRankMovesWeightsByAnOrthonormalMatrix) {
  DionRun run{.gradient = gradient_value,
              .initial = [](std::uint32_t, std::int64_t) { return 0.0f; }};
  run.options.decay.rate = 0.0f;
  run.options.dion_rank_fraction = 1.0f;
  const DionRuns runs(run, {0});
  const auto& x = runs.after(0).at({"param", 3});
  const double rate = static_cast<double>(kDionLr) * std::sqrt(24.0 / 8.0);
  double squares = 0.0;
  for (const float value : x) squares += static_cast<double>(value) * value / (rate * rate);
  EXPECT_NEAR(squares, 8.0, 1e-3) << "8 vectors of length 1";
}

TEST(Dion, BasesAreOfTheRankThatTheShorterSideGives) {
  OptimizerOptions options = dion_options();
  const ParameterSpec qkv{"block.0.qkv", {27, 13}, {}, 1, {13, 7, 7}};
  EXPECT_EQ(dion_basis_shape(options, qkv), (std::vector<std::int64_t>{4 + 2 + 2, 13}));
  options.dion_rank_fraction = 1e-6f;
  EXPECT_EQ(dion_basis_shape(options, qkv), (std::vector<std::int64_t>{3, 13}));
  options.dion_rank_fraction = 1.0f;
  EXPECT_EQ(dion_basis_shape(options, qkv), (std::vector<std::int64_t>{13 + 7 + 7, 13}));
}

}  // namespace
}  // namespace sherd::optim
