/// The attention branch of a layer: projection of queries, keys and values, their norms and
/// rotation, attention, and the output projection.
///
///   branch = output(attend(rotate(qk_norm(qkv(x)))))     x: the output of norm1, or the layer's
///                                                        input
///
/// With latent attention, qkv and its gradients are those of latent.h; in generation, heads attend
/// to latents (absorbed.h).
///
/// Shapes   x, branch [T, D] of the residual stream's tokens; qkv [T, E]; attended [T, H K].
#pragma once

#include <memory>

#include "engine/model/attention/absorbed.h"
#include "engine/model/attention/latent.h"
#include "engine/model/attention/sequences.h"
#include "engine/model/computation.h"

namespace sherd::model {

class Attention : protected Part {
 public:
  explicit Attention(Computation& computation);

  /// From the layer's input to the heads' attention output.
  void forward(std::int64_t block, const BlockParameters& parameters, const Pass& pass);
  /// Gradients of its parameters, from the gradient of the output projection's result. The gradient
  /// of its input goes to `d_read_TD`, which is empty if it isn't needed.
  void backward(std::int64_t block, const BlockParameters& parameters,
                const BlockParameters& gradients, const Pass& pass, const Tensor& d_out_TD,
                const Tensor& d_read_TD);
  /// The weight gradients that computing only the input gradient has deferred.
  void weight_gradients(std::int64_t block, const BlockParameters& parameters,
                        const BlockParameters& gradients);

 private:
  const Tensor& input(const BlockTensors& kept) const;
  void normalise_input_again(const BlockTensors& kept, const BlockParameters& parameters);
  bool is_latent(std::int64_t block) const;
  void project_heads(std::int64_t block, const BlockTensors& kept,
                     const BlockParameters& parameters, const Tensor& x_TD, const Tensor& qkv_TE);
  void normalise_heads(std::int64_t block, const BlockTensors& kept,
                       const BlockParameters& parameters, const Tensor& qkv_TE);
  bool norm_follows_rotation() const;
  void attend(std::int64_t block, const BlockTensors& kept, const Pass& pass, const Tensor& qkv_TE);
  void attend_backward(std::int64_t block, const BlockTensors& kept, const Pass& pass,
                       const Tensor& d_attended_TD, const Tensor& d_qkv_TE);
  void make_heads_again(std::int64_t block, const BlockTensors& kept,
                        const BlockParameters& parameters, const Pass& pass);
  void project_heads_backward(std::int64_t block, const BlockTensors& kept,
                              const BlockParameters& parameters, const BlockParameters& gradients,
                              const Tensor& d_qkv_TE, const Tensor& d_read_TD);
  void rotate(std::int64_t block, const Tensor& qkv_TE, bool inverse, const Pass& pass) {
    rotate(block, qkv_TE, shape_.kv_heads, inverse, pass);
  }
  void rotate(std::int64_t block, const Tensor& qkv_TE, std::int64_t kv_heads, bool inverse,
              const Pass& pass);
  void attend_to_latents(std::int64_t block, const BlockTensors& kept,
                         const BlockParameters& parameters, const Pass& pass, const Tensor& x_TD);

  LatentProjection latent_;
  AbsorbedLatents absorbed_;
  std::unique_ptr<Sequences> sequences_;
};

}  // namespace sherd::model
