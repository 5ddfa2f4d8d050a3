#include "engine/model/activations.h"

#include <fmt/core.h>

#include <algorithm>

#include "core/offload_home.h"
#include "engine/model/workspace.h"
#include "kernels/kv_cache.h"
#include "kernels/token_groups.h"

namespace sherd::model {
namespace {

constexpr Phases kKept = kForwardToBackward | kEvaluation;
constexpr Phases kInBlocks = kForward | kBackward | kEvaluation;
constexpr Phases kInHead = kLoss | kEvaluation;

// "block.0.norm1.normed", but "block.0.qkv": the only output of its name.
std::string buffer_name(const Site& site, const std::string& tensor) {
  return site.weight == Site::Weight::kNorm ? site.name + "." + tensor : tensor;
}

SiteBuffers acquire_site(const ModelShape& shape, const Site& site, const std::string& prefix,
                         bool output, Phases phases, const Acquire& acquire) {
  const auto kept = [&](const std::string& tensor, std::int64_t width, DType dtype) {
    return acquire({prefix + buffer_name(site, tensor), Category::kActivations, dtype,
                    tokens_of(site, shape) * width, phases});
  };
  SiteBuffers buffers;
  if (output && !site.output.empty()) {
    buffers.output = kept(site.output, site.output_width, shape.dtype);
  }
  if (site.statistic.empty()) return buffers;
  if (site.statistic == "rstd" && shape.norm == kernels::NormKind::kLayerNorm) {
    buffers.mean = kept("mean", site.statistics, DType::kF32);
  }
  buffers.statistic = kept(site.statistic, site.statistics, DType::kF32);
  return buffers;
}

SiteTensors tensors_of(const SiteBuffers& buffers, const Site& site, const ModelShape& shape) {
  const std::int64_t tokens = tokens_of(site, shape);
  return {rows(buffers.output, tokens, site.output_width),
          rows(buffers.mean, tokens, site.statistics),
          rows(buffers.statistic, tokens, site.statistics)};
}

}  // namespace

Activations::Activations(const ModelShape& shape, const kernels::ComputeDevice& device,
                         const Acquire& acquire, const ModelPart* part)
    : adapters(shape, acquire), sites_(largest_sites(shape)), num_layers_(shape.num_layers) {
  for (const std::int64_t i : shape.layers_of_each_kind()) kinds_.push_back(block_sites(shape, i));
  for (const Site& site : sites_) {
    const auto first = std::find_if(sites_.begin(), sites_.end(), [&](const Site& other) {
      return other.cheap && other.output == site.output;
    });
    if (site.cheap) first_of_name_[site.id] = first->id;
  }
  if (shape.mtp_layers > 0) last_sites_ = block_sites(shape, shape.num_layers);
  part ? acquire_slots(shape, *part, acquire) : acquire_blocks(shape, acquire);
  if (part) acquire_waiting(shape, *part, acquire);
  acquire_shared(shape, acquire);
  if (!part || part->head) acquire_head(shape, device.kind, acquire);
  acquire_scratch(shape, acquire);
  if (shape.latent.active()) acquire_latent(shape, acquire);
  if (shape.moe.active()) acquire_experts(shape, acquire);
  acquire_predictions(shape, acquire);
  workspace = acquire(
      {"workspace", Category::kWorkspace, DType::kU8,
       workspace_bytes(shape, device, !part || part->embedding, !part || part->head), kKept});
}

std::vector<BufferSpec> Activations::list(const ModelShape& shape,
                                          const kernels::ComputeDevice& device,
                                          const ModelPart* part) {
  std::vector<BufferSpec> buffers;
  Activations(
      shape, device,
      [&buffers](BufferSpec buffer) {
        buffers.push_back(std::move(buffer));
        return Buffer();
      },
      part);
  return buffers;
}

void Activations::acquire_blocks(const ModelShape& shape, const Acquire& acquire) {
  for (std::int64_t i = 0; i < shape.num_layers; ++i) {
    const std::string prefix = fmt::format("block.{}.", i);
    if (shape.residual_slots == 0) {
      residual_TD.push_back(acquire({prefix + "residual", Category::kActivations, shape.dtype,
                                     shape.residual_tokens() * shape.width, kKept}));
    }
    routing.push_back(shape.has_experts(i) ? acquire_routing(shape, prefix, acquire)
                                           : RoutingBuffers{});
    acquire_sites(i, shape, acquire);
  }
  if (shape.residual_slots == 0) {
    const Phases until_norm = shape.mtp_layers > 0 ? kForwardToBackward : kForward | kLoss;
    residual_TD.push_back(
        acquire({"head.residual", Category::kActivations, shape.dtype,
                 shape.residual_tokens() * shape.width, until_norm | kEvaluation}));
  }
  for (int i = 0; i < shape.residual_slots; ++i) {
    residual_TD.push_back(acquire(residual_slot(shape, i)));
  }
  for (std::int64_t i = shape.num_layers; i < shape.num_blocks(); ++i) {
    acquire_sites(i, shape, acquire);
  }
}

void Activations::acquire_sites(std::int64_t block, const ModelShape& shape,
                                const Acquire& acquire) {
  const bool serves_all = shape.recompute == Recompute::kFull;
  if (block > 0 && serves_all) return;
  const bool selective = shape.recompute == Recompute::kSelective;
  const Phases phases = block < shape.num_layers ? kKept : Phases(kForwardToBackward);
  PerSite<SiteBuffers> buffers;
  for (const Site& site : serves_all ? sites_ : sites_of(block)) {
    buffers[site.id] = acquire_site(shape, site, fmt::format("block.{}.", block),
                                    !(selective && site.cheap), phases, acquire);
  }
  blocks.push_back(std::move(buffers));
}

// Whole pages, which are read and written directly.
BufferSpec Activations::residual_slot(const ModelShape& shape, int slot) {
  const std::int64_t page = kDiskAlignment / static_cast<std::int64_t>(size_of(shape.dtype));
  const std::int64_t numel = shape.residual_tokens() * shape.width;
  return {fmt::format("residual.{}", slot),
          Category::kActivations,
          shape.dtype,
          (numel + page - 1) / page * page,
          kKept,
          Home::kDevice,
          kResidualBlock};
}

void Activations::acquire_slots(const ModelShape& shape, const ModelPart& part,
                                const Acquire& acquire) {
  for (int i = 0; i < part.num_residuals; ++i) {
    residual_TD.push_back(acquire({fmt::format("slot.{}.residual", i), Category::kActivations,
                                   shape.dtype, shape.residual_tokens() * shape.width, kKept}));
    if (shape.moe.active()) {
      routing.push_back(acquire_routing(shape, fmt::format("slot.{}.", i), acquire));
    }
  }
  blocks.reserve(static_cast<std::size_t>(part.num_kept));
  for (int i = 0; i < part.num_kept; ++i) {
    PerSite<SiteBuffers>& block = blocks.emplace_back();
    const std::string prefix = fmt::format("slot.{}.", i);
    for (const Site& site : sites_) {
      const bool output = !(shape.recompute == Recompute::kSelective && site.cheap);
      block[site.id] = acquire_site(shape, site, prefix, output, kKept, acquire);
    }
  }
}

void Activations::acquire_waiting(const ModelShape& shape, const ModelPart& part,
                                  const Acquire& acquire) {
  for (int i = 0; i < part.num_waiting; ++i) {
    const std::string prefix = fmt::format("waiting.{}.", i);
    const auto gradient = [&](const char* name, std::int64_t width) {
      return acquire({prefix + name, Category::kActivations, shape.dtype, shape.tokens() * width,
                      kForwardToBackward});
    };
    WaitingBuffers block;
    if (const LatentShape& latent = shape.latent; latent.active()) {
      block.d_query = gradient("d_query", shape.heads_width());
      if (latent.query_rank > 0) block.d_query_down = gradient("d_query_down", latent.query_rank);
      block.d_keys_values = gradient("d_keys_values", latent.up_width(shape.query_heads));
      block.d_kv_down = gradient("d_kv_down", latent.down_width());
    } else {
      block.d_qkv = gradient("d_qkv", shape.qkv_width());
    }
    block.d_attention_output = gradient("d_attention_output", shape.width);
    if (shape.largest_ffn_width() > 0) {
      block.d_up = gradient("d_up", shape.largest_up_width());
      block.d_down = gradient("d_down", shape.width);
    }
    if (shape.moe.active()) {
      const auto in_f32 = [&](const char* name, std::int64_t width) {
        return acquire({prefix + name, Category::kActivations, DType::kF32, shape.tokens() * width,
                        kForwardToBackward});
      };
      block.d_experts = gradient("d_experts", shape.width);
      block.d_router = in_f32("d_router", shape.moe.experts);
      if (shape.moe.shared_gate) block.d_gate = in_f32("d_gate", 1);
    }
    for (const Site& site : sites_) {
      if (!is_of_vectors(site)) continue;
      const auto of_norm = [&](const char* name) {
        return acquire({prefix + site.name + name, Category::kUnreducedGradients, part.gradients,
                        site.rows, kForwardToBackward});
      };
      block.norm_weight[site.id] = of_norm(".weight");
      if (site.bias) block.norm_bias[site.id] = of_norm(".bias");
    }
    waiting.push_back(std::move(block));
  }
}

void Activations::acquire_shared(const ModelShape& shape, const Acquire& acquire) {
  if (shape.recompute != Recompute::kSelective) return;
  for (const Site& site : sites_) {
    if (!site.cheap || first_of_name_[site.id] != site.id) continue;
    shared[site.id] = acquire({"blocks." + site.output, Category::kActivations, shape.dtype,
                               tokens_of(site, shape) * site.output_width, kInBlocks});
  }
}

void Activations::acquire_head(const ModelShape& shape, DeviceKind device, const Acquire& acquire) {
  const std::int64_t tokens = shape.tokens();
  // With predictions, the backward goes on through it when theirs are done.
  const Phases in_norm = shape.mtp_layers > 0 ? kInHead | kBackward : kInHead;
  final_norm_buffers = acquire_site(shape, final_norm_site(shape), "", true, in_norm, acquire);
  // Read after the backward, when the step's loss is added up.
  losses_T = acquire({"losses", Category::kActivations, DType::kF32, tokens, kInHead | kBackward});
  if (shape.has_further_losses()) {
    const char* name = shape.mtp_layers > 0 ? "mtp.losses"
                       : shape.teacher      ? "divergences"
                                            : "z_losses";
    further_losses_T = acquire({name, Category::kActivations, DType::kF32,
                                shape.num_further_losses() * tokens, kLoss | kBackward});
  }
  chunk_tokens = logits_chunk_tokens(shape, device);
  logits_CV =
      acquire({"logits", Category::kLogits, shape.dtype, chunk_tokens * shape.vocab_size, kInHead});
  for (int chunks = logits_chunks_of_groups(shape); chunks > 1; chunks /= 2) {
    head_sums.push_back(
        acquire({fmt::format("head_gradient.{}", head_sums.size()), Category::kUnreducedGradients,
                 DType::kF32, shape.vocab_size * shape.width, kLoss}));
  }
  if (!shape.in_parts()) return;
  const auto numbers = [&](std::string name, std::int64_t per_token) {
    return acquire(
        {std::move(name), Category::kActivations, DType::kF32, chunk_tokens * per_token, kInHead});
  };
  loss_maxima_RC = numbers("loss.maxima", shape.part.degree);
  loss_sums_NC = numbers("loss.sums", shape.teacher ? 4 : 2);
}

void Activations::acquire_scratch(const ModelShape& shape, const Acquire& acquire) {
  const std::int64_t tokens = shape.tokens();
  const auto scratch = [&](std::string name, std::int64_t width, Phases phases) {
    return acquire({std::move(name), Category::kActivations, shape.dtype, tokens * width, phases});
  };
  const auto on_residual = [&](std::string name, Phases phases) {
    return acquire({std::move(name), Category::kActivations, shape.dtype,
                    shape.residual_tokens() * shape.width, phases});
  };
  branch_TD = on_residual("branch", kInBlocks);
  d_residual_TD = on_residual("d_residual", kLoss | kBackward);
  if (shape.branch_gradients_differ()) d_branch_TD = on_residual("d_branch", kBackward);
  if (shape.sequence_parallel()) {
    all_rows_TD =
        acquire({"all_rows", Category::kActivations, shape.dtype,
                 shape.part.degree * shape.residual_tokens() * shape.width, kInBlocks | kInHead});
    // Canonical sums are complete before anything is added to them.
    if (shape.block_form == BlockForm::kParallelOneNorm && !shape.part.has_canonical_sums()) {
      d_normed_TD = acquire({"d_normed", Category::kActivations, shape.dtype,
                             shape.part.degree * shape.residual_tokens() * shape.width, kBackward});
    }
  }
  d_wide = scratch("d_wide", std::max(shape.qkv_width(), shape.largest_up_width()), kBackward);
  d_narrow =
      scratch("d_narrow", std::max(shape.heads_width(), shape.largest_ffn_width()), kBackward);
  if (shape.part.has_canonical_sums()) {
    sum_TD = acquire({"canonical_sum", Category::kActivations, DType::kF32, tokens * shape.width,
                      kInBlocks | kInHead});
    if (shape.shares_norms_of_heads()) {
      qk_norm_sums = acquire({"qk_norm_sums", Category::kActivations, DType::kF32,
                              2 * shape.token_groups().groups * shape.head_width(), kBackward});
    }
  }
  if (shape.adds_up_keys()) {
    d_kv = acquire({"d_keys_and_values", Category::kActivations, DType::kF32,
                    tokens * shape.kv_gradient_width(), kBackward});
  }
  if (shape.cuts_normalised_rows()) {
    row_sums_4T =
        acquire({"qk_row_sums", Category::kActivations, DType::kF32, 4 * tokens, kInBlocks});
  }
  if (shape.context.gathers_keys()) {
    const std::int64_t numel =
        shape.sequences * shape.whole_seq_length() * shape.kv_gradient_width();
    keys_values = acquire({"keys_values", Category::kActivations, shape.dtype, numel, kInBlocks});
    d_keys_values = acquire({"d_keys_values", Category::kActivations, DType::kF32,
                             shape.gathered_key_sums() * numel, kBackward});
  }
  if (shape.context.passes_keys()) {
    const std::int64_t numel = tokens * shape.kv_gradient_width();
    for (int i = 0; i < 2; ++i) {
      ring_keys.push_back(
          scratch(fmt::format("ring.keys_values.{}", i), shape.kv_gradient_width(), kInBlocks));
    }
    for (int i = 0; i < std::min(shape.context.degree, 3); ++i) {
      d_ring_keys.push_back(acquire({fmt::format("ring.d_keys_values.{}", i),
                                     Category::kActivations, DType::kF32, numel, kBackward}));
    }
    ring_sum_TD = acquire(
        {"ring.sum", Category::kActivations, DType::kF32, tokens * shape.heads_width(), kInBlocks});
  }
  if (shape.context.deals_heads()) {
    deal_send = scratch("deal.send", shape.qkv_width(), kInBlocks);
    deal_received = scratch("deal.received", shape.qkv_width(), kInBlocks);
    deal_qkv = scratch("deal.qkv", shape.qkv_width(), kInBlocks);
    deal_out = scratch("deal.out", shape.heads_width(), kInBlocks);
    deal_d_out = scratch("deal.d_out", shape.heads_width(), kBackward);
  }
  for (std::size_t i = 0; i < shape.num_rotary_tables(); ++i) {
    rotary_SK.push_back(
        acquire({i == 0 ? "rotary" : fmt::format("rotary.{}", i), Category::kWorkspace, DType::kF32,
                 shape.table_positions() * shape.head_width(), kAlways}));
  }
  for (std::int64_t i = 0; shape.cached_positions > 0 && i < shape.num_layers; ++i) {
    kv_cache.push_back(
        acquire({fmt::format("block.{}.kv_cache", i), Category::kActivations, DType::kF32,
                 kernels::kv_cache_numel(shape.cached_attention(i)), kEvaluation}));
  }
}

SiteTensors Activations::final_norm(const ModelShape& shape) const {
  return tensors_of(final_norm_buffers, final_norm_site(shape), shape);
}

BlockTensors Activations::block(std::int64_t layer, std::int64_t index, const Tensor& x_TD,
                                const ModelShape& shape) const {
  const auto& kept = blocks[static_cast<std::size_t>(index)];
  BlockTensors block;
  block.x_TD = x_TD;
  for (const Site& site : sites_of(layer)) {
    block[site.id] = tensors_of(kept[site.id], site, shape);
    if (shape.recompute == Recompute::kSelective && site.cheap) {
      block[site.id].output =
          rows(shared[first_of_name_[site.id]], tokens_of(site, shape), site.output_width);
    }
  }
  return block;
}

}  // namespace sherd::model
