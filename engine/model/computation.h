/// Shared state of a transformer's parts (attention, MLP, embedding, head): one shape, one stream,
/// the buffers, the slots of the current micro-batch, and how the model is cut over ranks.
///
/// The cut is chosen once, at construction, as three strategies of engine/model/cut:
///
///   rows     which tokens of the residual stream are here   residual_rows.h   (sequence
///            parallelism)
///   sums     the order of sums                              sums.h            (rank order, or
///            canonical)
///   shares   what tensor ranks add up inside attention      tensor_shares.h   (heads, norms,
///            adapters)
///
/// and one of engine/model/attention: which positions a rank attends from and to (sequences.h).
#pragma once

#include <memory>
#include <vector>

#include "engine/model/activations.h"
#include "engine/model/collectives.h"
#include "engine/model/parameters.h"
#include "engine/model/part.h"
#include "engine/model/pass.h"
#include "kernels/dropout.h"

namespace sherd::model {

class ResidualRows;
class Sums;
class TensorShares;

struct Computation {
  /// `part`: null for a whole model with one micro-batch at a time.
  Computation(const ModelShape& shape, Allocator& memory, Stream& stream, Collectives& collectives,
              const ModelPart* part);
  ~Computation();

  ModelShape shape;  ///< this rank's part; `sequences` and `seq_length` of the pass
  Stream& stream;
  Collectives& collectives;
  Activations activations;
  bool interleaved = false;  ///< the forward's matrices are interleaved

  // Slots of the current micro-batch in Activations, by block.
  std::vector<int> residuals;  ///< L + 1, then of each layer of predictions its input and output
  std::vector<int> kept;       ///< all blocks
  std::vector<int> waiting;    ///< all blocks
  Tensor output_TD;            ///< of the last block here, if it isn't in a slot
  /// Set while only a block's input gradient is computed: where its weight gradients wait.
  /// Otherwise null.
  const WaitingBuffers* puts_off = nullptr;

  std::unique_ptr<ResidualRows> rows;
  std::unique_ptr<Sums> sums;
  std::unique_ptr<TensorShares> shares;

  /// The residual stream before a layer of the model, or after the last one on this rank.
  Tensor residual_TD(std::int64_t layer) const;
  /// The input and output of any block, also of those of multi-token prediction. `input_slot`:
  /// which of Activations::residual_TD.
  Tensor input_TD(std::int64_t block) const { return at(input_place(block)); }
  Tensor output_of(std::int64_t block) const { return at(input_place(block) + 1); }
  int input_slot(std::int64_t block) const { return residuals[input_place(block)]; }
  /// Which of Activations::routing: a mixture's choices stay, also where the inputs of blocks take
  /// turns in few slots (ModelShape::residual_slots).
  int routing_slot(std::int64_t block) const {
    return shape.residual_slots > 0 ? static_cast<int>(block) : input_slot(block);
  }
  Tensor residual_slot(int slot) const {
    return activations.residual_TD[static_cast<std::size_t>(slot)].tensor();
  }
  BlockTensors kept_of(std::int64_t block) const;
  const WaitingBuffers& waiting_of(std::int64_t block) const;

 private:
  std::size_t input_place(std::int64_t block) const {  // in `residuals`
    const std::int64_t L = shape.num_layers;
    return static_cast<std::size_t>(block < L ? block : L + 1 + 2 * (block - L));
  }
  Tensor at(std::size_t place) const;
};

/// A range of columns of a matrix's outputs.
struct OutputColumns {
  std::int64_t first = 0, count = 0;
};

/// What a projection's backward reads and writes: gradients of its parameters, and of its input.
struct InputGradient {
  ConstTensor x, dy;
  std::int64_t inputs = 0, outputs = 0;
  Tensor dx;         ///< empty: not needed
  bool add = false;  ///< add to dx
  ConstTensor gelu_input{};
  Tensor dy_of_copies{};  ///< dy, if several ranks have copies of key/value heads
  /// If the outputs are cut over ranks: the columns in dy of each fused matrix.
  std::vector<OutputColumns> fused{};
};

/// Base of a transformer's parts: the kernels that all parts call, on one Computation that outlives
/// them.
class Part {
 public:
  explicit Part(Computation& computation);

 protected:
  void project(const Affine& affine, const Tensor& x, std::int64_t inputs, std::int64_t outputs,
               const Tensor& y, const Tensor& residual = {});
  void project_backward(const Affine& parameters, const Affine& gradients,
                        const InputGradient& args, const Buffer WaitingBuffers::*waits);
  /// The part of project_backward that writes the input's gradient, after a call without `dx`.
  void project_backward_input(const Affine& parameters, const Affine& gradients,
                              const InputGradient& args);
  /// logits_CV = the head's matmul, for `tokens` tokens.
  void head_product(const HeadParameters& parameters, const Tensor& normed_CD, std::int64_t tokens,
                    const Tensor& logits_CV);
  /// A norm's output: in the forward, and again in a selective backward.
  void normalise(const Affine& parameters, const Tensor& r_TD, const SiteTensors& site,
                 const Tensor& y_TD);
  /// Where a norm's kernel writes gradients; those of frozen norms are discarded.
  Affine norm_gradients(const Affine& parameters, const Affine& gradients) const;
  /// A branch's input, if its weight gradient is computed now.
  ConstTensor read_again(const Tensor& input_TD);

  /// Dropout over all tokens; over those of the residual stream; over attention's weights.
  kernels::Dropout dropout(const Pass& pass, std::uint32_t site) const;
  kernels::Dropout branch_dropout(const Pass& pass, std::uint32_t site) const;
  kernels::Dropout attention_dropout(const Pass& pass, std::uint32_t site) const;
  /// First row of the position tables that are passed to kernels. Documents give all positions
  /// themselves, and so do runs of consecutive positions.
  std::int64_t first_table_row(const Pass& pass) const;
  /// Calls `each(first token, its position, number of tokens)` for runs of tokens with consecutive
  /// positions, if a row has two runs; else once for all tokens, with position 0 for the first.
  template <class Each>
  void for_each_run(const Pass& pass, const Each& each) const;

  Tensor all_rows(const char* what, const Tensor& own_TD);
  Tensor all_rows_place(const Tensor& own_TD) const;
  void add_up_rows(const char* what, const Tensor& addend_TD, const Tensor& sum_TD);
  void add_up_norm(const Affine& gradients);

  Tensor branch_TD() const;
  Tensor d_branch_TD() const;
  Tensor residual_gradient() const;

  Computation& c_;
  ModelShape& shape_;
  Stream& compute_;
  Collectives& collectives_;
  Activations& activations_;
};

template <class Each>
void Part::for_each_run(const Pass& pass, const Each& each) const {
  if (pass.documents || shape_.position_runs() == 1) return each(0, 0, shape_.tokens());
  for (std::int64_t row = 0; row < shape_.sequences; ++row) {
    for (int run = 0; run < shape_.position_runs(); ++run) {
      const auto [first, count] = shape_.position_run(run);
      each(row * shape_.seq_length + run * count, first, count);
    }
  }
}

}  // namespace sherd::model
