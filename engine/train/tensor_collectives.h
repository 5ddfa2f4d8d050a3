/// The exchanges of a cut model (engine/model/collectives.h), over communicators.
#pragma once

#include "core/memory.h"
#include "core/stream.h"
#include "engine/model/collectives.h"
#include "engine/model/shape.h"
#include "sharding/comm/communicator.h"

namespace sherd::engine {

/// Where the last elements of a sum wait, of tensors that the ranks can't share evenly.
BufferSpec tensor_sum_tail(const model::TensorPart& part);

class TensorCollectives final : public model::Collectives {
 public:
  /// `ranks`: the tensor ranks in order. `copies`: those of them that hold the same key/value heads, or null
  /// where none do. Everything runs on `compute`, on which nothing else uses them.
  TensorCollectives(const model::TensorPart& part, Allocator& memory, Stream& compute,
                    sharding::Communicator& ranks, sharding::Communicator* copies);

  void sum(const char* what, const Tensor& x) override;
  void sum_copies(const char* what, const Tensor& x) override;
  void gather(const char* what, const Tensor& x) override;

 private:
  void sum_over(sharding::Communicator& communicator, const char* what, const Tensor& x);

  Stream& compute_;
  sharding::Communicator& ranks_;
  sharding::Communicator* copies_;
  Buffer tail_;
};

}  // namespace sherd::engine
