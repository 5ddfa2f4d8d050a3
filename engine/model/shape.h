/// The sizes and variant of a decoder-only transformer.
///
/// Legend for all of engine/model: B sequences of S positions make T = B * S tokens; D width, H query
/// heads and G key/value heads of width K, F feed-forward width, V vocabulary, L blocks.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "core/dtype.h"
#include "engine/model/layer_shapes.h"
#include "kernels/kinds.h"

namespace sherd::kernels {
struct ActivationShape;
struct AttentionShape;
struct ExpertsShape;
struct LatentHeads;
struct LogitsForm;
struct NormShape;
struct QkNormShape;
struct RouterShape;
struct TokenGroups;
struct VocabularyRows;
}  // namespace sherd::kernels

namespace sherd::model {

enum class Positions { kLearned, kRope };

/// Where norms are: before a branch, after it, or both. The final norm is always there.
enum class NormPlacement { kPre, kPost, kSandwich };

/// A block's two branches, attention and MLP.
///   sequential        the MLP reads the residual stream after attention
///   parallel          both read the block's input, each through its own norm
///   parallel_one_norm both read the same norm's output
enum class BlockForm { kSequential, kParallel, kParallelOneNorm };

/// Norms of queries and keys: kernels/qk_norm.h.
enum class QkNorm { kNone, kHead, kHeadAfterRotary, kPerHead, kProjection, kRotated };

/// How a layer's queries, keys and values are made; all layers are of one kind.
enum class AttentionKind {
  kHeads,   ///< each is one projection
  kLatent,  ///< low-rank projections: LatentShape
};

/// What a layer does with each token.
enum class MlpKind {
  kNone,     ///< nothing: the layer is its attention
  kDense,    ///< up projection, activation, down projection
  kExperts,  ///< a router, and several of these of which each token goes through a few: MoeShape
};

/// Everything that can differ between layers of a model.
struct LayerKind {
  AttentionKind attention = AttentionKind::kHeads;
  std::int64_t window = 0;  ///< keys that a query sees; 0: all before it
  int rotary = -1;          ///< position in ModelShape::rotary; -1: queries and keys aren't rotated
  MlpKind mlp = MlpKind::kDense;
  std::int64_t ffn_width = 0;  ///< F of its dense MLP; 0: use ModelShape::ffn_width
};

enum class SiteId : int;

/// Sites (engine/model/sites.h) whose parameters form their own unit in every layer that has them,
/// with their own slots and placement. Part n of a layer is the n-th of these.
struct LayerPart {
  std::string name;  ///< the unit is "block.I.NAME"
  std::vector<SiteId> sites;
  bool in_f32 = false;  ///< computed in f32 whatever the model's type

  bool operator==(const LayerPart&) const = default;
};

struct Biases {
  bool norm = false, qkv = false, output = false, mlp = false, head = false;

  static constexpr Biases everywhere() { return {true, true, true, true}; }
};

/// What the backward recomputes instead of keeping (Korthikanti et al., arXiv:2205.05198).
///   none       nothing
///   selective  the outputs of norms and activations, cheap to compute and half of what is kept
///   full       everything except the blocks' inputs: one more forward of each block
/// Recomputed values are bit-identical, dropout included, and so are the gradients. On a GPU `none`
/// and `full` apply GELU to the up projection's sum before rounding, but `selective` to the kept,
/// rounded values: there it agrees with the others up to that rounding.
enum class Recompute { kNone, kSelective, kFull };

/// Low-rank adapters, and what else is trained with frozen parameters: engine/model/adapter.h.
struct AdapterShape {
  std::int64_t rank = 0;  ///< 0: no adapter, and all parameters are trained
  double scale = 1.0;
  double dropout = 0.0;
  std::vector<std::string> targets{};          ///< "attention.query", ...
  std::vector<std::string> trained_modules{};  ///< "head", "norm1", ...: all of their parameters

