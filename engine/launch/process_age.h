/// How long this process has existed, from the kernel's record of its start.
#pragma once

#include <chrono>

namespace sherd::engine {

/// Steps of the kernel's clock are 10 ms. 0 if /proc can't be read.
std::chrono::duration<double> process_age();

}  // namespace sherd::engine
