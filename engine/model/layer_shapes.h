/// The sizes of what a layer can be besides heads and a dense MLP: latent attention, and mixtures of
/// experts.
#pragma once

#include <cstdint>

#include "kernels/kinds.h"

namespace sherd::model {

/// Latent attention (DeepSeek-AI, arXiv:2405.04434, section 2.1): queries, keys and values come from
/// low-rank vectors, the latents. Keys and values of all heads share one.
///
///   q       = query_up rms(query_down x)          [H (N + R)]; without a query rank: query x
///   c, k_r  = kv_down x                           [C], [R]
///   k, v    = kv_up rms(c)                        [H (N + V)]
///   key_h   = [k_h ; rotate(k_r)]                 all heads have the same rotated part
///   query_h = [q_h's first N ; rotate(its last R)]
///
/// Attention is as ever (kernels/attention.h), with heads of N + R numbers; values are filled up
/// with zeros. kernels/latent_heads.h joins the parts. `absorbed` is another form of the same.
struct LatentShape {
  std::int64_t kv_rank = 0;     ///< C; 0: queries, keys and values are projected at once
  std::int64_t query_rank = 0;  ///< 0: queries have one projection
  std::int64_t plain = 0;       ///< N: numbers of a head that aren't rotated
  std::int64_t rotated = 0;     ///< R
  std::int64_t value = 0;       ///< V, at most N + R
  /// Heads attend to latents, as generation computes it; no backward (kernels/absorbed_heads.h).
  bool absorbed = false;

  /// Of the latents' norms, whatever the model's own.
  static constexpr float kEps = 1e-6f;

  bool active() const { return kv_rank > 0; }
  std::int64_t head_width() const { return plain + rotated; }
  /// Outputs of kv_down; and, for H heads, of kv_up.
  std::int64_t down_width() const { return kv_rank + rotated; }
  std::int64_t up_width(std::int64_t heads) const { return heads * (plain + value); }
  /// Whether values are narrower than keys, so that what heads attended to has gaps.
  bool pads_values() const { return value < head_width(); }
};

/// The layers of kind kExperts (kernels/router.h, kernels/experts.h).
struct MoeShape {
  std::int64_t experts = 0;    ///< E; 0: no layer has any
  int per_token = 0;           ///< k
  std::int64_t ffn_width = 0;  ///< F of one expert
  std::int64_t shared_width =
      0;                     ///< F of the expert that every token goes through; 0: there is none
  bool shared_gate = false;  ///< its output is multiplied by sigmoid(<gate, x>)
  kernels::RouterScore score = kernels::RouterScore::kSoftmax;
  bool normalise = false;
  double scale = 1.0;
  double least_sum = 0.0, added_sum = 0.0;
  int groups = 1, kept_groups = 1, group_scores = 1;
  bool weighs_input = false;      ///< a weight multiplies what its expert reads
  double jitter = 0.0;            ///< sparsemixer's width of near ties
  bool biases = false;            ///< of the router's logits and of the experts' projections
  bool correction_bias = false;   ///< the router has a bias that only the choice of experts sees
  double bias_update_rate = 0.0;  ///< by which an update moves it towards balance
  kernels::BalanceScope scope = kernels::BalanceScope::kSequence;
  double balance = 0.0, z = 0.0;  ///< the losses' coefficients
  std::int64_t buffer_rows = 0;   ///< of a round; 0: see experts(), owned_experts()
  bool grouped = false;           ///< on a GPU: one launch for the experts of a round

  bool active() const { return experts > 0; }
};

}  // namespace sherd::model
