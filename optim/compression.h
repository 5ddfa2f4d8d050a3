/// How replicas compress the gradients that they add in every step: options of low-rank sums
/// (optim/low_rank_sum.h), of sparse sums (optim/sparse_sum.h) and of sums for Dion
/// (optim/matrices/dion_sum.h).
///
/// All keep what wasn't sent, as *errors* or in momenta, which are state of each replica, and send
/// it later.
#pragma once

#include <cstdint>
#include <memory>

namespace sherd::optim {

struct OptimizerOptions;

/// PowerSGD (Vogels et al. 2019, arXiv:1905.13727).
struct LowRankOptions {
  std::int64_t rank = 0;              ///< 0: off
  std::int64_t start_step = 10;       ///< earlier steps send whole gradients
  double min_compression_rate = 2.0;  ///< parameters that gain less are sent whole
  std::uint64_t seed = 0;             ///< of the first bases

  bool active() const { return rank > 0; }
};

enum class LocalClip { kNone, kNorm, kValue };

/// Deep gradient compression (Lin et al. 2018, arXiv:1712.01887).
struct SparseOptions {
  double compress_ratio = 0.0;  ///< of the elements that are sent; 0: off
  double sample_ratio = 0.01;   ///< of the elements by which a threshold is chosen
  double compress_lower_bound = 0.8, compress_upper_bound = 1.3;
  std::int64_t max_adaptation_iters = 10;
  std::int64_t warmup_epochs = 0;
  double warmup_coeff = 0.0;  ///< 0: compress_ratio^(1 / (warmup_epochs + 1))
  LocalClip clip = LocalClip::kNone;
  double clip_threshold = 1.0;
  bool momentum_correction = true, momentum_masking = true;
  double momentum = 0.0;  ///< the optimizer's, which then has none of its own, if it is corrected

  bool active() const { return compress_ratio > 0.0; }
  /// In an epoch, counted from 0.
  double ratio_in(std::int64_t epoch) const;
};

/// Dion's decoupled form (Ahn et al. 2025, arXiv:2504.05295): each replica has a momentum.
struct DionSumOptions {
  /// Dion's, with `dion_decoupled`; null: off.
  std::shared_ptr<const OptimizerOptions> optimizer{};
  std::int64_t average_interval = 0;  ///< steps after which momenta are averaged; 0: never

  bool active() const { return optimizer != nullptr; }
};

/// At most one of them is active.
struct Compression {
  LowRankOptions low_rank{};
  SparseOptions sparse{};
  int num_replicas = 1;
  DionSumOptions dion{};

  bool active() const { return low_rank.active() || sparse.active() || dion.active(); }
};

}  // namespace sherd::optim
