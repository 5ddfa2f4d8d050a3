/// Maps elements of one tensor to elements of another by index arithmetic, without copying tensors.
///
/// A box is a block of elements of two tensors. Element (i_1, ..., i_n) of the block is element
///
///   to + sum_k i_k to_stride_k   of the one,     from + sum_k i_k from_stride_k   of the other,
///
/// both counted row-major. Rows of a stacked matrix, a transposed matrix, or rows permuted within
/// each head are one box or a few.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

namespace sherd::huggingface {

struct Axis {
  std::int64_t count = 0, to_stride = 0, from_stride = 0;
};

/// Axes from the outermost to the innermost in `to`: to_stride decreases, and all elements of one
/// index come before those of the next. One axis has from_stride 1.
struct StridedBox {
  std::int64_t to = 0, from = 0;
  std::vector<Axis> axes;

  std::int64_t numel() const;
  /// The same block with the roles of the tensors swapped.
  StridedBox inverse() const;
};

/// Elements of a box that are contiguous in `from`.
struct Run {
  std::int64_t from = 0;  ///< first element
  std::int64_t to = 0;
  std::int64_t to_stride = 1;
  std::int64_t count = 0;
};

/// Calls `use` for runs that together cover the box's elements with `to` in [begin, end), each
/// once. Uses as few runs as the order allows; none is longer than `longest`.
void for_each_run(const StridedBox& box, std::int64_t begin, std::int64_t end, std::int64_t longest,
                  const std::function<void(const Run&)>& use);

/// A tensor that some elements come from.
struct Source {
  int tensor = 0;  ///< the caller's number for it
  StridedBox box;
};
/// Reads contiguous elements [from, from + count) of a source's tensor.
using ReadElements =
    std::function<void(int tensor, std::int64_t from, std::int64_t count, float* to)>;
/// Writes elements [first, first + count) of `to` into `out`. `run` has room for `count` more
/// elements.
/// Errors   an element that isn't in exactly one box is a bug in Sherd (SHERD_CHECK).
void fill_from(const std::vector<Source>& sources, std::int64_t first, std::int64_t count,
               float* out, float* run, const ReadElements& read);

}  // namespace sherd::huggingface
