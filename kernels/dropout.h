/// Dropout: which elements of an activation are kept, and by how much they are scaled.
///
///   keep(e)  =  word(e) >= p * 2^32          word(e): kernels/philox.h, e a global element index
///   y[e]     =  keep(e) ? x[e] * 1 / (1 - p) : 0        (Srivastava et al. 2014, inverted form)
///
/// The mask is never stored: forward, backward and recompute draw it again. The element index is
/// built from the *global* row of the batch, so the mask doesn't depend on the world size.
#pragma once

#include <algorithm>
#include <cstdint>

#include "kernels/philox.h"

namespace sherd::kernels {

/// Place of a tensor that is a part of one rank's tensor: some rows of each sequence, contiguous except for one gap,
/// and some contiguous columns of each row.
struct DropoutPart {
  std::int64_t columns = 0, all_columns = 0;  ///< of a row of the part, of the whole; 0: no gaps
  std::int64_t rows = 0, all_rows = 0;        ///< of a sequence
  std::int64_t rows_before = 0;               ///< of the part, in other buffers
  std::int64_t gap_at = 0, gap = 0;  ///< `gap` rows are missing before row gap_at of a sequence
};

struct Dropout {
  float probability = 0.0f;  ///< p, in [0, 1); 0 switches dropout off
  RandomAddress address;
  /// Global index of the tensor's first element here; of a part, of its first one, rows_before or not.
  std::int64_t first_element = 0;
  DropoutPart part{};

  bool active() const { return probability > 0.0f; }
  /// An element is kept if its word is at least this.
  std::uint32_t threshold() const {
    return static_cast<std::uint32_t>(static_cast<double>(probability) * 4294967296.0);
  }
  float scale() const { return 1.0f / (1.0f - probability); }

  /// Elements of the tensor whose global indices are neighbours, too.
  struct Run {
    std::int64_t element = 0;  ///< global index of the first
    std::int64_t count = 0;
  };
  /// From the tensor's element `offset` on, at most `most`.
  Run run_from(std::int64_t offset, std::int64_t most) const {
    if (part.columns == 0) return {first_element + offset, most};
    const std::int64_t row = part.rows_before + offset / part.columns;
    const std::int64_t column = offset % part.columns, place = row % part.rows;
    const bool before_gap = part.gap > 0 && place < part.gap_at;
    const bool behind_gap = part.gap > 0 && !before_gap;
    const std::int64_t there =
        row / part.rows * part.all_rows + place + (behind_gap ? part.gap : 0);
    const std::int64_t end = before_gap ? part.gap_at : part.rows;
    const std::int64_t rows = part.columns == part.all_columns ? end - place : 1;
    return {first_element + there * part.all_columns + column,
            std::min(most, rows * part.columns - column)};
  }
};

}  // namespace sherd::kernels
