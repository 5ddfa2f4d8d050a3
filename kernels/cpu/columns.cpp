#include "kernels/cpu/columns.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "kernels/cpu/blocks.h"
#include "kernels/dispatch_float.h"

namespace sherd::kernels::cpu {

void add_to_columns(ThreadTeam& team, const Columns& columns, ConstTensor z, float scale,
                    Tensor y) {
  dispatch_float(y.dtype, [&]<class T>(T) {
    const T* from = z.as<T>();
    T* to = y.as<T>();
    parallel_rows(team, columns.rows, columns.count, [&](std::int64_t row) {
      const T* z_C = from + row * columns.count;
      T* y_C = to + row * columns.width + columns.first;
      for_each_block(0, columns.count, [&](std::int64_t first, int count) {
        BlockScratch z_scratch, old_scratch, sum_scratch;
        const float* added = load_block(z_C + first, count, z_scratch);
        const float* old = load_block(y_C + first, count, old_scratch);
        float* sum = block_target(y_C + first, sum_scratch);
#pragma omp simd
        for (int i = 0; i < count; ++i) sum[i] = std::fma(scale, added[i], old[i]);
        store_block(y_C + first, count, sum_scratch);
      });
    });
  });
}

void take_columns(ThreadTeam& team, const Columns& columns, ConstTensor y, float scale, Tensor z) {
  dispatch_float(z.dtype, [&]<class T>(T) {
    const T* from = y.as<T>();
    T* to = z.as<T>();
    parallel_rows(team, columns.rows, columns.count, [&](std::int64_t row) {
      const T* y_C = from + row * columns.width + columns.first;
      T* z_C = to + row * columns.count;
      for_each_block(0, columns.count, [&](std::int64_t first, int count) {
        BlockScratch y_scratch, z_scratch;
        const float* values = load_block(y_C + first, count, y_scratch);
        float* scaled = block_target(z_C + first, z_scratch);
#pragma omp simd
        for (int i = 0; i < count; ++i) scaled[i] = scale * values[i];
        store_block(z_C + first, count, z_scratch);
      });
    });
  });
}

void store_columns(ThreadTeam& team, const Columns& columns, ConstTensor values, Tensor y) {
  dispatch_float(y.dtype, [&]<class T>(T) {
    parallel_rows(team, columns.rows, columns.count, [&](std::int64_t t) {
      narrow(values.as<float>() + t * columns.count, y.as<T>() + t * columns.width + columns.first,
             columns.count);
    });
  });
}

void clear_columns(ThreadTeam& team, const Columns& columns, Tensor y) {
  dispatch_float(y.dtype, [&]<class T>(T) {
    parallel_rows(team, columns.rows, columns.count, [&](std::int64_t t) {
      std::fill_n(y.as<T>() + t * columns.width + columns.first, columns.count, T{});
    });
  });
}

void move_columns(ThreadTeam& team, const Columns& from, ConstTensor x, const Columns& to,
                  Tensor y) {
  const std::size_t element = size_of(y.dtype);
  const auto* source = static_cast<const char*>(x.data);
  auto* target = static_cast<char*>(y.data);
  parallel_rows(team, from.rows, from.count, [&](std::int64_t t) {
    std::memcpy(target + static_cast<std::size_t>(t * to.width + to.first) * element,
                source + static_cast<std::size_t>(t * from.width + from.first) * element,
                static_cast<std::size_t>(from.count) * element);
  });
}

}  // namespace sherd::kernels::cpu
