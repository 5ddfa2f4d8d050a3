/// How ranks exchange tensors: the interface that every communicator implements.
///
/// Every rank of a group calls the same collectives in the same order on the same communicator,
/// with the same counts and types. A call enqueues on a stream; buffers belong to the communicator
/// from then until the stream has passed the call. Collectives only add; none averages.
///
/// Order    `single`, `threads` and `mpi` add in rank order 0, 1, ..., W-1. The result equals
///          adding the ranks' contributions one after another on one rank. `mpi` adds machine by
///          machine if asked to (sharding/processes/mpi_machine_sums.h).
/// Trees    `tree` = n = 2^m divides the number of ranks. The contributions c of n neighbours are
///          first added as a balanced tree, for n = 4: (c_0 + c_1) + (c_2 + c_3). The trees are
///          then added in rank order. A rank has already formed the subtree of its part of the
///          addends; the collective continues from there. NCCL and ranks that share a GPU have no
///          trees (SHERD_CHECK).
/// Errors   PeerError with the reason if a rank aborted, timed out, or made another call. Shapes
///          that disagree on one rank are our bug (SHERD_CHECK).
/// Cost     in elements that each rank sends, for F = W * S elements in `full`.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/stream.h"
#include "core/tensor.h"

namespace sherd::sharding {

/// Which ranks' contributions a reduction adds, and whether it adds them to an accumulated sum.
struct Addends {
  bool onto_out = false;  ///< begin with the content of `out`
  int first_rank = 0;
  int num_ranks = 0;  ///< 0: all
  int tree = 1;       ///< number of neighbours that are added as a tree

  bool contains(int rank) const {
    return num_ranks == 0 || (rank >= first_rank && rank < first_rank + num_ranks);
  }
};

class Communicator {
 public:
  virtual ~Communicator() = default;

  virtual int rank() const = 0;
  virtual int world_size() const = 0;

  /// Completes `full` on every rank from the ranks' slices.
  ///   full[r * S + i] = full_r[r * S + i],   0 <= r < W, 0 <= i < S
  /// In place: `full` already contains this rank's slice. Any type. Cost (W - 1) * S.
  virtual void all_gather(Stream& stream, const std::string& label, Tensor full) = 0;

  /// Adds `full` over ranks and leaves every rank its own slice of the sum.
  ///   out[i] = sum over r of full_r[rank * S + i],   0 <= i < S, r among `addends`
  /// With addends.onto_out the sum begins with out[i]. Successive calls then form one chain of
  /// additions, as on a single rank that forms all contributions itself.
  /// out may be this rank's slice of full. That slice may also be overwritten if out is onto or of
  /// another type; the rest of full is left unmodified. f32, bf16 or f16; added in f32 and rounded
  /// once to out's type.
  /// NCCL rounds to full's type first, adds in its own order, and always adds all ranks. Cost (W -
  /// 1) * S; ranks that aren't among the addends send nothing.
  virtual void reduce_scatter(Stream& stream, const std::string& label, Tensor full, Tensor out,
                              const Addends& addends = {}) = 0;

  /// Adds `full` over all ranks and leaves every rank the whole sum, in place.
  /// full has W * S elements. Types as reduce_scatter. Cost 2 (W - 1) * S.
  virtual void all_reduce(Stream& stream, const std::string& label, Tensor full, int tree = 1) = 0;

  /// Exchanges slices: rank r's slice of every rank's `full` goes to rank r.
  ///   out[r * S + i] = full_r[rank * S + i],   0 <= r < W, 0 <= i < S
  /// full and out have W * S elements each and don't overlap; full is left unmodified. Any type.
  /// Cost (W - 1) * S.
  virtual void all_to_all(Stream& stream, const std::string& label, Tensor full, Tensor out) = 0;

  /// The same with any number of elements for each peer.
  ///   to[receives[r].first + i] = from_r[sends_r[rank].first + i],   0 <= i < receives[r].count
  /// `sends` and `receives` have a range for each rank, this one included. Rank r's range for this
  /// rank has as many elements as this rank expects from it. `from` has the same size on every
  /// rank. from and to don't overlap; from is left unmodified. Any type. Cost: the elements of
  /// `sends`, without this rank's own.
  virtual void all_to_all_v(Stream& stream, const std::string& label, Tensor from,
                            const std::vector<ElementRange>& sends, Tensor to,
                            const std::vector<ElementRange>& receives) = 0;

  /// Broadcast: every rank gets the data of `root`. Any type. Cost: root sends numel to each other
  /// rank.
  virtual void broadcast(Stream& stream, const std::string& label, Tensor data, int root) = 0;

  /// The stream continues when every rank's stream has reached this call.
  virtual void barrier(Stream& stream, const std::string& label) = 0;

  /// Whether a call returns only when every member has made its own (ranks that share a GPU). If
  /// the others wait for what the caller does next, it must call from a separate thread.
  virtual bool calls_meet() const { return false; }

  /// Throws PeerError with the reason if the group was stopped, or a collective failed. NCCL then
  /// drops enqueued work silently, so a caller that waited for numbers must call this before using
  /// them. Elsewhere the stream carries the error.
  virtual void check_alive() {}

  /// Stops the whole group: every rank that waits or comes later gets PeerError(reason). The first
  /// reason is kept. Any thread may call it.
  virtual void abort(const std::string& reason) = 0;
};

}  // namespace sherd::sharding
