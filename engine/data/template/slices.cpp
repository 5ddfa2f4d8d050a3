// value[first:end:step], as Python takes it.
#include <algorithm>

#include "engine/data/template/functions.h"

namespace sherd::templates {
namespace {

struct Range {
  std::int64_t begin, end;
};

Range range_of(const SliceBounds& bounds, std::int64_t n, std::int64_t step) {
  const auto place = [&](std::int64_t bound) {
    if (bound < 0) bound += n;
    return step > 0 ? std::clamp<std::int64_t>(bound, 0, n)
                    : std::clamp<std::int64_t>(bound, -1, n - 1);
  };
  return {bounds[0]  ? place(*bounds[0])
          : step > 0 ? 0
                     : n - 1,
          bounds[1]  ? place(*bounds[1])
          : step > 0 ? n
                     : -1};
}

template <class Take>
void for_slice(const SliceBounds& bounds, std::int64_t n, std::int64_t step, const Take& take) {
  const Range range = range_of(bounds, n, step);
  const bool one = step > n || step < -n;  // adding it might overflow
  for (std::int64_t i = range.begin; step > 0 ? i < range.end : i > range.end; i += step) {
    count_steps();
    take(static_cast<std::size_t>(i));
    if (one) break;
  }
}

MarkedText part_of_text(const MarkedText& text, const Range& range) {
  if (range.begin >= range.end) return {};
  std::size_t first = 0;
  for (std::int64_t i = 0; i < range.begin; ++i) first = character_end(text, first);
  std::size_t end = first;
  for (std::int64_t i = range.begin; i < range.end; ++i) end = character_end(text, end);
  return text.part(first, end - first);
}

MarkedText slice_of_text(const MarkedText& text, const SliceBounds& bounds, std::int64_t step) {
  const std::int64_t n = num_characters(text);
  if (step == 1) return part_of_text(text, range_of(bounds, n, 1));
  const Held held(static_cast<std::size_t>(n + 1) * sizeof(std::size_t));
  std::vector<std::size_t> offsets;
  for (std::size_t i = 0; i < text.size(); i = character_end(text, i)) offsets.push_back(i);
  offsets.push_back(text.size());
  MarkedText taken;
  for_slice(bounds, std::ssize(offsets) - 1, step, [&](std::size_t i) {
    taken.append(text.part(offsets[i], offsets[i + 1] - offsets[i]));
  });
  return taken;
}

}  // namespace

Value slice_of(const Value& value, const SliceBounds& bounds) {
  if (!value.text() && !value.list()) throw_problem("a slice of a {}", type_name(value));
  const std::int64_t step = bounds[2].value_or(1);
  if (step == 0) throw_problem("a slice's step is 0");
  if (value.list()) {
    const std::vector<Value>& items = value.list()->items;
    std::vector<Value> taken;
    for_slice(bounds, std::ssize(items), step, [&](std::size_t i) { taken.push_back(items[i]); });
    return Value::list(std::move(taken), value.list()->is_tuple);
  }
  return slice_of_text(*value.text(), bounds, step);
}

}  // namespace sherd::templates
