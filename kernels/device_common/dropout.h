/// Dropout's mask on packs of elements; the equation is in kernels/dropout.h.
#pragma once

#include "core/host_device.h"
#include "kernels/dropout.h"

namespace sherd::kernels::device_common {

SHERD_HOST_DEVICE inline std::uint32_t word_at(const RandomBlock& block, std::uint64_t element) {
  const unsigned i = element & 3u;  // comparisons, because an index would put the block in memory
  return i == 0 ? block.word[0] : i == 1 ? block.word[1] : i == 2 ? block.word[2] : block.word[3];
}

/// The words of elements first .. first + N - 1; four in one Philox block cost one block.
template <int N>
SHERD_HOST_DEVICE void random_words(const RandomAddress& address, std::int64_t first,
                                    std::uint32_t (&word)[N]) {
  const auto element = static_cast<std::uint64_t>(first);
  RandomBlock block = random_block(address, element >> 2);
  for (int i = 0; i < N; ++i) {
    if (i > 0 && ((element + i) & 3u) == 0) block = random_block(address, (element + i) >> 2);
    word[i] = word_at(block, element + i);
  }
}

struct Mask {
  RandomAddress address;
  DropoutPart part;
  std::int64_t first_element = 0;
  std::uint32_t threshold = 0;
  float scale = 1.0f;
  bool active = false;

  Mask() = default;
  explicit Mask(const Dropout& dropout)
      : address(dropout.address),
        part(dropout.part),
        first_element(dropout.first_element),
        threshold(dropout.threshold()),
        scale(dropout.scale()),
        active(dropout.active()) {}

  /// The global index of the element `offset` after the tensor's first: Dropout::run_from.
  SHERD_HOST_DEVICE std::int64_t element(std::int64_t offset) const {
    if (part.columns == 0) return first_element + offset;
    const std::int64_t row = part.rows_before + offset / part.columns;
    const std::int64_t place = row % part.rows;
    const std::int64_t there =
        row / part.rows * part.all_rows + place + (place >= part.gap_at ? part.gap : 0);
    return first_element + there * part.all_columns + offset % part.columns;
  }

  /// The factor of one element, `offset` after the tensor's first.
  SHERD_HOST_DEVICE float factor(std::int64_t offset) const {
    if (!active) return 1.0f;
    const auto global = static_cast<std::uint64_t>(element(offset));
    const RandomBlock block = random_block(address, global >> 2);
    return word_at(block, global) >= threshold ? scale : 0.0f;
  }

  /// Whether the elements of each pack of this size have consecutive indices: none spans a gap.
  /// Kernels whose rows are the mask's own rows needn't check: their packs end where a row does.
  bool keeps_packs(int count) const { return part.columns == 0 || part.columns % count == 0; }

  /// x becomes mask * x, for N elements that start `offset` after the tensor's first: a pack that
  /// keeps_packs allows, or a single element.
  template <int N>
  SHERD_HOST_DEVICE void apply(std::int64_t offset, float (&x)[N]) const {
    if (!active) return;
    std::uint32_t word[N];
    random_words<N>(address, element(offset), word);
    for (int i = 0; i < N; ++i) x[i] = word[i] >= threshold ? x[i] * scale : 0.0f;
  }
};

}  // namespace sherd::kernels::device_common
