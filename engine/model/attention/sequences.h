/// Which positions queries attend from and to: the forms of a layer's attention, which differ in
/// where keys and values are. One is chosen when a transformer is constructed.
///
///   whole     all positions are here
///   cached    for text generation: keys and values of earlier passes are kept (kernels/kv_cache.h)
///   ulysses   context ranks exchange heads, and attend from all positions (dealt_heads.cpp)
///   gathered  context ranks gather the keys and values of all positions (gathered_keys.cpp)
///   ring      context ranks pass keys and values from rank to rank (ring.h)
///
/// Shapes   queries, keys and values [T, E], attention output [T, H K], for this rank's positions.
#pragma once

#include <memory>

#include "engine/model/computation.h"

namespace sherd::model {

class Sequences : protected Part {
 public:
  using Part::Part;
  virtual ~Sequences() = default;

  /// Where the projection writes the queries, keys and values that `attend` reads; `kept_TE` is
  /// where they are kept for the backward.
  virtual Tensor qkv_place(const Tensor& kept_TE) const { return kept_TE; }
  /// Fills kept[kAttention], and kept[kQkv] if qkv_place was another buffer.
  virtual void attend(std::int64_t block, const BlockTensors& kept, const Pass& pass,
                      const Tensor& qkv_TE) = 0;
  /// d_qkv_TE = the gradient of queries, and of keys and values unless these go to d_kv. Also fills
  /// kept.d_sinks, if there are sinks: this rank's queries' part of it.
  virtual void attend_backward(std::int64_t block, const BlockTensors& kept, const Pass& pass,
                               const Tensor& d_attended_TD, const Tensor& d_qkv_TE) = 0;

 protected:
  /// Of Pass::attention_maxima, the part of the heads that this rank's attention kernels compute.
  Tensor maxima_of(std::int64_t block, const Pass& pass) const;
  /// Pass::documents for kernels that are given whole sequences: without positions.
  static kernels::Documents attention_documents(const Pass& pass);
  /// kept.d_sinks, from what `shape`'s heads of all this rank's queries attended to.
  void sinks_gradient(const kernels::AttentionShape& shape, const BlockTensors& kept,
                      const ConstTensor& out, const ConstTensor& d_out);
};

std::unique_ptr<Sequences> make_sequences(Computation& computation);

/// The forms that are cut over context ranks.
std::unique_ptr<Sequences> make_dealt_heads(Computation& computation);
std::unique_ptr<Sequences> make_gathered_keys(Computation& computation);
std::unique_ptr<Sequences> make_ring(Computation& computation);

}  // namespace sherd::model
