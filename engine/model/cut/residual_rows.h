/// Which tokens of the residual stream, norms and dropout are on this rank: all, or with sequence parallelism
/// (Korthikanti et al., arXiv:2205.05198) a part of them, neighbours.
///
/// What a matrix reads or writes has all tokens. With sequence parallelism an all-gather of rows comes before a matrix
/// whose outputs are cut, and a reduce-scatter of rows replaces the sum after one whose inputs are. Both together send
/// what an all-reduce does, and rows of the sums have its bits.
///
/// Where the ranks can't share the tokens evenly, the last ones have rows of zeros, whose gradients are zeros. With
/// canonical sums they share them evenly, in whole groups (canonical_sums.cpp).
#pragma once

#include <memory>

#include "engine/model/computation.h"

namespace sherd::model {

class ResidualRows : protected Part {
 public:
  using Part::Part;
  virtual ~ResidualRows() = default;

  /// The rows of all ranks, from each rank's own. A collective.
  virtual Tensor all_rows(const char* what, const Tensor& own_TD) = 0;
  /// Where they are, and where this rank's addends of a sum are formed.
  virtual Tensor all_rows_place(const Tensor& own_TD) const = 0;
  /// sum_TD = this rank's rows of the sum of all tensor ranks' `addend_TD`. A collective.
  virtual void add_up_rows(const char* what, const Tensor& addend_TD, const Tensor& sum_TD) = 0;
  /// A norm's weights serve the tokens of all ranks: adds up their gradients. Frozen ones have none.
  virtual void add_up_norm(const Affine& gradients) = 0;
};

std::unique_ptr<ResidualRows> make_residual_rows(Computation& computation);

}  // namespace sherd::model
