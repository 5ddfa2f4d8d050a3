#include "engine/launch/process_age.h"

#include <time.h>
#include <unistd.h>

#include <fstream>
#include <sstream>
#include <string>

namespace sherd::engine {
namespace {

// Field 22 of /proc/self/stat: ticks from the machine's start to the process's. Field 2, the name,
// may have spaces and parentheses.
double seconds_from_boot_to_start() {
  std::ifstream file("/proc/self/stat");
  std::string line;
  std::getline(file, line);
  std::istringstream fields(line.substr(std::min(line.size(), line.rfind(')') + 1)));
  std::string field;
  for (int number = 3; number <= 22; ++number) fields >> field;
  return fields ? std::stod(field) / static_cast<double>(::sysconf(_SC_CLK_TCK)) : -1.0;
}

}  // namespace

std::chrono::duration<double> process_age() {
  static const double start = seconds_from_boot_to_start();
  timespec now{};
  if (start < 0.0 || ::clock_gettime(CLOCK_BOOTTIME, &now) != 0) return {};
  const double seconds = static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) * 1e-9;
  return std::chrono::duration<double>(seconds - start);
}

}  // namespace sherd::engine
