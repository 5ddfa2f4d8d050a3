/// Orders the rows of a step so that ranks seldom wait for one another. A pure function of the costs
/// and of the two numbers that a step's sums depend on anyway: it doesn't know the number of ranks.
///
/// What ranks wait for: those of one replica meet in every micro-step (gathers at stage 3,
/// reductions), so a micro-step takes as long as its most expensive micro-batch. Replicas meet at
/// the end of a step. So the time of a step is, with W ranks of a replica,
///
///   max over replicas of the sum over micro-steps of max over W micro-batches of their cost
///
/// and this over the mean of all ranks is the imbalance (Batcher::imbalance). It is never less than
/// the busiest rank's work in the whole step over the mean.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace sherd::data {

struct StepParts {
  std::int64_t micro_batch_size = 1;  ///< rows
  std::int64_t num_replicas = 1;      ///< or batch groups: each has a contiguous part of the step
};

/// Row numbers in their new order.
///
/// 1. Rows are dealt out to micro-batches, the most expensive first, each to the micro-batch that
///    costs least so far and has room (ties: the first). Then, while it helps, the most expensive
///    one exchanges the row with another that makes the larger of both cheapest (2^24 comparisons).
/// 2. Micro-batches are dealt out to replicas in the same way.
/// 3. Each replica has its micro-batches by cost, the cheapest first: those of a micro-step are
///    neighbours, whatever the number of ranks.
///
/// If all costs are equal, the order is 0, 1, 2, ... Rows are whole: a row that costs more than the
/// mean of a micro-batch cannot be balanced.
/// Shapes   costs: a multiple of micro_batch_size * num_replicas rows
std::vector<std::int32_t> balanced_order(std::span<const std::int64_t> costs,
                                         const StepParts& parts);

}  // namespace sherd::data
