/// Boxes of a tensor: what a rank holds of one that is cut by rows or columns.
///
/// A tensor [R, C] is seen as a matrix; one with a single dimension has C = 1. A rank's part of it is a list
/// of boxes, laid end to end, each row-major. Consecutive elements of a part are consecutive in the tensor
/// as far as a row of a box goes, or a whole box that has all columns.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

namespace sherd {

struct Box {
  std::int64_t first_row = 0, num_rows = 0;
  std::int64_t first_column = 0, num_columns = 0;

  std::int64_t numel() const { return num_rows * num_columns; }
  bool operator==(const Box&) const = default;
};

/// Consecutive elements both of a tensor and of a part of it.
struct BoxRun {
  std::int64_t in_tensor = 0;  ///< number of the first, row-major
  std::int64_t in_part = 0;
  std::int64_t count = 0;
  bool operator==(const BoxRun&) const = default;
};

/// Calls `visit` for the runs that make up elements [first, first + count) of a part, in order. `columns`:
/// C, of the tensor.
/// Errors   elements that the boxes don't have, and boxes beyond the columns, are our bug (SHERD_CHECK).
void for_each_run(const std::vector<Box>& boxes, std::int64_t columns, std::int64_t first,
                  std::int64_t count, const std::function<void(const BoxRun&)>& visit);

}  // namespace sherd
