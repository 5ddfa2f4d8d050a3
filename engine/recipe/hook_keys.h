/// Commands that a run starts at its events: block `hooks` of a recipe. engine/hooks/hooks.h runs
/// them.
#pragma once

#include <cstdint>
#include <string>

namespace sherd::engine {

/// Each command is for /bin/sh; empty: none.
struct HookKeys {
  std::string on_start, on_step, on_evaluation, on_save, on_end, on_failure;
  std::int64_t step_interval = 0;
  std::int64_t timeout = 0;  ///< seconds
  std::int64_t retries = 0;  ///< of on_save

  bool any() const {
    return !(on_start.empty() && on_step.empty() && on_evaluation.empty() && on_save.empty() &&
             on_end.empty() && on_failure.empty());
  }
};

}  // namespace sherd::engine
