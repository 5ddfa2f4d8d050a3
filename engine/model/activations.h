/// Every buffer that flows between kernels on one rank: what the forward keeps for the backward,
/// and the scratch of both. All are acquired once, before step 0; each is alive in the phases that
/// use it, so that logits and the backward's scratch share memory.
///
/// Kept per block (elements per token; f32 statistics apart): residual D (its input), norm1 output
/// D, qkv, attention output H K, middle residual D, norm2 output D, up output F or 2F, activation
/// output F; plus mean and rstd of two norms and the log-sum-exp of H heads. With `selective`
/// recompute the norm and activation outputs of all blocks share one buffer each; with `full` all
/// blocks share everything but the residual.
#pragma once

#include <functional>
#include <vector>

#include "core/memory.h"
#include "core/stream.h"
#include "engine/model/shape.h"
#include "kernels/device.h"

namespace sherd::model {

struct NormActivations {
  Buffer normed_TD, mean_T, rstd_T;
};

struct BlockActivations {
  NormActivations norm1;
  Buffer qkv_TE;       ///< E = (H + 2 G) K, after bias and rotary
  Buffer attended_TD;  ///< [T, H K]
  Buffer lse_BHS;
  Buffer middle_TD;  ///< residual stream after attention
  NormActivations norm2;
  Buffer up_TU;  ///< U = F or 2 F, before the activation
  Buffer activated_TF;
};

/// The same, as the tensors of one pass, which may have fewer tokens than was planned for.
struct NormTensors {
  Tensor normed_TD, mean_T, rstd_T;
};
struct BlockTensors {
  Tensor x_TD;  ///< the block's input
  NormTensors norm1;
  Tensor qkv_TE, attended_TD, lse_BHS, middle_TD;
  NormTensors norm2;
  Tensor up_TU, activated_TF;
};

/// Gives a buffer; or, where a run is only planned, notes it and gives an empty one.
using Acquire = std::function<Buffer(const BufferSpec&)>;

struct Activations {
  Activations(const ModelShape& shape, const kernels::ComputeDevice& device,
              const Acquire& acquire_buffer);

  NormTensors norm(const NormActivations& norm, const ModelShape& shape) const;
  BlockTensors block(std::int64_t index, const ModelShape& shape) const;

  std::vector<Buffer> residual_TD;  ///< L + 1: the input of every block, and the last one's output
  std::vector<BlockActivations> blocks;  ///< L, or one for all with `full`
  Buffer normed_TD, activated_TF;        ///< `selective`: what all blocks share
  NormActivations final_norm;
  Buffer logits_CV;               ///< one chunk of C tokens; becomes its gradient in place
  Buffer losses_T;                ///< f32, one per token
  std::int64_t chunk_tokens = 0;  ///< C

  Buffer branch_TD;  ///< forward: a branch before it joins; backward: gradient of a norm's output
  Buffer d_residual_TD;  ///< gradient of the residual stream, carried from block to block
  Buffer d_branch_TD;    ///< with dropout: gradient of a branch behind its mask
  Buffer d_wide;         ///< [T, max(E, U)]
  Buffer d_narrow;       ///< [T, max(H K, F)]
  Buffer rotary_SK;
  Buffer workspace;  ///< the largest that any kernel asks for
};

/// The first `tokens` rows of a buffer.
inline Tensor rows(const Buffer& buffer, std::int64_t tokens, std::int64_t width) {
  return buffer ? buffer.tensor().part(0, tokens * width) : Tensor{};
}

/// Tokens in one chunk of logits: fixed by the shape, so that bits don't depend on anything else.
std::int64_t logits_chunk_tokens(const ModelShape& shape);

}  // namespace sherd::model
