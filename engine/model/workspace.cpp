#include "engine/model/workspace.h"

#include <algorithm>

#include "engine/model/activations.h"
#include "engine/model/adapter.h"
#include "kernels/absorbed_heads.h"
#include "kernels/attention.h"
#include "kernels/experts.h"
#include "kernels/grouped_linear.h"
#include "kernels/kv_cache.h"
#include "kernels/linear.h"
#include "kernels/norm.h"
#include "kernels/qk_norm.h"
#include "kernels/router.h"
#include "kernels/token.h"
#include "kernels/token_groups.h"

namespace sherd::model {
namespace {

// An adapter's rank may exceed the rows that a tensor rank has of its matrix.
std::int64_t adapter_products_bytes(const ModelShape& shape, const kernels::ComputeDevice& device) {
  std::int64_t bytes = 0;
  const auto cover = [&](std::int64_t inputs, std::int64_t outputs) {
    bytes = std::max(bytes, kernels::linear_workspace_bytes({shape.tokens(), inputs, outputs},
                                                            shape.dtype, DType::kF32, device));
  };
  for (const std::int64_t layer : shape.layers_of_each_kind()) {
    for (const AdapterTarget& target : adapter_targets(shape, layer)) {
      if (target.experts > 0) continue;
      cover(target.inputs, shape.adapter.rank);
      cover(shape.adapter.rank, target.rows);
    }
  }
  return bytes;
}

}  // namespace

std::int64_t workspace_bytes(const ModelShape& shape, const kernels::ComputeDevice& device,
                             bool embedding, bool head) {
  const std::int64_t tokens = shape.tokens();
  std::int64_t bytes = kernels::attention_workspace_bytes(shape.attention(0), shape.dtype, device);
  if (shape.cached_positions > 0) {
    bytes = std::max(bytes,
                     kernels::cached_attention_workspace_bytes(shape.cached_attention(0), device));
  }
  std::vector<kernels::LinearShape> matmuls = {{tokens, shape.attended_width(), shape.width}};
  if (shape.latent.active()) {
    for (const Site& site : block_sites(shape, 0)) {
      if (site.id < SiteId::kQkv && site.columns > 0) {
        matmuls.push_back({tokens, site.columns, site.rows});
      }
    }
    if (shape.latent.absorbed) {
      const std::int64_t rank =
          shape.adapter.has_target("attention.kv_up") ? shape.adapter.rank : 0;
      bytes = std::max(bytes, kernels::absorbed_workspace_bytes(
                                  shape.latent_heads(), shape.latent.kv_rank, rank, shape.dtype));
    }
  } else {
    matmuls.push_back({tokens, shape.width, shape.qkv_width()});
  }
  for (const std::int64_t layer : shape.layers_of_each_kind()) {
    if (shape.ffn_width_of(layer) == 0) continue;
    matmuls.push_back({tokens, shape.width, shape.up_width(layer)});
    matmuls.push_back({tokens, shape.ffn_width_of(layer), shape.width});
  }
  if (shape.mtp_layers > 0) matmuls.push_back({tokens, 2 * shape.width, shape.width});
  const auto cover = [&](const kernels::LinearShape& matmul) {
    bytes =
        std::max(bytes, kernels::linear_workspace_bytes(matmul, shape.dtype, DType::kF32, device));
    if (!shape.part.has_canonical_sums()) return;
    // Of these, sums over columns have the model's width, and the other side is the depth.
    const std::int64_t depth = matmul.inputs == shape.width ? matmul.outputs : matmul.inputs;
    const auto grouped = [&](std::int64_t rows, std::int64_t width, std::int64_t of, int groups) {
      bytes =
          std::max(bytes, kernels::grouped_linear_workspace_bytes(rows, width, of, groups, device));
    };
    grouped(matmul.tokens, shape.width, depth, shape.part.sum_groups);
    grouped(matmul.outputs, matmul.inputs, matmul.tokens, shape.token_groups().groups);
  };
  for (const kernels::LinearShape& matmul : matmuls) cover(matmul);
  bytes = std::max(bytes, adapter_products_bytes(shape, device));
  if (shape.moe.active()) {
    bytes = std::max(
        {bytes,
         kernels::linear_workspace_bytes({tokens, shape.width, shape.moe.experts}, DType::kF32,
                                         DType::kF32, device),
         kernels::experts_workspace_bytes(shape.owned_experts(), shape.dtype, DType::kF32, device),
         kernels::router_workspace_bytes(shape.router(), device)});
  }
  if (head) cover({logits_chunk_tokens(shape, device.kind), shape.width, shape.vocab_size});
  bytes = std::max(bytes, kernels::norm_backward_workspace_bytes(shape.norm_shape(), device));
  for (const std::int64_t rank : {shape.latent.kv_rank, shape.latent.query_rank}) {
    if (rank == 0) continue;
    bytes = std::max(bytes,
                     kernels::norm_backward_workspace_bytes(shape.latent_norm_shape(rank), device));
  }
  if (shape.qk_norm != QkNorm::kNone) {
    bytes =
        std::max(bytes, kernels::qk_norm_backward_workspace_bytes(shape.qk_norm_shape(), device));
  }
  if (!embedding) return bytes;
  return std::max(bytes,
                  kernels::embedding_backward_workspace_bytes(tokens, shape.vocab_size, device));
}

}  // namespace sherd::model
