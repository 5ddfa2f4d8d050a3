/// What a cut model asks of its Collectives, known beforehand: for plans of traffic.
#pragma once

#include <string>
#include <vector>

#include "core/stream.h"
#include "engine/model/shape.h"

namespace sherd::model {

/// Calls with the same name and size.
struct Exchange {
  enum class Kind { kSum, kSumCopies, kGather };

  Kind kind = Kind::kSum;
  std::string what;
  DType dtype = DType::kF32;
  std::int64_t numel = 0;
  std::int64_t calls = 0;

  bool operator==(const Exchange&) const = default;
};

enum class PassKind { kEvaluation, kTraining };

/// Of one pass over one micro-batch of `part`; nothing where it is whole. `gradients`: the type of weight
/// gradients.
std::vector<Exchange> exchanges(const ModelShape& part, DeviceKind device, DType gradients,
                                PassKind pass);

}  // namespace sherd::model
