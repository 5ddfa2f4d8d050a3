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

/// Position of a tensor inside one rank's tensor: some rows of each sequence, contiguous except for
/// one gap, and some contiguous columns of each row.
struct DropoutPart {
  std::int64_t columns = 0, all_columns = 0;  ///< per row of the part and of the whole; 0: no gaps
  std::int64_t rows = 0, all_rows = 0;        ///< per sequence, likewise
  std::int64_t rows_before = 0;               ///< rows of the part in earlier buffers
  std::int64_t gap_at = 0, gap = 0;  ///< `gap` rows are missing before row gap_at of a sequence
};

struct Dropout {
  float probability = 0.0f;  ///< p, in [0, 1); 0 switches dropout off
  RandomAddress address;
  /// Global index of the tensor's first element; for a part, of the whole part's first element,
  /// before rows_before.
  std::int64_t first_element = 0;
  DropoutPart part{};

  bool active() const { return probability > 0.0f; }
  /// An element is kept if its word is at least this.
  std::uint32_t threshold() const {
    return static_cast<std::uint32_t>(static_cast<double>(probability) * 4294967296.0);
  }
  float scale() const { return 1.0f / (1.0f - probability); }

  /// Consecutive elements of the tensor whose global indices are consecutive too.
  struct Run {
    std::int64_t element = 0;  ///< global index of the first element
    std::int64_t count = 0;
  };
  /// The run that starts at the tensor's element `offset`, at most `most` elements.
  Run run_from(std::int64_t offset, std::int64_t most) const {
    if (part.columns == 0) return {first_element + offset, most};
    const std::int64_t row = part.rows_before + offset / part.columns;
    const std::int64_t column = offset % part.columns, place = row % part.rows;
    const bool before_gap = part.gap > 0 && place < part.gap_at;
    const bool after_gap = part.gap > 0 && !before_gap;
    const std::int64_t there = row / part.rows * part.all_rows + place + (after_gap ? part.gap : 0);
    const std::int64_t end = before_gap ? part.gap_at : part.rows;
    const std::int64_t rows = part.columns == part.all_columns ? end - place : 1;
    return {first_element + there * part.all_columns + column,
            std::min(most, rows * part.columns - column)};
  }
};

}  // namespace sherd::kernels
