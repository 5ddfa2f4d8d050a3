/// The exchanges of a cut model (engine/model/collectives.h), over communicators.
#pragma once

#include "core/memory.h"
#include "core/stream.h"
#include "engine/model/collectives.h"
#include "engine/model/exchanges.h"
#include "sharding/comm/communicator.h"
#include "sharding/comm/traffic.h"

namespace sherd::engine {

/// Where the last elements of a sum wait, of tensors that the ranks can't share evenly.
BufferSpec tensor_sum_tail(const model::TensorPart& part);

/// What a tensor rank sends in these exchanges: sums as all-reduces, of which one may be of the tail alone.
sharding::Traffic tensor_traffic(const model::TensorPart& part,
                                 const std::vector<model::Exchange>& exchanges);

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
