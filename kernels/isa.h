/// The instruction set of this processor that CPU matmuls use, chosen once at the start.
///
///   avx2         the baseline of the build (x86-64-v3); on another processor, portable code
///   avx512       512-bit vectors
///   avx512_bf16  and dot products of bf16 pairs
///   amx          and bf16 tiles
///
/// Bits      avx2, avx512 and avx512_bf16 give the same results bit for bit. amx adds the terms of
///           a bf16 matmul in another order: it is a numeric variant, recorded in checkpoints, and
///           is used only on request. Its f32 and f16 results equal the others'.
/// Choice    the environment variable SHERD_ISA. Without it, the last of the first three that this
///           processor has; but avx512_bf16 only if a short measurement at the start finds it
///           faster than multiply-adds on widened floats (on Sapphire Rapids it has half their
///           rate).
/// Errors    UsageError if SHERD_ISA names an unknown or unavailable instruction set.
#pragma once

#include <string_view>
#include <vector>

namespace sherd::kernels {

enum class Isa { kAvx2, kAvx512, kAvx512Bf16, kAmx };

std::string_view name_of(Isa isa);

/// The instruction sets that processor, system and build support; each includes all before it.
const std::vector<Isa>& available_isas();

/// The one in use.
Isa isa();

/// The choice for SHERD_ISA = `wanted` among `available`; "" chooses automatically.
Isa chosen_isa(std::string_view wanted, const std::vector<Isa>& available, bool bf16_dots_pay);

/// For tests and benchmarks: changes `isa()` while it exists. Don't create it while kernels run.
class ForcedIsa {
 public:
  explicit ForcedIsa(Isa isa);
  ~ForcedIsa();
  ForcedIsa(const ForcedIsa&) = delete;
  ForcedIsa& operator=(const ForcedIsa&) = delete;

 private:
  Isa before_;
};

}  // namespace sherd::kernels
