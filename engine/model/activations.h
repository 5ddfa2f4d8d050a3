/// Every buffer that flows between kernels on one rank: what the forward keeps for the backward,
/// and the scratch of both. All are acquired once, before step 0. Each is alive only in the phases
/// that use it, so logits and the backward's scratch share memory.
///
/// Kept per block: its input (the residual stream, D), and the outputs and statistics of its sites
/// (engine/model/sites.h). With `selective` recompute all blocks share one buffer for the cheap
/// outputs of a name; with `full` all blocks share everything except the residual.
///
/// If layers differ, a shared buffer has the size that the largest layer needs.
///
/// A pipeline rank has some of the blocks and several micro-batches in flight. There, kept
/// activations are in slots of a pool instead: any block of any micro-batch may use any slot.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "core/memory.h"
#include "core/stream.h"
#include "engine/model/adapter.h"
#include "engine/model/part.h"
#include "engine/model/sites.h"
#include "kernels/device.h"

namespace sherd::model {

/// Elements of a block in which residual slots move to a disk and back, the last one excepted.
inline constexpr std::int64_t kResidualBlock = std::int64_t{1} << 20;

/// Buffers for what a site keeps.
struct SiteBuffers {
  Buffer output, mean, statistic;
};
/// The same, as the tensors of one pass, which may have fewer tokens than was planned for.
struct SiteTensors {
  Tensor output, mean, statistic;
};
struct BlockTensors : PerSite<SiteTensors> {
  Tensor x_TD;          ///< the block's input
  ConstTensor sinks{};  ///< the layer's parameter, for attention; not kept
  Tensor d_sinks{};     ///< where its gradient goes; in the backward
};

/// Returns a buffer; or, if a run is only planned, records it and returns an empty one.
using Acquire = std::function<Buffer(BufferSpec)>;

/// What a block's weight gradients still need after its input gradient: the gradients of its
/// projections' outputs. The gradients of norms are computed with the input gradient, and wait here
/// too.
struct WaitingBuffers {
  Buffer d_qkv, d_attention_output, d_up, d_down;
  Buffer d_query, d_query_down, d_keys_values, d_kv_down;  ///< of latent attention
  Buffer d_experts, d_router, d_gate;  ///< of a layer with experts: of its branch, and f32 logits
  PerSite<Buffer> norm_weight, norm_bias;
};

/// What a router decided for the tokens of one micro-batch in one layer. The backward reads it and
/// never decides again.
struct RoutingBuffers {
  Buffer logits, chosen, weights, counts, balance;
  Buffer rank_counts;  ///< with expert ranks: i32 [R, E], rows that each has for each expert
};
/// What a layer's router decides; `prefix` begins the buffers' names.
RoutingBuffers acquire_routing(const ModelShape& shape, const std::string& prefix,
                               const Acquire& acquire);
struct Routing {
  Tensor logits, chosen, weights, counts, balance;  ///< kernels/router.h
  Tensor rank_counts;
};

/// Scratch of layers with experts (kernels/experts.h), shared by all of them.
struct ExpertsBuffers {
  Buffer sums, rows, up, activated, d_activated, order;
  Buffer read;  ///< [T, D], with sequence parallelism: the rows that all tensor ranks read
  Buffer counts_of_ranks;  ///< i32 [C, B, E]: each context rank's, of its part of every sequence
  Buffer x;                ///< f32 [T, D]: what the router reads, where the model's type is another
  Buffer d_weights, d_logits;
  /// With expert ranks (kernels/expert_rows.h): at home, rows of all choices and a number for each;
  /// at the owner, what a round has brought.
  Buffer home_rows, home_numbers, x_rows, dy_rows, row_weights, row_d_weights;
  Buffer adapter_h, adapter_z;  ///< kernels/expert_adapters.h
  Buffer d_x;                   ///< f32 [T, D]: the gradient of what the router read
  Buffer d_shared,
      d_gate;  ///< of a shared expert with a gate: of its output, and f32 [T] of the gate's logits
};

/// Scratch of latent attention (engine/model/attention/latent.h), shared by all layers.
struct LatentBuffers {
  Buffer query, keys_values;  ///< of one layer, before they are joined; then their gradients
  Buffer latent, d_latent;    ///< before its norm, [T, the larger rank], and after it: gradients
  Buffer d_query_down, d_kv_down;
  Buffer attended, d_attended;  ///< [T, H K], if values are narrower than keys
};

/// Scratch of latent attention in generation (engine/model/attention/absorbed.h), of one layer.
struct AbsorbedBuffers {
  Buffer plain, latents, thin;  ///< kernels/absorbed_heads.h
  Buffer qkv, attended;         ///< [T, (H + 2) (C + R)], [T, H (C + R)]
};

/// Of a layer of multi-token prediction (engine/model/prediction.h), from the forward to the
/// backward.
struct PredictionBuffers {
  Buffer hidden;    ///< what its hidden norm reads
  Buffer embedded;  ///< embeddings of the tokens ahead; then their gradient
  Buffer joined;    ///< [T, 2 D]: both, normalised
  Buffer output;    ///< of its last norm; then its gradient
  SiteBuffers embedding_norm, hidden_norm, norm;  ///< statistics
};

struct Activations {
  /// `part`: null for a whole model with one micro-batch at a time.
  Activations(const ModelShape& shape, const kernels::ComputeDevice& device,
              const Acquire& acquire_buffer, const ModelPart* part = nullptr);

