/// Describes attention's tensors to cuDNN: rows of heads inside wider rows. Pure functions of the
/// shape.
#pragma once

#include "kernels/device_common/attention.h"

namespace sherd::kernels::device_common {

/// [B, heads, rows, width] with strides {sequence, K, row, 1}, in elements.
struct HeadRows {
  std::int64_t heads = 0, rows = 0, sequence = 0, row = 0, width = 0;
};

/// Each begins at its first row of the first sequence. For a block, cuDNN writes to separate rows,
/// one sequence after another: a result of out's width, gradients of qkv's width.
struct AttentionViews {
  HeadRows q, k, v;
  HeadRows out_written, dq, dk, dv;
  HeadRows out, dout;  ///< read by the backward
  HeadRows lse;        ///< f32 [B, H, rows], contiguous: width 1 per head
  bool causal = true;  ///< false: every query sees every key

  AttentionViews(const AttentionShape& s, bool keys_apart) {
    const std::int64_t n = s.num_keys(), H = s.query_heads, G = s.kv_heads, K = s.head_width;
    const std::int64_t packed = s.packed_width(), row = H * K;
    const std::int64_t rows = s.block ? s.block.rows : n;
    const std::int64_t key_row = keys_apart ? 2 * G * K : packed;
    const std::int64_t V = cudnn_value_width(s);
    q = {H, n, rows * packed, packed, K};
    k = {G, n, rows * key_row, key_row, K};
    v = {G, n, rows * key_row, key_row, V};
    out = dout = {H, n, rows * row, row, V};
    out_written = {H, n, n * row, row, V};
    dq = {H, n, n * packed, packed, K};
    dk = {G, n, n * packed, packed, K};
    dv = {G, n, n * packed, packed, V};
    lse = {H, n, H * n, 1, 1};
    causal = !s.block || s.block.first_key == s.first_query;
  }
};

}  // namespace sherd::kernels::device_common
