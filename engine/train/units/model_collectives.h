/// The exchanges of a cut model (engine/model/collectives.h), over communicators.
#pragma once

#include <chrono>
#include <functional>
#include <memory>

#include "core/memory.h"
#include "core/stream.h"
#include "engine/model/collectives.h"
#include "engine/model/cut/exchanges.h"
#include "engine/train/units/ring.h"
#include "sharding/comm/communicator.h"
#include "sharding/mesh/rank.h"
#include "sharding/mesh/traffic.h"

namespace sherd::engine {

/// What a rank sends in these exchanges: sums as all-reduces, of which one may be of the tail alone; in a ring to the next
/// of its `neighbours`.
sharding::Traffic exchange_traffic(const model::ModelShape& shape,
                                   const std::vector<model::Exchange>& exchanges,
                                   const RingNeighbours& neighbours = {});

class ModelCollectives final : public model::Collectives {
 public:
  /// `ranks`: the tensor ranks in order. `copies`: those of them that hold the same key/value heads, or null
  /// where none do. Everything runs on `compute`, on which nothing else uses them.
  ModelCollectives(const model::TensorPart& part, Allocator& memory, Stream& compute,
                   sharding::Communicator& ranks, sharding::Communicator* copies);
  /// Of a rank of a run, with communicators of its own.
  ModelCollectives(const model::ModelShape& shape, const sharding::Rank& rank);

  /// All that it acquires.
  static std::vector<BufferSpec> buffers(const model::ModelShape& shape);

  void sum(const char* what, const Tensor& x) override;
  void sum_copies(const char* what, const Tensor& x) override;
  void reduce_scatter(const char* what, const Tensor& x, const Tensor& out) override;
  void gather(const char* what, const Tensor& x) override;
  void all_to_all(const char* what, const Tensor& from, const Tensor& to) override;
  void gather_positions(const char* what, const Tensor& x) override;
  void reduce_scatter_positions(const char* what, const Tensor& x, const Tensor& out) override;
  void pass_on(const char* what, const Tensor& from, const Tensor& to) override;
  void await_passed() override;
  void await_sent() override;

  /// x = that of context rank `owner`. For text, which ranks of a run sample; the model itself doesn't ask for it.
  void broadcast_position(const char* what, const Tensor& x, int owner);

  /// How long a CPU's compute stream has been in calls along an axis, tensor or context: nothing is computed
  /// meanwhile. A GPU's counts it among its waits (Stream::waited_for), and any stream so what goes round a ring.
  std::chrono::nanoseconds time_spent(std::string_view axis) const;
  /// Processor time of a ring's streams, in total.
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
  bool trees_;                     // of all ranks of a group; else in rank order
  sharding::Communicator* ranks_;  // null: matrices are whole
  std::unique_ptr<sharding::Communicator> own_copies_;
  sharding::Communicator* copies_;
  sharding::Communicator* context_ = nullptr;
  std::unique_ptr<Ring> ring_;
  Buffer tail_;
  std::chrono::nanoseconds on_tensor_{0}, on_context_{0};
};

}  // namespace sherd::engine
