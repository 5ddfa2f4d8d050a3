#include "kernels/device_common/activation.h"

#include "kernels/cuda/forms.h"
#include "kernels/cuda/launch.cuh"

namespace sherd::kernels::cuda {

using device_common::allow_packs;
using device_common::pack_of;

void activation_forward(Stream& stream, const ActivationForward& args) {
  dispatch_float(args.x.dtype, [&]<class T>(T) {
    constexpr int N = pack_of<T>();
    const T* x = args.x.as<T>();
    T* y = args.y.as<T>();
    const bool packs = allow_packs(x, y);
    switch (args.shape.kind) {
      case ActivationKind::kGelu:
        return launch_flat<N>(stream, "gelu_forward", args.y.numel, packs,
                              device_common::GeluForward<T>{x, y});
      case ActivationKind::kSwiGlu:
        return launch_flat<N>(stream, "swiglu_forward", args.y.numel,
                              packs && args.shape.width % N == 0,
                              device_common::SwigluForward<T>{x, y, args.shape.width});
      default:
        CHECK(false, "an activation that has no CUDA kernel");
    }
  });
}

void activation_backward(Stream& stream, const ActivationBackward& args) {
  dispatch_float(args.x.dtype, [&]<class T>(T) {
    constexpr int N = pack_of<T>();
    const T* x = args.x.as<T>();
    const T* dy = args.dy.as<T>();
    T* dx = args.dx.as<T>();
    const bool packs = allow_packs(x, dy, dx);
    switch (args.shape.kind) {
      case ActivationKind::kGelu:
        return launch_flat<N>(stream, "gelu_backward", args.dy.numel, packs,
                              device_common::GeluBackward<T>{x, dy, dx});
      case ActivationKind::kSwiGlu:
        return launch_flat<N>(stream, "swiglu_backward", args.dy.numel,
                              packs && args.shape.width % N == 0,
                              device_common::SwigluBackward<T>{x, dy, dx, args.shape.width});
      default:
        CHECK(false, "an activation that has no CUDA kernel");
    }
  });
}

}  // namespace sherd::kernels::cuda
