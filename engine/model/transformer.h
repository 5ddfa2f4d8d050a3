/// A decoder-only transformer on one device, unit by unit, forward and backward written by hand.
///
/// It is written as if one device held everything: each call is given one unit's full parameters
/// (and where its gradient goes) as views and knows nothing of slices or ranks. In what order units
/// are called, and where their parameters come from, is engine/train/sharded_model.cpp's business.
///
///   x_0     = dropout(scale token_weight[token] + position_weight[position])
///   h_i     = x_i + s dropout(attention(norm1(x_i)))
///   x_{i+1} = h_i + s dropout(mlp(norm2(h_i)))                      sequential block, norms before
///   logits  = final_norm(x_L) head_weight^T, scaled and capped
///
/// Other forms of the block are data (engine/model/shape.h): norms behind the branches instead or as
/// well; branches side by side; norms of queries and keys; windows and rotary tables by layer.
///
/// Where matrices are cut over tensor ranks (engine/model/tensor_cut.h), the shape is one rank's and
/// `collectives` adds up what the ranks have parts of; the equations stay the same. With sequence parallelism the
/// residual stream, norms and dropout are of ModelShape::residual_tokens() alone, the T of these tensors.
///
/// Head and loss run forward and backward in one call, chunk by chunk of tokens: a chunk of logits
/// is turned into its gradient in place and used up before the next one is computed.
///
/// Memory   `activations` holds every buffer; calls allocate nothing.
/// Order    embed, block_forward 0..L-1, head (evaluate or train), block_backward L-1..0,
///          embed_backward, all with the same Pass.
#pragma once

#include <span>

#include "engine/model/activations.h"
#include "engine/model/collectives.h"
#include "engine/model/parameters.h"
#include "engine/model/part.h"
#include "engine/model/pass.h"
#include "kernels/dropout.h"

namespace sherd::kernels {
struct Columns;
struct QkNormBackward;
}  // namespace sherd::kernels

namespace sherd::model {

class Transformer {
 public:
  /// `part`: null for a whole model with one micro-batch at a time.
  Transformer(const ModelShape& shape, Allocator& memory, Stream& compute,
              Collectives& collectives = no_collectives(), const ModelPart* part = nullptr);

  const ModelShape& shape() const { return shape_; }

  /// From now on all matrices that the forward multiplies by are interleaved (kernels/interleaved.h), where tied with them the
  /// rows of tokens, too. There is no backward any more.
  void read_interleaved() { interleaved_ = true; }

  /// Later passes have this many sequences of this length, neither more than was planned for.
  void resize(std::int64_t sequences, std::int64_t seq_length);

  /// The calls that follow are on another micro-batch or on other blocks, which stand there. Where nobody
  /// says so, all blocks have a place of their own.
  void stand(const Standing& standing);

  void embed(const EmbeddingParameters& parameters, const Pass& pass);
  void block_forward(std::int64_t block, const BlockParameters& parameters, const Pass& pass);
  /// Losses only.
  void head_evaluate(const HeadParameters& parameters, const Pass& pass);
  /// Losses, and the gradients of the head's parameters and of the last block's output.
  void head_train(const HeadParameters& parameters, const HeadParameters& gradients,
                  const Pass& pass);
  void block_backward(std::int64_t block, const BlockParameters& parameters,
                      const BlockParameters& gradients, const Pass& pass);
  /// The two halves of block_backward, whose bits they have. Between them the block's micro-batch stays where
  /// it stands, and what the second one needs waits in a slot.
  void block_input_gradient(std::int64_t block, const BlockParameters& parameters,
                            const Pass& pass);
  void block_weight_gradient(std::int64_t block, const BlockParameters& parameters,
                             const BlockParameters& gradients);
  /// `add_to_tokens`: `gradients.token_weight` holds the head's contribution, or earlier micro-batches', which is added
  /// to.
  void embed_backward(const EmbeddingParameters& gradients, const Pass& pass, bool add_to_tokens);

