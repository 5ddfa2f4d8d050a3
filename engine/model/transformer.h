/// A decoder-only transformer on one device, unit by unit, forward and backward written by hand.
///
/// It is written as if one device held everything: each call is given one unit's full parameters
/// (and where its gradient goes) as views and knows nothing of slices or ranks. The order in which units
/// are called, and where their parameters come from, is decided in engine/train/units/unit_runner.cpp.
///
///   x_0     = embedding(tokens)                      embedding.h
///   x_{i+1} = block_i(x_i)                           block.h, attention/attention.h, mlp/mlp.h
///   logits  = head(x_L)                              head.h
///
/// Where matrices are cut over tensor ranks (cut/tensor_cut.h), the shape is one rank's and
/// `collectives` adds up what the ranks have parts of; the equations stay the same. With sequence parallelism the
/// residual stream, norms and dropout have ModelShape::residual_tokens() alone, the T of these tensors.
///
/// Memory   `activations` holds every buffer; calls allocate nothing.
/// Order    embed, block_forward 0..L-1, head (evaluate or train), block_backward L-1..0,
///          embed_backward, all with the same Pass.
#pragma once

#include "engine/model/block.h"
#include "engine/model/embedding.h"
#include "engine/model/head.h"

namespace sherd::model {

class Transformer {
 public:
  /// `part`: null for a whole model with one micro-batch at a time.
  Transformer(const ModelShape& shape, Allocator& memory, Stream& compute,
              Collectives& collectives = no_collectives(), const ModelPart* part = nullptr);

  const ModelShape& shape() const { return computation_.shape; }

  /// From now on all matrices that the forward multiplies by are interleaved (kernels/interleaved.h), where tied with
  /// them the rows of tokens, too. There is no backward any more.
  void read_interleaved() { computation_.interleaved = true; }

  /// Later passes have this many sequences of this length, neither more than was planned for.
  void resize(std::int64_t sequences, std::int64_t seq_length);

  /// Later passes are on texts of this length, which longrope's frequencies depend on. True if they
  /// have changed. By default texts have as many positions as the rotary tables have rows.
  bool rotate_for(std::int64_t text_length);

  /// The calls that follow are on another micro-batch or on other blocks, which are in these slots. Without it,
  /// all blocks have a place of their own.
  void stand(const Standing& standing);

  void embed(const EmbeddingParameters& parameters, const Pass& pass) {
    embedding_.forward(parameters, pass);
  }
  void block_forward(std::int64_t block, const BlockParameters& parameters, const Pass& pass) {
    block_.forward(block, parameters, pass);
  }
  /// Losses only.
  void head_evaluate(const HeadParameters& parameters, const Pass& pass) {
    head_.evaluate(parameters, pass);
  }
  /// Losses, and the gradients of the head's parameters and of the last block's output.
  void head_train(const HeadParameters& parameters, const HeadParameters& gradients,
                  const Pass& pass) {
    head_.train(parameters, gradients, pass);
  }
  void block_backward(std::int64_t block, const BlockParameters& parameters,
                      const BlockParameters& gradients, const Pass& pass) {
    block_.backward(block, parameters, gradients, pass);
  }
  /// The two halves of block_backward, whose bits they have. Between them the block's micro-batch stays where
  /// it is, and what the second one needs waits in a slot.
  void block_input_gradient(std::int64_t block, const BlockParameters& parameters,
                            const Pass& pass) {
    block_.input_gradient(block, parameters, pass);
  }
  void block_weight_gradient(std::int64_t block, const BlockParameters& parameters,
                             const BlockParameters& gradients) {
    block_.weight_gradient(block, parameters, gradients);
  }
  /// `add_to_tokens`: `gradients.token_weight` holds the head's contribution, or earlier micro-batches', which is added
  /// to.
  void embed_backward(const EmbeddingParameters& gradients, const Pass& pass, bool add_to_tokens) {
    embedding_.backward(gradients, pass, add_to_tokens);
  }

  /// The gradient of the residual stream where the backward has arrived, [T, D]: what a rank of a pipeline sends on, or
  /// has received.
  Tensor residual_gradient() const;
  /// The residual stream before a block, or after the last one of those that are here.
  Tensor residual_TD(std::int64_t block) const { return computation_.residual_TD(block); }
  /// The last of the blocks that are here writes there.
  void write_output_to(const Tensor& out_TD) { computation_.output_TD = out_TD; }
  /// A slot of the residual stream; Activations::residual_TD.
  Tensor residual_slot(int slot) const { return computation_.residual_slot(slot); }

  /// The last pass's loss of every token, f32 [T], in device memory.
  const Tensor& losses() const { return computation_.activations.losses_T.tensor(); }
  /// Logits of the last pass's tokens [first, first + count): Head::logits. For text that is generated or scored.
  Tensor logits(const HeadParameters& parameters, std::int64_t first, std::int64_t count) {
    return head_.logits(parameters, first, count);
  }
  std::int64_t most_logits() const { return computation_.activations.chunk_tokens; }  ///< in a call

 private:
  void fill_rotary_tables(std::int64_t text_length);

  std::int64_t planned_sequences_, planned_seq_length_, planned_table_positions_;
  std::int64_t text_length_ = 0;  ///< that the rotary tables are for
  Computation computation_;
  Embedding embedding_;
  Block block_;
  Head head_;
};

}  // namespace sherd::model