  bool active() const { return rank > 0; }
  bool has_target(std::string_view name) const {
    return active() && std::find(targets.begin(), targets.end(), name) != targets.end();
  }
};

/// Groups of a canonical sum (engine/model/cut/canonical_sums.cpp).
inline constexpr int kSumGroups = 8;

/// A tensor rank's part of a model (engine/model/cut/tensor_cut.h), and sizes of the whole model.
struct TensorPart {
  int degree = 1, rank = 0;
  std::int64_t all_query_heads = 0, first_query_head = 0;
  std::int64_t all_kv_heads = 0;
  int kv_copies = 1, kv_copy = 0;  ///< number of ranks that hold its key/value heads; its index
  std::int64_t all_tokens = 0, first_token = 0;  ///< of the vocabulary
  /// For canonical sums (canonical_sums.cpp): how many groups of every sum over ranks it computes;
  /// all of them if the model isn't cut. 0: sums are in rank order.
  int sum_groups = 0;
  int kv_sum_groups = 1;  ///< those over query heads of one key/value head: kernels/attention.h
  /// Each tensor rank has the residual stream, norms and dropout of a part of the tokens
  /// (engine/model/cut/residual_rows.h). It has no effect if the model isn't cut.
  bool sequence_parallel = false;

  bool is_cut() const { return degree > 1; }
  bool has_canonical_sums() const { return sum_groups > 0; }
  /// Whether this rank adds the biases of sums over ranks.
  bool adds_biases_of_sums() const { return rank == 0; }
};

/// How context ranks share attention: engine/model/cut/sequence_cut.h.
enum class ContextMethod { kUlysses, kAllGather, kRing };

/// Which experts of every layer a rank holds, if ranks divide them (engine/model/cut/expert_cut.h).
struct ExpertPart {
  int degree = 1, rank = 0;
  bool is_cut() const { return degree > 1; }
};

/// Positions of a sequence: [first, first + count).
struct PositionRun {
  std::int64_t first = 0, count = 0;
};

/// Which positions of every sequence a context rank has (engine/model/cut/sequence_cut.h).
struct ContextPart {
  int degree = 1, rank = 0;
  ContextMethod method = ContextMethod::kUlysses;

  bool is_cut() const { return degree > 1; }
  bool deals_heads() const { return is_cut() && method == ContextMethod::kUlysses; }
  bool gathers_keys() const { return is_cut() && method == ContextMethod::kAllGather; }
  bool passes_keys() const { return is_cut() && method == ContextMethod::kRing; }
  /// For a ring, where a sequence has 2 * degree halves and each rank has two: the index of half
  /// `which` (0 or 1) of rank `of_rank`.
  int half(int of_rank, int which) const {
    return which == 0 ? of_rank : 2 * degree - 1 - of_rank;  // one from either end
  }
};

struct ModelShape;
/// Gives all layers latent attention, or none if `latent` isn't active. Layers are set already.
void set_latent_attention(ModelShape& shape, const LatentShape& latent);

/// If tensor ranks cut matrices, heads, feed-forward width and vocabulary are those of `part`.
struct ModelShape {
  std::int64_t num_layers = 0;     ///< L
  std::int64_t mtp_layers = 0;     ///< of multi-token prediction, in addition: prediction.h
  std::int64_t width = 0;          ///< D
  std::int64_t query_heads = 0;    ///< H
  std::int64_t kv_heads = 0;       ///< G
  std::int64_t ffn_width = 0;      ///< F, unless a layer's kind sets another
  std::int64_t vocab_size = 0;     ///< V
  std::int64_t max_positions = 0;  ///< rows of the learned position embedding
  std::int64_t head_size = 0;      ///< K; 0: D / H
  kernels::NormKind norm = kernels::NormKind::kLayerNorm;
  NormPlacement norm_placement = NormPlacement::kPre;
  BlockForm block_form = BlockForm::kSequential;
  QkNorm qk_norm = QkNorm::kNone;
  Positions positions = Positions::kLearned;
  kernels::ActivationKind activation = kernels::ActivationKind::kGelu;
  Biases biases;
  bool sinks = false;  ///< of attention: kernels/attention.h
  bool tied = false;   ///< the head uses the token embedding's matrix
  double dropout = 0.0;
  std::vector<kernels::RotaryFrequencies> rotary{1};  ///< the tables that layers name
  std::vector<LayerKind> layer_kinds;  ///< repeated over the layers; empty: all the same
  std::vector<LayerPart> layer_parts;  ///< part 0, the block, has all other sites
  LatentShape latent;
  MoeShape moe;
  double norm_eps = 1e-5;
  double norm_offset = 0.0;                      ///< added to norms' weights
  double init_std = 0.02, block_init_std = 0.0;  ///< block_: of matrices in blocks; 0: init_std
  double attention_scale = 0.0;                  ///< 0: 1 / sqrt(K)
  double attention_softcap = 0.0;                ///< 0: none
  double embedding_scale = 1.0;
  double residual_scale = 1.0;  ///< of a branch, when it is added to the residual stream
  double logits_scale = 1.0, logits_softcap = 0.0;

