/// From which positions queries attend to which: the forms of a layer's attention that differ in where keys and values
/// are. One is chosen when a transformer is made.
///
///   whole     all positions are here
///   cached    text is generated: keys and values of earlier passes are kept (kernels/kv_cache.h)
///   ulysses   context ranks give one another heads, and attend from all positions (dealt_heads.cpp)
///   gathered  or gather the keys and values of all positions (gathered_keys.cpp)
///   ring      or pass them on from rank to rank (ring.h)
///
/// Shapes   queries, keys and values [T, E], what heads attended to [T, H K], of this rank's positions.
#pragma once

#include <memory>

#include "engine/model/computation.h"

namespace sherd::model {

class Sequences : protected Part {
 public:
  using Part::Part;
  virtual ~Sequences() = default;

  /// Where the projection writes queries, keys and values that `attend` reads; `kept_TE` is where they are kept.
  virtual Tensor qkv_place(const Tensor& kept_TE) const { return kept_TE; }
  /// Fills kept[kAttention], and kept[kQkv] where its place was another.
  virtual void attend(std::int64_t block, const BlockTensors& kept, const Pass& pass,
                      const Tensor& qkv_TE) = 0;
  /// d_qkv_TE = the gradient of queries, and of keys and values where d_kv doesn't take these.
  virtual void attend_backward(std::int64_t block, const BlockTensors& kept, const Pass& pass,
                               const Tensor& d_attended_TD, const Tensor& d_qkv_TE) = 0;
};

std::unique_ptr<Sequences> make_sequences(Computation& computation);

/// Those that are cut over context ranks.
std::unique_ptr<Sequences> make_dealt_heads(Computation& computation);
std::unique_ptr<Sequences> make_gathered_keys(Computation& computation);
std::unique_ptr<Sequences> make_ring(Computation& computation);

}  // namespace sherd::model
