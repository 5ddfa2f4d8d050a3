/// The passes that turn an order of forwards and backwards into an executable step: first join
/// halves of a backward that aren't worth separate actions, then add collectives, then messages.
/// This order keeps a chunk's sends before its reductions.
///
///   const Schedule schedule = with_messages(with_collectives(generate(request), collectives));
#pragma once

#include "engine/schedule/schedule.h"

namespace sherd::schedule {

/// Joins each backward's halves at the place of the first: for models whose weight gradients take
/// almost no time. Inputs then needn't be kept for them.
Schedule with_whole_backwards(Schedule schedule);

/// Collectives for parameters and gradients, among the ranks that shard a chunk's state
/// (sharding/zero/placement.h).
struct Collectives {
  /// Parameters are sharded at rest (stage 3): a chunk is gathered before its forwards and input
  /// gradients. Weight gradients need none.
  bool gathers = false;
  /// Maximum number of a rank's chunks that are gathered at a time; 0: all of them.
  ///
  /// A chunk is gathered one use ahead if there is room, and stays until the room is needed. Then
  /// the chunk whose next use is latest is released (Belady 1966), which minimises the number of
  /// gathers. With room for all, each is gathered once in a step.
  int most_gathered = 0;
  Reduces reduces = Reduces::kNever;
};

/// Errors   UsageError if the order runs two chunks at once and only one may be gathered.
Schedule with_collectives(Schedule schedule, const Collectives& collectives);

/// Adds receives just before the actions that need them, and sends right after the actions that
/// produce them. If consecutive chunks are on the same rank, nothing is sent.
Schedule with_messages(Schedule schedule);

}  // namespace sherd::schedule
