/// What tensor ranks (tensor_cut.h) do about parts of rows, heads and the vocabulary that they share: nothing where
/// a model is whole; where it is cut, or its sums are canonical, the exchanges of engine/model/collectives.h.
#pragma once

#include <memory>

#include "engine/model/computation.h"

namespace sherd::kernels {
struct QkNormBackward;
}

namespace sherd::model {

/// Sums over rows of queries and keys, [2, T] each; empty where a kernel forms them itself.
struct RowSums {
  ConstTensor sums, squares;
};

class TensorShares : protected Part {
 public:
  using Part::Part;
  virtual ~TensorShares() = default;

  /// Losses of the tokens [first, first + tokens); with `gradient` their logits become their gradients.
  virtual void chunk_losses(const Pass& pass, std::int64_t first, std::int64_t tokens,
                            const Tensor& logits_CV, bool gradient) = 0;
  /// What rows of queries and keys add up to over the ranks that have parts of them.
  virtual RowSums sums_of_normalised_rows(const Tensor& qkv_TE) = 0;
  /// The backward of norms of queries and keys: d_qkv in place, and the gradients of their weights.
  virtual void qk_norm_backward(const BlockTensors& kept, const BlockParameters& parameters,
                                const BlockParameters& gradients, const Tensor& d_qkv_TE) = 0;
  /// Adds up in f32 the gradients of keys and values, `d_kv`, over the ranks that hold copies of their heads, and rounds
  /// them into d_qkv: what follows is what one rank that holds all their queries would compute.
  virtual void add_up_key_values(const Tensor& d_qkv_TE) = 0;
  /// What `project_backward` must give back before the input's gradient; empty: nothing (see leave_own_share).
  virtual Tensor dy_of_copies(const Tensor& d_qkv_TE) const = 0;
  /// After the weights' product, each copy of a key/value head keeps its share of the head's columns, so
  /// that the sum of dx over ranks has each once.
  virtual void leave_own_share(const Tensor& d_qkv_TE) = 0;
  /// Of an adapter's two matrices one is whole on every rank: its gradient is the sum of theirs (adapter.h).
  virtual void add_up_adapters(const Affine& gradients) = 0;

  /// The columns of each matrix fused in attention.qkv and mlp.up that count once over all ranks.
  std::vector<OutputColumns> qkv_columns() const;
  std::vector<OutputColumns> up_columns(std::int64_t block) const;

 protected:
  kernels::QkNormBackward qk_norm_gradients(const BlockTensors& kept,
                                            const BlockParameters& parameters, const Affine& query,
                                            const Affine& key, const Tensor& d_qkv_TE) const;
};

std::unique_ptr<TensorShares> make_tensor_shares(Computation& computation);

}  // namespace sherd::model
