/// Random numbers of the data's order: a pure function of the seed and of what is drawn.
#pragma once

#include <cstdint>

#include "engine/data/shuffle.h"

namespace sherd::data {

/// What a draw is for, so that draws for different things are unrelated.
enum class Draw : std::uint8_t { kOrder = 1, kOffset = 2, kSample = 3, kSource = 4, kCut = 5 };

inline std::uint64_t draw(std::uint64_t seed, Draw purpose, std::int64_t where,
                          std::int64_t which = 0) {
  return hash_of(seed, purpose, where, which);
}

inline std::int64_t below(std::int64_t limit, std::uint64_t bits) {
  return static_cast<std::int64_t>(bits % static_cast<std::uint64_t>(limit));
}

}  // namespace sherd::data
