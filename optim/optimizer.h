/// Turns the gradient of a slice into the next parameters of that slice.
///
/// An optimizer holds its moments for exactly the slices that this rank updates, so its memory
/// shrinks with the world at stages 1-3 (FACTS: 8 bytes of AdamW moments per parameter, / N).
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "sharding/unit.h"

namespace sherd::optim {

/// Everything that an update needs beyond the slice itself.
struct UpdateStep {
  float lr = 0.0f;
  std::int64_t time_step = 1;     ///< 1 for the first update (Adam's t)
  float gradient_scale = 1.0f;    ///< the clip factor
};

class Optimizer {
 public:
  virtual ~Optimizer() = default;
  /// Updates the slices of unit `unit` that this rank owns, one fused pass each, on `stream`.
  virtual void update(Stream& stream, int unit, const UpdateStep& step) = 0;
};

/// Which parameters decay: those of two or more dimensions whose name matches none of `no_decay`
/// (shell patterns, e.g. "*.position.*").
struct WeightDecay {
  float rate = 0.0f;
  std::vector<std::string> no_decay;

  float rate_of(const ParameterSpec& parameter) const;
};

struct AdamWOptions {
  float beta1 = 0.9f;
  float beta2 = 0.999f;
  float eps = 1e-8f;
  WeightDecay decay;
};
std::unique_ptr<Optimizer> make_adamw(const sharding::Rank& rank,
                                      const std::vector<sharding::UnitState>& units,
                                      const AdamWOptions& options);

struct SgdOptions {
  float momentum = 0.0f;
  WeightDecay decay;
};
std::unique_ptr<Optimizer> make_sgd(const sharding::Rank& rank,
                                    const std::vector<sharding::UnitState>& units,
                                    const SgdOptions& options);

}  // namespace sherd::optim
