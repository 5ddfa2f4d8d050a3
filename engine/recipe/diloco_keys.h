/// Replicas that train apart: block `diloco` of a recipe.
#pragma once

#include <cstdint>

#include "optim/local_updates.h"

namespace sherd::engine {

/// optim/local_updates.h has the equations.
struct DilocoKeys {
  std::int64_t sync_every = 0;  ///< 0: replicas train together
  double outer_lr = 0, outer_momentum = 0;
  std::int64_t num_fragments = 1, fragment_sync_delay = 0;
  double fragment_update_alpha = 0;
  optim::Quantize quantize = optim::Quantize::kNone;

  bool active() const { return sync_every > 0; }
  optim::LocalUpdates options(std::int64_t num_replicas) const {
    return {.sync_every = sync_every,
            .outer_lr = outer_lr,
            .outer_momentum = outer_momentum,
            .num_fragments = num_fragments,
            .fragment_sync_delay = fragment_sync_delay,
            .fragment_update_alpha = fragment_update_alpha,
            .quantize = quantize,
            .num_replicas = static_cast<int>(num_replicas)};
  }
};

}  // namespace sherd::engine
