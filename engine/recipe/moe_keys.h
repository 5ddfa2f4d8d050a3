/// Mixtures of experts: block `moe` of a recipe. kernels/router.h has the equations.
#pragma once

#include <cstdint>
#include <string>

#include "engine/recipe/choices.h"

namespace sherd::engine {

struct MoeKeys {
  std::int64_t num_experts = 0;  ///< 0: no layer has any
  std::int64_t experts_per_token = 0;
  std::int64_t ffn_hidden_size = 0;
  std::int64_t shared_ffn_hidden_size = 0;  ///< 0: no shared expert
  bool shared_gate = false;
  std::string layers;  ///< '1' where a layer has experts; repeated
  RouterScore score = RouterScore::kSoftmax;
  bool normalize_weights = false;
  double weight_scale = 0;
  bool weigh_input = false;
  double jitter = 0;  ///< of sparsemixer
  std::int64_t num_groups = 0, kept_groups = 0;
  bool bias = false;
  bool correction_bias = false;
  double bias_update_rate = 0;
  BalanceScope balance_scope = BalanceScope::kSequence;
  double balance_loss = 0, z_loss = 0;  ///< coefficients
  std::int64_t buffer_rows = 0;         ///< 0: as many as a micro-batch has tokens
  bool grouped_gemm = false;            ///< on GPUs
};

}  // namespace sherd::engine
