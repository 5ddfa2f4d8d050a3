/// QK-clip (Kimi K2, arXiv:2507.20534, section 2.1): after an update, the queries and keys of heads
/// whose attention scores have grown too large become smaller.
///
///   S_h     the step's largest score of query head h (StabilityReport::max_logits); for heads that
///           read the same key head, the largest of theirs
///   eta_h = min(1, threshold / S_h), or 1 if S_h <= 0
///   W_q  *= eta_h^alpha,  W_k *= eta_h^(1 - alpha),  and their biases
///
/// So the same batch's scores become eta_h times as large, as far as the update itself leaves them.
#pragma once

#include <memory>
#include <vector>

#include "engine/train/layout/training_options.h"
#include "sharding/zero/unit.h"

namespace sherd::engine {

struct StabilityReport;

class QkClip {
 public:
  /// Null if the options ask for none.
  /// Errors   SHERD_CHECK: scores aren't linear in queries and keys (norms of them, a soft cap).
  static std::shared_ptr<const QkClip> of(const TrainingOptions& options);

  /// Query heads with eta < 1, in all layers.
  std::int64_t num_clipped(const StabilityReport& report) const;
  /// Scales what this rank updates of the unit, in f32; returns whether it has changed anything.
  /// Rounded copies are left to ShardedModel::publish.
  bool apply(Stream& stream, const sharding::UnitState& unit, const StabilityReport& report) const;

 private:
  explicit QkClip(const TrainingOptions& options);
  double eta(const std::vector<float>& max_logits, std::int64_t kv_head) const;
  std::vector<float> factors(const std::vector<float>& max_logits) const;

  double threshold_, alpha_;
  std::int64_t query_heads_, kv_heads_, head_width_;  // of the whole model
};

}  // namespace sherd::engine
