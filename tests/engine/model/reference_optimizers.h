/// Optimizers and learning rates as tests/reference/trainings.json and runs.json have them.
#pragma once

#include <map>
#include <string>

#include "optim/lr_schedule.h"
#include "optim/optimizer.h"
#include "tests/engine/model/reference_values.h"

namespace sherd::testing {

inline optim::OptimizerOptions optimizer_options(const std::string& name, const Json& o) {
  using optim::OptimizerType;
  static const std::map<std::string, OptimizerType> kTypes = {
      {"adamw", OptimizerType::kAdamW},
      {"adam", OptimizerType::kAdam},
      {"sgd", OptimizerType::kSgd},
      {"lion", OptimizerType::kLion},
      {"lamb", OptimizerType::kLamb},
      {"lars", OptimizerType::kLars},
      {"muon", OptimizerType::kMuon},
      {"muon_polar_express", OptimizerType::kMuon},
      {"adafactor", OptimizerType::kAdafactor}};
  optim::OptimizerOptions options;
  options.type = kTypes.at(name);
  options.beta1 = o.value("beta1", 0.0f);
  options.beta2 = o.value("beta2", 0.0f);
  options.eps = o.value("eps", 0.0f);
  options.momentum = o.value("momentum", 0.0f);
  options.trust_coefficient = o.value("trust_coefficient", 0.0f);
  options.beta2_decay = o.value("beta2_decay", 0.0f);
  options.clip_threshold = o.value("clip_threshold", 0.0f);
  options.min_parameter_rms = o.value("min_parameter_rms", 0.0f);
  options.adamw_lr_ratio = static_cast<float>(o.value("adamw_lr", 0.0) / o.at("lr").get<double>());
  if (name == "muon_polar_express") {
    options.muon_coefficients = optim::MuonCoefficients::kPolarExpress;
  }
  options.decay.rate = o.at("weight_decay");
  return options;
}

/// The schedule in `file`, for one of its optimizers.
inline optim::LrSchedule schedule_of(const Json& file, const Json& optimizer) {
  const Json& schedule = file.at("schedule");
  return {.type = optim::ScheduleType::kCosine,
          .lr = optimizer.at("lr"),
          .warmup_steps = schedule.at("warmup_steps"),
          .decay_steps = schedule.at("decay_steps"),
          .min_lr_ratio = schedule.at("min_lr_ratio")};
}

}  // namespace sherd::testing
