/// An average of the parameters over the updates.
///
///   ema    average += (1 - decay) (p - average)
///   mean   average += (p - average) / k, at its k-th update: the mean of all since the start
///
/// Until `start_step` updates are done, and at the first update after that, the average is the
/// parameters. From then on it moves at every `interval`-th update. A step that isn't applied moves
/// nothing. Equal parameters leave it bit-identical.
///
/// Source   ema: Polyak and Juditsky 1992, with the decay of Tarvainen and Valpola 2017; mean:
///          Izmailov et al. 2018 (arXiv:1803.05407). A decay of 0.5^(1 / n) has a half-life of n.
/// Rounding f32; 1 - decay and 1 / k are computed in f64 and rounded once.
#pragma once

#include <cstdint>
#include <optional>

namespace sherd::optim {

/// The kind of its tensors in checkpoints.
inline constexpr const char* kAverageKind = "average";

enum class AverageType { kNone, kEma, kMean };

struct AverageOptions {
  AverageType type = AverageType::kNone;
  double decay = 0.999;
  std::int64_t start_step = 0;
  std::int64_t interval = 1;

  bool active() const { return type != AverageType::kNone; }
  /// The weight of the parameters after update `update_number` (from 1); 1: they are copied;
  /// nothing: the average stays.
  std::optional<float> weight(std::int64_t update_number) const;
};

}  // namespace sherd::optim
