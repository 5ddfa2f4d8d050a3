/// Where documents lie in the rows of a micro-batch: attention stays inside each document, and
/// positions restart at its start.
///
///   document i   tokens [starts[i], starts[i] + lengths[i]), all of one row
///   padding      the tokens between that and starts[i + 1]
///   position     of token t of document i: t - starts[i]; of padding: 0
///
/// Shapes   starts i32 [N + 1], from 0 up to B * S, non-decreasing; every row starts with a
///          document. lengths i32 [N], 0 for a document of padding only; positions i32 [B * S].
///          Empty documents at B * S may follow the last one, so that buffers have one size. If a
///          rank has part of every row, positions has its tokens only; starts and lengths refer to
///          whole rows, as attention reads them.
/// Form     as cuDNN's ragged tensors (offsets and lengths); without padding, as FlashAttention's
///          cu_seqlens.
#pragma once

#include <algorithm>
#include <cstdint>

#include "core/tensor.h"

namespace sherd::kernels {

struct Documents {
  ConstTensor starts, lengths, positions;

  /// False: each row is one document.
  explicit operator bool() const { return static_cast<bool>(starts); }
  std::int64_t count() const { return lengths.numel; }
  /// The first document that starts at `token` or later. Host only.
  std::int64_t first_from(std::int64_t token) const {
    const auto* begin = starts.as<std::int32_t>();
    return std::lower_bound(begin, begin + count(), token) - begin;
  }
};

}  // namespace sherd::kernels
