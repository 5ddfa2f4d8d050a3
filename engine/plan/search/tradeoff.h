/// Time against memory: of layouts with about the same memory the fastest, if none with less memory
/// is much faster. Their memory is a lower bound; which of them are on the front, plans decide.
#pragma once

#include <map>
#include <vector>

#include "engine/plan/search/candidates.h"

namespace sherd::engine {

struct Timed {
  Layout layout;
  double seconds = 0.0;
};

class Tradeoff {
 public:
  /// `bytes`: a lower bound of the layout's memory.
  void see(const Timed& timed, double bytes);
  /// From the least memory on: at most `most`, spread evenly.
  std::vector<Timed> candidates(std::size_t most) const;

 private:
  std::map<int, Timed> fastest_;  ///< by the logarithm of memory
};

}  // namespace sherd::engine
