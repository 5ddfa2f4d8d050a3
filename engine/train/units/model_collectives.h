/// The exchanges of a cut model (engine/model/collectives.h), over communicators.
#pragma once

#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "core/memory.h"
#include "core/stream.h"
#include "engine/model/collectives.h"
#include "engine/model/cut/exchanges.h"
#include "engine/train/units/ring.h"
#include "engine/train/units/row_exchange.h"
#include "sharding/comm/communicator.h"
#include "sharding/mesh/rank.h"
#include "sharding/mesh/traffic.h"

namespace sherd::engine {

/// What a rank sends in these exchanges: sums as all-reduces, of which one may cover only the tail;
/// in a ring, to the next of its `neighbours`.
sharding::Traffic exchange_traffic(const model::ModelShape& shape,
                                   const std::vector<model::Exchange>& exchanges,
                                   const RingNeighbours& neighbours = {});

class ModelCollectives final : public model::Collectives {
 public:
  /// `ranks`: the tensor ranks in order. `copies`: those that hold the same key/value heads, or
  /// null if none do. All calls run on `compute`, where nothing else uses these communicators.
  ModelCollectives(const model::TensorPart& part, Allocator& memory, Stream& compute,
                   sharding::Communicator& ranks, sharding::Communicator* copies);
  /// For a rank of a run, with its own communicators.
  ModelCollectives(const model::ModelShape& shape, const sharding::Rank& rank);

  /// Everything that it acquires.
  static std::vector<BufferSpec> buffers(const model::ModelShape& shape);

  void sum(const char* what, const Tensor& x) override;
  void sum_copies(const char* what, const Tensor& x) override;
  void reduce_scatter(const char* what, const Tensor& x, const Tensor& out) override;
  void gather(const char* what, const Tensor& x) override;
  void all_to_all(const char* what, const Tensor& from, const Tensor& to) override;
  void gather_positions(const char* what, const Tensor& x) override;
  void reduce_scatter_positions(const char* what, const Tensor& x, const Tensor& out) override;
  void gather_counts(const char* what, const Tensor& x) override;
  void exchange_rows(const char* what, const Tensor& from, const std::vector<ElementRange>& sends,
                     const Tensor& to, const std::vector<ElementRange>& receives) override;
  void await_rows() override;
  void pass_on(const char* what, const Tensor& from, const Tensor& to) override;
  void await_passed() override;
  void await_sent() override;

  /// Broadcasts x from context rank `owner`. Used when the ranks of a run sample text; the model
  /// itself doesn't call it.
  void broadcast_position(const char* what, const Tensor& x, int owner);

  /// How long a CPU's compute stream has spent in calls along an axis, tensor or context; nothing
  /// is computed meanwhile. A GPU's calls, a ring's transfers and experts' rows count as waits
  /// (Stream::waited_for).
  std::chrono::nanoseconds time_spent(std::string_view axis) const;
  /// Processor time of the streams of a ring and of experts' rows, in total.
  std::chrono::nanoseconds cpu_time() const;

 private:
  void call(std::string_view axis, const std::function<void()>& calls);
  void sum_over(sharding::Communicator& communicator, const char* what, const Tensor& x);
  void add_up(sharding::Communicator& communicator, const char* what, const Tensor& x);
  void scatter_over(sharding::Communicator& communicator, const char* what, const Tensor& x,
                    const Tensor& out);
  int tree_of(const sharding::Communicator& communicator) const {
    return trees_ ? communicator.world_size() : 1;
  }

  Stream& compute_;
  bool trees_;                     // sums over a group are trees; else in rank order
  sharding::Communicator* ranks_;  // null: matrices are whole
  std::unique_ptr<sharding::Communicator> own_copies_;
  sharding::Communicator* copies_;
  sharding::Communicator* context_ = nullptr;
  std::unique_ptr<Ring> ring_;
  std::unique_ptr<RowExchange> experts_;
  Buffer tail_;
  std::map<std::string, std::chrono::nanoseconds, std::less<>> on_axis_;
};

}  // namespace sherd::engine
