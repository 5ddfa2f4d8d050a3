#include "engine/schedule/generate.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>

#include "core/error.h"
#include "engine/schedule/rank_order.h"

namespace sherd::schedule {
namespace {

struct Row {
  Order order;
  std::string_view name;
  int least_chunks, most_chunks;
  Placement placement;
  RankOrder (*order_of)(const OrderRequest& request, int rank);
};

constexpr int kAnyNumber = 65536;

constexpr std::array kRows = {
    Row{Order::kLayerParallel, "layer_parallel", 1, 1, Placement::kLooped, layer_parallel},
    Row{Order::kGPipe, "gpipe", 1, 1, Placement::kLooped, gpipe},
    Row{Order::k1F1B, "1f1b", 1, 1, Placement::kLooped, one_forward_one_backward},
    Row{Order::kInterleaved1F1B, "interleaved_1f1b", 2, kAnyNumber, Placement::kLooped,
        interleaved},
    Row{Order::kZbH1, "zb_h1", 1, 1, Placement::kLooped, zb_h1},
    Row{Order::kZbV, "zb_v", 2, 2, Placement::kV, zb_v},
    Row{Order::kDualPipeV, "dualpipe_v", 2, 2, Placement::kV, dualpipe_v},
};

const Row& row_of(Order order) {
  return kRows[static_cast<std::size_t>(order)];
}

void refuse_numbers_below_1(const OrderRequest& request) {
  const auto refuse = [&](std::string_view what, int number) {
    if (number >= 1) return;
    throw UsageError("{}: {} is {}; 1 is the least.", name_of(request.order), what, number);
  };
  refuse("the number of pipeline ranks", request.num_ranks);
  refuse("the number of chunks per rank", request.chunks_per_rank);
  refuse("the number of micro-batches", request.num_micro_batches);
}

void refuse_too_many_forwards(const OrderRequest& request) {
  const std::int64_t forwards =
      std::int64_t{request.num_ranks} * request.chunks_per_rank * request.num_micro_batches;
  if (forwards <= kMostForwards) return;
  throw UsageError(
      "{} has {} forwards here (ranks x chunks per rank x micro-batches); {} are the most.",
      name_of(request.order), forwards, kMostForwards);
}

void refuse_other_chunks(const OrderRequest& request) {
  const Row& row = row_of(request.order);
  const int chunks = request.chunks_per_rank;
  if (chunks >= row.least_chunks && chunks <= row.most_chunks) return;
  if (row.most_chunks == 1) {
    throw UsageError("{} takes 1 chunk per rank, not {}; interleaved_1f1b takes more.", row.name,
                     chunks);
  }
  if (row.most_chunks == kAnyNumber) {
    throw UsageError("{} takes {} or more chunks per rank, not {}; 1f1b takes 1.", row.name,
                     row.least_chunks, chunks);
  }
  throw UsageError("{} takes {} chunks per rank, not {}: one for the way down the ranks, one back.",
                   row.name, row.least_chunks, chunks);
}

void refuse_other_turns(const OrderRequest& request) {
  const int turn = request.micro_batches_per_turn;
  const int ranks = request.num_ranks, micro_batches = request.num_micro_batches;
  if (turn == 0) {
    if (micro_batches % ranks == 0) return;
    const int below = micro_batches / ranks * ranks;
    throw UsageError(
        "{} takes micro-batches in multiples of its {} ranks, not {}; the nearest: {}{}.",
        name_of(request.order), ranks, micro_batches, below > 0 ? fmt::format("{} or ", below) : "",
        below + ranks);
  }
  if (turn < ranks || turn > micro_batches) {
    throw UsageError("{} takes turns of {} to {} micro-batches here, not {}.",
                     name_of(request.order), ranks, micro_batches, turn);
  }
  const int rest = micro_batches % turn;
  if (rest != 0 && rest < ranks) {
    throw UsageError(
        "{} in turns of {} leaves {} of {} micro-batches for the last turn, fewer than its {} "
        "ranks; "
        "{} micro-batches are the nearest.",
        name_of(request.order), turn, rest, micro_batches, ranks,
        2 * rest <= ranks ? micro_batches - rest : micro_batches - rest + ranks);
  }
}

void refuse_too_few_micro_batches(const OrderRequest& request) {
  const int least = 2 * request.num_ranks;
  if (request.num_micro_batches >= least) return;
  throw UsageError(
      "{} takes at least 2 micro-batches per rank, so {} on {} ranks, not {}; zb_v takes fewer.",
      name_of(request.order), least, request.num_ranks, request.num_micro_batches);
}

}  // namespace

std::string_view name_of(Order order) {
  return row_of(order).name;
}

Order order_from(std::string_view name) {
  std::string known;
  for (const Row& row : kRows) {
    if (row.name == name) return row.order;
    known += fmt::format("{}{}", known.empty() ? "" : ", ", row.name);
  }
  throw UsageError("there is no pipeline schedule \"{}\"; there are {}.", name, known);
}

const std::vector<Order>& all_orders() {
  static const std::vector<Order> kOrders = [] {
    std::vector<Order> orders;
    for (const Row& row : kRows) orders.push_back(row.order);
    return orders;
  }();
  return kOrders;
}

int default_chunks_per_rank(Order order) {
  return row_of(order).least_chunks;
}

void check(const OrderRequest& request) {
  refuse_numbers_below_1(request);
  refuse_other_chunks(request);
  refuse_too_many_forwards(request);
  if (request.order == Order::kInterleaved1F1B) refuse_other_turns(request);
  if (request.order == Order::kDualPipeV) refuse_too_few_micro_batches(request);
}

Schedule generate(const OrderRequest& request) {
  check(request);
  const Row& row = row_of(request.order);
  Schedule schedule{
      .layout = {request.num_ranks, request.chunks_per_rank, row.placement},
      .num_micro_batches = request.num_micro_batches,
  };
  schedule.ranks.reserve(static_cast<std::size_t>(request.num_ranks));
  for (int rank = 0; rank < request.num_ranks; ++rank) {
    schedule.ranks.push_back(
        row.order_of(request, rank).take(schedule.layout, rank, request.num_micro_batches));
  }
  return schedule;
}

}  // namespace sherd::schedule