  /// Of the residual stream where the backward has come to, [T, D]: what a rank of a pipeline sends on, or
  /// has received.
  Tensor residual_gradient() const {
    return rows(activations_.d_residual_TD, shape_.residual_tokens(), shape_.width);
  }
  /// The residual stream before a block, or behind the last one of those that stand here.
  Tensor residual_TD(std::int64_t block) const {
    const int slot = residuals_[static_cast<std::size_t>(block)];
    const Tensor stream_TD = slot == Standing::kElsewhere ? output_TD_ : residual_slot(slot);
    return stream_TD.part(0, shape_.residual_tokens() * shape_.width);
  }
  /// The last of the blocks that stand here writes there.
  void write_output_to(const Tensor& out_TD) { output_TD_ = out_TD; }
  /// A slot of the residual stream; Activations::residual_TD.
  Tensor residual_slot(int slot) const {
    return activations_.residual_TD[static_cast<std::size_t>(slot)].tensor();
  }

  /// The last pass's loss of every token, f32 [T], in device memory.
  const Tensor& losses() const { return activations_.losses_T.tensor(); }
  /// Logits of the last pass's tokens [first, first + count), into the logits buffer, of which they are
  /// returned: [count, V], V being this rank's part of the vocabulary. For text that is generated or scored.
  Tensor logits(const HeadParameters& parameters, std::int64_t first, std::int64_t count);
  std::int64_t most_logits() const { return activations_.chunk_tokens; }  ///< in one call

 private:
  /// Of all tokens; and of a branch, which has those of the residual stream.
  kernels::Dropout dropout(const Pass& pass, std::uint32_t site) const;
  kernels::Dropout branch_dropout(const Pass& pass, std::uint32_t site) const;
  kernels::Dropout attention_dropout(const Pass& pass, std::uint32_t site) const;
  /// The row of tables of positions with which those that kernels are given begin. Documents say all positions, and runs
  /// of neighbours theirs.
  std::int64_t first_table_row(const Pass& pass) const {
    const bool begins_here = !pass.documents && shape_.position_runs() == 1;
    return begins_here ? pass.first_position + shape_.first_position() : 0;
  }
  /// Calls `each(first token, its position, number of tokens)` for runs of tokens whose positions are neighbours, where a
  /// row has two; else once for all tokens, with position 0 for the first.
  template <class Each>
  void for_each_run(const Pass& pass, const Each& each) const;
  /// Of whole rows, as attention reads them.
  kernels::Documents attention_documents(const Pass& pass) const;
  /// What the head reads, of all tokens.
  Tensor final_norm(const HeadParameters& parameters);
  void head_product(const HeadParameters& parameters, const Tensor& normed_CD, std::int64_t tokens,
                    const Tensor& logits_CV);
  /// Losses of the tokens [first, first + tokens); with `gradient` their logits become their gradients.
  void chunk_losses(const Pass& pass, std::int64_t first, std::int64_t tokens,
                    const Tensor& logits_CV, bool gradient);
  struct OutputColumns {
    std::int64_t first = 0, count = 0;
  };
  /// What a projection's backward reads and writes: gradients of its parameters, and of its input.
  struct InputGradient {
    ConstTensor x, dy;
    std::int64_t inputs = 0, outputs = 0;
    Tensor dx;         ///< empty: nobody needs it
    bool add = false;  ///< to dx
    ConstTensor gelu_input{};
    Tensor dy_of_copies{};  ///< dy, where several ranks have the same of keys and values
    /// Canonical sums, where the outputs are cut over ranks: the columns in dy of each fused matrix.
    std::vector<OutputColumns> fused{};
  };

  void project(const Affine& affine, const Tensor& x, std::int64_t inputs, std::int64_t outputs,
               const Tensor& y, const Tensor& residual = {});
  void normalise(const Affine& parameters, const Tensor& r_TD, const SiteTensors& site,
                 const Tensor& y_TD);
  void rotate(std::int64_t block, const Tensor& qkv_TE, bool inverse, const Pass& pass);
  bool joins_in_matmul(const kernels::Dropout& dropout) const;
  void join(const Tensor& residual_TD, const Tensor& branch_TD, const kernels::Dropout& dropout,
            const Tensor& out_TD);

