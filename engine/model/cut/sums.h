/// The order of a model's sums: as its matmuls form them and then in rank order, or canonical
/// (canonical_sums.cpp), where results are bit-identical for any number of ranks.
#pragma once

#include <memory>

#include "engine/model/computation.h"

namespace sherd::model {

class Sums : protected Part {
 public:
  using Part::Part;
  virtual ~Sums() = default;

  /// y_TD = a projection whose inputs are cut over ranks, summed over the ranks, plus its bias: the
  /// residual stream's rows. A collective.
  virtual void project_to_residual(const Affine& projection, const Tensor& x, std::int64_t inputs,
                                   const Tensor& y_TD) = 0;
  /// Gradients of a projection's weight and bias, from all tokens.
  virtual void weight_gradient(const Affine& gradients, const ConstTensor& x, std::int64_t inputs,
                               const ConstTensor& dy, std::int64_t outputs) = 0;
  /// The gradient of a projection's input: `args.dx`. If its outputs are cut, this is this rank's
  /// part of a sum that `finish_read_gradient` completes, or already complete.
  virtual void input_gradient(const Tensor& weight, const InputGradient& args) = 0;
  /// Where a branch's first matrix writes the gradient of its input.
  virtual Tensor d_read_TD() const = 0;
  /// Completes that gradient, in branch_TD. A collective, or nothing.
  virtual void finish_read_gradient() = 0;

  /// Head and loss of all tokens, chunk by chunk. Computes the gradient of the head's matrix, and
  /// writes the gradient of its input to `normed_TD`, which `finish_head_gradient` completes.
  virtual void train_head(const HeadParameters& parameters, const HeadParameters& gradients,
                          const Pass& pass, const Tensor& normed_TD) = 0;
  virtual void finish_head_gradient(const Tensor& normed_TD, const Tensor& dx_TD) = 0;

  /// out = the sum of `terms` as a tree. `terms` may be overwritten.
  void add_as_tree(const std::vector<Tensor>& terms, const Tensor& out);
};

std::unique_ptr<Sums> make_sums(Computation& computation);
std::unique_ptr<Sums> make_canonical_sums(Computation& computation);

}  // namespace sherd::model
