/// A teacher's distribution of each token's successor, for distillation (Hinton et al.,
/// arXiv:1503.02531): the K tokens that it finds likeliest.
///
///   p[t,k]          probability of the token ids[t,k] at temperature s, renormalised over the K
///   q[t,v]          softmax(z / s), over the whole vocabulary
///   divergence[t] = sum over k of p[t,k] ln(p[t,k] / q[t, ids[t,k]])        forward KL
///
/// With weight w, the gradient is that of (1 - w) loss[t] + w s^2 divergence[t]: with respect to z,
/// (1 - w) (softmax(z) - onehot(target)) + w s (q - p). The factor s^2 keeps the size of the second
/// part when s changes.
#pragma once

#include "core/tensor.h"
#include "kernels/kinds.h"

namespace sherd::kernels {

inline constexpr std::int64_t kMostTeacherTokens = 512;  ///< K

/// The ids of a token are distinct. A token without a target has no teacher either.
struct Teacher {
  TeacherForm form{};
  ConstTensor ids{};            ///< i32 [T, K], of the whole vocabulary
  ConstTensor probabilities{};  ///< f32 [T, K]
  Tensor divergences{};         ///< f32 [T]; 0 without a target

  explicit operator bool() const { return static_cast<bool>(form); }
};

}  // namespace sherd::kernels
