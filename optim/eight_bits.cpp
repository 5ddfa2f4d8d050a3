#include "optim/eight_bits.h"

#include "core/error.h"
#include "kernels/eight_bits.h"

namespace sherd::optim {
namespace {

using kernels::kEightBitBlock;

constexpr std::string_view kScale = "_scale";

bool divides(std::int64_t number) {
  return number % kEightBitBlock == 0;
}

// Whether the elements of a box are whole blocks of the whole parameter, in its order.
bool has_whole_blocks(const ParameterCut& cut, const Box& box, std::int64_t place_in_part) {
  const std::int64_t columns = cut.columns(), rows = cut.shape[0];
  if (!divides(place_in_part) || !divides(box.first_row * columns + box.first_column)) return false;
  if (box.num_columns < columns) return divides(columns) && divides(box.num_columns);
  return divides(box.numel()) || box.first_row + box.num_rows == rows;
}

}  // namespace

std::string scales_of(const std::string& kind) {
  return kind + std::string(kScale);
}

std::vector<std::string> stored_kinds(const std::vector<std::string>& kinds,
                                      const MomentType& type) {
  if (!type.in_8_bits) return kinds;
  std::vector<std::string> stored;
  for (const std::string& kind : kinds) {
    stored.push_back(kind);
    stored.push_back(scales_of(kind));
  }
  return stored;
}

MomentForm form_of(std::string_view kind, const MomentType& type) {
  if (!type.in_8_bits) return {type.dtype, 1};
  return kind.ends_with(kScale) ? MomentForm{DType::kF32, kEightBitBlock}
                                : MomentForm{DType::kU8, 1};
}

void check_blocks(const UnitSpec& unit) {
  for (const ParameterSpec& parameter : unit.parameters) {
    if (!parameter.cut) continue;
    std::int64_t place = 0;
    for (const auto& [box, counts] : parameter.cut->held) {
      if (!has_whole_blocks(*parameter.cut, box, place)) {
        const bool by_columns = box.num_columns < parameter.cut->columns();
        throw UsageError(
            "optimizer.eight_bit_states has a scale for every {} elements, and {} {} of {} on a "
            "rank are no multiple of that. Use sizes that are multiples of {} on each rank, or "
            "leave it out.",
            kEightBitBlock, by_columns ? box.num_columns : box.numel(),
            by_columns ? "columns" : "elements", parameter.name, kEightBitBlock);
      }
      place += box.numel();
    }
  }
}

}  // namespace sherd::optim
