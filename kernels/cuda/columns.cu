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

}  // namespace sherd::kernels::cuda
