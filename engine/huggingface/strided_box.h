/// Where elements of one tensor stand in another: index arithmetic in place of copies of tensors.
///
/// A box is a block of elements of two tensors. Element (i_1, ..., i_n) of the block is element
///
///   to + sum_k i_k to_stride_k   of the one,     from + sum_k i_k from_stride_k   of the other,
///
/// both counted row-major. Rows of a stacked matrix, a transposed matrix, rows in another order
/// within each head: each is one box or a few.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

namespace sherd::huggingface {

struct Axis {
  std::int64_t count = 0, to_stride = 0, from_stride = 0;
};

/// Axes from the outermost to the innermost of `to`: to_stride falls, and the elements of an index
/// stand before those of the next. One axis has from_stride 1.
struct StridedBox {
  std::int64_t to = 0, from = 0;
  std::vector<Axis> axes;

  std::int64_t numel() const;
  /// The same block with the tensors' parts exchanged.
  StridedBox inverse() const;
};

/// Elements of a box that are neighbours in `from`.
struct Run {
  std::int64_t from = 0;  ///< first element
  std::int64_t to = 0;
  std::int64_t to_stride = 1;
  std::int64_t count = 0;
};

/// Calls `use` for runs that together are the box's elements with `to` in [begin, end), each once, in
/// as few runs as their order allows; none is longer than `longest`.
void for_each_run(const StridedBox& box, std::int64_t begin, std::int64_t end, std::int64_t longest,
                  const std::function<void(const Run&)>& use);

/// A tensor that some elements come from.
struct Source {
  int tensor = 0;  ///< the caller's number of it
  StridedBox box;
};
/// Fetches neighbours: elements [from, from + count) of a source's tensor.
using ReadElements =
    std::function<void(int tensor, std::int64_t from, std::int64_t count, float* to)>;
/// Elements [first, first + count) of `to`, into `out`. `run` has room for `count` more.
/// Errors   an element that isn't in exactly one of the boxes is our bug (SHERD_CHECK).
void fill_from(const std::vector<Source>& sources, std::int64_t first, std::int64_t count,
               float* out, float* run, const ReadElements& read);

}  // namespace sherd::huggingface
