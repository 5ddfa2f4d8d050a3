/// One rank's order of forwards and backwards, as its rule is written down: chunks are the rank's own,
/// 0 first, and micro-batches need no numbers, because each kind takes them in ascending order.
#pragma once

#include <deque>
#include <vector>

#include "engine/schedule/generate.h"

namespace sherd::schedule {

class RankOrder {
 public:
  explicit RankOrder(int num_chunks) : next_(static_cast<std::size_t>(num_chunks)) {}

  void forward(int chunk);
  void backward(int chunk);
  void input_gradient(int chunk);
  /// Of the input gradient that has waited longest, or longest for this chunk.
  void weight_gradient();
  void weight_gradient(int chunk);
  /// Input gradient and weight gradient, one behind the other.
  void split_backward(int chunk);
  /// Both at the same time.
  void forward_and_backward(int forward_chunk, int backward_chunk);

  int num_forwards(int chunk) const { return next_[index(chunk)].forward; }
  int num_weight_gradients(int chunk) const { return next_[index(chunk)].weight; }

  /// The list on `rank`, without the micro-batches from `num_micro_batches` on: no micro-batch needs
  /// another, so what is left is still in a legal order.
  std::vector<Action> actions(const ChunkLayout& layout, int rank, int num_micro_batches) const;

 private:
  struct Next {
    int forward = 0, gradient = 0, weight = 0;
    std::deque<int> waiting;  ///< when its input gradients came, of weight gradients still to come
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
