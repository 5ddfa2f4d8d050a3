/// Variants of an equation, for model shapes that don't need the kernels' headers.
#pragma once

#include <cstdint>
#include <vector>

namespace sherd::kernels {

enum class NormKind { kLayerNorm, kRmsNorm };  ///< kernels/norm.h

/// kernels/activation.h
enum class ActivationKind { kGelu, kSwiGlu, kGeluErf, kRelu2, kGeGlu, kClampedSwiGlu };

/// kernels/router.h
enum class RouterScore { kSoftmax, kSoftmaxOfChosen, kSigmoid, kSparsemixer };
/// What counts as one group of tokens in the balance loss of a router.
enum class BalanceScope { kSequence, kMicroBatch, kPreviousStep };

/// Half of the input is a gate for the other half.
inline bool is_gated(ActivationKind kind) {
  return kind == ActivationKind::kSwiGlu || kind == ActivationKind::kGeGlu ||
         kind == ActivationKind::kClampedSwiGlu;
}

/// kernels/block_codec.h
enum class BlockFormat { kF32, kInt8, kInt4 };

/// Distillation (kernels/teacher.h).
struct TeacherForm {
  std::int64_t top = 0;               ///< K; 0: no teacher
  float weight = 0, temperature = 1;  ///< w, s

  explicit operator bool() const { return top > 0; }
};

/// kernels/rotary_frequencies.h
enum class RotaryScaling { kNone, kLinear, kLlama3, kYarn, kLongrope };

struct RotaryFrequencies {
  double theta = 10000.0;
  double fraction = 1.0;
  RotaryScaling scaling = RotaryScaling::kNone;
  double factor = 1.0;                                   ///< s
  std::int64_t original_length = 1;                      ///< C
  double low_freq_factor = 1.0, high_freq_factor = 4.0;  ///< a, b of llama3
  double beta_fast = 32.0, beta_slow = 1.0;              ///< yarn
  bool truncate = true;                                  ///< yarn
  double attention_factor = 0.0;                         ///< on cos and sin; 0: use the rule above
  std::vector<double> short_factors{}, long_factors{};   ///< longrope, r / 2 each
  /// Above 0: no rotation; queries are multiplied by 1 + growth ln(1 + floor((p + 1) / step)).
  double query_growth = 0.0;
  std::int64_t query_step = 1;

  bool rotates() const { return query_growth == 0.0; }

  bool operator==(const RotaryFrequencies&) const = default;
};

}  // namespace sherd::kernels
