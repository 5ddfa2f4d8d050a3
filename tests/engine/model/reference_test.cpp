// The whole model against tests/reference/*.json, which PyTorch computed in double precision: loss,
// gradients, two micro-batches accumulated, and six clipped AdamW steps. The tolerances are those
// of tests/reference/README.md.

#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>

#include "engine/model/parameters.h"
#include "tests/support/model_values.h"
#include "tests/support/training_harness.h"

namespace sherd::testing {
namespace {

using Json = nlohmann::json;

std::uint32_t hash(std::uint32_t i, std::uint32_t p) {
  std::uint32_t h = i * 2654435761u + p * 40503u + 12345u;
  h ^= h >> 15;
  h *= 2246822519u;
  return h ^ (h >> 13);
}

double u(std::size_t i, std::size_t p) {
  return hash(static_cast<std::uint32_t>(i), static_cast<std::uint32_t>(p)) / 4294967296.0 * 2.0 -
         1.0;
}

// One case: what the file says, and the model and weights that it describes.
class Case {
 public:
  explicit Case(const std::string& name) {
    std::ifstream file(std::string(SHERD_SOURCE_DIR) + "/tests/reference/" + name + ".json");
    json_ = Json::parse(file);
    const Json& c = json_.at("config");
    shape_.num_layers = c.at("layers");
    shape_.width = c.at("width");
    shape_.query_heads = c.at("query_heads");
    shape_.kv_heads = c.at("kv_heads");
    shape_.ffn_width = c.at("mlp_width");
    shape_.vocab_size = c.at("vocab_size");
    shape_.max_positions = c.at("max_sequence");
    shape_.norm =
        c.at("norm") == "layernorm" ? kernels::NormKind::kLayerNorm : kernels::NormKind::kRmsNorm;
    shape_.positions =
        c.at("positions") == "learned" ? model::Positions::kLearned : model::Positions::kRope;
    shape_.activation = c.at("activation") == "gelu" ? kernels::ActivationKind::kGelu
                                                     : kernels::ActivationKind::kSwiGlu;
    shape_.bias = c.at("bias");
    shape_.tied = c.at("tied");
    shape_.norm_eps = c.at("norm_eps");
    shape_.rope_theta = c.value("rope_theta", 10000.0);
    shape_.sequences = c.at("batch_size");
    shape_.seq_length = c.at("sequence_length");
    for (const Json& parameter : json_.at("parameters")) {
      weights_[parameter.at("name")] = weight(parameter);
    }
  }

  const Json& json() const { return json_; }
  const model::ModelShape& shape() const { return shape_; }
  const ValuesByName& weights() const { return weights_; }

  /// A run whose ranks take `rows` rows of the file's micro-batches at a time.
  engine::TrainingOptions options(const RunShape& setup, std::int64_t rows) const {
    engine::TrainingOptions options;
    options.model = shape_;
    options.model.sequences = rows;
    const Json& o = json_.at("optimizer");
    options.optimizer.beta1 = o.at("beta1");
    options.optimizer.beta2 = o.at("beta2");
    options.optimizer.eps = o.at("eps");
    options.optimizer.decay.rate = o.at("weight_decay");
    options.lr_schedule.lr = o.at("lr");
    options.max_norm = o.at("max_grad_norm");
    return applied(options, setup);
  }

  std::vector<std::int32_t> tokens(std::int64_t first_row, std::int64_t rows, int kind) const {
    std::vector<std::int32_t> ids;
    const std::int64_t per_row = shape_.seq_length;
    for (std::int64_t row = first_row; row < first_row + rows; ++row) {
      const std::int64_t micro_batch = row / shape_.sequences;
      for (std::int64_t t = 0; t < per_row; ++t) {
        const std::int64_t at = row % shape_.sequences * per_row + t;
        ids.push_back(static_cast<std::int32_t>(
            hash(static_cast<std::uint32_t>(at), static_cast<std::uint32_t>(kind + micro_batch)) %
            static_cast<std::uint32_t>(shape_.vocab_size)));
      }
    }
    return ids;
  }

