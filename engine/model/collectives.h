/// The exchanges among the ranks that a model's matrices are cut over
/// (engine/model/cut/tensor_cut.h). The model is written as if one device held everything; where a
/// cut needs an exchange, the model calls this interface.
///
///   where                              forward             backward
///   embedding                          sum
///   attention.output, mlp.down,        sum
///   moe.experts.down
///   input of attention and MLP                             sum of its gradient
///   key/value heads with copies                            sum_copies of their gradients
///   norms of heads                                         sum of their weights' gradients
///   adapters                                               sums of the gradients of A and B that
///                                                          are uncut
///   the way to latents                                     sums of its weights' gradients
///   weights and gates of experts                           sum of their gradients
///   norms of projections               sum of squares      sum of what a row's gradient needs
///   head and loss                      gather, sum         sum of its input's gradient
///
/// with sequence parallelism (engine/model/cut/residual_rows.h), where a rank has part of the rows
/// of the residual stream:
///
///   embedding                          reduce_scatter      gather of its gradient
///   input of attention, MLP, head      gather              gather again;
///                                                          reduce_scatter of its gradient
///   attention.output, mlp.down         reduce_scatter      gather of its gradient
///   norms of the residual stream                           sum of their weights' gradients
///
/// and with the ranks that have other positions of the same sequences
/// (engine/model/cut/sequence_cut.h):
///
///   attention, ulysses                 2 all_to_all        3 all_to_all
///   attention, all_gather              gather_positions    gather_positions,
///                                                          reduce_scatter_positions
///                                      of each sequence's keys and values
///   attention, ring                    C - 1 pass_on       C - 1 pass_on of keys and values,
///                                                          C - 1 of their gradients
///
/// and with the ranks that have other experts of a layer (engine/model/mlp/expert_exchange.h), per
/// layer with experts and per round:
///
///   experts                            gather_counts       3 exchange_rows there: x, dy, weights
///                                      2 exchange_rows     2 back: gradients of x and of weights
///
/// So all gradients that leave the model are complete, for the boxes that a rank holds. No sum over
/// tensor ranks remains.
///
/// Order    calls are enqueued on the compute stream, except a ring's, which run concurrently. All
///          ranks make the same calls in the same order. Sums are in rank order; canonical ones are
///          balanced trees. Between GPUs NCCL chooses the order, and rounds 16-bit sums on the way.
///          Results are bit-identical on every rank.
/// Cost     for b sequences: 4 sums of [tokens, width] per block (forward and backward, 2 each), 1
///          for the embedding, 1 for the head, and 2 + R numbers per token for the loss. A block
///          whose branches read one norm needs 3. Canonical sums are always 4, and f32 except for
///          the embedding's, which is exact in any type. Sequence parallelism: 6 gathers and 4
///          reduce_scatters, each at half the cost of a sum. Degree 1 costs nothing. Over context
///          ranks, per block: the rows of query, key and value twice, and those of queries three
///          times. In a ring: the rows of key and value C - 1 times each way, and their gradients
///          in f32.
/// Errors   PeerError, from the communicators below.
#pragma once

#include <vector>

#include "core/tensor.h"

namespace sherd::model {

class Collectives {
 public:
  virtual ~Collectives() = default;

  /// x = the sum of all tensor ranks' x. f32, bf16 or f16, added in f32 and rounded once. `what`
  /// names the tensor in errors and traces.
  virtual void sum(const char* what, const Tensor& x) = 0;
  /// x = the sum over the ranks that hold copies of this rank's key/value heads.
  virtual void sum_copies(const char* what, const Tensor& x) = 0;
  /// out = row r of the sum of all ranks' x [R, n] on rank r, bit-identical to `sum`. x and out
  /// don't overlap, or out is this rank's row of x.
  virtual void reduce_scatter(const char* what, const Tensor& x, const Tensor& out) = 0;
  /// x [R, n]: every rank receives row r from rank r.
  virtual void gather(const char* what, const Tensor& x) = 0;
  /// Over context ranks: row r of `to` [C, n] becomes this rank's row of rank r's `from`. The two
  /// don't overlap.
  virtual void all_to_all(const char* what, const Tensor& from, const Tensor& to) = 0;
  /// `gather` and `reduce_scatter` over context ranks.
  virtual void gather_positions(const char* what, const Tensor& x) = 0;
  virtual void reduce_scatter_positions(const char* what, const Tensor& x, const Tensor& out) = 0;
  /// Over expert ranks: `gather` of counts, and the exchange of rows that
  /// sharding::Communicator::all_to_all_v makes. Both begin when the work enqueued so far is done,
  /// one after another, and overlap what follows, until `await_rows`.
  virtual void gather_counts(const char* what, const Tensor& x) = 0;
  virtual void exchange_rows(const char* what, const Tensor& from,
                             const std::vector<ElementRange>& sends, const Tensor& to,
                             const std::vector<ElementRange>& receives) = 0;
  /// Work enqueued from now on may use what the calls so far have brought, and write what they
  /// sent.
  virtual void await_rows() = 0;
  /// Over context ranks in a ring: `to` receives the previous rank's `from`, and the next rank
  /// receives this rank's. The transfer begins when the work enqueued so far is done, and overlaps
  /// what follows. Don't access `to` before `await_passed`. Don't write `from` before `await_sent`,
  /// except as the `to` of a later call.
  virtual void pass_on(const char* what, const Tensor& from, const Tensor& to) = 0;
  /// Work enqueued from now on may read the `to` of the first call not awaited yet.
  virtual void await_passed() = 0;
  /// Work enqueued from now on may write every `from`.
  virtual void await_sent() = 0;
};

/// For a model that isn't cut: does nothing.
Collectives& no_collectives();

}  // namespace sherd::model
