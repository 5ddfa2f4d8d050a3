/// Matrices as products of two thin ones: what PowerSGD (Vogels et al. 2019, arXiv:1905.13727) and
/// Dion (Ahn et al. 2025, arXiv:2504.05295) compute. All tensors are f32 and row-major. CPU only.
///
///   M [rows, columns];   factors are transposed: p [rank, rows], q [rank, columns]
///
/// Bits     a function of the values alone: the same on any number of threads and with every
///          instruction set.
#pragma once

#include <optional>

#include "core/stream.h"
#include "core/tensor.h"
#include "kernels/philox.h"

namespace sherd::kernels {

struct LowRankShape {
  std::int64_t rows = 0, columns = 0, rank = 0;
};

/// p[c, i] = sum over j of M[i, j] q[c, j]. A product is rounded once; sums are LaneSum's.
void low_rank_rows(Stream& stream, const LowRankShape& shape, ConstTensor matrix, ConstTensor q,
                   Tensor p);
/// q[c, j] = sum over i of M[i, j] p[c, i], added in the order of rows.
void low_rank_columns(Stream& stream, const LowRankShape& shape, ConstTensor matrix, ConstTensor p,
                      Tensor q);

/// Gram-Schmidt, twice for each vector, in their order, with sums in f64: the `count` vectors of
/// x [count, length] become orthonormal. A vector that depends on those before it, to 1e-5 of its
/// norm, becomes zero or, with `redraw`, random and orthonormal: element k of vector c is drawn at
/// (redraw's seed, step c, site, k). One that isn't finite becomes NaN.
void orthonormalise(Stream& stream, std::int64_t count, std::int64_t length, Tensor x,
                    std::optional<RandomAddress> redraw = {});

/// The vectors of r [count, length] give the next basis: q[c] = r[c] / |r[c]|, unchanged where r[c]
/// is zero; then r = scale * r. Norms are summed in f64.
void next_basis(Stream& stream, std::int64_t count, std::int64_t length, float scale, Tensor r,
                Tensor q);

/// For elements [first, first + n) of M, in `elements`:
///   error[k]    = elements[k] - sum over c of p[c, i] own_q[c, j]
///   elements[k] = sum over c of p[c, i] sum_q[c, j]
/// added in the order of c. own_q may be sum_q.
struct LowRankParts {
  ConstTensor p{}, own_q{}, sum_q{};
};
void low_rank_restore(Stream& stream, const LowRankShape& shape, const LowRankParts& parts,
                      std::int64_t first, Tensor elements, Tensor error);

}  // namespace sherd::kernels
