/// Numbers as people read them: few digits, and a unit that fits.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

namespace sherd {

using Seconds = std::chrono::duration<double>;

std::string human_bytes(std::int64_t bytes);          ///< "512 B", "1.5 MiB", "212 MiB"
std::string human_rate(double per_second);            ///< "812", "41.2k", "1.25M"
std::string human_duration(Seconds duration);         ///< "8s", "1m 12s", "3h 05m", "2d 4h"
std::string human_milliseconds(double milliseconds);  ///< "0.4 ms", "12 ms", "1.3 s"

}  // namespace sherd
