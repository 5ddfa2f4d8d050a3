/// Which chunk gets how many layers, so that the slowest chunk is as fast as it can be. The first chunk
/// has the embedding too, the last one the head: in large vocabularies a head costs some layers.
#pragma once

#include <vector>

#include "engine/schedule/simulate.h"

namespace sherd::schedule {

struct LayerTimes {
  Duration embedding{};
  std::vector<Duration> layers;
  Duration head{};

  bool operator==(const LayerTimes&) const = default;
};

/// Layers per chunk, each at least 1: contiguous ones, in the model's order.
///
/// Of all ways, the largest chunk's time is least; of those, the sum of squares is, so that the others
/// are even; of those, early chunks are short, because early ranks keep the most activations.
///
/// Cost     time grows with layers * log(layers), and with the logarithm of the squared times.
/// Errors   UsageError if there are more chunks than layers.
std::vector<int> balanced_layers(const LayerTimes& times, int num_chunks);

/// What `pipeline_layers_per_chunk` says, checked: one entry per chunk, each at least 1, all layers.
/// Errors   UsageError with what is wrong, and the nearest count.
void check_layers_per_chunk(const std::vector<int>& layers_per_chunk, int num_layers,
                            int num_chunks);

/// Each chunk's time under a dealing.
std::vector<Duration> chunk_times(const LayerTimes& times,
                                  const std::vector<int>& layers_per_chunk);

}  // namespace sherd::schedule
