// Closed forms, compared with the simulator.

#include "engine/plan/time/pipeline_time.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "engine/schedule/generate.h"
#include "engine/schedule/passes.h"
#include "engine/schedule/simulate.h"

namespace sherd::engine {
namespace {

using schedule::Duration;
using schedule::Order;

// With messages, as runs have them.
double simulated(const PipelineShape& shape) {
  const schedule::Schedule order = schedule::with_messages(
      schedule::generate({.order = shape.order,
                          .num_ranks = static_cast<int>(shape.ranks),
                          .chunks_per_rank = static_cast<int>(shape.chunks),
                          .num_micro_batches = static_cast<int>(shape.micro_batches)}));
  const auto time = [](double seconds) { return Duration(static_cast<std::int64_t>(seconds)); };
  schedule::StepTimes times =
      schedule::equal_chunks(order.layout, {.forward = time(shape.forward),
                                            .input_gradient = time(shape.input_gradient),
                                            .weight_gradient = time(shape.weight_gradient)});
  times.message = time(shape.message);
  return static_cast<double>(schedule::simulate_each(order, times).makespan.count());
}

PipelineShape shape_of(Order order, int ranks, int chunks, int micro_batches) {
  const double unit = 1e6;
  return {.order = order,
          .ranks = ranks,
          .chunks = chunks,
          .micro_batches = micro_batches,
          .forward = unit,
          .input_gradient = unit,
          .weight_gradient = unit,
          .slowest = 3.0 * unit};
}

TEST(PipelineTime, IsTheSimulatorsForEqualChunks) {
  struct Case {
    Order order;
    int chunks;
  };
  for (const Case& of :
       {Case{Order::kLayerParallel, 1}, Case{Order::kGPipe, 1}, Case{Order::k1F1B, 1},
        Case{Order::kInterleaved1F1B, 2}, Case{Order::kInterleaved1F1B, 4}, Case{Order::kZbH1, 1},
        Case{Order::kZbV, 2}, Case{Order::kDualPipeV, 2}}) {
    for (const int ranks : {2, 4, 8}) {
      for (const int micro_batches : {16, 32}) {
        const PipelineShape shape = shape_of(of.order, ranks, of.chunks, micro_batches);
        EXPECT_NEAR(pipeline_time(shape).total() / simulated(shape), 1.0, 1e-6)
            << schedule::name_of(of.order) << " " << ranks << " " << micro_batches;
      }
    }
  }
}

// Weight gradients of few micro-batches don't fill the idle time of the other orders.
TEST(PipelineTime, OfZeroBubbleOrdersIsTheSimulatorsForFewMicroBatches) {
  for (const Order order : {Order::kZbH1, Order::kZbV}) {
    const int chunks = order == Order::kZbV ? 2 : 1;
    for (const int ranks : {2, 3, 4, 8, 16}) {
      for (int micro_batches = 1; micro_batches <= 2 * ranks; ++micro_batches) {
        SCOPED_TRACE(fmt::format("{} {} {}", schedule::name_of(order), ranks, micro_batches));
        PipelineShape shape = shape_of(order, ranks, chunks, micro_batches);
        EXPECT_NEAR(pipeline_time(shape).total() / simulated(shape), 1.0, 1e-6);
        shape.weight_gradient *= 0.8;
        shape.slowest = shape.forward + shape.input_gradient + shape.weight_gradient;
        const double share = pipeline_time(shape).total() / simulated(shape);
        EXPECT_LE(share, 1.0 + 1e-6);
        EXPECT_GE(share, 0.97);
      }
    }
  }
}

TEST(PipelineTime, CountsWhatMessagesAddTo1F1B) {
  for (const int ranks : {2, 4, 8}) {
    PipelineShape shape = shape_of(Order::k1F1B, ranks, 1, 32);
    shape.message = 0.02 * shape.forward;
    EXPECT_NEAR(pipeline_time(shape).total() / simulated(shape), 1.0, 0.01) << ranks;
  }
}

// A head that costs two layers: 30 layers on 4 ranks are 8 a rank with it, 32 leave 9 to the others or 10 to the last.
TEST(PipelineTime, TheSlowestRankHasTheHeadOrOneLayerMore) {
  EXPECT_DOUBLE_EQ(slowest_share(30, 4, 1, 2.0, false), 1.0);
  EXPECT_DOUBLE_EQ(slowest_share(32, 4, 1, 2.0, false), 9.0 / 8.5);
  EXPECT_DOUBLE_EQ(slowest_share(32, 4, 1, 2.0, true), 10.0 / 8.5);
}

}  // namespace
}  // namespace sherd::engine