  /// Everything that the constructor acquires.
  static std::vector<BufferSpec> list(const ModelShape& shape, const kernels::ComputeDevice& device,
                                      const ModelPart* part = nullptr);

  /// Memory for one of ModelShape::residual_slots.
  static BufferSpec residual_slot(const ModelShape& shape, int slot);

  SiteTensors final_norm(const ModelShape& shape) const;
  /// Layer `layer`, whose input is `x_TD` and whose sites' outputs are in set `index` of `blocks`.
  BlockTensors block(std::int64_t layer, std::int64_t index, const Tensor& x_TD,
                     const ModelShape& shape) const;

  std::vector<Buffer>
      residual_TD;  ///< L + 1: the input of every block, and the last one's output; or slots
  /// For each of these, if a layer with experts may read it: what its router decided.
  std::vector<RoutingBuffers> routing;
  std::vector<PerSite<SiteBuffers>> blocks;  ///< L, or one for all with `full`; or slots
  PerSite<Buffer> shared;  ///< `selective`: the cheap outputs, at the first site of each name
  SiteBuffers final_norm_buffers;
  Buffer logits_CV;  ///< one chunk of C tokens; becomes its gradient in place
  /// If the gradient of the head's matrix is a tree over chunks: the sum of the upper half at each
  /// level, the smallest first.
  std::vector<Buffer> head_sums;
  Buffer losses_T;  ///< f32, one per token
  /// The same of ModelShape::has_further_losses, in training: z-losses (kernels/token.h), divergences
  /// from a teacher (kernels/teacher.h), or those of each layer of multi-token prediction.
  Buffer further_losses_T;
  /// For a cut model or canonical sums, f32: the largest logits of a chunk on every rank, and sums
  /// [2, C], with a teacher [4, C].
  Buffer loss_maxima_RC, loss_sums_NC;
  std::int64_t chunk_tokens = 0;  ///< C

