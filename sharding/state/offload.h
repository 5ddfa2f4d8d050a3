/// Which state is on disk between uses (core/disk_home.h), and how it is brought into memory.
#pragma once

#include <cstdint>

namespace sherd::sharding {

struct OffloadOptions {
  bool moments = false;     ///< the optimizer's
  bool master = false;      ///< FP32 parameters of 16-bit compute, where a rounded copy is resident
  bool parameters = false;  ///< at stage 3: the slices that ranks gather
  /// Staging memory of a rank: several blocks of all kinds of state.
  std::int64_t buffer_bytes = 0;

  bool active() const { return moments || master || parameters; }
  bool operator==(const OffloadOptions&) const = default;
};

}  // namespace sherd::sharding
