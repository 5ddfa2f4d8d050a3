/// One optimizer step over a flat slice: gradient, moments and parameter are each read and written
/// once (LAMB and LARS read them once more for whole-tensor norms).
///
/// A slice is cut into segments, each inside one parameter tensor; padding belongs to none.
/// Parameters are f32, gradients f32, bf16 or f16, moments f32 or bf16 (Adam and Lion: also 8 bits,
/// kernels/eight_bits.h); arithmetic is f32, but
/// values common to all elements are computed in f64 and rounded once. `gradient_scale` (clip
/// factor / loss scale) multiplies the gradient first: g = gradient_scale * grad. t =
/// `update_number` >= 1.
///
/// Alias  nothing.
/// Bits   element-wise and without contraction: an element's result doesn't depend on where the
///        slice was cut. Sums of squares are f64, per segment, in the order of its elements.
#pragma once

#include <span>

#include "core/stream.h"
#include "core/tensor.h"
#include "kernels/philox.h"

namespace sherd::kernels {

/// Elements [first, first + count) of a slice.
struct UpdateSegment {
  std::int64_t first = 0;
  std::int64_t count = 0;
  float weight_decay = 0.0f;
  std::uint32_t parameter = 0;     ///< index in the model's table
  std::int64_t first_element = 0;  ///< the segment's first, in its parameter
  /// Added to an element's index in its parameter to get its random address. If the parameter is
  /// part of a tensor, this gives the index in the whole tensor.
  std::int64_t random_shift = 0;
};

/// How a bf16 moment is rounded: to nearest, or up or down in proportion by 16 random bits
/// addressed by (address, site 4 * parameter + kind, element of the parameter + random_shift);
/// `kind` tells moments apart.
struct MomentRounding {
  bool stochastic = false;
  RandomAddress address{};
};

/// Arguments that all updates share. Segments ascend, don't overlap, and must outlive the call.
struct UpdateCommon {
  Tensor parameter;  ///< f32
  ConstTensor gradient;
  std::span<const UpdateSegment> segments;
  float lr = 0.0f;
  float gradient_scale = 1.0f;
  MomentRounding rounding{};
  /// bf16 or f16; may be empty. Also receives the updated parameters, rounded to nearest. Only
  /// Adam, SGD and Lion write it.
  Tensor rounded{};
  /// Of moments in 8 bits (u8), the first and the second: f32, one for each 64 elements of the
  /// slice. Segments then begin at multiples of 64, both in the slice and in their tensors.
  Tensor scales{}, second_scales{};
};

/// Adam (Kingma & Ba 2015, Alg. 1) and AdamW (Loshchilov & Hutter 2019, Alg. 2):
///   Adam: g += weight_decay p
///   m = beta1 m + (1 - beta1) g           v = beta2 v + (1 - beta2) g^2
///   AdamW: p -= lr weight_decay p
///   p -= lr (m / (1 - beta1^t)) / (sqrt(v / (1 - beta2^t)) + eps)
struct AdamUpdate {
  UpdateCommon common;
  Tensor exp_avg, exp_avg_sq;
  bool decoupled_decay = true;  ///< AdamW
  float beta1 = 0.9f, beta2 = 0.999f, eps = 1e-8f;
  std::int64_t update_number = 1;
};
void adam_update(Stream& stream, const AdamUpdate& args);

/// SGD with momentum, in PyTorch's form:
///   g += weight_decay p;   m = momentum m + g;   p -= lr m      (momentum 0: no m, p -= lr g)
struct SgdUpdate {
  UpdateCommon common;
  Tensor momentum_buffer;  ///< may be empty if momentum is 0
  float momentum = 0.0f;
};
void sgd_update(Stream& stream, const SgdUpdate& args);

/// Lion (Chen et al., arXiv:2302.06675, Alg. 2); sign(0) = 0:
///   p -= lr (sign(beta1 m + (1 - beta1) g) + weight_decay p);   m = beta2 m + (1 - beta2) g
struct LionUpdate {
  UpdateCommon common;
  Tensor exp_avg;
  float beta1 = 0.9f, beta2 = 0.99f;
};
void lion_update(Stream& stream, const LionUpdate& args);

/// LAMB (You et al., arXiv:1904.00962v3, Alg. 2), in three calls. The moments:
///   m = beta1 m + (1 - beta1) g           v = beta2 v + (1 - beta2) g^2
/// then the norms of p and of the direction r, from the moments as they are stored:
///   r = (m / (1 - beta1^t)) / (sqrt(v / (1 - beta2^t)) + eps) + weight_decay p
/// then, with each tensor's trust ratio |p| / |r|:
///   p -= lr ratio r
struct LambUpdate {
  UpdateCommon common;
  Tensor exp_avg, exp_avg_sq;
  float beta1 = 0.9f, beta2 = 0.999f, eps = 1e-6f;
  std::int64_t update_number = 1;
};
void lamb_moments(Stream& stream, const LambUpdate& args);
/// sums [2 * segments * ExactSum::kNumbers] f64: exact sums (core/exact_sum.h; on a GPU first added
/// in f64) of p^2, then of r^2, of each segment.
void lamb_norms(Stream& stream, const LambUpdate& args, Tensor sums);
/// ratios: one per segment; must outlive the call.
void lamb_apply(Stream& stream, const LambUpdate& args, std::span<const float> ratios);

/// LARS (You et al., arXiv:1708.03888, Alg. 1): with each tensor's local rate
///   ratio = trust_coefficient |p| / (|g| + weight_decay |p|)
///   m = momentum m + lr ratio (g + weight_decay p);   p -= m
struct LarsUpdate {
  UpdateCommon common;
  Tensor momentum_buffer;
  float momentum = 0.9f;
};
/// sums as lamb_norms: of p^2, then of g^2, of each segment.
void lars_norms(Stream& stream, const LarsUpdate& args, Tensor sums);
void lars_apply(Stream& stream, const LarsUpdate& args, std::span<const float> ratios);

/// Muon's element-wise parts (Jordan et al. 2024), around the orthogonalisation in optim/matrices/muon.h:
///   m = momentum m + (1 - momentum) g;   u = (1 - momentum) g + momentum m     (Nesterov)
///   p = p - lr weight_decay p - lr ratio u
struct MuonUpdate {
  UpdateCommon common;
  Tensor momentum_buffer;
  Tensor update;  ///< u, f32, as large as the slice
  float momentum = 0.95f;
};
void muon_momentum(Stream& stream, const MuonUpdate& args);
void muon_apply(Stream& stream, const MuonUpdate& args, std::span<const float> ratios);

/// The beginning of Dion's update (optim/matrices/dion.h): m = m + g;   u = m. `momentum` isn't used. CPU
/// only.
void dion_momentum(Stream& stream, const MuonUpdate& args);

}  // namespace sherd::kernels