  void fill_block(std::int64_t block, const BlockParameters& parameters, const Pass& pass);
  void fill_attention(std::int64_t block, const BlockParameters& parameters, const Pass& pass);
  void fill_mlp(std::int64_t block, const BlockParameters& parameters);
  void attention_output(std::int64_t block, const BlockParameters& parameters,
                        const Tensor& branch_TD);
  void mlp_output(std::int64_t block, const BlockParameters& parameters, const Tensor& branch_TD);
  void finish_branch(const Affine& projection, const Tensor& x, std::int64_t inputs,
                     const Affine& norm, const SiteTensors& norm_site, const Tensor& branch_TD);
  void join_attention(std::int64_t block, const BlockParameters& parameters, const Pass& pass,
                      const Tensor& out_TD);
  void join_mlp(std::int64_t block, const BlockParameters& parameters, const Pass& pass,
                const Tensor& residual_TD, const Tensor& out_TD);
  void fill_middle(std::int64_t block, const BlockParameters& parameters, const Pass& pass);
  const Tensor& attention_input(const BlockTensors& kept) const;
  const Tensor& mlp_input(const BlockTensors& kept) const;
  ConstTensor read_again(const Tensor& input_TD);

  void backward_of_block(std::int64_t block, const BlockParameters& parameters,
                         const BlockParameters& gradients, const Pass& pass);
  void project_backward(const Affine& parameters, const Affine& gradients,
                        const InputGradient& args, const Buffer WaitingBuffers::*waits);
  void weight_gradient(const Affine& gradients, const ConstTensor& x, std::int64_t inputs,
                       const ConstTensor& dy, std::int64_t outputs);
  const WaitingBuffers& waiting_of(std::int64_t block) const;
  void branch_gradient(const kernels::Dropout& mask);
  void leave_branch(std::int64_t block, SiteId norm, const BlockParameters& parameters,
                    const BlockParameters& gradients, const kernels::Dropout* next);
  Tensor projection_gradient(const SiteTensors& site, const Affine& parameters,
                             const Affine& gradients);
  void mlp_backward(std::int64_t block, const BlockParameters& parameters,
                    const BlockParameters& gradients, const BackwardReach& reach);
  void compute_mlp_input_again(const BlockTensors& kept, const BlockParameters& parameters);
  void attention_backward(std::int64_t block, const BlockParameters& parameters,
                          const BlockParameters& gradients, const Pass& pass,
                          const BackwardReach& reach);
  void attention_gradients(std::int64_t block, const BlockTensors& kept, const Pass& pass,
                           const Tensor& d_attended_TD, const Tensor& d_qkv_TE);
  Affine norm_gradients(const Affine& parameters, const Affine& gradients) const;
  void qk_norm_backward(const BlockTensors& kept, const BlockParameters& parameters,
                        const BlockParameters& gradients, const Tensor& d_qkv_TE);

