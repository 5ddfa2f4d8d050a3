/// The orders of forwards and backwards that are known by name, one list per pipeline rank.
///
///   name               source                                                      chunks per rank
///   layer_parallel     one micro-batch after the other through all ranks           1
///   gpipe              Huang et al., arXiv:1811.06965                              1
///   1f1b               Narayanan et al., arXiv:2006.09503 (PipeDream-Flush)        1
///   interleaved_1f1b   Narayanan et al., arXiv:2104.04473                          2 or more
///   zb_h1              Qi et al., arXiv:2401.10241                                 1
///   zb_v               the same authors' V-shaped form                             2, placed as a V
///   dualpipe_v         DeepSeek's DualPipe, cut in half: a V without copies        2, placed as a V
///
/// layer_parallel on one rank is today's step: forward and backward of one micro-batch after the
/// other. In all of them the weight gradients of a chunk are computed in ascending micro-batch order,
/// which keeps the bits of its gradient sum.
///
/// What these lists have is compute actions only; passes.h adds what moves data.
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
/// What `pipeline_chunks_per_rank` is where nobody says: the least that the order takes.
int default_chunks_per_rank(Order order);

struct OrderRequest {
  Order order = Order::k1F1B;
  int num_ranks = 1;
  int chunks_per_rank = 1;
  int num_micro_batches = 1;
  /// interleaved_1f1b: micro-batches that go through a chunk before the rank's next chunk has its
  /// turn. 0: one per rank. More of them need more memory, and allow other numbers of micro-batches.
  int micro_batches_per_turn = 0;
};

/// Errors   UsageError where the order can't take such numbers, with the nearest that it can, or where they make more
///          than `kMostForwards`.
Schedule generate(const OrderRequest& request);

}  // namespace sherd::schedule
