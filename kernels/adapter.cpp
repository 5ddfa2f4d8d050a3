#include "kernels/adapter.h"

#include "core/error.h"
#include "kernels/cpu/adapter.h"
#include "kernels/cuda/adapter.h"

namespace sherd::kernels {
namespace {

bool is_cuda(const Stream& stream) {
  return stream.device() == DeviceKind::kCuda;
}

void check(const Columns& columns, ConstTensor wide, ConstTensor narrow) {
  CHECK(columns.first >= 0 && columns.first + columns.count <= columns.width,
        "columns {} to {} of {}", columns.first, columns.first + columns.count, columns.width);
  CHECK(wide.numel == columns.rows * columns.width && narrow.numel == columns.rows * columns.count,
        "{} and {} elements for {} rows of {} and {} columns", wide.numel, narrow.numel,
        columns.rows, columns.width, columns.count);
  CHECK(wide.dtype == narrow.dtype, "columns of {} and {}", name_of(wide.dtype),
        name_of(narrow.dtype));
}

}  // namespace

void add_to_columns(Stream& stream, const Columns& columns, ConstTensor z, float scale, Tensor y) {
  check(columns, y, z);
  if (is_cuda(stream)) return cuda::add_to_columns(stream, columns, z, scale, y);
  stream.run("add_to_columns",
             [=, &stream] { cpu::add_to_columns(stream.team(), columns, z, scale, y); });
}

void take_columns(Stream& stream, const Columns& columns, ConstTensor y, float scale, Tensor z) {
  check(columns, y, z);
  if (is_cuda(stream)) return cuda::take_columns(stream, columns, y, scale, z);
  stream.run("take_columns",
             [=, &stream] { cpu::take_columns(stream.team(), columns, y, scale, z); });
}

void fill_uniform(Stream& stream, Tensor out, const RandomAddress& address,
                  std::int64_t first_element, float bound) {
  CHECK(out.dtype == DType::kF32, "fill_uniform into {}", name_of(out.dtype));
  if (is_cuda(stream)) return cuda::fill_uniform(stream, out, address, first_element, bound);
  stream.run("fill_uniform", [=, &stream] {
    cpu::fill_uniform(stream.team(), out, address, first_element, bound);
  });
}

}  // namespace sherd::kernels
