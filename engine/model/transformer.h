/// A decoder-only transformer on one device, unit by unit, forward and backward written by hand.
///
/// It is written as if one device held everything: each call receives one unit's full parameters
/// (and where its gradient goes) as views and doesn't depend on slices or ranks. The order in which
/// units are called, and where their parameters come from, is decided by
/// engine/train/units/unit_runner.cpp.
///
///   x_0     = embedding(tokens)                      embedding.h
///   x_{i+1} = block_i(x_i)                           block.h, attention/attention.h, mlp/mlp.h
///   logits  = head(x_L)                              head.h
///
/// If matrices are cut over tensor ranks (cut/tensor_cut.h), the shape is one rank's and
/// `collectives` adds up the ranks' parts; the equations stay the same. With sequence parallelism,
/// T of the residual stream, norms and dropout is ModelShape::residual_tokens().
///
/// Memory   `activations` holds every buffer; calls allocate nothing.
/// Order    embed, block_forward 0..L-1, head (evaluate or train), block_backward L-1..0,
///          embed_backward, all with the same Pass.
#pragma once

#include "engine/model/block.h"
#include "engine/model/embedding.h"
#include "engine/model/head.h"
#include "engine/model/prediction.h"

namespace sherd::model {

class Transformer {
 public:
  /// `part`: null for a whole model with one micro-batch at a time.
  Transformer(const ModelShape& shape, Allocator& memory, Stream& compute,
              Collectives& collectives = no_collectives(), const ModelPart* part = nullptr);

  const ModelShape& shape() const { return computation_.shape; }

  /// From now on all matrices of the forward are interleaved (kernels/interleaved.h), including the
  /// token embedding if tied. There is no backward afterwards.
  void read_interleaved() { computation_.interleaved = true; }

  /// Later passes have this many sequences of this length, neither above the plan.
  void resize(std::int64_t sequences, std::int64_t seq_length);

  /// Sets the text length of later passes, which longrope's frequencies depend on. Returns whether
  /// the frequencies have changed. By default texts have as many positions as the rotary tables
  /// have rows.
  bool rotate_for(std::int64_t text_length);

  /// Sets the slots of the micro-batch and blocks of the following calls. By default, all blocks
  /// have their own place.
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
  /// The two halves of block_backward, bit-identical to it. Between them the block's micro-batch
  /// keeps its slots, and the second half's inputs wait in a slot.
  void block_input_gradient(std::int64_t block, const BlockParameters& parameters,
                            const Pass& pass) {
    block_.input_gradient(block, parameters, pass);
  }
  void block_weight_gradient(std::int64_t block, const BlockParameters& parameters,
                             const BlockParameters& gradients) {
    block_.weight_gradient(block, parameters, gradients);
  }
  /// `add_to_tokens`: adds to `gradients.token_weight`, which holds the head's contribution or
  /// earlier micro-batches'.
  void embed_backward(const EmbeddingParameters& gradients, const Pass& pass, bool add_to_tokens) {
    embedding_.backward(gradients, pass, add_to_tokens);
  }

  /// Multi-token prediction, between the last block and the head, and back.
  Prediction& prediction() { return prediction_; }
  /// The end of head_train, after the backward of predictions; without these part of it.
  void head_finish(const HeadParameters& parameters, const HeadParameters& gradients) {
    head_.finish_train(parameters, gradients);
  }

  /// The gradient of the residual stream at the backward's current position, [T, D]: what a
  /// pipeline rank sends on or has received.
  Tensor residual_gradient() const;
  /// The residual stream before a block, or after the last block on this rank.
  Tensor residual_TD(std::int64_t layer) const { return computation_.residual_TD(layer); }
  /// Sets where the last block on this rank writes its output.
  void write_output_to(const Tensor& out_TD) { computation_.output_TD = out_TD; }
  /// A slot of the residual stream; Activations::residual_TD.
  Tensor residual_slot(int slot) const { return computation_.residual_slot(slot); }

  /// The last pass's loss of every token, f32 [T], in device memory.
  const Tensor& losses() const { return computation_.activations.losses_T.tensor(); }
  /// In training with ModelShape::has_further_losses: those of the last pass's tokens, z-losses with
  /// the coefficient; `losses` is without them. Of multi-token prediction, layer after layer.
  const Tensor& further_losses() const {
    return computation_.activations.further_losses_T.tensor();
  }
  /// Logits of the last pass's tokens [first, first + count): Head::logits. For generating and
  /// scoring text.
  Tensor logits(const HeadParameters& parameters, std::int64_t first, std::int64_t count) {
    return head_.logits(parameters, first, count);
  }
  std::int64_t most_logits() const { return computation_.activations.chunk_tokens; }  ///< in a call

 private:
  void fill_rotary_tables(std::int64_t text_length);

  std::int64_t planned_sequences_, planned_seq_length_, planned_table_positions_;
  std::int64_t text_length_ = 0;  ///< for which the rotary tables are filled
  Computation computation_;
  Embedding embedding_;
  Block block_;
  Head head_;
  Prediction prediction_;
};

}  // namespace sherd::model
