// What tests of schedules share.
#pragma once

#include <string>

#include "engine/schedule/generate.h"
#include "engine/schedule/passes.h"
#include "engine/schedule/simulate.h"

namespace sherd::test {

inline schedule::OrderRequest request(schedule::Order order, int ranks, int micro_batches,
                                      int chunks_per_rank = 0) {
  return {.order = order,
          .num_ranks = ranks,
          .chunks_per_rank =
              chunks_per_rank > 0 ? chunks_per_rank : schedule::default_chunks_per_rank(order),
          .num_micro_batches = micro_batches};
}

/// With messages, and without collectives unless they are asked for.
inline schedule::Schedule executable(const schedule::OrderRequest& request,
                                     const schedule::Collectives& collectives = {}) {
  return schedule::with_messages(
      schedule::with_collectives(schedule::generate(request), collectives));
}

/// A time unit in which quarters are whole.
inline constexpr schedule::Duration kUnit{1000};

inline double units(schedule::Duration time) {
  return static_cast<double>(time.count()) / static_cast<double>(kUnit.count());
}

/// Forward, input gradient and weight gradient of a rank's share of layers, in units.
inline schedule::StepTimes unit_times(const schedule::ChunkLayout& layout, int forward = 1,
                                      int input_gradient = 1, int weight_gradient = 1) {
  return schedule::equal_chunks(layout, {.forward = forward * kUnit,
                                         .input_gradient = input_gradient * kUnit,
                                         .weight_gradient = weight_gradient * kUnit});
}

}  // namespace sherd::test
