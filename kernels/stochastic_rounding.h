/// f32 to bf16, up or down with a probability equal to the distance to the other neighbour.
///
///   out = the upper 16 bits of (bits of x) + word mod 2^16        x finite; word uniform
///
/// Adding 16 random bits below the last kept bit and cutting off rounds up exactly that often.
/// Infinities and NaNs are rounded to nearest by the caller.
#pragma once

#include <cstdint>

#include "core/host_device.h"

namespace sherd::kernels {

SHERD_HOST_DEVICE inline bool is_finite_f32(std::uint32_t bits) {
  return (bits & 0x7f800000u) != 0x7f800000u;
}

SHERD_HOST_DEVICE inline std::uint16_t round_stochastically(std::uint32_t bits,
                                                            std::uint32_t word) {
  return static_cast<std::uint16_t>((bits + (word & 0xffffu)) >> 16);
}

}  // namespace sherd::kernels
