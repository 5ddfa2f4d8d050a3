#include "engine/model/sites.h"

#include <algorithm>

#include "kernels/qk_norm.h"

namespace sherd::model {
namespace {

using Weight = Site::Weight;

Site norm(const ModelShape& shape, SiteId id, std::string name) {
  return {.id = id,
          .name = std::move(name),
          .weight = Weight::kNorm,
          .rows = shape.width,
          .bias = shape.norm_bias(),
          .output = "normed",
          .output_width = shape.width,
          .cheap = true,
          .on_residual = true,
          .statistic = "rstd",
          .statistics = 1};
}

// The norm after a branch keeps what goes in: its output joins the residual stream at once.
Site norm_after(const ModelShape& shape, SiteId id, std::string name) {
  Site site = norm(shape, id, std::move(name));
  site.output = "input";
  site.cheap = false;
  return site;
}

Site matrix(SiteId id, std::string name, std::int64_t rows, std::int64_t columns) {
  return {.id = id,
          .name = std::move(name),
          .weight = Weight::kMatrix,
          .rows = rows,
          .columns = columns};
}

// A projection to a latent, whose output is kept, and the latent's norm.
void add_latent(std::vector<Site>& sites, Site down, SiteId norm, const std::string& latent,
                std::int64_t width) {
  down.output = down.name.substr(down.name.find('.') + 1);
  down.output_width = down.rows;
  sites.push_back(std::move(down));
  sites.push_back({.id = norm,
                   .name = "attention." + latent + "_norm",
                   .weight = Weight::kNorm,
                   .rows = width,
                   .output = latent,
                   .output_width = width,
                   .cheap = true,
                   .statistic = "rstd",
                   .statistics = 1});
}

void add_latent_heads(const ModelShape& shape, std::vector<Site>& sites) {
  const LatentShape& latent = shape.latent;
  const std::int64_t heads = shape.heads_width();
  if (latent.query_rank > 0) {
    add_latent(sites,
               matrix(SiteId::kQueryDown, "attention.query_down", latent.query_rank, shape.width),
               SiteId::kQueryLatentNorm, "query_latent", latent.query_rank);
    sites.push_back(matrix(SiteId::kLatentQuery, "attention.query_up", heads, latent.query_rank));
  } else {
    sites.push_back(matrix(SiteId::kLatentQuery, "attention.query", heads, shape.width));
  }
  add_latent(sites, matrix(SiteId::kKvDown, "attention.kv_down", latent.down_width(), shape.width),
             SiteId::kKvLatentNorm, "kv_latent", latent.kv_rank);
  sites.push_back(
      matrix(SiteId::kKvUp, "attention.kv_up", latent.up_width(shape.query_heads), latent.kv_rank));
  sites.push_back({.id = SiteId::kQkv,
                   .name = "attention.heads",
                   .output = "qkv",
                   .output_width = shape.qkv_width(),
                   .cheap = !shape.context.is_cut()});
}

void add_heads(const ModelShape& shape, std::int64_t layer, std::vector<Site>& sites) {
  const std::int64_t heads = shape.heads_width(), kv = shape.kv_heads * shape.head_width();
  sites.push_back({.id = SiteId::kQkv,
                   .name = "attention.qkv",
                   .weight = Weight::kMatrix,
                   .rows = shape.qkv_width(),
                   .columns = shape.width,
                   .matrix_rows = {heads, kv, kv},
                   .bias = shape.biases.qkv,
                   .output = "qkv",
                   .output_width = shape.qkv_width()});
  if (shape.normalises_heads(layer)) {
    const kernels::QkNormShape qk = shape.qk_norm_shape();
    sites.push_back({.id = SiteId::kQueryNorm,
                     .name = "attention.query_norm",
                     .weight = qk.weightless ? Weight::kNone : Weight::kNorm,
                     .rows = qk.weightless ? 0 : qk.query_weights(),
                     .output = "raw",
                     .output_width = qk.raw_width(),
                     .statistic = "rstd",
                     .statistics = qk.rows_per_token()});
    if (qk.weightless) return;
    sites.push_back({.id = SiteId::kKeyNorm,
                     .name = "attention.key_norm",
                     .weight = Weight::kNorm,
                     .rows = qk.key_weights()});
  }
}

void add_attention(const ModelShape& shape, std::int64_t layer, std::vector<Site>& sites) {
  const std::int64_t attended = shape.attended_width();
  if (shape.norm_before()) sites.push_back(norm(shape, SiteId::kNorm1, "norm1"));
  const bool latent = shape.layer(layer).attention == AttentionKind::kLatent;
  latent ? add_latent_heads(shape, sites) : add_heads(shape, layer, sites);
  if (shape.sinks) {
    sites.push_back({.id = SiteId::kSinks,
                     .name = "attention.sinks",
                     .weight = Weight::kVector,
                     .rows = shape.query_heads});
  }
  sites.push_back({.id = SiteId::kAttention,
                   .name = "attention",
                   .output = "attended",
                   .output_width = attended,
                   .statistic = "lse",
                   .statistics = shape.query_heads});
  sites.push_back({.id = SiteId::kAttentionOutput,
                   .name = "attention.output",
                   .weight = Weight::kMatrixToResidual,
                   .rows = shape.width,
                   .columns = attended,
                   .bias = shape.biases.output});
  if (shape.norm_after()) {
    sites.push_back(norm_after(shape, SiteId::kAttentionNorm, "attention.norm"));
  }
}

void add_mlp(const ModelShape& shape, std::int64_t layer, std::vector<Site>& sites) {
  const std::int64_t ffn_width = shape.ffn_width_of(layer);
  if (shape.norm_before() && shape.block_form != BlockForm::kParallelOneNorm) {
    sites.push_back(norm(shape, SiteId::kNorm2, "norm2"));
  }
  Site up{.id = SiteId::kUp,
          .name = "mlp.up",
          .weight = Weight::kMatrix,
          .rows = shape.up_width(layer),
          .columns = shape.width,
          .bias = shape.biases.mlp,
          .output = "up",
          .output_width = shape.up_width(layer)};
  if (shape.gated()) up.matrix_rows = {ffn_width, ffn_width};
  sites.push_back(std::move(up));
  sites.push_back({.id = SiteId::kActivation,
                   .name = "activation",
                   .output = "activated",
                   .output_width = ffn_width,
                   .cheap = true});
  sites.push_back({.id = SiteId::kDown,
                   .name = "mlp.down",
                   .weight = Weight::kMatrixToResidual,
                   .rows = shape.width,
                   .columns = ffn_width,
                   .bias = shape.biases.mlp});
  if (shape.norm_after()) sites.push_back(norm_after(shape, SiteId::kMlpNorm, "mlp.norm"));
}

// The shared expert is an MLP like that of other layers.
void add_experts(const ModelShape& shape, std::int64_t layer, std::vector<Site>& sites) {
  const MoeShape& moe = shape.moe;
  const std::int64_t gates = shape.gated() ? 2 : 1, experts = shape.held_experts();
  std::vector<Site> dense;
  add_mlp(shape, layer, dense);
  for (Site& site : dense) {
    const bool shared =
        site.id == SiteId::kUp || site.id == SiteId::kActivation || site.id == SiteId::kDown;
    if (site.id != SiteId::kMlpNorm && (!shared || moe.shared_width > 0)) {
      sites.push_back(std::move(site));
    }
  }
  sites.push_back({.id = SiteId::kRouter,
                   .name = "moe.router",
                   .weight = Weight::kMatrix,
                   .of_experts = true,
                   .rows = moe.experts,
                   .columns = shape.width,
                   .bias = moe.correction_bias || moe.biases});
  if (moe.shared_gate) {
    sites.push_back({.id = SiteId::kSharedGate,
                     .name = "moe.shared_gate",
                     .weight = Weight::kMatrix,
                     .of_experts = true,
                     .rows = 1,
                     .columns = shape.width,
                     .output = "shared",
                     .output_width = shape.width,
                     .statistic = "logit",
                     .statistics = 1});
  }
  const auto per_expert = [&](std::size_t count, std::int64_t rows) {
    return std::vector<std::int64_t>(count * static_cast<std::size_t>(experts), rows);
  };
  sites.push_back({.id = SiteId::kExpertsUp,
                   .name = "moe.experts.up",
                   .weight = Weight::kMatrix,
                   .of_experts = true,
                   .rows = experts * gates * moe.ffn_width,
                   .columns = shape.width,
                   .matrix_rows = per_expert(static_cast<std::size_t>(gates), moe.ffn_width),
                   .bias = moe.biases});
  sites.push_back({.id = SiteId::kExpertsDown,
                   .name = "moe.experts.down",
                   .weight = Weight::kMatrixToResidual,
                   .of_experts = true,
                   .rows = experts * shape.width,
                   .columns = moe.ffn_width,
                   .matrix_rows = per_expert(1, shape.width),
                   .bias = moe.biases});
  if (shape.norm_after()) sites.push_back(norm_after(shape, SiteId::kMlpNorm, "mlp.norm"));
}

// The norms of multi-token prediction keep nothing here.
Site prediction_norm(const ModelShape& shape, SiteId id, const char* name) {
  return {.id = id,
          .name = name,
          .weight = Weight::kNorm,
          .rows = shape.width,
          .bias = shape.norm_bias()};
}

int part_of(const ModelShape& shape, SiteId site) {
  for (std::size_t i = 0; i < shape.layer_parts.size(); ++i) {
    if (std::ranges::count(shape.layer_parts[i].sites, site) > 0) return static_cast<int>(i) + 1;
  }
  return 0;
}

}  // namespace

std::vector<LayerPart> expert_parts() {
  return {{"experts", {SiteId::kExpertsUp, SiteId::kExpertsDown}},
          {"router", {SiteId::kRouter}, true}};
}

std::vector<Site> block_sites(const ModelShape& shape, std::int64_t layer) {
  std::vector<Site> sites;
  const bool predicts = layer >= shape.num_layers && shape.mtp_layers > 0;
  if (predicts) {
    sites.push_back(prediction_norm(shape, SiteId::kMtpEmbeddingNorm, "mtp.embedding_norm"));
    sites.push_back(prediction_norm(shape, SiteId::kMtpHiddenNorm, "mtp.hidden_norm"));
    sites.push_back(matrix(SiteId::kMtpProjection, "mtp.projection", shape.width, 2 * shape.width));
  }
  add_attention(shape, layer, sites);
  if (shape.has_mlp(layer)) {
    if (!shape.parallel()) {
      sites.push_back({.id = SiteId::kMiddle,
                       .name = "middle",
                       .output = "middle",
                       .output_width = shape.width,
                       .on_residual = true});
    }
    (shape.has_experts(layer) ? add_experts : add_mlp)(shape, layer, sites);
  }
  if (predicts) sites.push_back(prediction_norm(shape, SiteId::kMtpNorm, "mtp.norm"));
  for (Site& site : sites) site.part = part_of(shape, site.id);
  return sites;
}

std::vector<Site> largest_sites(const ModelShape& shape) {
  std::vector<Site> largest;
  for (const std::int64_t layer : shape.layers_of_each_kind()) {
    for (Site& site : block_sites(shape, layer)) {
      const auto found = std::ranges::find(largest, site.id, &Site::id);
      if (found == largest.end()) {
        largest.push_back(std::move(site));
      } else if (site.output_width > found->output_width) {
        *found = std::move(site);
      }
    }
  }
  std::ranges::sort(largest, {}, &Site::id);
  return largest;
}

bool has_part(const ModelShape& shape, std::int64_t layer, int part) {
  if (part == 0) return true;
  return std::ranges::any_of(block_sites(shape, layer), [part](const Site& site) {
    return site.part == part && site.weight != Weight::kNone;
  });
}

Site final_norm_site(const ModelShape& shape) {
  Site site = norm(shape, SiteId::kNorm1, "final_norm");
  site.cheap = false;
  return site;
}

}  // namespace sherd::model
