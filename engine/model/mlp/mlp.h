/// The dense MLP of a layer: up projection, activation, down projection.
///
///   branch = down(activation(up(x)))        x: the output of norm2 (or norm1, if branches share
///                                           it), or the middle of the residual stream
///
/// Shapes   x, branch [T, D] of the residual stream's tokens; up [T, U]; activated [T, F], F the
///          layer's own.
#pragma once

#include "engine/model/computation.h"

namespace sherd::model {

class Mlp : protected Part {
 public:
  /// `gathered`: where the rows of all tokens that it reads are already, if it isn't empty.
  explicit Mlp(Computation& computation, const Buffer* gathered = nullptr)
      : Part(computation), gathered_(gathered) {}

  /// From its input to the activation's output.
  void forward(std::int64_t block, const BlockParameters& parameters);
  /// Gradients of its parameters, from the gradient of the down projection's result. The gradient
  /// of its input goes to `d_read_TD`, which is empty if it isn't needed.
  void backward(std::int64_t block, const BlockParameters& parameters,
                const BlockParameters& gradients, const Tensor& d_out_TD, const Tensor& d_read_TD);
  /// Selective recompute before the backward.
  void compute_again(std::int64_t block, const BlockParameters& parameters);
  /// The weight gradients that computing only the input gradient has deferred, after
  /// `compute_again`.
  void weight_gradients(std::int64_t block, const BlockParameters& gradients);

 private:
  const Tensor& input(const BlockTensors& kept) const;
  bool is_gathered() const { return gathered_ != nullptr && *gathered_; }
  Tensor read(const BlockTensors& kept);
  ConstTensor read_once_more(const BlockTensors& kept);

  const Buffer* gathered_;
};

}  // namespace sherd::model
