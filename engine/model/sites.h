/// The sites of a block: its steps in order, and for each what it has and what it leaves behind.
///
/// This is the one list. Parameters (parameters.h) are the sites' weights and biases in this order,
/// kept activations (activations.h) their outputs and statistics, and what a selective recompute
/// computes again are those marked cheap. Sites that a model doesn't have aren't in its list.
///
///   site              weight                output               statistics    in
///   norm1             [D]                   normed D, cheap      mean, rstd 1  pre, sandwich
///   attention.qkv     [(H + 2 G) K, D]      qkv                                all
///   attention.query_norm, .key_norm         qk_raw (H + G) K     of its rows   qk_norm
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
/// Layers differ (LayerKind): F is the layer's, and one without an MLP has none of the sites from `middle` on.
#pragma once

#include <array>
#include <string>
#include <vector>

#include "engine/model/shape.h"

namespace sherd::model {

enum class SiteId : int {
  kNorm1,
  kQkv,
  kQueryNorm,
  kKeyNorm,
  kAttention,
  kAttentionOutput,
  kAttentionNorm,
  kMiddle,
  kNorm2,
  kUp,
  kActivation,
  kDown,
  kMlpNorm,
};
inline constexpr std::size_t kNumSites = 13;

/// One value for each site of a block; those that it doesn't have stay empty.
template <class T>
struct PerSite {
  T& operator[](SiteId site) { return values[static_cast<std::size_t>(site)]; }
  const T& operator[](SiteId site) const { return values[static_cast<std::size_t>(site)]; }
  std::array<T, kNumSites> values;
};

struct Site {
  enum class Weight { kNone, kNorm, kMatrix, kMatrixToResidual };

  SiteId id;
  std::string name;
  int part = 0;  ///< of the layer, whose unit has the site's parameters

  Weight weight = Weight::kNone;
  std::int64_t rows = 0, columns = 0;       ///< of the weight; a norm's has rows only
  std::vector<std::int64_t> matrix_rows{};  ///< of matrices that are stacked in it
  bool bias = false;

  std::string output{};           ///< the kept output's name; "": none is kept
  std::int64_t output_width = 0;  ///< elements per token, of the activations' type
  bool cheap = false;  ///< `selective` computes it again; one buffer serves all of its name
  bool on_residual =
      false;  ///< for ModelShape::residual_tokens() alone: norms, and the stream itself
  std::string statistic{};      ///< "rstd" or "lse", f32; "": none
  std::int64_t statistics = 0;  ///< per token; with a layernorm's rstd comes as much mean
};

/// Tokens for which a rank keeps what the site leaves behind.
inline std::int64_t tokens_of(const Site& site, const ModelShape& shape) {
  return site.on_residual ? shape.residual_tokens() : shape.tokens();
}

/// Those of layer `layer`, in the order in which its forward passes them.
std::vector<Site> block_sites(const ModelShape& shape, std::int64_t layer);
/// Of every site that any layer has, the largest: for what all layers share.
std::vector<Site> largest_sites(const ModelShape& shape);
/// Whether a layer has a unit `part`: the block it always has.
bool has_part(const ModelShape& shape, std::int64_t layer, int part);

/// The norm before the head, whose output is always kept.
Site final_norm_site(const ModelShape& shape);

}  // namespace sherd::model
