/// Sizes as people write them: "80GiB", "1.5 TB", "512 B".
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace sherd {

/// A number and a unit: B; KB, MB, GB, TB (powers of 1000); KiB, MiB, GiB, TiB (powers of 1024).
/// The number may have decimals; the result is rounded down to whole bytes.
/// Errors   UsageError that says what was expected: the number is missing, the unit is missing or
///          unknown, or the size is below 1 byte or at least 2^63 bytes.
std::int64_t parse_bytes(std::string_view text);

/// The unit for a whole table, chosen so that `largest` has at most four digits before the point.
struct ByteUnit {
  std::string_view name;
  double bytes = 1.0;

  double of(std::int64_t count) const { return static_cast<double>(count) / bytes; }
  /// "12.5"; "-" for zero bytes.
  std::string text(std::int64_t count) const;
};
ByteUnit unit_for(std::int64_t largest);

}  // namespace sherd
