#include "engine/data/held_out.h"

#include <algorithm>
#include <cmath>

namespace sherd::data {

// 0.2 of 10 is 2: the fraction is decimal, its double isn't.
std::int64_t num_held_out(std::int64_t count, double fraction) {
  constexpr double kRounding = 1e-9;
  const double held_out = fraction * static_cast<double>(count) * (1.0 - kRounding);
  return std::min(static_cast<std::int64_t>(std::ceil(held_out)),
                  std::max<std::int64_t>(count - 1, 1));
}

bool is_held_out(std::int64_t index, std::int64_t held_out, std::int64_t count) {
  return (index + 1) * held_out / count > index * held_out / count;
}

}  // namespace sherd::data
