/// Races between streams that the fake machine has found since the last call; none where streams are emulated without
/// it (device.cpp).
#pragma once

#include <string>
#include <vector>

namespace emulated {

std::vector<std::string> take_races();

}  // namespace emulated
