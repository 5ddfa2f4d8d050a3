#include "kernels/device_common/activation.h"

#include "kernels/cuda/forms.h"
#include "kernels/cuda/launch.cuh"

namespace sherd::kernels::cuda {
namespace {

using device_common::allow_packs;
using device_common::pack_of;

/// Calls `use.template operator()<A, gated>()` with the form of A.
template <class Use>
void dispatch_activation(ActivationKind kind, const Use& use) {
  switch (kind) {
    case ActivationKind::kGelu:
      return use.template operator()<device_common::Gelu, false>();
    case ActivationKind::kGeluErf:
      return use.template operator()<device_common::GeluErf, false>();
    case ActivationKind::kRelu2:
      return use.template operator()<device_common::Relu2, false>();
    case ActivationKind::kSwiGlu:
      return use.template operator()<device_common::Gated<device_common::Silu>, true>();
    case ActivationKind::kGeGlu:
      return use.template operator()<device_common::Gated<device_common::Gelu>, true>();
    case ActivationKind::kClampedSwiGlu:
      return use.template operator()<device_common::ClampedSwiGlu, true>();
  }
  SHERD_CHECK(false, "an activation of kind {}", static_cast<int>(kind));
}

}  // namespace

void activation_forward(Stream& stream, const ActivationForward& args) {
  dispatch_float(args.x.dtype, [&]<class T>(T) {
    constexpr int N = pack_of<T>();
    const T* x = args.x.as<T>();
    T* y = args.y.as<T>();
    const bool packs = allow_packs(x, y);
    const std::int64_t width = args.shape.width;
    dispatch_activation(args.shape.kind, [&]<class A, bool kGated>() {
      if constexpr (kGated) {
        launch_flat<N>(stream, "activation_forward", args.y.numel, packs && width % N == 0,
                       device_common::GatedForward<A, T>{x, y, width});
      } else {
        launch_flat<N>(stream, "activation_forward", args.y.numel, packs,
                       device_common::PlainForward<A, T>{x, y});
      }
    });
  });
}

void activation_backward(Stream& stream, const ActivationBackward& args) {
  dispatch_float(args.x.dtype, [&]<class T>(T) {
    constexpr int N = pack_of<T>();
    const T* x = args.x.as<T>();
    const T* dy = args.dy.as<T>();
    T* dx = args.dx.as<T>();
    const bool packs = allow_packs(x, dy, dx);
    const std::int64_t width = args.shape.width;
    dispatch_activation(args.shape.kind, [&]<class A, bool kGated>() {
      if constexpr (kGated) {
        launch_flat<N>(stream, "activation_backward", args.dy.numel, packs && width % N == 0,
                       device_common::GatedBackward<A, T>{x, dy, dx, width});
      } else {
        launch_flat<N>(stream, "activation_backward", args.dy.numel, packs,
                       device_common::PlainBackward<A, T>{x, dy, dx});
      }
    });
  });
}

}  // namespace sherd::kernels::cuda
