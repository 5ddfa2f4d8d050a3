// The whole model against tests/reference/*.json, which PyTorch computed in double precision: loss,
// gradients, two micro-batches accumulated, and six clipped AdamW steps. The tolerances are those
// of tests/reference/README.md.

#include <gtest/gtest.h>

#include <cmath>

#include "engine/model/parameters.h"
#include "tests/engine/model/reference_case.h"

namespace sherd::testing {
namespace {

void expect_trained(const Trained& actual, const ReferenceCase& reference,
                    const std::string& where) {
  const Json& steps = reference.json().at("steps");
  ASSERT_EQ(actual.steps.size(), steps.size());
  const auto max_norm = reference.json().at("optimizer").at("max_grad_norm").get<float>();
  for (std::size_t i = 0; i < steps.size(); ++i) {
    const std::string label = fmt::format("{}: step {}", where, i);
    const double norm = actual.steps[i].grad_norm;
    expect_relative(actual.steps[i].loss, steps[i].at("loss"), 1e-5, label + " loss");
    expect_relative(norm, steps[i].at("grad_norm"), 2e-4, label + " gradient norm");
    expect_relative(optim::clip_scale(actual.steps[i].grad_norm, max_norm),
                    steps[i].at("clip_scale"), 2e-4, label + " clip scale");
  }
  std::size_t number = 0;
  for (const Json& parameter : reference.json().at("after_steps")) {
    const std::string name = parameter.at("name");
    const std::string label = where + ": " + name + " after six steps";
    const std::vector<float>& values = actual.parameters.at(name);
    LeftOut left_out;
    if (parameter.contains("left_out")) {
      left_out = {parameter.at("left_out")[0], parameter.at("left_out")[1]};
    }
    expect_relative(norm_of(values, left_out), parameter.at("norm"), 2e-5, label + " norm");
    EXPECT_NEAR(projection_of(values, number, left_out), parameter.at("projection").get<double>(),
                3e-3)
        << label << " projection";
    for (std::size_t i = 0; i < parameter.at("indices").size(); ++i) {
      EXPECT_NEAR(values[parameter.at("indices")[i]], parameter.at("values")[i].get<double>(), 1e-4)
          << label << "[" << parameter.at("indices")[i] << "]";
    }
    ++number;
  }
}

class Reference : public ::testing::TestWithParam<std::string> {};

TEST_P(Reference, HasTheModelsParametersAndThisTestBuildsItsWeightsAndTokens) {
  const ReferenceCase reference(GetParam());
  const Json& json = reference.json();
  std::map<std::string, std::vector<std::int64_t>> table;
  for (const UnitSpec& unit : model::parameter_table(reference.shape())) {
    for (const ParameterSpec& parameter : unit.parameters) table[parameter.name] = parameter.shape;
  }
  EXPECT_EQ(table.size(), json.at("parameters").size());
  for (const Json& parameter : json.at("parameters")) {
    const std::string name = parameter.at("name");
    EXPECT_EQ(table.at(name), parameter.at("shape").get<std::vector<std::int64_t>>()) << name;
    const std::vector<float>& weights = reference.weights().at(name);
    for (std::size_t i = 0; i < parameter.at("indices").size(); ++i) {
      EXPECT_EQ(double{weights[parameter.at("indices")[i]]}, parameter.at("initial")[i]) << name;
    }
  }
  const std::vector<std::int32_t> inputs = reference.tokens(0, 1, 1000);
  const std::vector<std::int32_t> targets = reference.tokens(0, 1, 2000);
  EXPECT_EQ(Json(std::vector(inputs.begin(), inputs.begin() + 8)), json.at("tokens"));
  EXPECT_EQ(Json(std::vector(targets.begin(), targets.begin() + 8)), json.at("targets"));
}

// A step covers one micro-batch of the file: all rows on one rank, or a row on each of three.
struct Cut {
  RunShape setup;
  std::int64_t rows;
};
std::vector<Cut> cuts_of_one_micro_batch() {
  return {{{.world_size = 1, .stage = 0}, 3},
          {{.world_size = 1, .num_micro_steps = 3, .stage = 1}, 1},
          {{.world_size = 3, .stage = 2}, 1},
          {{.world_size = 3, .stage = 3}, 1}};
}
// And of two: as two micro-steps, two ranks, or both.
std::vector<Cut> cuts_of_two_micro_batches() {
  return {{{.world_size = 1, .num_micro_steps = 2, .stage = 0}, 3},
          {{.world_size = 2, .stage = 3}, 3},
          {{.world_size = 2, .stage = 1}, 3},
          {{.world_size = 3, .num_micro_steps = 2, .stage = 2}, 1}};
}

TEST_P(Reference, LossAndGradientsOfOneMicroBatchAgree) {
  const ReferenceCase reference(GetParam());
  for (const Cut& cut : cuts_of_one_micro_batch()) {
    const std::string where = name_of(cut.setup);
    const Trained actual = train(reference, reference.options(cut.setup, cut.rows), cut.setup, 1);
    expect_relative(actual.steps[0].loss, reference.json().at("loss"), 1e-6, where);
    expect_relative(actual.steps[0].grad_norm, reference.json().at("grad_norm"), 1e-5, where);
    expect_gradients(actual.gradients, reference.json().at("parameters"), where);
  }
}

TEST_P(Reference, LossAndGradientsOfTwoMicroBatchesTogetherAgree) {
  const ReferenceCase reference(GetParam());
  const Json& expected = reference.json().at("accumulated");
  for (const Cut& cut : cuts_of_two_micro_batches()) {
    const std::string where = name_of(cut.setup);
    const Trained actual = train(reference, reference.options(cut.setup, cut.rows), cut.setup, 1);
    expect_relative(actual.steps[0].loss, expected.at("loss"), 1e-6, where);
    expect_relative(actual.steps[0].grad_norm, expected.at("grad_norm"), 1e-5, where);
    expect_gradients(actual.gradients, expected.at("parameters"), where);
  }
}

TEST_P(Reference, SixClippedAdamWStepsAgree) {
  const ReferenceCase reference(GetParam());
  for (const Cut& cut : cuts_of_one_micro_batch()) {
    const int num_steps = static_cast<int>(reference.json().at("steps").size());
    const auto options = reference.options(cut.setup, cut.rows);
    expect_trained(train(reference, options, cut.setup, num_steps), reference, name_of(cut.setup));
  }
}

INSTANTIATE_TEST_SUITE_P(Cases, Reference,
                         ::testing::Values("gpt2_tied", "gpt2_nobias_untied", "llama_gqa",
                                           "llama_tied"),
                         [](const auto& info) { return info.param; });

}  // namespace
}  // namespace sherd::testing
