// Ends the program with one sentence on a processor that lacks what the build uses (x86-64-v3),
// before the first instruction that such a processor doesn't know.
//
// `.preinit_array` of a program runs before every constructor, also those of its shared libraries
// (System V ABI, "Initialization and Termination Functions"). A shared library has no such array:
// libsherd.so, which this file is part of, too, has its first constructor here. This file alone is
// compiled for any x86-64 (CMakeLists.txt) and calls nothing that isn't.
#if defined(__x86_64__)

#include <unistd.h>

#include <cstddef>
#include <cstring>

namespace {

constexpr int kUsageError = 2;

void say(const char* text) {
  [[maybe_unused]] const ssize_t written = ::write(STDERR_FILENO, text, std::strlen(text));
}

void say_missing(bool is_there, const char* name, int& missing) {
  if (is_there) return;
  say(missing == 0 ? "sherd: this processor lacks " : ", ");
  say(name);
  ++missing;
}

void check_processor() {
  __builtin_cpu_init();
  int missing = 0;
  say_missing(__builtin_cpu_supports("avx2"), "AVX2", missing);
  say_missing(__builtin_cpu_supports("fma"), "FMA", missing);
  say_missing(__builtin_cpu_supports("bmi"), "BMI1", missing);
  say_missing(__builtin_cpu_supports("bmi2"), "BMI2", missing);
  if (missing == 0) return;
  say("; this build needs x86-64-v3 (Intel since 2013, AMD since 2015).\n");
  ::_exit(kUsageError);
}

#ifdef SHERD_INSIDE  // the library
[[gnu::constructor(101)]] void check_processor_first() {
  check_processor();
}
#else
[[gnu::section(".preinit_array"), gnu::used]] void (*const kCheckProcessor)() = check_processor;
#endif

}  // namespace

#endif
