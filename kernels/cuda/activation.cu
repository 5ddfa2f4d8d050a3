#include "kernels/body/activation.h"

#include "kernels/cuda/forms.h"
#include "kernels/cuda/launch.cuh"

namespace sherd::kernels::cuda {

using body::allow_packs;
using body::pack_of;

void activation_forward(Stream& stream, const ActivationForward& args) {
  dispatch_float(args.x.dtype, [&]<class T>(T) {
    constexpr int N = pack_of<T>();
    const T* x = args.x.as<T>();
    T* y = args.y.as<T>();
    const bool packs = allow_packs(x, y);
    switch (args.shape.kind) {
      case ActivationKind::kGelu:
        return launch_flat<N>(stream, "gelu_forward", args.y.numel, packs,
                              body::GeluForward<T>{x, y});
      case ActivationKind::kSwiGlu:
        return launch_flat<N>(stream, "swiglu_forward", args.y.numel,
                              packs && args.shape.width % N == 0,
                              body::SwigluForward<T>{x, y, args.shape.width});
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
                              body::GeluBackward<T>{x, dy, dx});
      case ActivationKind::kSwiGlu:
        return launch_flat<N>(stream, "swiglu_backward", args.dy.numel,
                              packs && args.shape.width % N == 0,
                              body::SwigluBackward<T>{x, dy, dx, args.shape.width});
    }
  });
}

}  // namespace sherd::kernels::cuda
