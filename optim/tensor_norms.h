/// Norms of whole tensors, although every rank holds only slices of them.
///
/// Each rank adds the squares of its own slice for every tensor; one exchange of all tensors'
/// partials follows. If ranks hold copies of a slice or of a part of a tensor, only one counts. The
/// sums are exact (core/exact_sum.h; not on a GPU), so results are bit-identical however the world
/// is divided into slices. A tensor that spans several ranks gets one norm, not one per rank, and
/// never one per flat buffer.
#pragma once

#include <functional>
#include <vector>

#include "core/exact_sum.h"
#include "optim/slices.h"
#include "sharding/mesh/exchange.h"

namespace sherd::optim {

/// The sums of one slice's segments, and the exchange of all tensors' partials.
struct TensorNormBuffers {
  BufferSpec sums, exchange;
};
TensorNormBuffers tensor_norm_buffers(const sharding::ShardingPlan& plan,
                                      const MomentType& moments);

sharding::Traffic tensor_norm_traffic(const sharding::ShardingPlan& plan);

class TensorNorms {
 public:
  TensorNorms(const sharding::Rank& rank, const std::vector<sharding::UnitState>& units,
              const MomentType& moments);

  /// The ranks that exchange: all but other pipeline ranks, which have other tensors, and replicas
  /// that train apart.
  static sharding::AxisSet axes(const sharding::Mesh& mesh,
                                const std::vector<sharding::UnitPlan>& units);

  struct Pair {
    double first = 0.0, second = 0.0;
  };
  /// `sums_of` computes two exact sums per segment of this rank's own slice of a unit (all first
  /// sums, then all second sums). Returns the norms by parameter index. A collective.
  std::vector<Pair> all(
      Stream& stream, const std::vector<std::vector<UpdatedSlice>>& slices,
      const std::function<void(int unit, const UpdatedSlice& slice, const Tensor& sums)>& sums_of);

 private:
  const std::vector<sharding::UnitState>* units_;
  std::int64_t num_parameters_ = 0;
  sharding::MirroredBuffer sums_;
  sharding::Exchange exchange_;

  struct SumPair {
    ExactSum first, second;
  };
  std::vector<SumPair> mine_, all_;  // by parameter index: of this rank's slices, and of all
  std::vector<double> numbers_;      // what this rank sends to the others
};

}  // namespace sherd::optim
