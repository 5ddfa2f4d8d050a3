/// How long a pipeline takes, in closed form. Equal to the simulator (engine/schedule/simulate.h)
/// for equal chunks, equal F, I and W, and messages that take no time; tests compare the two. With
/// other F, I and W, zb_h1 and zb_v take up to a tenth longer than this.
///
/// Idle time of a rank, for shares F, I, W of a rank's layers (B = I + W) on p ranks, v chunks each,
/// and m micro-batches:
///
///   gpipe, 1f1b         (p - 1) (F + B)
///   interleaved_1f1b    (p - 1) (F + B) / v
///   zb_h1               (p - 1) (F + I - W)
///   zb_v                (p - 1) F / 2
///   dualpipe_v          (p - 1) (F + 2 B - 3 W) / 2
///   layer_parallel      m (p - 1) (F + B)
///
/// With few micro-batches, weight gradients don't fill the idle time. A step takes at least:
///
///   zb_h1               p (F + I) + W + (min(m, p) - 1) max(F + I, I + W)
///   zb_v                p (F + I) + W + (m - 1) (I + W)
///
/// Source   the orders' papers (generate.h); Qi et al., arXiv:2401.10241, for idle times.
#pragma once

#include <cstdint>

#include "engine/schedule/order.h"

namespace sherd::engine {

struct PipelineShape {
  schedule::Order order = schedule::Order::k1F1B;
  std::int64_t ranks = 1, chunks = 1, micro_batches = 1;
  /// Of an average rank's layers, for one micro-batch.
  double forward = 0.0, input_gradient = 0.0, weight_gradient = 0.0;
  double slowest = 0.0;  ///< forward and backward of the rank that takes longest
  double message = 0.0;
  bool waits_for_messages = false;
};

struct PipelineTime {
  double busy = 0.0, bubble = 0.0, messages = 0.0;
  double total() const { return busy + bubble + messages; }
};
PipelineTime pipeline_time(const PipelineShape& shape);

/// Times of the slowest rank's layers / average, when a chunk with the head has fewer layers if
/// that helps. `head`: in layers. `even`: all chunks have as many layers as they can.
double slowest_share(std::int64_t layers, std::int64_t ranks, std::int64_t chunks, double head,
                     bool even);

}  // namespace sherd::engine
