// A library of another version: its first field says so, and nothing else of it is read.
#include <cstdint>

extern "C" __attribute__((visibility("default"))) const void* sherd_arrow_module() {
  static const std::uint32_t kInterface = 999;
  return &kInterface;
}
