#include "sharding/zero/flat_layout.h"

#include <algorithm>

namespace sherd::sharding {
namespace {

std::int64_t round_up(std::int64_t value, std::int64_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

}  // namespace

FlatLayout::FlatLayout(const UnitSpec& unit, int num_slices, int slice_parts)
    : num_slices_(num_slices) {
  SHERD_CHECK(num_slices >= 1 && slice_parts >= 1, "a unit in {} slices of {} parts", num_slices,
              slice_parts);
  for (const ParameterSpec& parameter : unit.parameters) {
    offsets_.push_back(numel_);
    counts_.push_back(parameter.numel());
    numel_ = round_up(numel_ + parameter.numel(), kAlignment);
  }
  numel_ = round_up(numel_, kAlignment * num_slices * slice_parts);
}

Tensor FlatLayout::slice(const Tensor& full, int slice_index) const {
  SHERD_CHECK(full.numel == numel_, "{} elements where the layout has {}", full.numel, numel_);
  return full.part(slice_index * slice_numel(), slice_numel());
}

std::vector<Tensor> FlatLayout::views(const Tensor& full) const {
  SHERD_CHECK(full.numel == numel_, "{} elements where the layout has {}", full.numel, numel_);
  std::vector<Tensor> views;
  for (std::size_t i = 0; i < offsets_.size(); ++i) {
    views.push_back(full.part(offsets_[i], counts_[i]));
  }
  return views;
}

std::vector<Piece> FlatLayout::pieces(int slice_index) const {
  const std::int64_t begin = slice_index * slice_numel();
  const std::int64_t end = begin + slice_numel();
  std::vector<Piece> pieces;
  for (std::size_t i = 0; i < offsets_.size(); ++i) {
    const std::int64_t first = std::max(begin, offsets_[i]);
    const std::int64_t last = std::min(end, offsets_[i] + counts_[i]);
    if (first >= last) continue;
    pieces.push_back({static_cast<int>(i), first - offsets_[i], last - first, first - begin});
  }
  return pieces;
}

}  // namespace sherd::sharding