  /// With residual_tokens() rows, as the whole residual stream.
  Buffer branch_TD;  ///< forward: a branch before it joins; backward: gradient of a norm's output
  Buffer d_residual_TD;  ///< gradient of the residual stream, carried from block to block
  Buffer d_branch_TD;    ///< gradient of a branch, if it differs from d_residual_TD
  /// With sequence parallelism: gathered rows of all tokens, or this rank's addends of sums over
  /// ranks. If branches read one norm, also the addends of its output's gradient.
  Buffer all_rows_TD, d_normed_TD;
  Buffer d_wide;                        ///< [T, max(E, largest U)]
  Buffer d_narrow;                      ///< [T, max(H K, largest F)]
  std::vector<WaitingBuffers> waiting;  ///< slots, on a rank of a pipeline
  std::vector<Buffer> rotary_SK;        ///< the tables that layers name
  std::vector<Buffer> kv_cache;         ///< L, f32, if keys and values are cached
  Buffer sum_TD;                        ///< f32, one sum, if sums are canonical
  /// [2, groups, K], also if sums are canonical: the gradients of norms of heads, per token group.
  Buffer qk_norm_sums;
  Buffer d_kv;         ///< [T, 2 G K] f32, if ranks add up gradients of keys and values
  Buffer row_sums_4T;  ///< f32, if rows of queries' and keys' norms are cut
  /// Ulysses: buffers for what is sent to the other ranks and received from them, and what
  /// attention reads and writes for all positions, [B S, width / C] or, before that, [T, width].
  Buffer deal_send, deal_received, deal_qkv, deal_out, deal_d_out;
  Buffer keys_values,
      d_keys_values;  ///< all_gather: [B S, 2 G K]; the second f32, gathered_key_sums() of them
  /// Ring: keys and values of one rank after the other, [T, 2 G K], in two buffers: one is read
  /// while the other is received. Gradients of these, f32: one is sent, one received, and with more
  /// than two ranks one computed. ring_sum_TD: f32 [T, H K], the attention output of queries, or
  /// their gradients.
  std::vector<Buffer> ring_keys, d_ring_keys;
  Buffer ring_sum_TD;
  Buffer workspace;  ///< the largest that any kernel asks for
  AdapterProducts adapters;
  LatentBuffers latent;
  AbsorbedBuffers absorbed;
  ExpertsBuffers experts;
  std::vector<PredictionBuffers> predictions;
  Buffer d_joined;  ///< [T, 2 D]

  Routing routing_of(int residual, const ModelShape& shape) const;

 private:
  void acquire_blocks(const ModelShape& shape, const Acquire& acquire);
  void acquire_slots(const ModelShape& shape, const ModelPart& part, const Acquire& acquire);
  void acquire_waiting(const ModelShape& shape, const ModelPart& part, const Acquire& acquire);
  void acquire_shared(const ModelShape& shape, const Acquire& acquire);
  void acquire_head(const ModelShape& shape, DeviceKind device, const Acquire& acquire);
  void acquire_scratch(const ModelShape& shape, const Acquire& acquire);
  void acquire_latent(const ModelShape& shape, const Acquire& acquire);
  void acquire_absorbed(const ModelShape& shape, const Acquire& acquire);
  void acquire_experts(const ModelShape& shape, const Acquire& acquire);
  void acquire_sites(std::int64_t block, const ModelShape& shape, const Acquire& acquire);
  void acquire_predictions(const ModelShape& shape, const Acquire& acquire);
  std::vector<Site> sites_;  ///< largest_sites
  const std::vector<Site>& sites_of(std::int64_t layer) const {
    if (layer >= num_layers_) return last_sites_;
    return kinds_[static_cast<std::size_t>(layer) % kinds_.size()];
  }

  std::vector<std::vector<Site>> kinds_;  ///< of the layers of each kind, which repeat
  std::int64_t num_layers_;
  std::vector<Site> last_sites_;     ///< of layers of multi-token prediction
  PerSite<SiteId> first_of_name_{};  ///< of cheap sites
};

/// The first `tokens` rows of a buffer.
inline Tensor rows(const Buffer& buffer, std::int64_t tokens, std::int64_t width) {
  return buffer ? buffer.tensor().part(0, tokens * width) : Tensor{};
}

/// Tokens in one chunk of logits: fixed by the shape and the kind of device, so that results depend
/// on nothing else.
std::int64_t logits_chunk_tokens(const ModelShape& shape, DeviceKind device);
/// Canonical sums: 2^n chunks with equally many groups of tokens. The gradient of the head's matrix
/// is a tree over them, for which n sums of its size are stored. n minimises memory, including
/// logits.
int logits_chunks_of_groups(const ModelShape& shape);

}  // namespace sherd::model
