#include "kernels/cpu/matmul/tile.h"

#include <algorithm>
#include <chrono>
#include <iterator>
#include <vector>

namespace sherd::kernels::cpu {

const TileKernels& float_tiles(Isa isa) {
  return isa == Isa::kAvx2 ? *avx2_float_tiles() : *avx512_float_tiles();
}

const TileKernels* bf16_tiles(Isa isa) {
  switch (isa) {
    case Isa::kAvx512Bf16:
      return avx512_bf16_pair_tiles();
    case Isa::kAmx:
      return amx_tiles();
    default:
      return nullptr;
  }
}

const TileKernels& tiles_of(DType dtype, Isa isa) {
  const TileKernels* bf16 = dtype == DType::kBF16 ? bf16_tiles(isa) : nullptr;
  return bf16 ? *bf16 : float_tiles(isa);
}

double tile_rate(DType dtype, Isa isa) {
  constexpr std::int64_t kUnits = 128;
  constexpr int kRounds = 20, kTiles = 8;
  const TileKernels& tiles = tiles_of(dtype, isa);
  alignas(64) float a[kMaxTileRows * kUnits], b[kMaxTileColumns * kUnits];
  alignas(64) float c[kMaxTileRows * kMaxTileColumns];
  std::fill(std::begin(a), std::end(a), 1.0f);
  std::fill(std::begin(b), std::end(b), 1.0f);
  const Tile tile{.depth = kUnits, .a = a, .b = b, .c = c, .c_stride = kMaxTileColumns};
  double best = 1e9;
  if (tiles.begin) tiles.begin();
  for (int round = 0; round < kRounds; ++round) {
    const auto start = std::chrono::steady_clock::now();
    for (int i = 0; i < kTiles; ++i) tiles.multiply_packed(tile, tiles.rows, tiles.columns);
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
    best = std::min(best, seconds.count());
  }
  if (tiles.end) tiles.end();
  const double per_unit = tiles.units == Units::kFloats ? 2.0 : 4.0;
  return kTiles * per_unit * kUnits * tiles.rows * tiles.columns / best;
}

bool bf16_dots_pay() {
  const std::vector<Isa>& isas = available_isas();
  if (std::find(isas.begin(), isas.end(), Isa::kAvx512Bf16) == isas.end()) return false;
  return tile_rate(DType::kBF16, Isa::kAvx512Bf16) > tile_rate(DType::kBF16, Isa::kAvx512);
}

bool is_compiled(Isa isa) {
  switch (isa) {
    case Isa::kAvx2:
      return true;
    case Isa::kAvx512:
      return avx512_float_tiles() != nullptr;
    case Isa::kAvx512Bf16:
      return avx512_bf16_pair_tiles() != nullptr;
    case Isa::kAmx:
      return amx_tiles() != nullptr;
  }
  return false;
}

}  // namespace sherd::kernels::cpu
