/// Approximates the nearest semi-orthogonal matrix by five Newton–Schulz steps, for Muon (Jordan et
/// al. 2024, https://kellerjordan.github.io/posts/muon).
///
///   X = M / (factor |M| + shift), transposed if it has more rows than columns
///   five times:  A = X X^T,   X = a X + (b A + c A A) X
///
/// kJordan        the same a, b, c = 3.4445, -4.7750, 2.0315 in every step; factor 1, shift 1e-7.
///                Singular values end up between about 0.7 and 1.2.
/// kPolarExpress  each step has the polynomial that is best for where the steps before it leave
///                singular values (Amsel et al. 2025, arXiv:2505.16932). The coefficients are those
///                for five steps with a safety factor of 2e-2, as nanochat's optim.py has them. So
///                factor 1.02, shift 1e-6: no rounding takes a singular value to where the
///                polynomials grow. Singular values from 0.002 |M| on end up between 0.85 and 1.15.
///
/// Either is good enough for an update's direction.
///
/// Shape      matrix [rows, columns], f32, in place.
/// Types      `dtype`, f32 or bf16, is the type of all intermediate matrices: X, A, A A, b A + c A
///            A and (b A + c A A) X are each rounded to it once, from sums in f32. In bf16 (the
///            author's choice) tensor cores multiply, and rounding changes the final singular
///            values by a few hundredths.
/// Workspace  `orthogonalise_workspace_numel` f32 elements.
/// Bits       matmuls as kernels/linear.h (f32 on a GPU: TF32 if the stream allows it); the norm is
///            summed in f64 in row order.
#pragma once

#include "core/stream.h"
#include "core/tensor.h"

namespace sherd::kernels {

inline constexpr int kNewtonSchulzSteps = 5;

enum class Polynomials { kJordan, kPolarExpress };

/// The numbers of the equations above.
struct NewtonSchulz {
  struct Step {
    float a, b, c;
  };
  Step steps[kNewtonSchulzSteps];
  double norm_factor, norm_shift;
};
const NewtonSchulz& newton_schulz(Polynomials polynomials);

struct Orthogonalise {
  Tensor matrix;
  std::int64_t rows = 0, columns = 0;
  DType dtype = DType::kF32;
  Tensor workspace;
  Polynomials polynomials = Polynomials::kJordan;
};
void orthogonalise(Stream& stream, const Orthogonalise& args);
std::int64_t orthogonalise_workspace_numel(std::int64_t rows, std::int64_t columns, DType dtype);

/// How the workspace is divided; each part starts at a multiple of 256 bytes.
struct NewtonSchulzParts {
  Tensor x, y;         ///< [small, large], the shorter side first
  Tensor gram, gram2;  ///< [small, small]
  Tensor of_matmuls;   ///< on a CPU; a GPU's matmuls use idle parts (y, or gram2)
};
NewtonSchulzParts newton_schulz_parts(const Orthogonalise& args);

}  // namespace sherd::kernels
