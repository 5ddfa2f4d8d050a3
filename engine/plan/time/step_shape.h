/// All that the time of a step depends on, as numbers: the model's sizes and how ranks divide it.
/// A recipe gives one (from_recipe.h); so does a row of a published table, whose program isn't ours.
///
/// Legend: T tokens of a rank's micro-batch, D width, F feed-forward width, V vocabulary.
#pragma once

#include <cstdint>

#include "core/dtype.h"
#include "engine/model/shape.h"
#include "engine/schedule/order.h"

namespace sherd::engine {

struct ModelSize {
  std::int64_t layers = 0, width = 0, query_heads = 0, kv_heads = 0, head_width = 0;
  std::int64_t ffn_width = 0, vocab_size = 0;
  bool gated = false, dropout = false, tied = false;
  std::int64_t mixtures = 0;     ///< layers with experts
  std::int64_t head_passes = 1;  ///< of a training: more with multi-token prediction
  double latent_weights = 0.0;   ///< of a layer's latent attention; 0: it has heads alone
  std::int64_t experts = 0, per_token = 0, expert_width = 0, shared_width = 0;

  std::int64_t qkv_width() const { return (query_heads + 2 * kv_heads) * head_width; }
  std::int64_t up_width(std::int64_t ffn) const { return (gated ? 2 : 1) * ffn; }
  /// Weights of a layer without experts, of one expert, and of each end of the model.
  double attention_weights() const;
  double mlp_weights(std::int64_t ffn) const;
  double end_weights() const { return static_cast<double>(vocab_size * width); }
  double weights() const;
};

/// What a backward computes again. kAttention: scores only, which plain attention would keep.
enum class Again { kNothing, kNormsAndActivations, kAttention, kBlocks };

/// How a program computes a step, where programs differ. The defaults are ours.
struct ProgramForm {
  bool plain_attention = false;  ///< scores are in memory, and all positions are multiplied
  bool whole_recompute = false;  ///< also each block's last matmul and the last block
  bool overlaps_reductions = true;
  bool hides_second_gathers = false;  ///< of sequence parallelism, in the backward
  bool fast_cut_attention = false;    ///< tensor cores also if context ranks gather or pass keys
  bool waits_for_messages = false;    ///< of every order, not of 1f1b's critical path alone
  bool even_layers = false;           ///< the head's stage has as many as the others
  double accumulate_bytes = 0.0;      ///< of memory for each weight and further micro-batch
  double memory_share = 1.0;          ///< bytes of element-wise kernels / ours
};

/// How ranks divide a step. Ranks are ordered as in a mesh: tensor innermost, pipeline outermost.
struct Layout {
  std::int64_t tensor = 1, context = 1, pipeline = 1, shard = 1, replicate = 1, expert = 1;
  bool sequence_parallel = false;
  model::ContextMethod context_method = model::ContextMethod::kUlysses;
  schedule::Order order = schedule::Order::k1F1B;
  std::int64_t chunks = 1;  ///< per pipeline rank
  int stage = 0;
  bool reduces_every_micro_step = false;
  bool reshards = false;  ///< stage 3: gathers again for the backward
  std::int64_t prefetch_depth = 1;
  Again again = Again::kNothing;
  std::int64_t sequences = 1;      ///< of a micro-batch
  std::int64_t micro_batches = 1;  ///< of a step, for each rank
  std::int64_t servers = 0;        ///< parameter servers, which aren't in world()
  bool publishes_late = false;     ///< before the update, whose time is hidden
  /// Local updates: steps between two exchanges of each of the `fragments`, which replicas apply
  /// `sync_delay` steps after sending. 0: replicas reduce gradients in every step.
  std::int64_t sync_every = 0, fragments = 1, sync_delay = 0;

  std::int64_t world() const { return tensor * context * pipeline * shard * replicate; }
};

struct StepShape {
  ModelSize model{};
  Layout layout{};
  ProgramForm form{};
  std::int64_t seq_length = 1;
  DType dtype = DType::kBF16;
  double gather_bytes = 2.0, reduce_bytes = 4.0;  ///< of a weight, and of its gradient, on links
  double replica_bytes = 4.0;  ///< of a weight between replicas: the mean of both directions
  /// Compressed sums over replicas: bytes of a weight's gradient on their links, and passes of its
  /// FP32 gradient through memory; 0: they aren't compressed.
  double compressed_bytes = 0.0, compression_passes = 0.0;
  double outer_bytes = 4.0;  ///< of what a weight has changed, if replicas train apart
  /// Held for each owned weight and gradient: FP32 weights apart from the computed ones, and moments.
  double state_bytes = 12.0, gradient_bytes = 4.0;
  bool divides_over_replicas = false;  ///< the optimizer's state
  bool weights_away = false;           ///< on disk or on the host between uses, at stage 3
  double update_bytes = 30.0;          ///< of memory for each owned weight: state read and written
  double disk_bytes = 0.0;             ///< of each owned weight and step, read and written together
  double host_bytes = 0.0;             ///< the same of a GPU's host's memory
  bool host_updates = false;           ///< by the host's cores, unit by unit
  /// Rows of the fullest expert rank / mean. Published runs are mostly balanced by force.
  double imbalance = 1.0;
  bool cuda_graphs = false, deterministic = false;

  double tokens_per_step() const {
    return static_cast<double>(seq_length * layout.sequences * layout.micro_batches * layout.shard *
                               layout.replicate);
  }
};

}  // namespace sherd::engine
