/// Builds one rank's order of forwards and backwards: chunks are local to the rank, 0 first.
/// Micro-batches need no numbers, because each kind takes them in ascending order.
#pragma once

#include <deque>
#include <vector>

#include "engine/schedule/generate.h"

namespace sherd::schedule {

class RankOrder {
 public:
  /// `num_actions`: about how long the list will be; more only takes longer.
  explicit RankOrder(int num_chunks, int num_actions = 0)
      : next_(static_cast<std::size_t>(num_chunks)) {
    actions_.reserve(static_cast<std::size_t>(num_actions));
  }

  void forward(int chunk);
  void backward(int chunk);
  void input_gradient(int chunk);
  /// The weight gradient that has waited longest, overall or for this chunk.
  void weight_gradient();
  void weight_gradient(int chunk);
  /// Input gradient and weight gradient, one after the other.
  void split_backward(int chunk);
  /// Both at the same time.
  void forward_and_backward(int forward_chunk, int backward_chunk);

  int num_forwards(int chunk) const { return next_[index(chunk)].forward; }
  int num_weight_gradients(int chunk) const { return next_[index(chunk)].weight; }

  /// The list on `rank`, whose owner this no longer is, without the micro-batches from `num_micro_batches` on. Micro-batches don't
  /// depend on one another, so the rest is still in a legal order.
  std::vector<Action> take(const ChunkLayout& layout, int rank, int num_micro_batches);

 private:
  struct Next {
    int forward = 0, gradient = 0, weight = 0;
    std::deque<int> waiting;  ///< sequence numbers of input gradients with pending weight gradients
  };
  static std::size_t index(int chunk) { return static_cast<std::size_t>(chunk); }

  std::vector<Next> next_;
  int num_input_gradients_ = 0;
  std::vector<Action> actions_;
};

RankOrder layer_parallel(const OrderRequest& request, int rank);
RankOrder gpipe(const OrderRequest& request, int rank);
RankOrder one_forward_one_backward(const OrderRequest& request, int rank);
RankOrder interleaved(const OrderRequest& request, int rank);
RankOrder zb_h1(const OrderRequest& request, int rank);
RankOrder zb_v(const OrderRequest& request, int rank);
RankOrder dualpipe_v(const OrderRequest& request, int rank);

}  // namespace sherd::schedule
