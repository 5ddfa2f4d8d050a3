#include "core/parameter.h"

#include "core/error.h"

namespace sherd {

std::string name_of(UnitClass unit_class) {
  if (unit_class == UnitClass::kEdge) return "edge";
  if (unit_class == UnitClass::kBlock) return "block";
  return "part" +
         std::to_string(static_cast<int>(unit_class) - static_cast<int>(UnitClass::kBlock));
}

std::vector<Box> ParameterCut::boxes() const {
  std::vector<Box> boxes;
  for (const HeldBox& one : held) boxes.push_back(one.box);
  return boxes;
}

ParameterSpec::Place ParameterSpec::place_of(std::int64_t element) const {
  SHERD_CHECK(element >= 0 && element < numel(), "element {} of {}", element, name);
  if (!cut) return {.box = {0, shape[0], 0, numel() / shape[0]}};
  std::int64_t first = 0;
  for (const auto& [box, counts] : cut->held) {
    if (element < first + box.numel()) return {box, counts, first};
    first += box.numel();
  }
  SHERD_CHECK(false, "{} has {} elements in its boxes, not {}", name, first, numel());
  __builtin_unreachable();
}

std::int64_t ParameterSpec::element_of_whole(std::int64_t element) const {
  if (!cut) return element;
  const Place place = place_of(element);
  const std::int64_t row = (element - place.first) / place.box.num_columns;
  const std::int64_t column = (element - place.first) % place.box.num_columns;
  return (place.box.first_row + row) * cut->columns() + place.box.first_column + column;
}

}  // namespace sherd