 private:
  static std::vector<float> weight(const Json& parameter) {
    const std::string name = parameter.at("name");
    const bool norm = name.ends_with("norm1.weight") || name.ends_with("norm2.weight") ||
                      name.ends_with("final_norm.weight");
    std::size_t count = 1;
    for (const std::size_t size : parameter.at("shape")) count *= size;
    std::vector<float> values;
    for (std::size_t i = 0; i < count; ++i) {
      values.push_back(static_cast<float>((norm ? 1.0 : 0.0) + 0.1 * u(i, parameter.at("number"))));
    }
    return values;
  }

  Json json_;
  model::ModelShape shape_;
  ValuesByName weights_;
};

struct Trained {
  std::vector<engine::StepResult> steps;
  ValuesByName gradients;   // of the last step
  ValuesByName parameters;  // after it
};

// Rows of the file's micro-batches in order: global row g of step s is row s * (rows per step) + g.
Trained train(const Case& reference, const RunShape& setup, std::int64_t rows, int num_steps) {
  const engine::TrainingOptions options = reference.options(setup, rows);
  Trained result;
  result.gradients = result.parameters = empty_parameters(options.model);
  run_ranks(setup, [&](sharding::Rank& rank) {
    engine::ShardedModel model(options, rank);
    engine::TrainingStep training_step(options, model);
    std::vector<std::int32_t> inputs, targets;
    const auto next_batch = [&](std::int64_t step, std::int64_t micro_step) {
      const std::int64_t first_row =
          ((step * setup.num_micro_steps + micro_step) * rank.world_size + rank.rank) * rows;
      inputs = reference.tokens(first_row, rows, 1000);
      targets = reference.tokens(first_row, rows, 2000);
      return engine::TokenBatch{{inputs.data(), DType::kI32, std::ssize(inputs)},
                                {targets.data(), DType::kI32, std::ssize(targets)}};
    };
    rank.guard([&] {
      set_parameters(model, reference.weights());
      for (int step = 0; step < num_steps; ++step) {
        const engine::StepResult taken = training_step.run(step, next_batch);
        if (rank.rank == 0) result.steps.push_back(taken);
      }
      collect_gradients(model, result.gradients);
      collect_parameters(model, result.parameters);
    });
  });
  return result;
}

struct LeftOut {
  std::size_t first = 0, last = 0;  // elements [first, last)
};

double norm_of(const std::vector<float>& values, LeftOut left_out = {}) {
  double sum = 0.0;
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (i < left_out.first || i >= left_out.last) sum += double{values[i]} * double{values[i]};
  }
  return std::sqrt(sum);
}

double projection_of(const std::vector<float>& values, std::size_t parameter,
                     LeftOut left_out = {}) {
  double sum = 0.0;
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (i < left_out.first || i >= left_out.last) sum += double{values[i]} * u(i, 3000 + parameter);
  }
  return sum;
}

void expect_relative(double actual, double expected, double tolerance, const std::string& what) {
  EXPECT_NEAR(actual, expected, tolerance * std::abs(expected)) << what;
}

// `expected`: a list of parameters with gradient_norm, gradient_projection, indices and gradient.
void expect_gradients(const ValuesByName& actual, const Json& expected, const std::string& where) {
  std::size_t number = 0;
  for (const Json& parameter : expected) {
    const std::string name = parameter.at("name");
    const std::string what = where + ": " + name;
    const std::vector<float>& values = actual.at(name);
    const double norm = parameter.at("gradient_norm");
    expect_relative(norm_of(values), norm, 1e-5, what + " norm");
    EXPECT_NEAR(projection_of(values, number), parameter.at("gradient_projection").get<double>(),
                1e-5 * norm)
        << what << " projection";
    const double rms = norm / std::sqrt(static_cast<double>(values.size()));
    for (std::size_t i = 0; i < parameter.at("indices").size(); ++i) {
      EXPECT_NEAR(values[parameter.at("indices")[i]], parameter.at("gradient")[i].get<double>(),
                  1e-4 * rms)
          << what << "[" << parameter.at("indices")[i] << "]";
    }
    ++number;
  }
}

