/// The nearest semi-orthogonal matrix, nearly: five Newton–Schulz steps with Muon's coefficients
/// (Jordan et al. 2024, https://kellerjordan.github.io/posts/muon).
///
///   X = M / (|M| + 1e-7), transposed if it has more rows than columns
///   five times:  A = X X^T,   X = a X + (b A + c A A) X       a, b, c = 3.4445, -4.7750, 2.0315
///
/// Singular values end up between about 0.7 and 1.2: good enough for an update's direction.
///
/// Shape      matrix [rows, columns], f32, in place.
/// Workspace  `orthogonalise_workspace_numel` f32 elements.
/// Bits       products as kernels/linear.h; the norm is summed in f64 in row order.
#pragma once

#include "core/stream.h"
#include "core/tensor.h"

namespace sherd::kernels {

inline constexpr int kNewtonSchulzSteps = 5;

void orthogonalise(Stream& stream, Tensor matrix, std::int64_t rows, std::int64_t columns,
                   Tensor workspace);
std::int64_t orthogonalise_workspace_numel(std::int64_t rows, std::int64_t columns);

}  // namespace sherd::kernels
