/// What a cut model asks of its Collectives, known beforehand: for plans of traffic.
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
    kPassOn
  };

  Kind kind = Kind::kSum;
  std::string what;
  DType dtype = DType::kF32;
  std::int64_t numel = 0;
  std::int64_t calls = 0;

  bool operator==(const Exchange&) const = default;
};

enum class PassKind { kEvaluation, kTraining };

/// How often each part of a model is passed, each time with one micro-batch.
struct PassCounts {
  std::int64_t embeddings = 0, heads = 0;
  std::int64_t blocks = 0;        ///< forwards that are asked for
  std::int64_t blocks_again = 0;  ///< and those that the backward makes again, with full recompute
  std::int64_t mlps = 0, mlps_again = 0;  ///< of these blocks, those that have an MLP
};
/// One pass of a whole model. The backward makes all blocks again but the last one, whose activations are still
/// there.
PassCounts one_pass(const ModelShape& shape, PassKind pass);

/// Of so many passes of `part`; nothing where it is whole. `gradients`: the type of weight gradients.
std::vector<Exchange> exchanges(const ModelShape& part, DeviceKind device, DType gradients,
                                PassKind pass, const PassCounts& counts);
/// Of one pass over one micro-batch.
std::vector<Exchange> exchanges(const ModelShape& part, DeviceKind device, DType gradients,
                                PassKind pass);

}  // namespace sherd::model
