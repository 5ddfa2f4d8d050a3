#include "kernels/columns.h"

#include "core/error.h"
#include "kernels/cpu/columns.h"
#include "kernels/cuda/columns.h"
#include "kernels/device.h"
#include "kernels/launches/on_gpu.h"

namespace sherd::kernels {
namespace {

void check(const Columns& columns, const ConstTensor& matrix) {
  SHERD_CHECK(
      columns.first >= 0 && columns.count >= 0 && columns.first + columns.count <= columns.width,
      "columns [{}, +{}) of {}", columns.first, columns.count, columns.width);
  SHERD_CHECK(matrix.numel == columns.rows * columns.width, "{} elements for {} rows of {}",
              matrix.numel, columns.rows, columns.width);
}

void check(const Columns& columns, const ConstTensor& matrix, const ConstTensor& part,
           DType part_type) {
  check(columns, matrix);
  SHERD_CHECK(part.numel == columns.rows * columns.count && part.dtype == part_type,
              "{} elements of {} for {} rows of {} columns", part.numel, name_of(part.dtype),
              columns.rows, columns.count);
}

}  // namespace

void add_to_columns(Stream& stream, const Columns& columns, ConstTensor z, float scale, Tensor y) {
  check(columns, y, z, y.dtype);
  if (is_cuda(stream))
    return on_gpu(stream, cuda::add_to_columns, launches::add_to_columns, columns, z, scale, y);
  stream.run("add_to_columns",
             [=, &stream] { cpu::add_to_columns(stream.team(), columns, z, scale, y); });
}

void take_columns(Stream& stream, const Columns& columns, ConstTensor y, float scale, Tensor z) {
  check(columns, y, z, y.dtype);
  if (is_cuda(stream))
    return on_gpu(stream, cuda::take_columns, launches::take_columns, columns, y, scale, z);
  stream.run("take_columns",
             [=, &stream] { cpu::take_columns(stream.team(), columns, y, scale, z); });
}

void store_columns(Stream& stream, const Columns& columns, ConstTensor values, Tensor y) {
  check(columns, y, values, DType::kF32);
  if (is_cuda(stream))
    return on_gpu(stream, cuda::store_columns, launches::store_columns, columns, values, y);
  stream.run("store_columns",
             [=, &stream] { cpu::store_columns(stream.team(), columns, values, y); });
}

void clear_columns(Stream& stream, const Columns& columns, Tensor y) {
  check(columns, y);
  if (is_cuda(stream))
    return on_gpu(stream, cuda::clear_columns, launches::clear_columns, columns, y);
  stream.run("clear_columns", [=, &stream] { cpu::clear_columns(stream.team(), columns, y); });
}

void move_columns(Stream& stream, const Columns& from, ConstTensor x, const Columns& to, Tensor y) {
  check(from, x);
  check(to, y);
  SHERD_CHECK(from.rows == to.rows && from.count == to.count && x.dtype == y.dtype,
              "move_columns: {} rows of {} columns to {} of {}", from.rows, from.count, to.rows,
              to.count);
  if (is_cuda(stream))
    return on_gpu(stream, cuda::move_columns, launches::move_columns, from, x, to, y);
  stream.run("move_columns", [=, &stream] { cpu::move_columns(stream.team(), from, x, to, y); });
}

}  // namespace sherd::kernels
