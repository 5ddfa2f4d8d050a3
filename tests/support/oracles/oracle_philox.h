/// Philox4x32-10 from the paper (Salmon et al., SC 2011, §3.3), and the dropout masks built on it.
#pragma once

#include <array>

#include "kernels/dropout.h"
#include "tests/support/oracles/oracle_values.h"

namespace sherd::oracle {

std::array<std::uint32_t, 4> philox4x32_10(std::array<std::uint32_t, 4> counter,
                                           std::array<std::uint32_t, 2> key);

/// Word element mod 4 of the block with counter (block low, block high, step, site), block =
/// element / 4, and key (seed low, seed high).
std::uint32_t random_word(const kernels::RandomAddress& address, std::uint64_t element);

/// The factors of elements first_element .. first_element + numel - 1: 1 / (1 - p) where the word
/// is at least p * 2^32, else 0; all one where p is 0.
Values dropout_mask(const kernels::Dropout& dropout, std::int64_t numel);

}  // namespace sherd::oracle
