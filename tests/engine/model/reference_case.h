/// The models of tests/reference, their weights and tokens by formula, and short trainings of them.
#pragma once

#include <gtest/gtest.h>

#include <fstream>
#include <string>
#include <vector>

#include "tests/engine/model/reference_values.h"
#include "tests/support/models/model_values.h"
#include "tests/support/runs/training_harness.h"
#include "tests/where.h"

namespace sherd::testing {

inline Json reference_file(const std::string& name) {
  std::ifstream file(std::string(SHERD_SOURCE_DIR) + "/tests/reference/" + name + ".json");
  return Json::parse(file);
}

/// One case: what the file says, and the model and weights that it describes.
class ReferenceCase {
 public:
  explicit ReferenceCase(const std::string& name) : ReferenceCase(reference_file(name)) {}
  explicit ReferenceCase(Json json) : json_(std::move(json)) {
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
    if (c.at("bias")) shape_.biases = model::Biases::everywhere();
    shape_.tied = c.at("tied");
    shape_.norm_eps = c.at("norm_eps");
    shape_.rotary = {{.theta = c.value("rope_theta", 10000.0)}};
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
            reference_hash(static_cast<std::uint32_t>(at),
                           static_cast<std::uint32_t>(kind + micro_batch)) %
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

/// `options.model.sequences` rows at a time of the file's micro-batches, in order: global row g of step s is row s * (rows per step) + g.
inline Trained train(const ReferenceCase& reference, const engine::TrainingOptions& options,
                     const RunShape& setup, int num_steps) {
  const std::int64_t rows = options.model.sequences;
  Trained result;
  result.gradients = result.parameters = empty_parameters(options.model);
  run_ranks(setup, [&](sharding::Rank& rank) {
    engine::ShardedModel model(options, rank);
    engine::TrainingStep training_step(options, model);
    std::vector<std::int32_t> inputs, targets;
    const auto next_batch = [&](std::int64_t step, std::int64_t micro_step) {
      const std::int64_t first_row =
          ((step * setup.num_micro_steps + micro_step) * rank.world_size() + rank.rank) * rows;
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

inline void expect_relative(double actual, double expected, double tolerance,
                            const std::string& label) {
  EXPECT_NEAR(actual, expected, tolerance * std::abs(expected)) << label;
}

/// `expected`: a list of parameters with gradient_norm, gradient_projection, indices and gradient.
inline void expect_gradients(const ValuesByName& actual, const Json& expected,
                             const std::string& where) {
  std::size_t number = 0;
  for (const Json& parameter : expected) {
    const std::string name = parameter.at("name");
    const std::string label = where + ": " + name;
    const std::vector<float>& values = actual.at(name);
    const double norm = parameter.at("gradient_norm");
    expect_relative(norm_of(values), norm, 1e-5, label + " norm");
    EXPECT_NEAR(projection_of(values, number), parameter.at("gradient_projection").get<double>(),
                1e-5 * norm)
        << label << " projection";
    const double rms = norm / std::sqrt(static_cast<double>(values.size()));
    for (std::size_t i = 0; i < parameter.at("indices").size(); ++i) {
      EXPECT_NEAR(values[parameter.at("indices")[i]], parameter.at("gradient")[i].get<double>(),
                  1e-4 * rms)
          << label << "[" << parameter.at("indices")[i] << "]";
    }
    ++number;
  }
}

}  // namespace sherd::testing
