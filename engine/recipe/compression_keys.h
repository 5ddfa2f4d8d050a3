/// Compressed sums of gradients over replicas: blocks `powersgd` and `dgc` of a recipe.
#pragma once

#include <cstdint>

#include "optim/compression.h"

namespace sherd::engine {

/// optim/low_rank_sum.h has the equations.
struct PowerSgdKeys {
  std::int64_t rank = 0;  ///< 0: off
  std::int64_t start_step = 0;
  double min_compression_rate = 0;
  std::int64_t seed = 0;

  bool active() const { return rank > 0; }
  optim::LowRankOptions options() const {
    return {rank, start_step, min_compression_rate, static_cast<std::uint64_t>(seed)};
  }
};

/// optim/sparse_sum.h has the equations.
struct DgcKeys {
  double compress_ratio = 0;  ///< 0: off
  double sample_ratio = 0;
  double compress_lower_bound = 0, compress_upper_bound = 0;
  std::int64_t max_adaptation_iters = 0;
  std::int64_t warmup_epochs = 0;
  double warmup_coeff = 0;
  optim::LocalClip clip = optim::LocalClip::kNone;
  double clip_threshold = 0;
  bool momentum_correction = true, momentum_masking = true;

  bool active() const { return compress_ratio > 0.0; }
  optim::SparseOptions options(double momentum) const {
    return {.compress_ratio = compress_ratio,
            .sample_ratio = sample_ratio,
            .compress_lower_bound = compress_lower_bound,
            .compress_upper_bound = compress_upper_bound,
            .max_adaptation_iters = max_adaptation_iters,
            .warmup_epochs = warmup_epochs,
            .warmup_coeff = warmup_coeff,
            .clip = clip,
            .clip_threshold = clip_threshold,
            .momentum_correction = momentum_correction,
            .momentum_masking = momentum_masking,
            .momentum = momentum_correction ? momentum : 0.0};
  }
};

}  // namespace sherd::engine
