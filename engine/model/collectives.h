/// What a model exchanges with the ranks among which its matrices are cut (engine/model/cut/tensor_cut.h). The
/// model is written as if one device held everything; where a cut needs an exchange, it calls this page.
///
///   where                              forward             backward
///   embedding                          sum
///   attention.output, mlp.down         sum
///   what attention and MLP read                            sum of its gradient
///   key/value heads with copies                            sum_copies of their gradients
///   norms of heads                                         sum of their weights' gradients
///   adapters                                               sum of the gradient of A or B, whichever is whole
///   norms of projections               sum of squares      sum of what a row's gradient needs
///   head and loss                      gather, sum         sum of its input's gradient
///
/// with sequence parallelism (engine/model/cut/residual_rows.h), where a rank has rows of the residual stream
///
///   embedding                          reduce_scatter      gather of its gradient
///   what attention, MLP, head read     gather              gather again; reduce_scatter of its gradient
///   attention.output, mlp.down         reduce_scatter      gather of its gradient
///   norms of the residual stream                           sum of their weights' gradients
///
/// and with the ranks that have other positions of the same sequences (engine/model/cut/sequence_cut.h):
///
///   attention, ulysses                 2 all_to_all        3 all_to_all
///   attention, all_gather              gather_positions    gather_positions, reduce_scatter_positions
///                                      of each sequence's keys and values
///   attention, ring                    C - 1 pass_on       C - 1 pass_on of keys and values,
///                                                          C - 1 of their gradients
///
/// All gradients that leave the model are therefore those of the whole model: of the boxes that a rank
/// holds. Nothing is left to be summed over tensor ranks afterwards.
///
/// Order    calls are enqueued on the compute stream, but those of a ring, which go on beside it. All ranks make the
///          same calls in the same order. Sums are in rank order, or canonical ones as a balanced tree; between GPUs in an
///          order of NCCL's, which rounds 16-bit sums on the way. Every rank gets the same bits.
/// Cost     of b sequences: 4 sums of [tokens, width] per block (forward and backward, 2 each), 1 for the
///          embedding, 1 for the head, 2 + R numbers per token for the loss. A block whose branches read one norm
///          needs 3. Canonical sums are always 4, and f32 but for the embedding's, which is exact in any type. Of
///          sequence parallelism 6 gathers and 4 reduce_scatters, each of which costs half of a sum. With degree 1
///          nothing. Over context ranks, per block the rows of query, key and value twice, and those of
///          queries three times; in a ring those of key and value C - 1 times each way, and their gradients in f32.
/// Errors   PeerError as the communicators behind it.
#pragma once

#include "core/tensor.h"

namespace sherd::model {

class Collectives {
 public:
  virtual ~Collectives() = default;

  /// x = the sum of all tensor ranks' x. f32, bf16 or f16, added in f32 and rounded once. `what` names it in
  /// errors and traces.
  virtual void sum(const char* what, const Tensor& x) = 0;
  /// x = the sum over the ranks that hold copies of this rank's key/value heads.
  virtual void sum_copies(const char* what, const Tensor& x) = 0;
  /// out = row r of the sum of all ranks' x [R, n] on rank r, in the bits of `sum`. They don't overlap, or out is
  /// this rank's row of x.
  virtual void reduce_scatter(const char* what, const Tensor& x, const Tensor& out) = 0;
  /// x [R, n]: row r of every rank is what rank r has there.
  virtual void gather(const char* what, const Tensor& x) = 0;
  /// Over context ranks: row r of `to` [C, n] is this rank's row of rank r's `from`. They don't overlap.
  virtual void all_to_all(const char* what, const Tensor& from, const Tensor& to) = 0;
  /// `gather` and `reduce_scatter` over context ranks.
  virtual void gather_positions(const char* what, const Tensor& x) = 0;
  virtual void reduce_scatter_positions(const char* what, const Tensor& x, const Tensor& out) = 0;
  /// Over context ranks in a ring: `to` becomes the `from` of the rank before, and the one behind gets this rank's. It
  /// begins when what is enqueued so far is done, and goes on beside what follows. Until it is awaited `to` isn't
  /// touched, and until `await_sent` `from` isn't written, but by a later call as its `to`.
  virtual void pass_on(const char* what, const Tensor& from, const Tensor& to) = 0;
  /// What is enqueued from now on finds the `to` of the first call that hasn't been awaited.
  virtual void await_passed() = 0;
  /// What is enqueued from now on may write every `from`.
  virtual void await_sent() = 0;
};

/// Of a model that is whole: does nothing.
Collectives& no_collectives();

}  // namespace sherd::model
