/// The named orders of forwards and backwards, one list per pipeline rank.
///
///   name               source                                                   chunks per rank
///   layer_parallel     one micro-batch after the other through all ranks        1
///   gpipe              Huang et al., arXiv:1811.06965                           1
///   1f1b               Narayanan et al., arXiv:2006.09503 (PipeDream-Flush)     1
///   interleaved_1f1b   Narayanan et al., arXiv:2104.04473                       2 or more
///   zb_h1              Qi et al., arXiv:2401.10241                              1
///   zb_v               the same authors' V-shaped form                          2, placed as a V
///   dualpipe_v         DeepSeek's DualPipe, cut in half: a V without copies     2, placed as a V
///
/// layer_parallel on one rank is the step without a pipeline: forward and backward of one
/// micro-batch after the other. In all of them the weight gradients of a chunk are computed in
/// ascending micro-batch order, so its gradient sum stays bit-identical.
///
/// These lists have compute actions only; passes.h adds those that move data.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "engine/schedule/order.h"
#include "engine/schedule/schedule.h"

namespace sherd::schedule {

std::string_view name_of(Order order);
/// Errors   UsageError with the known names.
Order order_from(std::string_view name);
const std::vector<Order>& all_orders();
/// The default of `pipeline_chunks_per_rank`: the least that the order allows.
int default_chunks_per_rank(Order order);

struct OrderRequest {
  Order order = Order::k1F1B;
  int num_ranks = 1;
  int chunks_per_rank = 1;
  int num_micro_batches = 1;
  /// interleaved_1f1b: number of micro-batches that a chunk processes before the rank's next chunk
  /// takes over. 0: one per rank. More need more memory, and allow other total numbers of
  /// micro-batches.
  int micro_batches_per_turn = 0;
};

/// Errors   UsageError if the order doesn't allow these numbers, with the nearest that it allows,
///          or if they make more than `kMostForwards`.
void check(const OrderRequest& request);
/// Errors   those of `check`.
Schedule generate(const OrderRequest& request);

}  // namespace sherd::schedule
