/// The mixture of experts of a layer (kernels/router.h, kernels/experts.h).
///
///   branch = sum over the chosen e of w_e f_e(x) (+ shared(x), or sigmoid(<gate, x>) shared(x))
///                                                                            x: norm2's output
///
/// The router computes in f32 from f32 weights, whatever the model's type: it reads x in f32, so a
/// 16-bit model chooses the experts that the same numbers in f32 would. It decides once, in the
/// forward. The backward and every recompute read what it decided.
///
/// Ranks    may divide the experts (expert_exchange.h); the shared expert is computed before
///          results come back. Tensor ranks have a part of each expert's width, and of the shared
///          one's, and all choose alike, since the router and what it reads are the same on each.
///          The branch is a sum over ranks, as a dense MLP's. So are the gradients of routing
///          weights and of gates, each a dot product over the widths.
/// Shapes   x, branch [T, D]; the experts' matrices as in engine/model/sites.h.
/// GPUs     The host waits once in each forward of such a layer, for the experts' numbers of rows
///          (kernels/experts.h). Backward and recompute know them.
///          Context ranks exchange what they have counted of each sequence (kernels/router.h,
///          RouterLosses); all else is of a rank's own tokens.
/// Not with canonical sums.
#pragma once

#include <span>
#include <vector>

#include "engine/model/mlp/expert_exchange.h"
#include "engine/model/mlp/mlp.h"
#include "kernels/experts.h"
#include "kernels/router.h"

namespace sherd::model {

class Mixture : protected Part {
 public:
  explicit Mixture(Computation& computation);

  /// The router's decision, unless `recomputes`, and the shared expert up to its activation's
  /// output (with a gate: to its own output).
  void forward(std::int64_t block, const BlockParameters& parameters, const Pass& pass,
               bool recomputes);
  /// The branch, into out_TD.
  void output(std::int64_t block, const BlockParameters& parameters, const Tensor& out_TD);
  /// As Mlp::backward.
  void backward(std::int64_t block, const BlockParameters& parameters,
                const BlockParameters& gradients, const Pass& pass, const Tensor& d_out_TD,
                const Tensor& d_read_TD);
  void compute_again(std::int64_t block, const BlockParameters& parameters);
  /// After `compute_again`.
  void weight_gradients(std::int64_t block, const BlockParameters& parameters,
                        const BlockParameters& gradients);

 private:
  bool has_shared() const { return shape_.moe.shared_width > 0; }
  Routing routing(std::int64_t block) const;
  void decide(std::int64_t block, const BlockParameters& parameters, const Pass& pass);
  void choose(std::int64_t block, const Tensor& correction, const Pass& pass);
  Tensor normed_TD(std::int64_t block) const;
  Tensor x_TD(std::int64_t block) const;
  Tensor own_counts(const Routing& decides) const;
  kernels::RowPart row_part() const;
  void gather_x(std::int64_t block, bool again);
  /// Whether this rank adds the router's gradient of the input to the sum over tensor ranks.
  bool adds_router() const { return shape_.part.adds_biases_of_sums(); }
  ConstTensor x_in_f32(std::int64_t block);
  kernels::ExpertsWorkspace experts_workspace(bool backward) const;
  kernels::ExpertBiases biases_of(const BlockParameters& parameters) const;
  void shared_output(std::int64_t block, const BlockParameters& parameters, const Tensor& out_TD);
  void own_output(std::int64_t block, const BlockParameters& parameters, const Tensor& out_TD);
  Tensor gate_backward(std::int64_t block, const BlockParameters& parameters,
                       const BlockParameters& gradients, const Tensor& d_out_TD, bool input);
  void router_backward(std::int64_t block, const BlockParameters& parameters,
                       const BlockParameters& gradients, const Pass& pass, bool input);
  void router_weight_gradient(std::int64_t block, const BlockParameters& gradients,
                              const Tensor& d_logits_TE);
  void gate_weight_gradient(std::int64_t block, const BlockParameters& gradients,
                            const Tensor& d_logits);
  void experts_backward(std::int64_t block, const BlockParameters& parameters,
                        const BlockParameters& gradients, const ConstTensor& d_out_TD, bool input);

  std::span<std::int32_t> rows_of_experts(std::int64_t block);

  Mlp shared_;
  ExpertExchange exchange_;  // if ranks divide the experts
  /// On a GPU, of each residual slot: rows of each expert, as its router decided; if ranks divide
  /// the experts, of each rank.
  std::vector<std::int32_t> rows_of_experts_;
};

}  // namespace sherd::model
