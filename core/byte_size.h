/// Sizes as people write them: "80GiB", "1.5 TB", "512 B".
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace sherd {

/// A number and a unit: B; KB, MB, GB, TB (powers of 1000); KiB, MiB, GiB, TiB (powers of 1024).
/// The number may have decimals; the result is rounded down to whole bytes.
/// Errors   UsageError, which says what was expected: no number, no or another unit, nothing or
///          less, 2^63 bytes or more.
std::int64_t parse_bytes(std::string_view text);

/// A unit in which a whole table is written, chosen so that `largest` has at most four digits
/// before the point.
struct ByteUnit {
  std::string_view name;
  double bytes = 1.0;

  double of(std::int64_t count) const { return static_cast<double>(count) / bytes; }
  /// "12.5"; "-" for none at all.
  std::string text(std::int64_t count) const;
};
ByteUnit unit_for(std::int64_t largest);

}  // namespace sherd
