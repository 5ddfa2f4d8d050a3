/// Distributes layers over chunks so that the slowest chunk is as fast as possible. The first chunk
/// also has the embedding, the last one the head. With a large vocabulary the head costs as much as
/// several layers.
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
/// Minimises the largest chunk's time; among ties the sum of squares, to balance the other chunks;
/// among ties early chunks are short, because early ranks keep the most activations.
///
/// Cost     time grows with layers * log(layers), and with the logarithm of the squared times.
/// Errors   UsageError if there are more chunks than layers.
std::vector<int> balanced_layers(const LayerTimes& times, int num_chunks);

/// Checks `pipeline_layers_per_chunk`: one entry per chunk, each at least 1, covering all layers.
/// Errors   UsageError with what is wrong, and the nearest count.
void check_layers_per_chunk(const std::vector<int>& layers_per_chunk, int num_layers,
                            int num_chunks);

/// Each chunk's time for a distribution of layers.
std::vector<Duration> chunk_times(const LayerTimes& times,
                                  const std::vector<int>& layers_per_chunk);

}  // namespace sherd::schedule
