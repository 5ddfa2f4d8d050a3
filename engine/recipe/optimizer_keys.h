/// How gradients become updates: block `optimizer` of a recipe.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "engine/recipe/choices.h"
#include "engine/recipe/lists.h"
#include "optim/optimizer.h"

namespace sherd::engine {

/// optim/optimizer.h has the equations.
struct OptimizerKeys {
  OptimizerType type = OptimizerType::kAdamW;
  double lr = 0;
  std::array<double, 2> betas{};
  double eps = 0;
  double weight_decay = 0;
  std::vector<std::string> no_decay;  ///< patterns of parameter names
  std::vector<ParameterGroup> groups;
  double momentum = 0;
  double trust_coefficient = 0;
  double adamw_lr = 0;
  double dion_rank_fraction = 0;  ///< of the shorter side of a matrix
  bool dion_decoupled = false;    ///< optim/matrices/dion_sum.h
  std::int64_t dion_average_interval = 0;
  double beta2_decay = 0, clip_threshold = 0, min_parameter_rms = 0;  ///< adafactor
  optim::MuonScale muon_scale = optim::MuonScale::kOriginal;
  optim::MuonCoefficients muon_coefficients = optim::MuonCoefficients::kJordan;
  FloatType muon_dtype = FloatType::kF32;
  bool eight_bit_states = false;
  double qk_clip_threshold = 0;  ///< 0: no clip
  double qk_clip_alpha = 0;

  bool decouples_replicas() const { return dion_decoupled && type == OptimizerType::kDion; }
};

}  // namespace sherd::engine
