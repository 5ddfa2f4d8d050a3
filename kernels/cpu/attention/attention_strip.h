/// The forward of attention for a strip: up to kStrip positions' queries of the heads that read one
/// key/value head, against that head's keys and values in panels (panels.h).
///
///   keys      panels of [K][columns]: column s is key s
///   values    panels of [depth][columns]: row s is value s; `depth` rows are reserved
///
/// Bits   a query's result depends on its position and the rows before it, but not on the other
///        rows of its strip or the number of keys after it. So a cache (kernels/kv_cache.h) changes
///        nothing.
#pragma once

#include "kernels/cpu/attention/attention_heads.h"

namespace sherd::kernels::cpu {

/// The keys [begin, end) whose scores are in a strip's rows; every query of the strip sees some of
/// them. With a block of keys, some or all queries may see none, and there may be no keys.
struct KeyRange {
  std::int64_t begin = 0, end = 0;
};
/// The keys of the strip that starts at position q0 (a multiple of kStrip), with keys up to `end`.
KeyRange keys_of_strip(const AttentionShape& shape, std::int64_t q0, std::int64_t end);

struct PackedHead {
  const Panels& panels;  ///< of the heads' type
  const float *keys = nullptr, *values = nullptr;
  std::int64_t depth = 0;
};

struct StripBuffers {
  StripBuffers(std::int64_t rows, std::int64_t most_keys, std::int64_t head_width,
               Scratch& scratch);
  float* query;  ///< for units of rows that need a copy
  float *out, *score;
  float* factor;  ///< per row, not yet applied by softmax_row
  std::int64_t score_stride;
};

/// Writes buffers.score[r, s - keys.begin] for `rows` queries, and a few beyond keys.end. `queries`
/// is a left matrix (panels.h).
void score_queries(const AttentionShape& shape, const PackedHead& head, const MatrixView& queries,
                   std::int64_t rows, const KeyRange& keys, const StripBuffers& buffers);

/// Turns the scores of query q against `keys` into the weights of the values: the exponentials,
/// exactly zero where masked or dropped. Returns the factor that is still missing. If the query
/// sees none of the keys, the weights are zeros and lse is -inf. `largest`, if given: becomes the
/// largest score that the query sees, before the soft cap, unless it is larger.
float softmax_row(const AttentionShape& shape, const Dropout& dropout, std::int64_t first_element,
                  std::int64_t q, const KeyRange& keys, float* row, float* lse,
                  float* largest = nullptr);

/// Lets a sink (kernels/attention.h) join a row's softmax: changes lse, and returns the factor that
/// the row's weights get.
float join_sink(float sink, float* lse);

/// buffers.out[r, :] = factor[r] * the sum of the weights times the values. The weights are rounded
/// to bf16 if the values are bf16. Overwrites the scores.
void weigh_values(const AttentionShape& shape, const PackedHead& head, std::int64_t rows,
                  const KeyRange& keys, const StripBuffers& buffers);

}  // namespace sherd::kernels::cpu
