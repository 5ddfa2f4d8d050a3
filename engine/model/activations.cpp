#include "engine/model/activations.h"

#include <fmt/core.h>

#include <algorithm>

#include "kernels/linear.h"
#include "kernels/token.h"

namespace sherd::model {
namespace {

// At most 128 MiB of f32 logits: the products of a chunk of few tokens are slow, because the head's
// matrix is packed anew for each.
constexpr std::int64_t kLogitsChunkElements = 32 << 20;

std::int64_t workspace_bytes(const ModelShape& shape, const kernels::ComputeDevice& device) {
  const std::int64_t tokens = shape.tokens();
  const std::int64_t heads_width = shape.query_heads * shape.head_width();
  std::int64_t bytes = kernels::attention_workspace_bytes(shape.attention(), shape.dtype, device);
  const kernels::LinearShape products[] = {
      {tokens, shape.width, shape.qkv_width()},
      {tokens, heads_width, shape.width},
      {tokens, shape.width, shape.up_width()},
      {tokens, shape.ffn_width, shape.width},
      {logits_chunk_tokens(shape), shape.width, shape.vocab_size},
  };
  for (const kernels::LinearShape& product : products) {
    bytes =
        std::max(bytes, kernels::linear_workspace_bytes(product, shape.dtype, DType::kF32, device));
  }
  bytes = std::max(bytes, kernels::norm_backward_workspace_bytes(shape.norm_shape()));
  return std::max(bytes,
                  kernels::embedding_backward_workspace_bytes(tokens, shape.vocab_size, device));
}

}  // namespace

std::int64_t logits_chunk_tokens(const ModelShape& shape) {
  constexpr std::int64_t kMultiple = 64;
  const std::int64_t fitting = std::max<std::int64_t>(
      kLogitsChunkElements / shape.vocab_size / kMultiple * kMultiple, kMultiple);
  // Chunks of one size: a short last one would be slower still.
  const std::int64_t chunks = (shape.tokens() + fitting - 1) / fitting;
  const std::int64_t even = (shape.tokens() + chunks - 1) / chunks;
  return std::min(shape.tokens(), (even + kMultiple - 1) / kMultiple * kMultiple);
}

namespace {

constexpr Phases kKept = kForwardToBackward | kEvaluation;

}  // namespace

Activations::Activations(const ModelShape& shape, const kernels::ComputeDevice& device,
                         const Acquire& acquire_buffer) {
  const std::int64_t tokens = shape.tokens();
  const std::int64_t heads_width = shape.query_heads * shape.head_width();
  const auto acquire = [&](std::string name, Category category, DType dtype, std::int64_t numel,
                           Phases phases) {
    return acquire_buffer({std::move(name), category, dtype, numel, phases});
  };
  const auto kept = [&](std::string name, std::int64_t numel, DType dtype, Phases phases = kKept) {
    return acquire(std::move(name), Category::kActivations, dtype, numel, phases);
  };
  const bool selective = shape.recompute == Recompute::kSelective;
  const auto norm = [&](const std::string& name, bool keep_output, Phases phases) {
    NormActivations kept_norm;
    if (keep_output) {
      kept_norm.normed_TD = kept(name + ".normed", tokens * shape.width, shape.dtype, phases);
    }
    if (shape.norm == kernels::NormKind::kLayerNorm) {
      kept_norm.mean_T = kept(name + ".mean", tokens, DType::kF32, phases);
    }
    kept_norm.rstd_T = kept(name + ".rstd", tokens, DType::kF32, phases);
    return kept_norm;
  };

  for (std::int64_t i = 0; i < shape.num_layers; ++i) {
    const std::string name = fmt::format("block.{}", i);
    residual_TD.push_back(kept(name + ".residual", tokens * shape.width, shape.dtype));
    if (i > 0 && shape.recompute == Recompute::kFull) continue;
    BlockActivations block;
    block.norm1 = norm(name + ".norm1", !selective, kKept);
    block.qkv_TE = kept(name + ".qkv", tokens * shape.qkv_width(), shape.dtype);
    block.attended_TD = kept(name + ".attended", tokens * heads_width, shape.dtype);
    block.lse_BHS = kept(name + ".lse", tokens * shape.query_heads, DType::kF32);
    block.middle_TD = kept(name + ".middle", tokens * shape.width, shape.dtype);
    block.norm2 = norm(name + ".norm2", !selective, kKept);
    block.up_TU = kept(name + ".up", tokens * shape.up_width(), shape.dtype);
    if (!selective) {
      block.activated_TF = kept(name + ".activated", tokens * shape.ffn_width, shape.dtype);
    }
    blocks.push_back(std::move(block));
  }
  constexpr Phases kInBlocks = kForward | kBackward | kEvaluation;
  if (selective) {
    normed_TD = kept("blocks.normed", tokens * shape.width, shape.dtype, kInBlocks);
    activated_TF = kept("blocks.activated", tokens * shape.ffn_width, shape.dtype, kInBlocks);
  }
  constexpr Phases kToHead = kForward | kLoss | kEvaluation;
  constexpr Phases kInHead = kLoss | kEvaluation;
  residual_TD.push_back(kept("head.residual", tokens * shape.width, shape.dtype, kToHead));
  final_norm = norm("final_norm", true, kInHead);
  // Read after the backward, when the step's loss is added up.
  losses_T = kept("losses", tokens, DType::kF32, kInHead | kBackward);
  chunk_tokens = logits_chunk_tokens(shape);
  logits_CV =
      acquire("logits", Category::kLogits, shape.dtype, chunk_tokens * shape.vocab_size, kInHead);

  branch_TD = kept("branch", tokens * shape.width, shape.dtype, kInBlocks);
  d_residual_TD = kept("d_residual", tokens * shape.width, shape.dtype, kLoss | kBackward);
  const auto in_backward = [&](std::string name, std::int64_t width) {
    return kept(std::move(name), tokens * width, shape.dtype, kBackward);
  };
  if (shape.dropout > 0.0) d_branch_TD = in_backward("d_branch", shape.width);
  d_wide = in_backward("d_wide", std::max(shape.qkv_width(), shape.up_width()));
  d_narrow = in_backward("d_narrow", std::max(heads_width, shape.ffn_width));
  if (shape.positions == Positions::kRope) {
    rotary_SK = acquire("rotary", Category::kWorkspace, DType::kF32,
                        shape.seq_length * shape.head_width(), kAlways);
  }
  workspace =
      acquire("workspace", Category::kWorkspace, DType::kU8, workspace_bytes(shape, device), kKept);
}

NormTensors Activations::norm(const NormActivations& norm, const ModelShape& shape) const {
  const std::int64_t tokens = shape.tokens();
  return {rows(norm.normed_TD, tokens, shape.width), rows(norm.mean_T, tokens, 1),
          rows(norm.rstd_T, tokens, 1)};
}

BlockTensors Activations::block(std::int64_t index, const ModelShape& shape) const {
  const std::int64_t tokens = shape.tokens();
  const bool shared = shape.recompute == Recompute::kFull;
  const BlockActivations& kept = blocks[shared ? 0 : index];
  BlockTensors block{
      .x_TD = rows(residual_TD[index], tokens, shape.width),
      .norm1 = norm(kept.norm1, shape),
      .qkv_TE = rows(kept.qkv_TE, tokens, shape.qkv_width()),
      .attended_TD = rows(kept.attended_TD, tokens, shape.query_heads * shape.head_width()),
      .lse_BHS = rows(kept.lse_BHS, tokens, shape.query_heads),
      .middle_TD = rows(kept.middle_TD, tokens, shape.width),
      .norm2 = norm(kept.norm2, shape),
      .up_TU = rows(kept.up_TU, tokens, shape.up_width()),
      .activated_TF = rows(kept.activated_TF, tokens, shape.ffn_width)};
  if (shape.recompute == Recompute::kSelective) {
    block.norm1.normed_TD = block.norm2.normed_TD = rows(normed_TD, tokens, shape.width);
    block.activated_TF = rows(activated_TF, tokens, shape.ffn_width);
  }
  return block;
}

}  // namespace sherd::model
