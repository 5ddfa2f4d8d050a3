#include "kernels/isa.h"

#include <algorithm>
#include <atomic>
#include <cstdlib>

#include "core/error.h"
#include "kernels/cpu/matmul/tile.h"

#if defined(__x86_64__) && defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace sherd::kernels {
namespace {

constexpr Isa kIsas[] = {Isa::kAvx2, Isa::kAvx512, Isa::kAvx512Bf16, Isa::kAmx};

#if defined(__x86_64__) && defined(__linux__)
// Linux gives a process the registers of AMX's tiles when it asks: arch_prctl(2).
bool may_use_amx_tiles() {
  constexpr int kRequestPermission = 0x1023, kTileData = 18;
  return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
}

bool processor_has(Isa isa) {
  switch (isa) {
    case Isa::kAvx2:
      return true;
    case Isa::kAvx512:
      return __builtin_cpu_supports("avx512f") != 0;
    case Isa::kAvx512Bf16:
      return __builtin_cpu_supports("avx512bf16") != 0;
    case Isa::kAmx:
      return __builtin_cpu_supports("amx-tile") != 0 && __builtin_cpu_supports("amx-bf16") != 0 &&
             may_use_amx_tiles();
  }
  return false;
}
#else
bool processor_has(Isa isa) {
  return isa == Isa::kAvx2;
}
#endif

std::vector<Isa> find_isas() {
  std::vector<Isa> found;
  for (const Isa isa : kIsas) {
    if (!cpu::is_compiled(isa) || !processor_has(isa)) break;
    found.push_back(isa);
  }
  return found;
}

std::string names(const std::vector<Isa>& isas) {
  std::string text;
  for (const Isa isa : isas) text += (text.empty() ? "" : ", ") + std::string(name_of(isa));
  return text;
}

std::atomic<Isa>& current() {
  static std::atomic<Isa> isa = [] {
    const char* wanted = std::getenv("SHERD_ISA");
    return chosen_isa(wanted ? wanted : "", available_isas(), cpu::bf16_dots_pay());
  }();
  return isa;
}

}  // namespace

std::string_view name_of(Isa isa) {
  switch (isa) {
    case Isa::kAvx2:  // the first form: on aarch64 the same sums, by NEON
#if defined(__aarch64__)
      return "neon";
#else
      return "avx2";
#endif
    case Isa::kAvx512:
      return "avx512";
    case Isa::kAvx512Bf16:
      return "avx512_bf16";
    case Isa::kAmx:
      return "amx";
  }
  return "?";
}

const std::vector<Isa>& available_isas() {
  static const std::vector<Isa> isas = find_isas();
  return isas;
}

Isa chosen_isa(std::string_view wanted, const std::vector<Isa>& available, bool bf16_dots_pay) {
  if (wanted.empty()) {
    return std::min(available.back(), bf16_dots_pay ? Isa::kAvx512Bf16 : Isa::kAvx512);
  }
  for (const Isa isa : available) {
    if (name_of(isa) == wanted) return isa;
  }
  throw UsageError(
      "SHERD_ISA is \"{}\"; this processor and build have {}. Choose one of them, or unset it.",
      wanted, names(available));
}

Isa isa() {
  return current().load(std::memory_order_relaxed);
}

ForcedIsa::ForcedIsa(Isa isa) : before_(current().exchange(isa)) {}

ForcedIsa::~ForcedIsa() {
  current().store(before_);
}

}  // namespace sherd::kernels
