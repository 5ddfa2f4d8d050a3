/// Norms of whole tensors, although every rank holds only slices of them.
///
/// Each rank adds the squares of its own slice, segment by segment, for every tensor; one exchange
/// of all tensors' partials follows; ranks are added in rank order, and of ranks that hold copies of
/// a slice one counts. Stage 0 takes its own slice
/// too, although it holds them all, so the same sums are formed at every stage. A tensor that
/// straddles ranks so gets one norm, not one per rank, and never one per flat buffer.
#pragma once

#include <functional>
#include <vector>

#include "optim/slices.h"
#include "sharding/mesh/exchange.h"

namespace sherd::optim {

/// The sums of one slice's segments, and the exchange of all tensors' partials.
struct TensorNormBuffers {
  BufferSpec sums, exchange;
};
TensorNormBuffers tensor_norm_buffers(const sharding::ShardingPlan& plan);

sharding::Traffic tensor_norm_traffic(const sharding::ShardingPlan& plan);

class TensorNorms {
 public:
  TensorNorms(const sharding::Rank& rank, const std::vector<sharding::UnitState>& units);

  struct Pair {
    double first = 0.0, second = 0.0;
  };
  /// `sums_of` computes two f64 sums per segment of this rank's own slice of a unit (all first
  /// ones, then all second ones). Returns the norms by parameter index. A collective.
  std::vector<Pair> all(
      Stream& stream, const std::vector<std::vector<UpdatedSlice>>& slices,
      const std::function<void(int unit, const UpdatedSlice& slice, const Tensor& sums)>& sums_of);

 private:
  const std::vector<sharding::UnitState>* units_;
  std::int64_t num_parameters_ = 0;
  sharding::MirroredBuffer sums_;
  sharding::Exchange exchange_;
};

}  // namespace sherd::optim
