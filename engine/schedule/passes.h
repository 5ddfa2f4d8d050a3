/// What becomes of an order of forwards and backwards until a step can execute it: halves that aren't worth
/// their own action are put together, then collectives and messages are added, in this order, which keeps a
/// chunk's sends before its reductions.
///
///   const Schedule schedule = with_messages(with_collectives(generate(request), collectives));
#pragma once

#include "engine/schedule/schedule.h"

namespace sherd::schedule {

/// Backwards in one piece, where their first halves are: for models whose weight gradients take next to no
/// time. Inputs then needn't be kept for them.
Schedule with_whole_backwards(Schedule schedule);

/// Collectives for parameters and gradients, among the ranks that shard a chunk's state (sharding/zero/placement.h).
struct Collectives {
  /// Parameters are sharded at rest (stage 3): a chunk is gathered before its forwards and input
  /// gradients. Weight gradients need none.
  bool gathers = false;
  /// Maximum number of a rank's chunks that are gathered at a time; 0: all of them.
  ///
  /// A chunk is gathered one use ahead where there is room, and stays until the room is needed. Then the
  /// chunk that is used again latest goes (Belady 1966), so no choice gathers less often. With room
  /// for all, each is gathered once in a step.
  int most_gathered = 0;
  Reduces reduces = Reduces::kNever;
};

/// Errors   UsageError where the order runs two chunks at once and only one may be gathered.
Schedule with_collectives(Schedule schedule, const Collectives& collectives);

/// Receives just before what needs them, sends right behind what makes them. Where consecutive chunks
/// are on the same rank, nothing is sent.
Schedule with_messages(Schedule schedule);

}  // namespace sherd::schedule
