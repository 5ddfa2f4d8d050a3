#include "engine/plan/search/tradeoff.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace sherd::engine {

void Tradeoff::see(const Timed& timed, double bytes) {
  constexpr double kStep = 0.03;
  const auto [place, is_first] =
      fastest_.try_emplace(static_cast<int>(std::floor(std::log(bytes) / kStep)), timed);
  if (!is_first && timed.seconds < place->second.seconds) place->second = timed;
}

std::vector<Timed> Tradeoff::candidates(std::size_t most) const {
  constexpr double kSlower = 1.25;  // may need less than others of a smaller lower bound
  std::vector<Timed> all;
  double least = std::numeric_limits<double>::infinity();
  for (const auto& [bytes, timed] : fastest_) {
    if (timed.seconds >= kSlower * least) continue;
    least = std::min(least, timed.seconds);
    all.push_back(timed);
  }
  if (all.size() <= most) return all;
  std::vector<Timed> some;
  for (std::size_t i = 0; i < most; ++i) some.push_back(all[i * (all.size() - 1) / (most - 1)]);
  return some;
}

}  // namespace sherd::engine
