#include "kernels/cuda/columns.h"

#include "kernels/cuda/launch.cuh"
#include "kernels/device_common/columns.h"

namespace sherd::kernels::cuda {

void add_to_columns(Stream& stream, const Columns& columns, const ConstTensor& z, float scale,
                    const Tensor& y) {
  dispatch_float(y.dtype, [&]<class T>(T) {
    launch_flat<1>(stream, "add_to_columns", z.numel, false,
                   device_common::AddToColumns<T>{columns, z.as<T>(), scale, y.as<T>()});
  });
}

void take_columns(Stream& stream, const Columns& columns, const ConstTensor& y, float scale,
                  const Tensor& z) {
  dispatch_float(z.dtype, [&]<class T>(T) {
    launch_flat<1>(stream, "take_columns", z.numel, false,
                   device_common::TakeColumns<T>{columns, y.as<T>(), scale, z.as<T>()});
  });
}

void store_columns(Stream& stream, const Columns& columns, const ConstTensor& values,
                   const Tensor& y) {
  dispatch_float(y.dtype, [&]<class T>(T) {
    launch_flat<1>(stream, "store_columns", values.numel, false,
                   device_common::StoreColumns<T>{columns, values.as<float>(), y.as<T>()});
  });
}

void clear_columns(Stream& stream, const Columns& columns, const Tensor& y) {
  dispatch_float(y.dtype, [&]<class T>(T) {
    launch_flat<1>(stream, "clear_columns", columns.rows * columns.count, false,
                   device_common::ClearColumns<T>{columns, y.as<T>()});
  });
}

// The way of context ranks' heads: 16 bytes at a time where they lie so.
void move_columns(Stream& stream, const Columns& from, const ConstTensor& x, const Columns& to,
                  const Tensor& y) {
  const auto move = [&]<class T>(T, const Columns& source, const Columns& target) {
    launch_flat<1>(stream, "move_columns", source.rows * source.count, false,
                   device_common::MoveColumns<T>{source, target, static_cast<const T*>(x.data),
                                                 static_cast<T*>(y.data)});
  };
  const std::size_t size = size_of(y.dtype);
  const bool in_words =
      device_common::are_words(from, size) && device_common::are_words(to, size) &&
      device_common::allow_packs(static_cast<const char*>(x.data), static_cast<char*>(y.data));
  if (in_words) {
    return move(device_common::Words{}, device_common::in_words(from, size),
                device_common::in_words(to, size));
  }
  dispatch_float(y.dtype, [&]<class T>(T zero) { move(zero, from, to); });
}

}  // namespace sherd::kernels::cuda
