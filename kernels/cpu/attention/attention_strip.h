/// What attention's forward does with a strip: up to kStrip positions' queries of the heads that read
/// one key/value head, against that head's keys and values in panels (panels.h).
///
///   keys      panels of [K][columns]: column s is key s
///   values    panels of [depth][columns]: row s is value s; `depth` rows are reserved
///
/// Bits   a query's follow its position and the rows before it: neither the other rows of its strip
///        nor how many keys follow it. So a cache (kernels/kv_cache.h) changes nothing.
#pragma once

#include "kernels/cpu/attention/attention_heads.h"

namespace sherd::kernels::cpu {

/// The keys [begin, end) whose scores are in a strip's rows; every query of it sees some of them. Of a block of keys
/// only some queries do, or none, and there may be no keys.
struct KeyRange {
  std::int64_t begin = 0, end = 0;
};
/// Of the strip that position q0 (a multiple of kStrip) begins, with keys up to `end`.
KeyRange keys_of_strip(const AttentionShape& shape, std::int64_t q0, std::int64_t end);

struct PackedHead {
  const Panels& panels;  ///< of the heads' type
  const float *keys = nullptr, *values = nullptr;
  std::int64_t depth = 0;
};

struct StripBuffers {
  StripBuffers(std::int64_t rows, std::int64_t most_keys, std::int64_t head_width,
               Scratch& scratch);
  float* query;  ///< units of rows that need a copy
  float *out, *score;
  float* factor;  ///< that softmax_row has left out of a row
  std::int64_t score_stride;
};

/// buffers.score[r, s - keys.begin] of `rows` queries, and a few beyond keys.end. `queries` is a left matrix (panels.h).
void score_queries(const AttentionShape& shape, const PackedHead& head, const MatrixView& queries,
                   std::int64_t rows, const KeyRange& keys, const StripBuffers& buffers);

/// Turns the scores of query q against `keys` into what multiplies the values: the exponentials,
/// exactly zero where masked or dropped. Returns the factor that is still missing. Of a query that sees none of the
/// keys, zeros, and lse is -inf.
float softmax_row(const AttentionShape& shape, const Dropout& dropout, std::int64_t first_element,
                  std::int64_t q, const KeyRange& keys, float* row, float* lse);

/// buffers.out[r, :] = factor[r] * the sum of what the scores have become, rounded to bf16 where the values are bf16,
/// times the values. The scores are gone then.
void weigh_values(const AttentionShape& shape, const PackedHead& head, std::int64_t rows,
                  const KeyRange& keys, const StripBuffers& buffers);

}  // namespace sherd::kernels::cpu
