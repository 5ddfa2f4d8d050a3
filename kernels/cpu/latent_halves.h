/// The halves of a packed head of latent attention, and of its parts: kernels/latent_heads.h.
#pragma once

#include <algorithm>
#include <cstdint>

#include "kernels/latent_heads.h"

namespace sherd::kernels::cpu {

struct LatentHalves {
  explicit LatentHalves(const LatentHeads& shape)
      : plain(shape.plain / 2), rotated(shape.rotated / 2), width(plain + rotated) {}

  template <class T>
  void join(const T* plain_N, const T* rotated_R, T* head_K) const {
    for (std::int64_t half = 0; half < 2; ++half) {
      T* to = std::copy_n(rotated_R + half * rotated, rotated, head_K + half * width);
      std::copy_n(plain_N + half * plain, plain, to);
    }
  }
  template <class T>
  void take_plain(const T* head_K, T* plain_N) const {
    for (std::int64_t half = 0; half < 2; ++half) {
      std::copy_n(head_K + half * width + rotated, plain, plain_N + half * plain);
    }
  }
  template <class T>
  void take_rotated(const T* head_K, T* rotated_R) const {
    for (std::int64_t half = 0; half < 2; ++half) {
      std::copy_n(head_K + half * width, rotated, rotated_R + half * rotated);
    }
  }
  std::int64_t plain, rotated, width;
};

}  // namespace sherd::kernels::cpu
