/// The calls that a cut model makes to its Collectives, known beforehand, for traffic plans.
#pragma once

#include <string>
#include <vector>

#include "core/stream.h"
#include "engine/model/shape.h"

namespace sherd::model {

/// Calls with the same name and size.
struct Exchange {
  enum class Kind {
    kSum,
    kSumCopies,
    kReduceScatter,
    kGather,
    kAllToAll,
    kGatherPositions,
    kReduceScatterPositions,
    kPassOn,
    kGatherCounts,
    kExchangeRows
  };

  Kind kind = Kind::kSum;
  std::string what;
  DType dtype = DType::kF32;
  std::int64_t numel = 0;
  std::int64_t calls = 0;

  bool operator==(const Exchange&) const = default;
};

enum class PassKind { kEvaluation, kTraining };

/// How often each part of a model is run, each time with one micro-batch.
struct PassCounts {
  std::int64_t embeddings = 0, heads = 0;
  std::int64_t blocks = 0;        ///< forwards
  std::int64_t blocks_again = 0;  ///< forwards that the backward repeats, with full recompute
  std::int64_t mlps = 0, mlps_again = 0;  ///< the same for blocks with an MLP
  /// Outputs of mixtures of experts; a block whose output nobody reads isn't formed again.
  std::int64_t mixtures = 0, mixtures_again = 0;
  std::int64_t mixtures_apart = 0;     ///< weight gradients that are computed apart
  std::vector<std::int64_t> of_block;  ///< training: passes of each block of the model
};
/// One pass of a whole model. The backward repeats all blocks except the last, whose activations
/// are still available.
PassCounts one_pass(const ModelShape& shape, PassKind pass);

/// Exchanges of the given passes of `part`; none if it isn't cut. `gradients`: the type of weight
/// gradients. Those of experts' rows follow from the data: these are the ones of tokens that choose
/// all experts equally often.
std::vector<Exchange> exchanges(const ModelShape& part, DeviceKind device, DType gradients,
                                PassKind pass, const PassCounts& counts);
/// Exchanges of one pass over one micro-batch.
std::vector<Exchange> exchanges(const ModelShape& part, DeviceKind device, DType gradients,
                                PassKind pass);

}  // namespace sherd::model
