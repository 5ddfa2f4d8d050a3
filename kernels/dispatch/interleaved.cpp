#include "kernels/interleaved.h"

#include "core/thread_team.h"
#include "kernels/cpu/interleaved.h"
#include "kernels/cpu/matmul/tile.h"
#include "kernels/device.h"
#include "kernels/isa.h"

namespace sherd::kernels {

bool can_interleave(DType dtype, std::int64_t inputs) {
  if (dtype == DType::kF32) return true;
  return dtype == DType::kBF16 && inputs % 2 == 0 &&
         cpu::tiles_of(dtype, isa()).units != cpu::Units::kTiles;
}

void interleave(Stream& stream, const Tensor& w, std::int64_t inputs) {
  SHERD_CHECK(!is_cuda(stream) && can_interleave(w.dtype, inputs), "interleave: {} with {} inputs",
              name_of(w.dtype), inputs);
  SHERD_CHECK(w.numel % inputs == 0, "interleave: {} elements in rows of {}", w.numel, inputs);
  stream.run("interleave", [&stream, w, inputs] { cpu::interleave(stream.team(), w, inputs); });
}

}  // namespace sherd::kernels
