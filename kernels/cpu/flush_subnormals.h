/// While an object exists, this thread's subnormals count as zero, as operands and as results. This
/// is the arithmetic of bf16 dot products, whichever code computes them.
#pragma once

#ifdef __SSE2__
#include <immintrin.h>
#endif

namespace sherd::kernels::cpu {

class FlushSubnormals {
 public:
  explicit FlushSubnormals(bool active) : active_(active) {
#ifdef __SSE2__
    if (!active_) return;
    before_ = _mm_getcsr();
    _mm_setcsr(before_ | 0x8040u);  // flush to zero, denormals are zero
#endif
  }
  ~FlushSubnormals() {
#ifdef __SSE2__
    if (active_) _mm_setcsr(before_);
#endif
  }
  FlushSubnormals(const FlushSubnormals&) = delete;
  FlushSubnormals& operator=(const FlushSubnormals&) = delete;

 private:
  bool active_;
  unsigned before_ = 0;
};

}  // namespace sherd::kernels::cpu
