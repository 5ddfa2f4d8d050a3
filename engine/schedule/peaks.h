/// How much of a step is alive at the same time on each rank. It depends only on a rank's list, not
/// on its actions' times, so a memory plan can be made from it.
///
///   what          of a chunk and a micro-batch, from ...    to the end of ...
///   activations   the forward                               the backward or input gradient
///   waiting       the input gradient                        the weight gradient
///   kept          the forward                               the backward or weight gradient
///
/// *Waiting* are inputs and output gradients that a weight gradient still needs: separate, smaller
/// slots. *Kept* is what papers count as activations: everything until the weight gradient. Actions
/// of a pair are alive together.
#pragma once

#include <cstdint>
#include <vector>

#include "engine/schedule/schedule.h"

namespace sherd::schedule {

struct Peak {
  std::int64_t activations = 0, waiting = 0, kept = 0;

  bool operator==(const Peak&) const = default;
};

/// The weight of the slots of a chunk and a micro-batch: 1 each, or bytes.
struct SlotSizes {
  std::int64_t activations = 1, waiting = 1;
};

/// Peak per rank. `sizes` has an entry per chunk; if empty, slots are counted.
std::vector<Peak> peaks_by_rank(const Schedule& schedule, const std::vector<SlotSizes>& sizes = {});
/// Peak per chunk of its own slots: what it needs if it shares them with no other chunk.
std::vector<Peak> peaks_by_chunk(const Schedule& schedule);

}  // namespace sherd::schedule
