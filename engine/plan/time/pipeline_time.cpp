#include "engine/plan/time/pipeline_time.h"

#include <algorithm>
#include <cmath>

namespace sherd::engine {
namespace {

double idle(const PipelineShape& shape) {
  const double p = static_cast<double>(shape.ranks) - 1.0;
  const double f = shape.forward, i = shape.input_gradient, w = shape.weight_gradient;
  switch (shape.order) {
    case schedule::Order::kLayerParallel:
      return static_cast<double>(shape.micro_batches) * p * (f + i + w);
    case schedule::Order::kGPipe:
    case schedule::Order::k1F1B:
      return p * (f + i + w);
    case schedule::Order::kInterleaved1F1B:
      return p * (f + i + w) / static_cast<double>(shape.chunks);
    case schedule::Order::kZbH1:
      return p * std::max(0.0, f + i - w);
    case schedule::Order::kZbV:
      return p * f / 2.0;
    case schedule::Order::kDualPipeV:
      return p * std::max(0.0, f + 2.0 * (i + w) - 3.0 * w) / 2.0;
  }
  return 0.0;
}

// Of the orders that fill idle time with weight gradients: the shortest time of a step whose
// micro-batches are too few to fill it. The first one passes all ranks twice, the others follow.
double least_total(const PipelineShape& shape) {
  const auto p = static_cast<double>(shape.ranks), m = static_cast<double>(shape.micro_batches);
  const double f = shape.forward, i = shape.input_gradient, w = shape.weight_gradient;
  const double first = p * (f + i) + w;
  if (shape.order == schedule::Order::kZbH1) {
    return first + (std::min(m, p) - 1.0) * std::max(f + i, i + w);
  }
  return shape.order == schedule::Order::kZbV ? first + (m - 1.0) * (i + w) : 0.0;
}

// On the way in and out, and between the last two ranks of 1f1b for every micro-batch: a forward
// waits for the backward before it, and that one for its message.
double waited(const PipelineShape& shape) {
  const double m = static_cast<double>(shape.micro_batches);
  const double v = static_cast<double>(shape.chunks);
  const double ends = 2.0 * (static_cast<double>(shape.ranks) * v - 1.0);
  const bool each = shape.order == schedule::Order::kLayerParallel;
  double times = each ? m * ends : ends;
  if (shape.waits_for_messages && !each)
    times += 2.0 * v * (m - 1.0);
  else if (shape.order == schedule::Order::k1F1B)
    times += 2.0 * (m - 1.0);
  return times * shape.message;
}

}  // namespace

PipelineTime pipeline_time(const PipelineShape& shape) {
  PipelineTime time{.busy = static_cast<double>(shape.micro_batches) * shape.slowest};
  if (shape.ranks == 1) return time;
  const double computed = static_cast<double>(shape.micro_batches) *
                          (shape.forward + shape.input_gradient + shape.weight_gradient);
  time.bubble = std::max(idle(shape), least_total(shape) - computed);
  time.messages = waited(shape);
  return time;
}

double slowest_share(std::int64_t layers, std::int64_t ranks, std::int64_t chunks, double head,
                     bool even) {
  const double average = (static_cast<double>(layers) + head) / static_cast<double>(ranks);
  const std::int64_t parts = ranks * chunks;
  const auto rounded_up = [](std::int64_t a, std::int64_t b) { return (a + b - 1) / b; };
  if (parts == 1) return 1.0;
  if (even) {
    const double most = static_cast<double>(rounded_up(layers, parts) * chunks);
    const double last = layers % parts == 0 ? head : std::max(0.0, head - 1.0);
    return (most + last) / average;
  }
  double best = static_cast<double>(layers) + head;
  for (std::int64_t last = 1; last <= rounded_up(layers, parts); ++last) {
    const auto other = static_cast<double>(rounded_up(layers - last, parts - 1));
    const double with_head = static_cast<double>(last) + head;
    best = std::min(best, std::max(other * static_cast<double>(chunks),
                                   other * static_cast<double>(chunks - 1) + with_head));
  }
  return std::max(1.0, best / average);
}

}  // namespace sherd::engine
