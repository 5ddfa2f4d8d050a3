/// Counter-based random numbers: Philox4x32-10 (Salmon et al., "Parallel Random Numbers: As Easy as
/// 1, 2, 3", SC 2011). A number is a pure function of its address, so it is the same at every world
/// size, on every device, after every restart.
///
/// Address: (seed, step, site, element). `site` tells tensors and layers apart, `element` is the
/// global index, the same on every slice and rank. Four consecutive elements share a block.
#pragma once

#include <array>
#include <cstdint>

#include "core/host_device.h"

namespace sherd::kernels {

struct RandomAddress {
  std::uint64_t seed = 0;
  std::uint32_t step = 0;
  std::uint32_t site = 0;
};

struct RandomBlock {
  std::uint32_t word[4];
};

/// The 128 random bits of elements 4 * block .. 4 * block + 3.
SHERD_HOST_DEVICE inline RandomBlock random_block(const RandomAddress& address,
                                                  std::uint64_t block) {
  std::uint32_t c0 = static_cast<std::uint32_t>(block);
  std::uint32_t c1 = static_cast<std::uint32_t>(block >> 32);
  std::uint32_t c2 = address.step;
  std::uint32_t c3 = address.site;
  std::uint32_t k0 = static_cast<std::uint32_t>(address.seed);
  std::uint32_t k1 = static_cast<std::uint32_t>(address.seed >> 32);
  for (int round = 0; round < 10; ++round) {
    const std::uint64_t p0 = 0xD2511F53ull * c0;
    const std::uint64_t p1 = 0xCD9E8D57ull * c2;
    const std::uint32_t n0 = static_cast<std::uint32_t>(p1 >> 32) ^ c1 ^ k0;
    const std::uint32_t n2 = static_cast<std::uint32_t>(p0 >> 32) ^ c3 ^ k1;
    c1 = static_cast<std::uint32_t>(p1);
    c3 = static_cast<std::uint32_t>(p0);
    c0 = n0;
    c2 = n2;
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  return {{c0, c1, c2, c3}};
}

SHERD_HOST_DEVICE inline std::uint32_t random_word(const RandomAddress& address,
                                                   std::uint64_t element) {
  return random_block(address, element >> 2).word[element & 3u];
}

}  // namespace sherd::kernels
