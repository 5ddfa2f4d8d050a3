/// What every communicator says of the tensors that it is given: slices are equal, and shapes that
/// disagree on one rank are our bug (CHECK).
#pragma once

#include "sharding/comm/communicator.h"

namespace sherd::sharding {

inline void check_divides(const Communicator& communicator, const Tensor& full,
                          const std::string& label) {
  CHECK(full.numel % communicator.world_size() == 0, "{}: {} elements on {} ranks", label,
        full.numel, communicator.world_size());
}

inline void check_reduce_scatter(const Communicator& communicator, const Tensor& full,
                                 const Tensor& out, const std::string& label) {
  check_divides(communicator, full, label);
  CHECK(out.numel * communicator.world_size() == full.numel && out.dtype == full.dtype,
        "reduce_scatter of {}: {} elements into {}", label, full.numel, out.numel);
}

inline void check_root(const Communicator& communicator, int root) {
  CHECK(root >= 0 && root < communicator.world_size(), "broadcast from rank {}", root);
}

/// The part of `full` that `rank` owns.
inline Tensor slice_of(const Communicator& communicator, const Tensor& full, int rank) {
  const std::int64_t count = full.numel / communicator.world_size();
  return full.part(rank * count, count);
}

}  // namespace sherd::sharding
