/// Which tokens of the residual stream, norms and dropout are on this rank: all, or with sequence
/// parallelism (Korthikanti et al., arXiv:2205.05198) a contiguous part of them.
///
/// Inputs and outputs of matrices have all tokens. With sequence parallelism an all-gather of rows
/// comes before a matrix whose outputs are cut, and a reduce-scatter of rows replaces the sum after
/// one whose inputs are cut. Together they send as much as an all-reduce, and the rows of sums have
/// its bits.
///
/// If the ranks can't share the tokens evenly, the last ranks have padding rows of zeros with zero
/// gradients. With canonical sums they share the tokens evenly, in whole groups
/// (canonical_sums.cpp).
#pragma once

#include <memory>

#include "engine/model/computation.h"

namespace sherd::model {

class ResidualRows : protected Part {
 public:
  using Part::Part;
  virtual ~ResidualRows() = default;

  /// Gathers the rows of all ranks. A collective.
  virtual Tensor all_rows(const char* what, const Tensor& own_TD) = 0;
  /// Where these rows are, and where this rank's addends of a sum are computed.
  virtual Tensor all_rows_place(const Tensor& own_TD) const = 0;
  /// sum_TD = this rank's rows of the sum of all tensor ranks' `addend_TD`. A collective.
  virtual void add_up_rows(const char* what, const Tensor& addend_TD, const Tensor& sum_TD) = 0;
  /// Adds up the gradients of a norm's weights, which apply to the tokens of all ranks. Frozen ones
  /// have none.
  virtual void add_up_norm(const Affine& gradients) = 0;
};

std::unique_ptr<ResidualRows> make_residual_rows(Computation& computation);

}  // namespace sherd::model
