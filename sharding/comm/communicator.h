/// How ranks exchange tensors: the interface that every communicator implements.
///
/// Every rank of a group calls the same collectives in the same order on the same communicator,
/// with the same counts and types. A call enqueues on a stream; buffers belong to the communicator
/// from then until the stream has passed the call. Collectives only add; none averages.
///
/// Order    Sums are taken in rank order 0, 1, ..., W-1 by `single`, `threads` and `mpi`, so that the same
///          numbers come out as from adding the ranks' contributions one after another on one rank; by `mpi`
///          machine after machine, if asked to (sharding/processes/mpi_machine_sums.h).
/// Trees    With `tree` = n = 2^m, which divides the number of ranks, n neighbours' contributions c are added as a
///          balanced tree first, and the trees in rank order: ((c_0 + c_1) + (c_2 + c_3)) + ((c_4 + ...)) for
///          n = 4. A rank has formed the subtree of its part of the addends; the collective continues from there. NCCL and
///          ranks that share a GPU have no trees (SHERD_CHECK).
/// Errors   PeerError with the reason if a rank aborted, timed out, or called something else.
///          Shapes that disagree on one rank are our bug (SHERD_CHECK).
/// Cost     in elements that each rank sends, for F = W * S elements in `full`.
#pragma once

#include <cstdint>
#include <string>

#include "core/stream.h"
#include "core/tensor.h"

namespace sherd::sharding {

/// What a reduction adds: the contributions of some ranks, or of all; to nothing, or to an accumulated sum.
struct Addends {
  bool onto_out = false;  ///< begin with what stands in `out`
  int first_rank = 0;
  int num_ranks = 0;  ///< 0: all
  int tree = 1;       ///< neighbours that are added as a tree

  bool contains(int rank) const {
    return num_ranks == 0 || (rank >= first_rank && rank < first_rank + num_ranks);
  }
};

class Communicator {
 public:
  virtual ~Communicator() = default;

  virtual int rank() const = 0;
  virtual int world_size() const = 0;

  /// Completes `full` on every rank from the slices that the ranks hold.
  ///   full[r * S + i] = full_r[r * S + i],   0 <= r < W, 0 <= i < S
  /// In place: this rank's slice stands in its place already. Any type. Cost (W - 1) * S.
  virtual void all_gather(Stream& stream, const std::string& label, Tensor full) = 0;

  /// Adds `full` over ranks and leaves every rank its own slice of the sum.
  ///   out[i] = sum over r of full_r[rank * S + i],   0 <= i < S, r among `addends`
  /// With addends.onto_out the sum begins with out[i]: calls one after another make one chain of additions,
  /// as one rank makes it that forms all contributions itself.
  /// out may be this rank's slice of full, which may also be overwritten if out is onto or of another type; the
  /// rest of full is left unmodified. f32, bf16 or f16; added in f32 and rounded once to out's type.
  /// NCCL rounds to full's type first, in an order of its own, and only adds all ranks. Cost (W - 1) * S,
  /// of ranks that aren't among the addends nothing.
  virtual void reduce_scatter(Stream& stream, const std::string& label, Tensor full, Tensor out,
                              const Addends& addends = {}) = 0;

  /// Adds `full` over all ranks and leaves every rank the whole sum, in place.
  /// full has W * S elements. Types as reduce_scatter. Cost 2 (W - 1) * S.
  virtual void all_reduce(Stream& stream, const std::string& label, Tensor full, int tree = 1) = 0;

  /// Deals out what each rank has: rank r's slice of every rank's `full` goes to rank r.
  ///   out[r * S + i] = full_r[rank * S + i],   0 <= r < W, 0 <= i < S
  /// full and out have W * S elements each and don't overlap; full is left unmodified. Any type.
  /// Cost (W - 1) * S.
  virtual void all_to_all(Stream& stream, const std::string& label, Tensor full, Tensor out) = 0;

  /// Gives every rank what `root` holds. Any type. Cost: root sends numel to each other rank.
  virtual void broadcast(Stream& stream, const std::string& label, Tensor data, int root) = 0;

  /// The stream continues when every rank's stream has reached this call.
  virtual void barrier(Stream& stream, const std::string& label) = 0;

  /// Whether a call returns only when every member has made its own (ranks that share a GPU). A caller who
  /// can't wait for them, because they wait for what it does next, calls from a thread of its own.
  virtual bool calls_meet() const { return false; }

  /// Throws PeerError with the reason if the group has been stopped, or a collective has failed.
  /// Where that ends what is enqueued in silence (NCCL), whoever waited for numbers asks before it
  /// uses them; elsewhere the stream carries the error.
  virtual void check_alive() {}

  /// Stops the whole group: every rank that waits or comes later gets PeerError(reason). The first
  /// reason stays. Any thread may call it.
  virtual void abort(const std::string& reason) = 0;
};

}  // namespace sherd::sharding
