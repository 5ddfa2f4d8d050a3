/// The projections of latent attention (engine/model/layer_shapes.h): from a layer's input to packed
/// queries, keys and values, which are neither rotated nor attended to yet.
///
/// Kept are what the down projections give, the latents, and the packed heads; `selective` recompute
/// makes the latents and the heads again, so that it keeps C + R numbers per token, and Q.
///
/// Shapes   x, d_read [T, D]; qkv, d_qkv [T, 3 H K].
#pragma once

#include "engine/model/computation.h"

namespace sherd::model {

class LatentProjection : protected Part {
 public:
  using Part::Part;

  void forward(const BlockTensors& kept, const BlockParameters& parameters, const Tensor& x_TD,
               const Tensor& qkv_TE);
  /// The latents alone, and queries, which are returned: [T, H K], the rotated numbers of each last.
  Tensor queries_and_latents(const BlockTensors& kept, const BlockParameters& parameters,
                             const Tensor& x_TD);
  /// From the kept outputs of the down projections, and of x if `expands_input`: where queries have
  /// one projection.
  bool expands_input() const { return shape_.latent.query_rank == 0; }
  void expand(const BlockTensors& kept, const BlockParameters& parameters, const Tensor& x_TD,
              const Tensor& qkv_TE);
  /// Gradients of the parameters, and of x to `d_read_TD` unless it is empty.
  void backward(const BlockTensors& kept, const BlockParameters& parameters,
                const BlockParameters& gradients, const ConstTensor& x_TD, const Tensor& d_qkv_TE,
                const Tensor& d_read_TD);
  /// The weight gradients that computing only the input gradient has deferred.
  void weight_gradients(std::int64_t block, const BlockTensors& kept,
                        const BlockParameters& gradients, const ConstTensor& x_TD);
  /// Makes the latents again, after `selective` has given them up.
  void normalise_again(const BlockTensors& kept, const BlockParameters& parameters);

  /// Where attention writes what heads attended to, if their values have gaps; else the kept one.
  BlockTensors with_padded_values(const BlockTensors& kept) const;
  void take_values(const BlockTensors& kept);
  /// Fills with_padded_values again. Returns the gradient with gaps.
  Tensor spread_values(const BlockTensors& kept, const Tensor& d_attended_TD);

 private:
  void project_down(const BlockTensors& kept, const BlockParameters& parameters,
                    const Tensor& x_TD);
  void project_queries(const BlockTensors& kept, const BlockParameters& parameters,
                       const Tensor& x_TD);
  void normalise_query(const BlockTensors& kept, const BlockParameters& parameters);
  void normalise_kv(const BlockTensors& kept, const BlockParameters& parameters);
  void norm_forward(const Tensor& raw, const Affine& parameters, const SiteTensors& site,
                    std::int64_t rank);
  void norm_backward(const Tensor& raw, const Affine& parameters, const Affine& gradients,
                     const SiteTensors& site, std::int64_t rank, const Tensor& d_raw);
  InputGradient queries_backward(const BlockTensors& kept, const BlockParameters& parameters,
                                 const BlockParameters& gradients, const ConstTensor& x_TD,
                                 const Tensor& d_query);
  /// Gradients of the matrix, and of its adapter. `args.dx` is for project_backward_input.
  void weight_backward(const BlockParameters& parameters, const BlockParameters& gradients,
                       SiteId site, InputGradient args, const Buffer WaitingBuffers::*waits);
  Tensor raw_kv_latent(const BlockTensors& kept);
  /// A gradient waits for the weight's, or is used at once.
  Tensor place(const Buffer WaitingBuffers::*waits, const Buffer& scratch,
               std::int64_t width) const;
  Tensor query() const;
  Tensor keys_values() const;
};

}  // namespace sherd::model