  BlockTensors kept_of(std::int64_t block) const {
    return activations_.block(kept_[static_cast<std::size_t>(block)], residual_TD(block), shape_);
  }
  // What a model that is cut over tensor ranks does beside (cut_model.cpp).
  void cut_losses(const Pass& pass, std::int64_t first, std::int64_t tokens,
                  const Tensor& logits_CV, bool gradient);
  std::vector<OutputColumns> qkv_columns() const;
  std::vector<OutputColumns> up_columns() const;
  void project_in_groups(const Affine& affine, const Tensor& x, std::int64_t inputs,
                         const Tensor& y_TD);
  void sum_input_gradient(const Tensor& weight, const InputGradient& args);
  void train_chunks(const HeadParameters& parameters, const HeadParameters& gradients,
                    const Pass& pass, const Tensor& normed_TD);
  void train_groups(const HeadParameters& parameters, const Tensor& gradient, const Pass& pass,
                    const Tensor& normed_TD);
  void train_groups(const HeadParameters& parameters, const Tensor& gradient, const Pass& pass,
                    const Tensor& normed_TD, int first, int count);
  void train_chunk_of_groups(const HeadParameters& parameters, const Tensor& gradient,
                             const Pass& pass, const Tensor& normed_TD, int chunk);
  void add_up_head_input_gradient(const Tensor& addend_TD, const Tensor& dx_TD);
  Tensor sum_over_ranks(const char* what);
  void finish_sum(const Tensor& sum, const Tensor& bias, const Tensor& y, bool add);
  void add_as_tree(const std::vector<Tensor>& terms, const Tensor& out);
  Tensor norm_sums_of_groups(int of_keys) const;
  void add_groups_of_norms(const Affine& query, const Affine& key);
  Tensor sum_TD() const { return rows(activations_.sum_TD, shape_.tokens(), shape_.width); }
  struct RowSums {
    ConstTensor sums, squares;
  };
  RowSums sums_of_normalised_rows(const Tensor& qkv_TE);
  void add_up_key_values(const Tensor& d_qkv_TE);
  void leave_own_share(const Tensor& d_qkv_TE);
  void add_up_row_gradients(const kernels::QkNormBackward& args);
  void add_up_norms_of_heads(const Tensor& d_query_weight, const Tensor& d_key_weight);
  void add_up_adapters(const Affine& gradients);
  // What one does whose ranks share the tokens of the residual stream (sequence_parallel.cpp): the rows of all
  // ranks, in their place, where this rank's addends of sums are formed, too; and of a sum over ranks, its rows.
  // Without sequence parallelism all rows are its own, and sums are formed in place.
  Tensor all_rows(const char* what, const Tensor& own_TD);
  Tensor all_rows_place(const Tensor& own_TD) const;
  Tensor d_read_TD() const;
  void add_up_rows(const char* what, const Tensor& addend_TD, const Tensor& sum_TD);
  void add_up_norm(const Affine& gradients);
  // What one does that has a part of every sequence (sequence_cut.cpp): its positions of all heads become all
  // positions of its heads, and back.
  enum class HeadRows { kQkv, kQueries };
  std::vector<kernels::Columns> columns_of(HeadRows rows, int rank) const;
  void reorder_sequences(const Tensor& from, const Tensor& to, bool by_rank);
  void to_heads(const char* what, HeadRows rows, const ConstTensor& own, const Tensor& all);
  void to_positions(const char* what, HeadRows rows, const Tensor& all, const Tensor& own);
  // Or the keys and values of all positions are put together (gathered_keys.cpp), and their gradients added up.
  ConstTensor gather_keys_values(const char* what, const ConstTensor& qkv_TE);
  void add_up_gathered_keys();
  // Or they go from rank to rank (ring.h).
  Tensor passed_keys(int step) const;
  Tensor passed_gradients(int which) const;
  void send_keys_round(const char* what, const ConstTensor& qkv_TE);
  void ring_forward(std::int64_t block, const Pass& pass, const ConstTensor& qkv_TE,
                    const SiteTensors& site);
  void ring_backward(std::int64_t block, const Pass& pass, const ConstTensor& qkv_TE,
                     const SiteTensors& site, const Tensor& d_out_TD, const Tensor& d_qkv_TE);

  Tensor branch_TD() const {
    return rows(activations_.branch_TD, shape_.residual_tokens(), shape_.width);
  }
  Tensor d_branch_TD() const;

  ModelShape shape_;
  std::int64_t planned_sequences_, planned_seq_length_;
  Stream& compute_;
  Collectives& collectives_;
  Activations activations_;
  bool interleaved_ = false;
  std::vector<int> residuals_;  // L + 1
  Tensor output_TD_;
  std::vector<int> kept_;     // L
  std::vector<int> waiting_;  // L
  const WaitingBuffers* puts_off_ =
      nullptr;                      ///< the weight gradients of the block that is computed
  std::int64_t filled_block_ = -1;  ///< with full recompute: whose activations are there
};

template <class Each>
void Transformer::for_each_run(const Pass& pass, const Each& each) const {
  if (pass.documents || shape_.position_runs() == 1) return each(0, 0, shape_.tokens());
  for (std::int64_t row = 0; row < shape_.sequences; ++row) {
    for (int run = 0; run < shape_.position_runs(); ++run) {
      const auto [first, count] = shape_.position_run(run);
      each(row * shape_.seq_length + run * count, first, count);
    }
  }
}

}  // namespace sherd::model
