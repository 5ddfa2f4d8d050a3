#include "engine/huggingface/strided_box.h"

#include <algorithm>
#include <span>

#include "core/error.h"

namespace sherd::huggingface {
namespace {

using Use = std::function<void(const Run&)>;
using Axes = std::span<const Axis>;

// A whole block: runs along the axis that is contiguous in `from`, one for each index of the
// others.
void whole(std::int64_t to, std::int64_t from, Axes axes, std::int64_t longest, const Use& use) {
  std::vector<Axis> others;
  Axis along{1, 1, 1};
  bool found = false;
  for (const Axis& axis : axes) {
    if (axis.count == 0) return;
    if (axis.count == 1) continue;
    if (!found && axis.from_stride == 1) {
      along = axis;
      found = true;
    } else {
      others.push_back(axis);
    }
  }
  // Through the file from front to back.
  std::sort(others.begin(), others.end(),
            [](const Axis& a, const Axis& b) { return a.from_stride > b.from_stride; });
  std::vector<std::int64_t> index(others.size(), 0);
  while (true) {
    for (std::int64_t at = 0; at < along.count; at += longest) {
      use({from + at, to + at * along.to_stride, along.to_stride,
           std::min(longest, along.count - at)});
    }
    std::size_t axis = others.size();
    while (axis > 0 && index[axis - 1] + 1 == others[axis - 1].count) {
      --axis;
      to -= index[axis] * others[axis].to_stride;
      from -= index[axis] * others[axis].from_stride;
      index[axis] = 0;
    }
    if (axis == 0) return;
    ++index[axis - 1];
    to += others[axis - 1].to_stride;
    from += others[axis - 1].from_stride;
  }
}

// The elements between the block's first and last one in `to`, both included.
std::int64_t extent_of(Axes axes) {
  std::int64_t extent = 1;
  for (const Axis& axis : axes) extent += (axis.count - 1) * axis.to_stride;
  return extent;
}

void clipped(std::int64_t to, std::int64_t from, Axes axes, std::int64_t begin, std::int64_t end,
             std::int64_t longest, const Use& use) {
  if (axes.empty()) {
    if (to >= begin && to < end) use({from, to, 1, 1});
    return;
  }
  const Axis& axis = axes[0];
  const Axes inner = axes.subspan(1);
  const std::int64_t extent = extent_of(inner);
  // Index i holds elements [to + i stride, to + i stride + extent).
  const auto first_from = [&](std::int64_t position) {  // the first i that begins there or later
    const std::int64_t distance = position - to;
    const std::int64_t i = distance <= 0 ? 0 : (distance + axis.to_stride - 1) / axis.to_stride;
    return std::min(i, axis.count);
  };
  const std::int64_t first_whole = first_from(begin);
  // The first i that ends beyond `end`.
  const std::int64_t end_whole = std::max(first_whole, first_from(end - extent + 1));
  const auto part = [&](std::int64_t i) {
    clipped(to + i * axis.to_stride, from + i * axis.from_stride, inner, begin, end, longest, use);
  };
  if (first_whole > 0) part(first_whole - 1);
  if (end_whole > first_whole) {
    std::vector<Axis> rest(axes.begin(), axes.end());
    rest[0].count = end_whole - first_whole;
    whole(to + first_whole * axis.to_stride, from + first_whole * axis.from_stride, rest, longest,
          use);
  }
  if (end_whole < first_from(end)) part(end_whole);
}

}  // namespace

std::int64_t StridedBox::numel() const {
  std::int64_t numel = 1;
  for (const Axis& axis : axes) numel *= axis.count;
  return numel;
}

StridedBox StridedBox::inverse() const {
  StridedBox inverse{from, to, axes};
  for (Axis& axis : inverse.axes) std::swap(axis.to_stride, axis.from_stride);
  std::stable_sort(inverse.axes.begin(), inverse.axes.end(),
                   [](const Axis& a, const Axis& b) { return a.to_stride > b.to_stride; });
  return inverse;
}

void for_each_run(const StridedBox& box, std::int64_t begin, std::int64_t end, std::int64_t longest,
                  const Use& use) {
  SHERD_CHECK(longest >= 1, "runs of {} elements", longest);
  if (begin < end && box.numel() > 0) clipped(box.to, box.from, box.axes, begin, end, longest, use);
}

void fill_from(const std::vector<Source>& sources, std::int64_t first, std::int64_t count,
               float* out, float* run, const ReadElements& read) {
  std::int64_t filled = 0;
  for (const Source& source : sources) {
    for_each_run(source.box, first, first + count, count, [&](const Run& r) {
      float* to = out + (r.to - first);
      filled += r.count;
      if (r.to_stride == 1) return read(source.tensor, r.from, r.count, to);
      read(source.tensor, r.from, r.count, run);
      for (std::int64_t i = 0; i < r.count; ++i) to[i * r.to_stride] = run[i];
    });
  }
  SHERD_CHECK(filled == count, "{} of {} elements", filled, count);
}

}  // namespace sherd::huggingface
