/// Boxes of a tensor: what a rank holds of a tensor that is split by rows or columns.
///
/// A tensor [R, C] is seen as a matrix; a tensor with one dimension has C = 1. A rank's part is a
/// list of boxes, laid end to end, each row-major. Elements of a part are consecutive in the tensor
/// within one row of a box, or within a whole box that has all columns.
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

/// Elements that are consecutive both in a tensor and in a part of it.
struct BoxRun {
  std::int64_t in_tensor = 0;  ///< index of the first element, row-major
  std::int64_t in_part = 0;
  std::int64_t count = 0;
  bool operator==(const BoxRun&) const = default;
};

/// Calls `visit` for the runs that make up elements [first, first + count) of a part, in order.
/// `columns` is the tensor's C.
/// Errors   elements outside the boxes and boxes outside the columns are our bug (SHERD_CHECK).
void for_each_run(const std::vector<Box>& boxes, std::int64_t columns, std::int64_t first,
                  std::int64_t count, const std::function<void(const BoxRun&)>& visit);

}  // namespace sherd
