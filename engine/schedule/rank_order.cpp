#include "engine/schedule/rank_order.h"

#include <algorithm>

#include "core/error.h"

namespace sherd::schedule {

void RankOrder::forward(int chunk) {
  actions_.push_back({ActionKind::kForward, chunk, next_[index(chunk)].forward++});
}

void RankOrder::backward(int chunk) {
  Next& next = next_[index(chunk)];
  SHERD_CHECK(next.gradient == next.weight, "a whole backward while weight gradients wait");
  actions_.push_back({ActionKind::kBackward, chunk, next.gradient++});
  ++next.weight;
}

void RankOrder::input_gradient(int chunk) {
  Next& next = next_[index(chunk)];
  actions_.push_back({ActionKind::kInputGradient, chunk, next.gradient++});
  next.waiting.push_back(num_input_gradients_++);
}

void RankOrder::weight_gradient() {
  int longest = 0;
  for (int chunk = 1; chunk < static_cast<int>(next_.size()); ++chunk) {
    const std::deque<int>&own = next_[index(chunk)].waiting, &least = next_[index(longest)].waiting;
    if (!own.empty() && (least.empty() || own.front() < least.front())) longest = chunk;
  }
  weight_gradient(longest);
}

void RankOrder::weight_gradient(int chunk) {
  Next& next = next_[index(chunk)];
  SHERD_CHECK(!next.waiting.empty(), "a weight gradient before its input gradient");
  next.waiting.pop_front();
  actions_.push_back({ActionKind::kWeightGradient, chunk, next.weight++});
}

void RankOrder::split_backward(int chunk) {
  input_gradient(chunk);
  weight_gradient(chunk);
}

void RankOrder::forward_and_backward(int forward_chunk, int backward_chunk) {
  forward(forward_chunk);
  actions_.back().overlaps_next = true;
  backward(backward_chunk);
}

std::vector<Action> RankOrder::take(const ChunkLayout& layout, int rank, int num_micro_batches) {
  const std::vector<int> chunks = layout.chunks_of(rank);
  std::erase_if(actions_,
                [&](const Action& action) { return action.micro_batch >= num_micro_batches; });
  for (Action& action : actions_) action.chunk = chunks[index(action.chunk)];
  return std::move(actions_);
}

// Only the data keep the ranks in turn: nobody can begin micro-batch i + 1 before rank 0 has, which
// waits for its backward of i.
RankOrder layer_parallel(const OrderRequest& request, int /*rank*/) {
  RankOrder order(1, 2 * request.num_micro_batches);
  for (int i = 0; i < request.num_micro_batches; ++i) {
    order.forward(0);
    order.backward(0);
  }
  return order;
}

RankOrder gpipe(const OrderRequest& request, int /*rank*/) {
  RankOrder order(1, 2 * request.num_micro_batches);
  for (int i = 0; i < request.num_micro_batches; ++i) order.forward(0);
  for (int i = 0; i < request.num_micro_batches; ++i) order.backward(0);
  return order;
}

namespace {

// `warm_up` forwards, then forwards and backwards in turn, `count` of each in total.
template <class Forward, class Backward>
void alternate(int count, int warm_up, const Forward& forward, const Backward& backward) {
  warm_up = std::min(warm_up, count);
  for (int i = 0; i < warm_up + count; ++i) {
    if (i < count) forward(i);
    if (i >= warm_up) backward(i - warm_up);
  }
}

}  // namespace

RankOrder one_forward_one_backward(const OrderRequest& request, int rank) {
  RankOrder order(1, 2 * request.num_micro_batches);
  alternate(
      request.num_micro_batches, request.num_ranks - rank - 1, [&](int) { order.forward(0); },
      [&](int) { order.backward(0); });
  return order;
}

namespace {

int micro_batches_per_turn(const OrderRequest& request) {
  return request.micro_batches_per_turn > 0 ? request.micro_batches_per_turn : request.num_ranks;
}

// Which of the rank's chunks has its turn, micro-batch by micro-batch: all chunks on a turn's
// micro-batches, then all on the next turn's.
std::vector<int> turns(const OrderRequest& request) {
  const int per_turn = micro_batches_per_turn(request);
  std::vector<int> chunks;
  for (int first = 0; first < request.num_micro_batches; first += per_turn) {
    const int count = std::min(per_turn, request.num_micro_batches - first);
    for (int chunk = 0; chunk < request.chunks_per_rank; ++chunk) {
      chunks.insert(chunks.end(), static_cast<std::size_t>(count), chunk);
    }
  }
  return chunks;
}

}  // namespace

RankOrder interleaved(const OrderRequest& request, int rank) {
  RankOrder order(request.chunks_per_rank, 2 * request.chunks_per_rank * request.num_micro_batches);
  const int per_turn = micro_batches_per_turn(request);
  const std::vector<int> forwards = turns(request);
  const int last = request.chunks_per_rank - 1;
  alternate(
      static_cast<int>(forwards.size()), 2 * (request.num_ranks - rank - 1) + last * per_turn,
      [&](int i) { order.forward(forwards[static_cast<std::size_t>(i)]); },
      // The same turns, chunks reversed.
      [&](int i) { order.backward(last - forwards[static_cast<std::size_t>(i)]); });
  return order;
}

// 1F1B whose rank r does its weight gradients r micro-batches later, so that every rank keeps as
// many activations as rank 0 of 1F1B.
RankOrder zb_h1(const OrderRequest& request, int rank) {
  RankOrder order(1, 2 * request.num_micro_batches);
  alternate(
      request.num_micro_batches, request.num_ranks - rank - 1, [&](int) { order.forward(0); },
      [&](int i) {
        order.input_gradient(0);
        if (i >= rank) order.weight_gradient();
      });
  while (order.num_weight_gradients(0) < request.num_micro_batches) order.weight_gradient();
  return order;
}

// Written for at least 2p - 1 micro-batches; a step of fewer leaves the others out.
RankOrder zb_v(const OrderRequest& request, int rank) {
  RankOrder order(2);
  const int micro_batches = std::max(request.num_micro_batches, 2 * request.num_ranks - 1);
  const int to_last = request.num_ranks - rank;  // ranks from here to the V's turn
  for (int i = 0; i < 2 * to_last - 1; ++i) order.forward(0);
  for (int i = 0; i < rank; ++i) {
    order.forward(1);
    order.forward(0);
  }
  for (int i = 0; i < to_last; ++i) {
    order.forward(1);
    order.split_backward(1);
  }
  while (order.num_forwards(1) < micro_batches) {
    if (order.num_forwards(0) < micro_batches) order.forward(0);
    order.split_backward(0);
    order.forward(1);
    order.split_backward(1);
  }
  for (int i = 0; i < rank; ++i) {
    order.input_gradient(0);
    order.input_gradient(1);
  }
  for (int i = 0; i < to_last; ++i) {
    order.input_gradient(0);
    order.weight_gradient(0);
  }
  for (const int chunk : {1, 0}) {
    while (order.num_weight_gradients(chunk) < micro_batches) order.weight_gradient(chunk);
  }
  return order;
}

// The eight sections of DualPipe-V. In the sixth the second half's weight gradients are put off, to
// fill the end, where ranks would wait for one another.
RankOrder dualpipe_v(const OrderRequest& request, int rank) {
  RankOrder order(2);
  const int ranks = request.num_ranks;
  const int after = ranks - rank - 1;  // ranks between here and the V's turn
  const int paired = request.num_micro_batches - 2 * ranks + rank + 1;
  for (int i = 0; i < 2 * after; ++i) order.forward(0);
  for (int i = 0; i <= rank; ++i) {
    order.forward(0);
    order.forward(1);
  }
  for (int i = 0; i < after; ++i) {
    order.split_backward(1);
    order.forward(1);
  }
  for (int i = 0; i < paired; ++i) {
    if (i == 0 && after == 0) {  // all other ranks wait for this backward: alone it is faster
      order.forward(0);
      order.backward(1);
    } else {
      order.forward_and_backward(0, 1);
    }
    order.forward_and_backward(1, 0);
  }
  for (int i = 0; i < after; ++i) {
    order.backward(1);
    order.forward_and_backward(1, 0);
  }
  for (int i = 0; i < 2 * (rank + 1); ++i) {
    const int chunk = i % 2 == 0 ? 1 : 0;
    i <= rank ? order.backward(chunk) : order.input_gradient(chunk);
  }
  for (int i = 0; i < after; ++i) {
    order.weight_gradient();
    order.input_gradient(0);
  }
  for (int i = 0; i <= rank; ++i) order.weight_gradient();
  return order;
}

}  // namespace sherd::schedule
