#include "engine/schedule/forwards.h"

#include <algorithm>

namespace sherd::schedule {

// As if each forward took as long as any other: one round after the other, what the round before
// has left.
Schedule forwards_only(const ChunkLayout& layout, int num_micro_batches) {
  Schedule schedule{.layout = layout, .num_micro_batches = num_micro_batches};
  schedule.ranks.resize(static_cast<std::size_t>(layout.num_ranks));
  std::vector<int> done(static_cast<std::size_t>(layout.num_chunks()), 0);  // by chunk
  while (done.back() < num_micro_batches) {
    const std::vector<int> before = done;
    for (int rank = 0; rank < layout.num_ranks; ++rank) {
      std::vector<int> chunks = layout.chunks_of(rank);
      std::ranges::reverse(chunks);
      for (const int chunk : chunks) {
        const auto at = static_cast<std::size_t>(chunk);
        const int there = chunk == 0 ? num_micro_batches : before[at - 1];
        if (before[at] == there) continue;
        schedule.ranks[static_cast<std::size_t>(rank)].push_back(
            {ActionKind::kForward, chunk, done[at]++});
        break;
      }
    }
  }
  return schedule;
}

}  // namespace sherd::schedule
