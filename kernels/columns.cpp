#include "kernels/columns.h"

#include <algorithm>

#include "kernels/cpu/blocks.h"
#include "kernels/dispatch_float.h"

namespace sherd::kernels {
namespace {

void check(const Stream& stream, const Columns& columns, const Tensor& x) {
  CHECK(x.numel == columns.rows * columns.width && columns.first >= 0 && columns.count >= 0 &&
            columns.first + columns.count <= columns.width,
        "columns [{}, +{}) of [{}, {}] in {} elements", columns.first, columns.count, columns.rows,
        columns.width, x.numel);
  CHECK(stream.device() != DeviceKind::kCuda, "columns of a matrix on a GPU");
}

}  // namespace

void store_columns(Stream& stream, const Columns& columns, ConstTensor values, Tensor x) {
  check(stream, columns, x);
  CHECK(values.dtype == DType::kF32 && values.numel == columns.rows * columns.count,
        "{} values for {} columns of {} rows", values.numel, columns.count, columns.rows);
  stream.run("store_columns", [=, &stream] {
    dispatch_float(x.dtype, [&]<class T>(T) {
      cpu::parallel_rows(stream.team(), columns.rows, columns.count, [&](std::int64_t t) {
        cpu::narrow(values.as<float>() + t * columns.count,
                    x.as<T>() + t * columns.width + columns.first, columns.count);
      });
    });
  });
}

void clear_columns(Stream& stream, const Columns& columns, Tensor x) {
  check(stream, columns, x);
  stream.run("clear_columns", [=, &stream] {
    dispatch_float(x.dtype, [&]<class T>(T) {
      cpu::parallel_rows(stream.team(), columns.rows, columns.count, [&](std::int64_t t) {
        std::fill_n(x.as<T>() + t * columns.width + columns.first, columns.count, T{});
      });
    });
  });
}

}  // namespace sherd::kernels