  std::int64_t sequences = 1;   ///< B, of one micro-batch
  std::int64_t seq_length = 1;  ///< S; for a context rank, its part of each
  /// For text generation: number of positions whose keys and values are kept (kernels/kv_cache.h),
  /// of one sequence, in passes of at most seq_length positions. 0: none are kept.
  std::int64_t cached_positions = 0;
  DType dtype = DType::kF32;  ///< of parameters in compute, and activations
  Recompute recompute = Recompute::kNone;
  int residual_slots = 0;  ///< `full`: inputs of blocks in memory at a time; 0: all of them
  AdapterShape adapter;
  std::vector<std::string> frozen{};  ///< full names of what isn't trained, ascending; no adapter
  double z_loss = 0.0;                ///< of the output logits: coefficient; 0: none
  double mtp_loss = 0.0;              ///< of the mean of the predictions' losses: coefficient
  kernels::TeacherForm teacher{};     ///< of distillation, in training; not with a z-loss
  bool max_attention_logit = false;   ///< attention also finds each head's largest logit
  /// The most logits at a time on a CPU, but at least those of 64 tokens. 128 MiB of f32: the
  /// matmuls of small chunks are slow, because the head's matrix is packed again for each. A GPU
  /// takes 8 times as many: each chunk reads and writes the head's whole weight gradient.
  std::int64_t logits_chunk_elements = 32 << 20;
  TensorPart part{};
  ContextPart context{};
  ExpertPart expert{};

