/// Local updates (DiLoCo): replicas train apart, and exchange their changes every few steps.
///
/// The units with trained parameters are divided into `num_fragments` groups of neighbours. Every
/// sync_every / num_fragments = P steps one fragment is exchanged, in turn: fragment 0 after step P,
/// fragment 1 after step 2 P, and so on, so each is exchanged every `sync_every` steps. With a
/// delay of t steps, it is sent t steps earlier, and the replicas train on meanwhile:
///
///   sent       after step k P - t     change_w = theta - theta_w
///   exchanged                         change = mean of change_w over the replicas
///                                     b = mu b + change;  theta = theta - lr (change + mu b)
///   applied    after step k P         theta_w = theta + alpha (theta_w - theta)
///
/// With `quantize`, changes cross the link in blocks of 64 with few bits (kernels/block_codec.h),
/// and so does their sum. Replicas decode the same, so theta stays equal on all.
///
/// theta are the *global weights*, which are equal on all replicas, theta_w a replica's own ones.
///
/// Source   Douillard et al., arXiv:2311.08105 (DiLoCo) and 2501.18512 (fragments, delay and alpha).
///          Names as in torchft's local_sgd.py.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

namespace sherd::optim {

/// The kinds of its tensors in checkpoints: a replica's own weights, and b.
inline constexpr const char* kLocalKind = "local";
inline constexpr const char* kOuterMomentumKind = "outer_momentum";

/// How numbers cross the link: FP32, or in blocks with 8 or 4 bits each.
enum class Quantize { kNone, kInt8, kInt4 };

struct LocalUpdates {
  std::int64_t sync_every = 0;  ///< steps; 0: replicas don't train apart
  double outer_lr = 0.7, outer_momentum = 0.9;
  std::int64_t num_fragments = 1;
  std::int64_t fragment_sync_delay = 0;
  double fragment_update_alpha = 0.0;   ///< 0: the global weights; 1: a replica's own
  Quantize quantize = Quantize::kNone;  ///< what is exchanged
  int num_replicas = 1;

  bool active() const { return sync_every > 0; }
  /// Steps from one exchange to the next.
  std::int64_t period() const { return sync_every / num_fragments; }
  /// The fragment that is sent, and the one that is applied, after this number of steps.
  std::optional<int> sent(std::int64_t steps_done) const;
  std::optional<int> applied(std::int64_t steps_done) const;
  /// Whether all global weights are those of this step, and all replicas have them.
  bool all_equal(std::int64_t steps_done) const;
  /// The fragment of the `index`-th of `num_units` units that are trained.
  int fragment_of(int index, int num_units) const;
};

}  // namespace sherd::optim
