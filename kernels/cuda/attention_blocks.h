/// Attention of one block of keys by cuDNN: its 16-bit results and gradients are combined with
/// other blocks' in f32 (kernels/attention.h; kernels/device_common/attention.h says for which
/// blocks).
///
///   forward    this block's result and log-sum-exp are written to scratch, then merged with out
///              and lse
///   backward   receives output and log-sum-exp of all keys, so its p are normalised over all keys;
///              the block's dQ, dK and dV are written to scratch, then added
#pragma once

#include "kernels/attention.h"

namespace sherd::kernels::cuda {

void attention_block_forward(Stream& stream, const AttentionForward& args);
void attention_block_backward(Stream& stream, const AttentionBackward& args);

/// attention_blocks.cu. `out` [B * n, H * K] and `lse` [B, H, n] for the n queries of the shape's
/// block.
void merge_block(Stream& stream, const AttentionForward& args, const ConstTensor& out,
                 const ConstTensor& lse);
/// Copies lse of these queries from lse of all rows.
void take_block_lse(Stream& stream, const AttentionBackward& args, const Tensor& lse);
/// `gradients` [B * n, (H + 2 G) * K].
void add_block_gradients(Stream& stream, const AttentionBackward& args,
                         const ConstTensor& gradients);

}  // namespace sherd::kernels::cuda
