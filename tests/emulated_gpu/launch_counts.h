/// How often each kernel of ours has been launched on the emulated GPU since the program began, by the name that its
/// errors would have. Not in it: memsets, copies, and what NVIDIA's libraries would launch.
#pragma once

#include <cstdint>
#include <map>
#include <string>

namespace emulated {

using LaunchCounts = std::map<std::string, std::int64_t>;
LaunchCounts launch_counts();

}  // namespace emulated