  std::int64_t tokens() const { return sequences * seq_length; }
  /// The gradient is also that of z-losses, of divergences from a teacher, or of losses of
  /// multi-token prediction: this many for each token.
  std::int64_t num_further_losses() const;
  bool has_further_losses() const { return num_further_losses() > 0; }
  std::int64_t num_blocks() const { return num_layers + mtp_layers; }  ///< those of prediction last
  bool sequence_parallel() const { return part.is_cut() && part.sequence_parallel; }
  /// Number of consecutive tokens whose residual stream is on this rank; all tokens without
  /// sequence parallelism. If ranks can't share the tokens evenly, rows of zeros follow the last
  /// one.
  std::int64_t residual_tokens() const, first_residual_token() const;
  std::int64_t whole_seq_length() const { return seq_length * context.degree; }
  /// The runs of positions of a sequence on this rank, in order: one, or two in a ring.
  int position_runs() const { return context.passes_keys() ? 2 : 1; }
  PositionRun position_run(int which) const;
  std::int64_t first_position() const { return position_run(0).first; }
  /// Positions between the two runs; 0 if there is one run.
  std::int64_t position_gap() const;
  /// Which context rank has a position of a sequence, and its index there; without context ranks,
  /// the position itself.
  struct Place {
    int context_rank = 0;
    std::int64_t token = 0;
  };
  Place place_of(std::int64_t position) const;
  std::int64_t head_width() const {
    return latent.active() ? latent.head_width() : head_size > 0 ? head_size : width / query_heads;
  }
  /// Of a head: how many numbers of its values the output projection reads.
  std::int64_t value_width() const { return latent.active() ? latent.value : head_width(); }
  std::int64_t attended_width() const { return query_heads * value_width(); }
  std::int64_t heads_width() const { return query_heads * head_width(); }
  std::int64_t kv_gradient_width() const { return 2 * kv_heads * head_width(); }
  std::int64_t qkv_width() const { return (query_heads + 2 * kv_heads) * head_width(); }
  bool gated() const { return kernels::is_gated(activation); }
  /// Whether the up projection's matmul includes GELU. Not if an adapter adds to its result first.
  /// Not with `selective`, which must recompute with the kernel that the forward used.
  bool activated_in_matmul() const {
    return activation == kernels::ActivationKind::kGelu && recompute != Recompute::kSelective &&
           !adapter.has_target("mlp.up");
  }
  bool normalises_heads(std::int64_t block) const;  ///< kRotated: in layers that rotate
  bool has_mlp(std::int64_t block) const { return layer(block).mlp != MlpKind::kNone; }
  bool has_experts(std::int64_t block) const { return layer(block).mlp == MlpKind::kExperts; }
  /// F of a layer, 0 if it has no MLP; and U, the number of outputs of the up projection.
  std::int64_t ffn_width_of(std::int64_t block) const;
  std::int64_t up_width(std::int64_t block) const {
    return (gated() ? 2 : 1) * ffn_width_of(block);
  }
  /// The largest F of any layer, and U.
  std::int64_t largest_ffn_width() const;
  std::int64_t largest_up_width() const { return (gated() ? 2 : 1) * largest_ffn_width(); }
  /// Number of layers in [first, first + count) with an MLP.
  std::int64_t num_mlps(std::int64_t first, std::int64_t count) const;
  std::int64_t num_mixtures(std::int64_t first, std::int64_t count) const;
  /// One layer of each kind in the model, ascending.
  std::vector<std::int64_t> layers_of_each_kind() const;
  bool norm_bias() const { return biases.norm && norm == kernels::NormKind::kLayerNorm; }
  /// Whether a key/value head's gradient is a sum over several ranks.
  bool shares_kv_heads() const { return part.kv_copies > 1; }
  /// Whether several ranks' queries read a key, so that its gradient is a sum over ranks.
  bool adds_up_keys() const {
    return shares_kv_heads() || context.gathers_keys() || context.passes_keys();
  }
  /// Whether the rows that queries and keys are normalised over are spread over several ranks, or
  /// summed as if they were.
  bool cuts_normalised_rows() const { return in_parts() && qk_norm == QkNorm::kProjection; }
  /// Whether each tensor rank has a part of the sums over heads that give the gradients of heads'
  /// norms.
  bool shares_norms_of_heads() const { return part.is_cut() && has_norm_of_heads(); }
  /// Whether all heads share the weights of one norm.
  bool has_norm_of_heads() const {
    return qk_norm == QkNorm::kHead || qk_norm == QkNorm::kHeadAfterRotary;
  }
  /// Number of sums of keys' gradients that are reduced separately over context ranks: canonical
  /// sums have one per group of query heads.
  int gathered_key_sums() const { return context.gathers_keys() ? part.kv_sum_groups : 1; }
  /// Whether sums over heads, feed-forward columns or logits are sums of several ranks' parts, or
  /// computed as if they were.
  bool in_parts() const { return part.is_cut() || part.has_canonical_sums(); }
  std::int64_t all_query_heads() const, all_kv_heads() const;
  /// Rows of the vocabulary in one group of a canonical sum.
  std::int64_t vocabulary_group() const {
    return (whole_vocab_size() + kSumGroups - 1) / kSumGroups;
  }
  /// Groups of a canonical sum over the tokens on this rank: over all tokens of a micro-batch, and
  /// over those whose residual stream is here. None if sums are in order.
  kernels::TokenGroups token_groups() const;
  kernels::TokenGroups residual_token_groups() const;
  std::int64_t whole_vocab_size() const { return part.is_cut() ? part.all_tokens : vocab_size; }
  bool parallel() const { return block_form != BlockForm::kSequential; }
  bool norm_before() const { return norm_placement != NormPlacement::kPost; }
  bool norm_after() const { return norm_placement != NormPlacement::kPre; }
  /// Whether a branch's gradient differs from the residual stream's: it is masked, scaled, or
  /// needed for longer.
  bool branch_gradients_differ() const {
    return dropout > 0.0 || residual_scale != 1.0 || parallel();
  }

  /// Rows of a rotary table.
  std::int64_t table_positions() const {
    return cached_positions > seq_length ? cached_positions : whole_seq_length();
  }
  std::size_t num_rotary_tables() const {
    return positions == Positions::kRope ? rotary.size() : 0;
  }
  LayerKind layer(std::int64_t block) const;
  bool is_absorbed(std::int64_t block) const;  ///< its heads attend to latents

  kernels::AttentionShape attention(std::int64_t block) const;
  kernels::AttentionShape cached_attention(std::int64_t block) const;
  kernels::NormShape norm_shape() const;
  kernels::NormShape latent_norm_shape(std::int64_t rank) const;
  kernels::LatentHeads latent_heads() const;
  kernels::QkNormShape qk_norm_shape() const;
  kernels::ActivationShape activation_shape(std::int64_t block) const;
  kernels::RouterShape router() const;
  /// Experts of a layer on this rank.
  std::int64_t held_experts() const { return moe.experts / expert.degree; }
  /// All experts of a layer, and those on this rank with the rows that all ranks send.
  kernels::ExpertsShape experts() const;
  kernels::ExpertsShape owned_experts() const;
  kernels::LogitsForm logits_form() const;
  kernels::VocabularyRows vocabulary_rows() const;
};

}  // namespace sherd::model
