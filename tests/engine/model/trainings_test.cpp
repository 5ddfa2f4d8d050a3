// Whole trainings with every optimizer against tests/reference/trainings.json, which PyTorch
// computed in double precision: clipping active, two micro-batches a step, a schedule. Cut into
// ranks and micro-steps at every stage, with and without a loss scale. A plain f32 run of PyTorch
// strays from those values by 2e-7, relative in losses and norms, absolute in parameters, and by
// 8e-6 in projections (`trainings.py --float32`).

#include "tests/engine/model/reference_case.h"
#include "tests/engine/model/reference_optimizers.h"
#include "tests/where.h"

namespace sherd::testing {
namespace {

using sharding::GradSync;

Json trainings() {
  return reference_file("trainings");
}

// The six rows of a step, cut up: every stage, both ways to reduce, and loss scales.
struct TrainingCut {
  RunShape setup;
  std::int64_t rows;
  int loss_scale_power;
};
std::vector<TrainingCut> cuts() {
  return {
      {{.world_size = 1, .num_micro_steps = 2, .stage = 0}, 3, 0},
      {{.world_size = 2, .num_micro_steps = 3, .stage = 1, .grad_sync = GradSync::kBoundary}, 1, 0},
      {{.world_size = 3, .stage = 1}, 2, 5},
      {{.world_size = 3, .num_micro_steps = 2, .stage = 2}, 1, 11},
      {{.world_size = 2, .num_micro_steps = 3, .stage = 3, .prefetch_depth = 2}, 1, 0}};
}

engine::TrainingOptions options_of(const ReferenceCase& model, const Json& all,
                                   const Json& training, const TrainingCut& cut) {
  const std::string name = training.at("optimizer");
  const Json& o = all.at("optimizers").at(name);
  engine::TrainingOptions options = model.options(cut.setup, cut.rows);
  options.optimizer = optimizer_options(name, o);
  options.lr_schedule = schedule_of(all, o);
  options.max_norm = all.at("max_norm");
  if (cut.loss_scale_power > 0) {
    options.loss_scaling.mode = optim::LossScaling::Mode::kStatic;
    options.loss_scaling.initial_scale_power = cut.loss_scale_power;
  }
  return options;
}

// The keys' bias has no gradient but rounding noise where positions are learned (README.md).
LeftOut left_out_of(const ReferenceCase& model, const std::string& name) {
  const model::ModelShape& shape = model.shape();
  if (!name.ends_with("attention.qkv.bias")) return {};
  const auto first = static_cast<std::size_t>(shape.width);
  return {first, first + static_cast<std::size_t>(shape.kv_heads * shape.head_width())};
}

void expect_trained(const ReferenceCase& model, const Json& training, const Trained& actual,
                    const std::string& where) {
  const Json& steps = training.at("steps");
  ASSERT_EQ(actual.steps.size(), steps.size());
  for (std::size_t i = 0; i < steps.size(); ++i) {
    const std::string label = fmt::format("{}: step {}", where, i);
    expect_relative(actual.steps[i].loss, steps[i].at("loss"), 2e-6, label + " loss");
    expect_relative(actual.steps[i].grad_norm, steps[i].at("grad_norm"), 2e-6, label + " norm");
  }
  for (const Json& parameter : model.json().at("parameters")) {
    const std::string name = parameter.at("name");
    const std::vector<float>& values = actual.parameters.at(name);
    const LeftOut left_out = left_out_of(model, name);
    const Json& expected = training.at("after").at(name);
    EXPECT_NEAR(projection_of(values, parameter.at("number"), left_out), expected[0].get<double>(),
                5e-5)
        << where << ": " << name << " projection";
    const bool has_gap = left_out.last > 0;
    const std::size_t n = values.size();
    EXPECT_NEAR(values[has_gap ? left_out.first - 1 : n / 3], expected[1].get<double>(), 2e-6)
        << where << ": " << name;
    EXPECT_NEAR(values[has_gap ? left_out.last : 2 * n / 3], expected[2].get<double>(), 2e-6)
        << where << ": " << name;
  }
}

class Trainings : public ::testing::TestWithParam<std::string> {};
INSTANTIATE_TEST_SUITE_P(Optimizers, Trainings,
                         ::testing::Values("adamw", "adam", "sgd", "lion", "lamb", "lars", "muon",
                                           "muon_polar_express", "adafactor"),
                         [](const auto& info) { return info.param; });

TEST_P(Trainings, AreThoseOfPyTorchAtEveryStageAndWorldClippedAndAccumulated) {
  const Json all = trainings();
  int num_compared = 0;
  for (const Json& training : all.at("trainings")) {
    if (training.at("optimizer") != GetParam()) continue;
    const ReferenceCase model(training.at("model").get<std::string>());
    const int num_steps = static_cast<int>(training.at("steps").size());
    for (const TrainingCut& cut : cuts()) {
      const auto options = options_of(model, all, training, cut);
      expect_trained(
          model, training, train(model, options, cut.setup, num_steps),
          fmt::format("{}, {}", training.at("model").get<std::string>(), name_of(cut.setup)));
      ++num_compared;
    }
  }
  EXPECT_EQ(num_compared, 10);
}

// The values would be worth little if clipping weren't active in every step.
TEST(TrainingsReference, EveryStepsNormIsAboveTheLimit) {
  const Json all = trainings();
  for (const Json& training : all.at("trainings")) {
    for (const Json& step : training.at("steps")) {
      EXPECT_GT(step.at("grad_norm").get<double>(), 1.2 * all.at("max_norm").get<double>());
    }
  }
}

}  // namespace
}  // namespace sherd::testing
