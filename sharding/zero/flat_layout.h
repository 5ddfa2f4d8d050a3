/// A unit's parameters laid end to end in one flat buffer, and the buffer cut into slices.
///
/// Each parameter starts at a multiple of 64 elements. The whole is padded to num_slices *
/// slice_parts * 64. So every slice of every type is aligned, and so are its slice_parts equal
/// parts; any number of slices and parameters works. Without parameters there are no elements.
/// Padding is zero and stays zero; it is never part of a checkpoint.
#pragma once

#include <cstdint>
#include <vector>

#include "core/parameter.h"
#include "core/tensor.h"

namespace sherd::sharding {

inline constexpr std::int64_t kAlignment = 64;  ///< elements

/// The part of one parameter that lies on one slice.
struct Piece {
  int parameter = 0;               ///< index into the unit's parameters
  std::int64_t first_element = 0;  ///< in the parameter, row-major
  std::int64_t count = 0;
  std::int64_t position = 0;  ///< in the slice
};

class FlatLayout {
 public:
  explicit FlatLayout(const UnitSpec& unit, int num_slices, int slice_parts = 1);

  int num_slices() const { return num_slices_; }
  std::int64_t numel() const { return numel_; }  ///< of the full buffer, padding included
  std::int64_t slice_numel() const { return numel_ / num_slices_; }
  std::int64_t offset(int parameter) const { return offsets_[parameter]; }

  /// Rank `slice_index`'s slice of a full buffer.
  Tensor slice(const Tensor& full, int slice_index) const;
  /// One view per parameter into a full buffer, in the unit's order.
  std::vector<Tensor> views(const Tensor& full) const;
  /// What lies on rank `slice_index`'s slice, ascending; the gaps are padding.
  std::vector<Piece> pieces(int slice_index) const;

 private:
  int num_slices_;
  std::int64_t numel_ = 0;
  std::vector<std::int64_t> offsets_;
  std::vector<std::int64_t> counts_;
};

}  // namespace sherd::sharding
