/// How tensor ranks (tensor_cut.h) combine rows, heads and the vocabulary that they share. Does
/// nothing if the model isn't cut; if it is cut, or its sums are canonical, uses the exchanges of
/// engine/model/collectives.h.
#pragma once

#include <memory>

#include "engine/model/computation.h"

namespace sherd::kernels {
struct QkNormBackward;
struct Teacher;
struct ZLoss;
}  // namespace sherd::kernels

namespace sherd::model {

/// Sums over rows of queries and keys, [2, T] each; empty if a kernel computes them itself.
struct RowSums {
  ConstTensor sums, squares;
};

class TensorShares : protected Part {
 public:
  using Part::Part;
  virtual ~TensorShares() = default;

  /// Losses of the tokens [first, first + tokens); with `gradient` their logits become their
  /// gradients.
  virtual void chunk_losses(const Pass& pass, std::int64_t first, std::int64_t tokens,
                            const Tensor& logits_CV, bool gradient) = 0;
  /// Sums of the rows of queries and keys over the ranks that have parts of them.
  virtual RowSums sums_of_normalised_rows(const Tensor& qkv_TE) = 0;
  /// The backward of norms of queries and keys: d_qkv in place, and the gradients of their weights.
  virtual void qk_norm_backward(const BlockTensors& kept, const BlockParameters& parameters,
                                const BlockParameters& gradients, const Tensor& d_qkv_TE) = 0;
  /// Sums the gradients of keys and values, `d_kv`, in f32 over the ranks that hold copies of their
  /// heads, and rounds them into d_qkv. The result is what one rank with all their queries would
  /// compute.
  virtual void add_up_key_values(const Tensor& d_qkv_TE) = 0;
  /// The dy that `project_backward` must pass to leave_own_share before it computes the input's
  /// gradient; empty: none.
  virtual Tensor dy_of_copies(const Tensor& d_qkv_TE) const = 0;
  /// After the weight gradient, each copy of a key/value head keeps its share of the head's
  /// columns, so that the sum of dx over ranks counts each column once.
  virtual void leave_own_share(const Tensor& d_qkv_TE) = 0;
  /// Sums the gradient of an adapter's uncut matrices over the ranks (adapter.h).
  virtual void add_up_adapters(const Affine& gradients) = 0;
  /// The same of the weight of a site that leads_to_latents, of which each rank's heads give a part.
  virtual void add_up_latent(const Affine& gradients) = 0;

  /// The columns of each matrix fused in attention.qkv and mlp.up that count once over all ranks.
  std::vector<OutputColumns> qkv_columns() const;
  std::vector<OutputColumns> up_columns(std::int64_t block) const;

 protected:
  kernels::ZLoss z_loss(std::int64_t first, std::int64_t tokens, bool gradient) const;
  Tensor losses_of(const Pass& pass) const;
  kernels::Teacher teacher(const Pass& pass, std::int64_t first, std::int64_t tokens,
                           bool gradient) const;
  kernels::QkNormBackward qk_norm_gradients(const BlockTensors& kept,
                                            const BlockParameters& parameters, const Affine& query,
                                            const Affine& key, const Tensor& d_qkv_TE) const;
};

std::unique_ptr<TensorShares> make_tensor_shares(Computation& computation);

}  // namespace sherd::model
