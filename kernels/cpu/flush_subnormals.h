/// While an object exists, this thread's subnormals count as zero, as operands and as results. This
/// is the arithmetic of bf16 dot products, whichever code computes them.
///
/// Bits      x86-64 takes a result for subnormal after it is rounded, AArch64 before. They differ
///           where an exact result below the smallest normal number is rounded up to it.
#pragma once

#include <cstdint>

#ifdef __SSE2__
#include <immintrin.h>
#endif

namespace sherd::kernels::cpu {

class FlushSubnormals {
 public:
  explicit FlushSubnormals(bool active) : active_(active) {
    if (!active_) return;
    before_ = control();
    set_control(before_ | kFlush);
  }
  ~FlushSubnormals() {
    if (active_) set_control(before_);
  }
  FlushSubnormals(const FlushSubnormals&) = delete;
  FlushSubnormals& operator=(const FlushSubnormals&) = delete;

 private:
#if defined(__SSE2__)
  using Control = unsigned;                   // MXCSR
  static constexpr Control kFlush = 0x8040u;  // flush to zero, denormals are zero
  static Control control() {
    return _mm_getcsr();
  }
  static void set_control(Control value) {
    _mm_setcsr(value);
  }
#elif defined(__aarch64__)
  using Control = std::uint64_t;               // FPCR
  static constexpr Control kFlush = 1u << 24;  // FZ
  static Control control() {
    Control value;
    asm volatile("mrs %0, fpcr" : "=r"(value));
    return value;
  }
  static void set_control(Control value) {
    asm volatile("msr fpcr, %0" : : "r"(value) : "memory");
  }
#else
  using Control = unsigned;
  static constexpr Control kFlush = 0;
  static Control control() {
    return 0;
  }
  static void set_control(Control) {}
#endif

  bool active_;
  Control before_ = 0;
};

}  // namespace sherd::kernels::cpu
