/// Variants of an equation, for model shapes that don't need the kernels' headers.
#pragma once

#include <cstdint>

namespace sherd::kernels {

enum class NormKind { kLayerNorm, kRmsNorm };  ///< kernels/norm.h

enum class ActivationKind { kGelu, kSwiGlu, kGeluErf, kRelu2, kGeGlu };  ///< kernels/activation.h

/// kernels/router.h
enum class RouterScore { kSoftmax, kSoftmaxOfChosen, kSigmoid };
/// What counts as one group of tokens in the balance loss of a router.
enum class BalanceScope { kSequence, kMicroBatch, kPreviousStep };

/// Half of the input is a gate for the other half.
inline bool is_gated(ActivationKind kind) {
  return kind == ActivationKind::kSwiGlu || kind == ActivationKind::kGeGlu;
}

/// kernels/block_codec.h
enum class BlockFormat { kF32, kInt8, kInt4 };

/// Distillation (kernels/teacher.h).
struct TeacherForm {
  std::int64_t top = 0;               ///< K; 0: no teacher
  float weight = 0, temperature = 1;  ///< w, s

  explicit operator bool() const { return top > 0; }
};

}  // namespace sherd::kernels
