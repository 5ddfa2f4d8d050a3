/// The sites of a block: its steps in order, with the parameters and the kept outputs of each.
///
/// This is the single list. Parameters (parameters.h) are the sites' weights and biases in this
/// order. Kept activations (activations.h) are their outputs and statistics. Selective recompute
/// recomputes those marked cheap. Sites that a model doesn't have aren't in its list.
///
///   site              weight                output               statistics    in
///   norm1             [D]                   normed D, cheap      mean, rstd 1  pre, sandwich
///   attention.qkv     [(H + 2 G) K, D]      qkv                                all
///   attention.query_norm, .key_norm         qk_raw (H + G) K     of its rows   qk_norm
///   attention.sinks   [H]                                                      sinks
///   attention         none                  attended H K         lse H         all
///   attention.output  [D, H K]                                                 all
///   attention.norm    [D]                   its input D          mean, rstd 1  post, sandwich
///   middle            none                  residual stream D                  sequential
///   norm2             [D]                   normed D, cheap      mean, rstd 1  pre, sandwich
///   mlp.up            [F or 2 F, D]         up                                 all
///   activation        none                  activated F, cheap                 all
///   mlp.down          [D, F]                                                   all
///   mlp.norm          [D]                   its input D          mean, rstd 1  post, sandwich
///
/// Latent attention (layer_shapes.h: C, N, R, V; Q the query rank) has, in place of attention.qkv:
///
///   attention.query_down          [Q, D]          query_down                   with Q
///   attention.query_latent_norm   [Q]             query_latent, cheap  rstd 1  with Q
///   attention.query_up            [H (N + R), Q]                               with Q
///   attention.query               [H (N + R), D]                               without Q
///   attention.kv_down             [C + R, D]      kv_down                      all
///   attention.kv_latent_norm      [C]             kv_latent, cheap     rstd 1  all
///   attention.kv_up               [H (N + V), C]                               all
///   attention.heads               none            qkv 3 H (N + R), cheap       all
///
/// and attended H V. With context ranks, qkv isn't cheap: it has been exchanged.
///
/// A layer with experts (MoeShape) has, after norm2:
///
///   moe.router        [E, D]                                                   all
///   mlp.*                                                                      a shared expert
///   moe.shared_gate   [1, D]                shared output D      logit 1       a gated one
///   moe.experts.up    [E U, D]              nothing: recomputed                all
///   moe.experts.down  [E D, F]                                                 all
///
/// A layer of multi-token prediction (prediction.h) also has, before and after its block, weights
/// whose outputs are in PredictionBuffers:
///
///   mtp.embedding_norm [D], mtp.hidden_norm [D], mtp.projection [D, 2 D]; mtp.norm [D]
///
/// Layers differ (LayerKind): F is the layer's own. A layer without an MLP has none of the sites
/// from `middle` on.
#pragma once

#include <array>
#include <string>
#include <vector>

#include "engine/model/shape.h"

namespace sherd::model {

enum class SiteId : int {
  kNorm1,
  kQueryDown,
  kQueryLatentNorm,
  kLatentQuery,
  kKvDown,
  kKvLatentNorm,
  kKvUp,
  kQkv,
  kQueryNorm,
  kKeyNorm,
  kSinks,
  kAttention,
  kAttentionOutput,
  kAttentionNorm,
  kMiddle,
  kNorm2,
  kUp,
  kActivation,
  kDown,
  kMlpNorm,
  kRouter,
  kExpertsUp,
  kExpertsDown,
  kSharedGate,
  kMtpEmbeddingNorm,
  kMtpHiddenNorm,
  kMtpProjection,
  kMtpNorm,
};
inline constexpr std::size_t kNumSites = 28;

/// One value for each site of a block; sites that it doesn't have stay empty.
template <class T>
struct PerSite {
  T& operator[](SiteId site) { return values[static_cast<std::size_t>(site)]; }
  const T& operator[](SiteId site) const { return values[static_cast<std::size_t>(site)]; }
  std::array<T, kNumSites> values;
};

struct Site {
  enum class Weight { kNone, kNorm, kVector, kMatrix, kMatrixToResidual };

  SiteId id;
  std::string name;
  int part = 0;  ///< part of the layer whose unit has the site's parameters

  Weight weight = Weight::kNone;
  bool of_experts =
      false;  ///< a router, or stacked matrices of which a token uses some: not a linear layer
  std::int64_t rows = 0, columns = 0;       ///< of the weight; norms and vectors have rows only
  std::vector<std::int64_t> matrix_rows{};  ///< of the matrices stacked in it
  bool bias = false;

  std::string output{};           ///< the kept output's name; "": none is kept
  std::int64_t output_width = 0;  ///< elements per token, in the activations' type
  bool cheap = false;             ///< `selective` recomputes it; sites of one name share a buffer
  bool on_residual =
      false;  ///< has ModelShape::residual_tokens() only: norms, and the stream itself
  std::string statistic{};      ///< "rstd" or "lse", f32; "": none
  std::int64_t statistics = 0;  ///< per token; a layernorm also has as many means
};

/// Whether every tensor rank computes it in full, and its gradient from its own heads alone: the way
/// to latent attention's latents.
inline bool leads_to_latents(SiteId site) {
  return site >= SiteId::kQueryDown && site <= SiteId::kKvLatentNorm &&
         site != SiteId::kLatentQuery;
}

/// Whether its parameters are short vectors, whose gradients are formed with the input's.
inline bool is_of_vectors(const Site& site) {
  return site.weight == Site::Weight::kNorm || site.weight == Site::Weight::kVector;
}

/// Number of tokens for which a rank keeps the site's outputs.
inline std::int64_t tokens_of(const Site& site, const ModelShape& shape) {
  return site.on_residual ? shape.residual_tokens() : shape.tokens();
}

/// The units of a layer with experts, after its block: the experts' matrices, and the router, which
/// computes in f32.
std::vector<LayerPart> expert_parts();

/// The sites of layer `layer`, in forward order.
std::vector<Site> block_sites(const ModelShape& shape, std::int64_t layer);
/// Every site that any layer has, in its largest size: for buffers that all layers share.
std::vector<Site> largest_sites(const ModelShape& shape);
/// Whether a layer has a unit `part`; it always has the block.
bool has_part(const ModelShape& shape, std::int64_t layer, int part);

/// The norm before the head, whose output is always kept.
Site final_norm_site(const ModelShape& shape);

}  // namespace sherd::model
