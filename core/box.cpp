#include "core/box.h"

#include <algorithm>

#include "core/error.h"

namespace sherd {

void for_each_run(const std::vector<Box>& boxes, std::int64_t columns, std::int64_t first,
                  std::int64_t count, const std::function<void(const BoxRun&)>& visit) {
  std::int64_t before = 0;  // elements of the part in the boxes passed
  const std::int64_t end = first + count;
  for (const Box& box : boxes) {
    SHERD_CHECK(box.first_column >= 0 && box.first_column + box.num_columns <= columns,
                "columns [{}, +{}) of {}", box.first_column, box.num_columns, columns);
    const std::int64_t length = box.num_columns == columns ? box.numel() : box.num_columns;
    const std::int64_t begin = std::max(first, before), stop = std::min(end, before + box.numel());
    for (std::int64_t at = begin; at < stop;) {
      const std::int64_t element = at - before;
      const std::int64_t row = box.first_row + element / box.num_columns;
      const std::int64_t column = box.first_column + element % box.num_columns;
      const std::int64_t run = std::min(stop - at, length - element % length);
      visit({row * columns + column, at, run});
      at += run;
    }
    before += box.numel();
  }
  SHERD_CHECK(first >= 0 && end <= before, "elements [{}, {}) of a part of {}", first, end, before);
}

}  // namespace sherd
