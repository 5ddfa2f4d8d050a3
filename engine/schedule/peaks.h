/// How much of a step is alive on each rank at the same time. A rank's list alone decides it, whatever
/// its actions take, so that a memory plan can be made from it.
///
///   what          of a chunk and a micro-batch, from ...    to the end of ...
///   activations   the forward                               the backward or input gradient
///   waiting       the input gradient                        the weight gradient
///   kept          the forward                               the backward or weight gradient
///
/// *Waiting* are inputs and output gradients that a weight gradient still needs: slots of their own, and
/// smaller ones. *Kept* is what papers count as activations: the whole, until the weight gradient.
/// Actions of a pair are alive together.
#pragma once

#include <cstdint>
#include <vector>

#include "engine/schedule/schedule.h"

namespace sherd::schedule {

struct Peak {
  std::int64_t activations = 0, waiting = 0, kept = 0;

  bool operator==(const Peak&) const = default;
};

/// What the slots of a chunk and a micro-batch count: 1 each, or bytes.
struct SlotSizes {
  std::int64_t activations = 1, waiting = 1;
};

/// Per rank, the most at a time. `sizes` has an entry per chunk, or is empty: slots are counted.
std::vector<Peak> peaks_by_rank(const Schedule& schedule, const std::vector<SlotSizes>& sizes = {});
/// Per chunk, the most of its own slots at a time: what it needs where it shares them with no other.
std::vector<Peak> peaks_by_chunk(const Schedule& schedule);

}  // namespace sherd::schedule
