/// Divides the rows of a step so that ranks have about the same work. A pure function of the costs:
/// it doesn't know the number of ranks, so the order of the data doesn't depend on it.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace sherd::data {

/// An order of the rows in which contiguous parts of equal numbers of rows cost about the same.
///
/// The rows are dealt out to p parts, with p the largest prime factor of their number: the most
/// expensive first, each to the part that costs least so far and has room (ties: the first). Each
/// part is divided again in the same way. Every second part is reversed, so that its most expensive
/// rows come last. If all costs are equal, the order is 0, 1, 2, ...
std::vector<std::int32_t> balanced_order(std::span<const std::int64_t> costs);

}  // namespace sherd::data
