#include "kernels/cpu/interleaved.h"

#include <vector>

#include "kernels/cpu/matmul/pack_forms.h"

namespace sherd::kernels::cpu {
namespace {

// Sixteen rows of `units` words, into [units][16].
void turn(const float* rows, std::int64_t units, float* out) {
  const std::int64_t whole = units / 8 * 8;
  for (std::int64_t first = 0; first < kInterleaved; first += 8) {
    const float* eight = rows + first * units;
    for (std::int64_t u = 0; u < whole; u += 8) {
      Float8 row[8], unit[8];
      for (int i = 0; i < 8; ++i) row[i] = load8(eight + i * units + u);
      transpose<8>(row, unit);
      for (int i = 0; i < 8; ++i) store8(out + (u + i) * kInterleaved + first, unit[i]);
    }
    for (std::int64_t u = whole; u < units; ++u) {
      for (int i = 0; i < 8; ++i) {
        std::memcpy(out + u * kInterleaved + first + i, eight + i * units + u, sizeof(float));
      }
    }
  }
}

}  // namespace

void interleave(ThreadTeam& team, const Tensor& w, std::int64_t inputs) {
  const std::int64_t units = inputs * static_cast<std::int64_t>(size_of(w.dtype)) / 4;
  const std::int64_t groups = interleaved_rows(w.numel / inputs) / kInterleaved;
  team.parallel_for(groups, [&](std::int64_t group, int) {
    auto* rows = static_cast<float*>(w.data) + group * kInterleaved * units;
    std::vector<float> turned(static_cast<std::size_t>(kInterleaved * units));
    turn(rows, units, turned.data());
    std::memcpy(rows, turned.data(), turned.size() * sizeof(float));
  });
}

}  // namespace sherd::kernels::cpu
