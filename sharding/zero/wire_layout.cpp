#include "sharding/zero/wire_layout.h"

#include <algorithm>

#include "core/error.h"

namespace sherd::sharding {
namespace {

using kernels::BlockFormat;

constexpr std::int64_t kRunAlignment = 16, kPieceAlignment = 64;  // bytes
static_assert(kAlignment % kernels::kCodecBlock == 0);

std::int64_t round_up(std::int64_t value, std::int64_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

bool is_coded(const ParameterSpec& parameter) {
  return parameter.shape.size() > 1;
}

bool divides(std::int64_t number) {
  return number % kernels::kCodecBlock == 0;
}

// Whether a box's elements are whole blocks of the whole parameter, in its order.
bool has_whole_blocks(const ParameterCut& cut, const Box& box, std::int64_t place_in_part) {
  const std::int64_t columns = cut.columns();
  if (!divides(place_in_part) || !divides(box.first_row * columns + box.first_column)) return false;
  if (box.num_columns < columns) return divides(columns) && divides(box.num_columns);
  return divides(box.numel()) || box.first_row + box.num_rows == cut.shape[0];
}

}  // namespace

WireLayout::WireLayout(const UnitSpec& unit, const FlatLayout& flat, BlockFormat format,
                       int num_pieces)
    : piece_numel_(flat.numel() / num_pieces), runs_(static_cast<std::size_t>(num_pieces)) {
  SHERD_CHECK(flat.numel() % (num_pieces * kernels::kCodecBlock) == 0,
              "{} elements of {} in {} pieces of whole blocks", flat.numel(), unit.name,
              num_pieces);
  const auto add = [&](BlockFormat how, std::int64_t begin, std::int64_t end) {
    while (begin < end) {
      const std::int64_t piece = begin / piece_numel_, position = begin % piece_numel_;
      const std::int64_t count = std::min(end - begin, piece_numel_ - position);
      std::vector<WireRun>& runs = runs_[static_cast<std::size_t>(piece)];
      if (!runs.empty() && runs.back().format == how) {
        runs.back().count += count;
      } else {
        runs.push_back({.format = how, .position = position, .count = count});
      }
      begin += count;
    }
  };
  std::int64_t end = 0;
  for (std::size_t i = 0; i < unit.parameters.size(); ++i) {
    const std::int64_t begin = flat.offset(static_cast<int>(i));
    end = round_up(begin + unit.parameters[i].numel(), kernels::kCodecBlock);
    add(is_coded(unit.parameters[i]) ? format : BlockFormat::kF32, begin, end);
  }
  add(format, end, flat.numel());  // padding
  for (std::vector<WireRun>& runs : runs_) {
    std::int64_t bytes = 0;
    for (WireRun& run : runs) {
      run.first_byte = round_up(bytes, kRunAlignment);
      run.bytes = kernels::coded_bytes(run.format, run.count);
      bytes = run.first_byte + run.bytes;
    }
    piece_bytes_ = std::max(piece_bytes_, round_up(bytes, kPieceAlignment));
  }
}

void WireLayout::encode(Stream& stream, int piece, const Tensor& elements,
                        const Tensor& bytes) const {
  for (const WireRun& run : runs(piece)) {
    kernels::encode_blocks(stream, run.format, elements.part(run.position, run.count),
                           bytes.part(run.first_byte, run.bytes));
  }
}

void WireLayout::sum(Stream& stream, int piece, const Tensor& bytes, int count, const Tensor& out,
                     bool onto_out) const {
  SHERD_CHECK(bytes.numel == count * piece_bytes_ && out.numel == piece_numel_,
              "{} bytes of {} ranks into {} elements", bytes.numel, count, out.numel);
  for (const WireRun& run : runs(piece)) {
    kernels::sum_blocks(
        stream, run.format,
        {.first = bytes.part(run.first_byte, run.bytes), .stride = piece_bytes_, .count = count},
        out.part(run.position, run.count), onto_out);
  }
}

void WireLayout::round(Stream& stream, int piece, const Tensor& elements, const Tensor& out) const {
  for (const WireRun& run : runs(piece)) {
    kernels::round_to_blocks(stream, run.format, elements.part(run.position, run.count),
                             out.part(run.position, run.count));
  }
}

const ParameterSpec* cuts_blocks(const UnitSpec& unit) {
  for (const ParameterSpec& parameter : unit.parameters) {
    if (!parameter.cut || !is_coded(parameter)) continue;
    std::int64_t place = 0;
    for (const auto& [box, counts] : parameter.cut->held) {
      if (!has_whole_blocks(*parameter.cut, box, place)) return &parameter;
      place += box.numel();
    }
  }
  return nullptr;
}

}  // namespace sherd::sharding