void expect_trained(const Trained& actual, const Case& reference, const std::string& where) {
  const Json& steps = reference.json().at("steps");
  ASSERT_EQ(actual.steps.size(), steps.size());
  const auto max_norm = reference.json().at("optimizer").at("max_grad_norm").get<float>();
  for (std::size_t i = 0; i < steps.size(); ++i) {
    const std::string what = fmt::format("{}: step {}", where, i);
    const double norm = actual.steps[i].grad_norm;
    expect_relative(actual.steps[i].loss, steps[i].at("loss"), 1e-5, what + " loss");
    expect_relative(norm, steps[i].at("grad_norm"), 2e-4, what + " gradient norm");
    expect_relative(optim::clip_scale(actual.steps[i].grad_norm, max_norm),
                    steps[i].at("clip_scale"), 2e-4, what + " clip scale");
  }
  std::size_t number = 0;
  for (const Json& parameter : reference.json().at("after_steps")) {
    const std::string name = parameter.at("name");
    const std::string what = where + ": " + name + " after six steps";
    const std::vector<float>& values = actual.parameters.at(name);
    LeftOut left_out;
    if (parameter.contains("left_out")) {
      left_out = {parameter.at("left_out")[0], parameter.at("left_out")[1]};
    }
    expect_relative(norm_of(values, left_out), parameter.at("norm"), 2e-5, what + " norm");
    EXPECT_NEAR(projection_of(values, number, left_out), parameter.at("projection").get<double>(),
                3e-3)
        << what << " projection";
    for (std::size_t i = 0; i < parameter.at("indices").size(); ++i) {
      EXPECT_NEAR(values[parameter.at("indices")[i]], parameter.at("values")[i].get<double>(), 1e-4)
          << what << "[" << parameter.at("indices")[i] << "]";
    }
    ++number;
  }
}

class Reference : public ::testing::TestWithParam<std::string> {};

TEST_P(Reference, HasTheModelsParametersAndThisTestBuildsItsWeightsAndTokens) {
  const Case reference(GetParam());
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
  EXPECT_EQ(std::vector(inputs.begin(), inputs.begin() + 8), json.at("tokens"));
  EXPECT_EQ(std::vector(targets.begin(), targets.begin() + 8), json.at("targets"));
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
  const Case reference(GetParam());
  for (const Cut& cut : cuts_of_one_micro_batch()) {
    const std::string where = name_of(cut.setup);
    const Trained actual = train(reference, cut.setup, cut.rows, 1);
    expect_relative(actual.steps[0].loss, reference.json().at("loss"), 1e-6, where);
    expect_relative(actual.steps[0].grad_norm, reference.json().at("grad_norm"), 1e-5, where);
    expect_gradients(actual.gradients, reference.json().at("parameters"), where);
  }
}

TEST_P(Reference, LossAndGradientsOfTwoMicroBatchesTogetherAgree) {
  const Case reference(GetParam());
  const Json& expected = reference.json().at("accumulated");
  for (const Cut& cut : cuts_of_two_micro_batches()) {
    const std::string where = name_of(cut.setup);
    const Trained actual = train(reference, cut.setup, cut.rows, 1);
    expect_relative(actual.steps[0].loss, expected.at("loss"), 1e-6, where);
    expect_relative(actual.steps[0].grad_norm, expected.at("grad_norm"), 1e-5, where);
    expect_gradients(actual.gradients, expected.at("parameters"), where);
  }
}

TEST_P(Reference, SixClippedAdamWStepsAgree) {
  const Case reference(GetParam());
  for (const Cut& cut : cuts_of_one_micro_batch()) {
    const int num_steps = static_cast<int>(reference.json().at("steps").size());
    expect_trained(train(reference, cut.setup, cut.rows, num_steps), reference, name_of(cut.setup));
  }
}

INSTANTIATE_TEST_SUITE_P(Cases, Reference,
                         ::testing::Values("gpt2_tied", "gpt2_nobias_untied", "llama_gqa",
                                           "llama_tied"),
                         [](const auto& info) { return info.param; });

}  // namespace
}  // namespace sherd::testing
