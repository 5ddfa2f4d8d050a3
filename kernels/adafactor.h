/// Adafactor (Shazeer & Stern 2018, arXiv:1804.04235), as torch.optim.Adafactor has it, on a rank's
/// slice. For a matrix with R rows and C columns, t = update number, g = gradient_scale * grad:
///
///   w = t^beta2_decay
///   row_r += w (mean over c of g_rc^2 - row_r)        col_c += w (mean over r of g_rc^2 - col_c)
///   v_rc = row_r col_c / max(mean of row, eps)        u_rc = g_rc / sqrt(max(v_rc, eps^2))
///   ratio = max(min_parameter_rms, rms(p)) min(lr, 1 / sqrt(t)) / max(1, rms(u) / clip_threshold)
///   p -= lr weight_decay p;   p -= ratio u
///
/// A vector is one row of C columns without `row`: v_c = col_c. Parameters, row and col are f32;
/// gradients f32, bf16 or f16.
///
/// Numbers  A unit's row and col are one buffer: of each parameter its rows (if it is a matrix),
///          then its columns. The same places are used for sums of squares, each with
///          ExactSum::kNumbers f64. They are exact, so they don't depend on where slices are cut.
/// Bits     u and p are element-wise in f32, without contraction; means are computed in f64, in the
///          order of rows.
/// CPU only.
#pragma once

#include <span>

#include "kernels/update.h"

namespace sherd::kernels {

/// Where a segment's elements are in their matrix. The segment lies in a box of `columns` columns.
struct AdafactorPlace {
  std::int64_t columns = 1;
  std::int64_t first = 0;   ///< element of the box at which the segment begins
  std::int64_t row = -1;    ///< number of the box's first row among the unit's; -1: a vector
  std::int64_t column = 0;  ///< number of the box's first column
  std::int64_t scale = 0;   ///< index of its matrix in `scales`
  bool counts = true;       ///< false: another rank adds the same elements
};

struct AdafactorUpdate {
  UpdateCommon common;
  std::span<const AdafactorPlace> places;  ///< one per segment
  ConstTensor variances;                   ///< row and col of the unit
  ConstTensor scales;                      ///< 1 / max(mean of row, eps), by matrix; 1 for vectors
  float eps = 1e-7f;
};

/// Adds g^2 of the segments that count to `sums`, for each row and column.
void adafactor_squares(Stream& stream, const AdafactorUpdate& args, Tensor sums);

/// The numbers of one parameter.
struct AdafactorMatrix {
  std::int64_t rows = 1, columns = 1;  ///< of the whole parameter
  std::int64_t row = -1, column = 0, scale = 0;
};
/// Updates row and col from the sums of the whole unit, and writes scales. The sum of number i is
/// sums[i * ExactSum::kNumbers], rounded.
struct AdafactorVariances {
  std::span<const AdafactorMatrix> matrices;
  ConstTensor sums;
  Tensor variances, scales;
  double fresh = 1.0;  ///< w
  float eps = 1e-7f;
};
void adafactor_variances(Stream& stream, const AdafactorVariances& args);

/// As lamb_norms: exact sums of p^2, then of u^2, of each segment.
void adafactor_norms(Stream& stream, const AdafactorUpdate& args, Tensor sums);
/// ratios: one per segment; must outlive the call.
void adafactor_apply(Stream& stream, const AdafactorUpdate& args, std::span<const float> ratios);

}  // namespace sherd::kernels
