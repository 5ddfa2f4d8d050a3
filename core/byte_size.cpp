#include "core/byte_size.h"

#include <fmt/format.h>

#include <array>
#include <charconv>
#include <cmath>
#include <utility>

#include "core/error.h"

namespace sherd {
namespace {

constexpr std::array<std::pair<std::string_view, double>, 9> kUnits = {{{"B", 1.0},
                                                                        {"KB", 1e3},
                                                                        {"MB", 1e6},
                                                                        {"GB", 1e9},
                                                                        {"TB", 1e12},
                                                                        {"KiB", 0x1p10},
                                                                        {"MiB", 0x1p20},
                                                                        {"GiB", 0x1p30},
                                                                        {"TiB", 0x1p40}}};

}  // namespace

std::int64_t parse_bytes(std::string_view text) {
  constexpr std::string_view kExpected =
      "expected a number and a unit (B, KB, MB, GB, TB, KiB, MiB, GiB or TiB), such as 80GiB";
  double number = 0.0;
  const char* end = text.data() + text.size();
  // Fixed: "1e3GiB" is no way to write a size.
  const auto [rest, error] = std::from_chars(text.data(), end, number, std::chars_format::fixed);
  if (error != std::errc() || !std::isfinite(number)) {
    throw UsageError("\"{}\" isn't a size; {}.", text, kExpected);
  }
  std::string_view unit(rest, static_cast<std::size_t>(end - rest));
  if (unit.starts_with(' ')) unit.remove_prefix(1);
  for (const auto& [name, bytes] : kUnits) {
    if (name != unit) continue;
    if (!(number * bytes >= 1.0)) {
      throw UsageError("\"{}\" is less than one byte; {}.", text, kExpected);
    }
    if (number * bytes >= 0x1p63) {
      throw UsageError("\"{}\" is more bytes than 63 bits can count; {}.", text, kExpected);
    }
    return static_cast<std::int64_t>(number * bytes);
  }
  if (unit.empty()) throw UsageError("\"{}\" has no unit; {}.", text, kExpected);
  throw UsageError("\"{}\" has an unknown unit \"{}\"; {}.", text, unit, kExpected);
}

std::string ByteUnit::text(std::int64_t count) const {
  return count == 0 ? "-" : fmt::format("{:.{}f}", of(count), bytes == 1.0 ? 0 : 1);
}

ByteUnit unit_for(std::int64_t largest) {
  constexpr std::array<ByteUnit, 5> kBinary = {
      {{"B", 1.0}, {"KiB", 0x1p10}, {"MiB", 0x1p20}, {"GiB", 0x1p30}, {"TiB", 0x1p40}}};
  for (const ByteUnit& unit : kBinary) {
    if (unit.of(largest) < 9999.5) return unit;
  }
  return kBinary.back();
}

}  // namespace sherd
