/// What replicas that train apart exchange, and what they hold for it (optim/outer_update.h).
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "engine/train/from_recipe.h"

namespace sherd::engine {

/// Of the rank that sends most.
struct ExchangePlan {
  optim::LocalUpdates options{};
  int rank = 0;
  std::vector<std::int64_t> fragment_bytes{};  ///< sent for one exchange of each
  std::int64_t round_bytes = 0;                ///< in sync_every steps: of all fragments
  std::int64_t held_bytes = 0;                 ///< global weights, momentum and what is in flight

  double bytes_per_step() const {
    return static_cast<double>(round_bytes) / static_cast<double>(options.sync_every);
  }
};

/// None unless replicas train apart.
std::optional<ExchangePlan> exchange_plan(const TrainingOptions& options,
                                          const sharding::Mesh& mesh);

std::string exchange_plan_text(const ExchangePlan& plan);

}  // namespace sherd::engine
