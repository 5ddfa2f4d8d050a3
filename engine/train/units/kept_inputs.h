/// The inputs of blocks, on disk between a micro-step's forward and its backward.
///
/// With full recompute these are all that the forward keeps. Memory holds a few of them, in slots:
/// the input of block b is in slot b mod slots. The forward writes an input when its block has read
/// it, unless its slot isn't needed again before the backward. The backward reads them in advance,
/// each into the slot that the block after it has left.
///
/// Order   the rank's thread calls, for each block: `before_write`, then `read` in a forward; and
///         `before_read`, then `done` in a backward. Block L is what the head reads.
/// Errors  as OffloadHome
#pragma once

#include <vector>

#include "core/offload_home.h"
#include "engine/model/shape.h"
#include "sharding/mesh/rank.h"

namespace sherd::model {
class Transformer;
}

namespace sherd::engine {

class KeptInputs {
 public:
  /// Number of slots for a model of `num_layers` layers; 0: all inputs fit into them.
  static int slots(std::int64_t num_layers);
  /// On disk, for the shape of one rank; none if ModelShape::residual_slots is 0.
  static std::vector<BufferSpec> buffers(const model::ModelShape& shape);
  /// Bytes that a micro-step writes, and reads.
  static std::int64_t bytes(const model::ModelShape& shape);

  KeptInputs(const sharding::Rank& rank, const model::ModelShape& shape,
             const model::Transformer& transformer);
  ~KeptInputs();
  KeptInputs(const KeptInputs&) = delete;
  KeptInputs& operator=(const KeptInputs&) = delete;

  /// The input of `block` is about to be computed: its slot is free on return.
  void before_write(int block);
  /// The forward of `block` has read its input.
  void read(int block);
  /// The backward of `block` is about to read its input, which is there on return.
  void before_read(int block);
  /// The backward of `block` has read its input.
  void done(int block);

 private:
  Tensor slot_of(int block) const;
  void wait(int block);
  template <class Ask>
  void each_block(int block, const Ask& ask);

  OffloadHome& home_;
  const model::Transformer& transformer_;
  int slots_, first_;
  std::vector<Buffer> on_disk_;                          // of the blocks from first_ on
  std::vector<std::vector<OffloadHome::Ticket>> asked_;  // by slot: what last used it
};

}  // namespace sherd::engine
