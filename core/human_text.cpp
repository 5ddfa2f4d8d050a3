#include "core/human_text.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <cmath>

namespace sherd {

std::string human_bytes(std::int64_t bytes) {
  constexpr std::array kUnits = {"B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
  auto value = static_cast<double>(bytes);
  std::size_t unit = 0;
  while (unit + 1 < kUnits.size() && value >= (unit == 0 ? 1024 : 1023.5)) {
    value /= 1024;
    ++unit;
  }
  return fmt::format("{:.{}f} {}", value, unit > 0 && value < 9.95 ? 1 : 0, kUnits[unit]);
}

std::string human_rate(double per_second) {
  if (!std::isfinite(per_second)) return "?";
  constexpr std::array kUnits = {"", "k", "M", "G", "T"};
  std::size_t unit = 0;
  while (unit + 1 < kUnits.size() && per_second >= 999.5) {
    per_second /= 1000;
    ++unit;
  }
  const int digits = unit == 0 || per_second >= 99.95 ? 0 : per_second >= 9.995 ? 1 : 2;
  return fmt::format("{:.{}f}{}", per_second, digits, kUnits[unit]);
}

std::string human_duration(Seconds duration) {
  if (!std::isfinite(duration.count()) || duration.count() > 1e11) return "?";
  const auto seconds = std::max<std::int64_t>(std::llround(duration.count()), 0);
  const std::int64_t minutes = seconds / 60, hours = minutes / 60, days = hours / 24;
  if (days > 0) return fmt::format("{}d {}h", days, hours % 24);
  if (hours > 0) return fmt::format("{}h {:02}m", hours, minutes % 60);
  if (minutes > 0) return fmt::format("{}m {:02}s", minutes, seconds % 60);
  return fmt::format("{}s", seconds);
}

std::string human_milliseconds(double milliseconds) {
  if (!std::isfinite(milliseconds)) return "?";
  if (milliseconds >= 999.5) return fmt::format("{:.1f} s", milliseconds / 1000);
  return fmt::format("{:.{}f} ms", milliseconds, milliseconds < 9.95 ? 1 : 0);
}

}  // namespace sherd
