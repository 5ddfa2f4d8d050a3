#include "kernels/device_common/pointwise.h"

#include "kernels/cuda/forms.h"
#include "kernels/cuda/launch.cuh"

namespace sherd::kernels::cuda {

using device_common::allow_packs;
using device_common::pack_of;

void fill_zero(Stream& stream, const Tensor& x) {
  if (x.bytes() == 0) return;
  check_cuda(cudaMemsetAsync(x.data, 0, static_cast<std::size_t>(x.bytes()), handle_of(stream)),
             "cudaMemsetAsync");
}

void fill_constant(Stream& stream, const Tensor& out, float value) {
  dispatch_float(out.dtype, [&]<class T>(T) {
    T* y = out.as<T>();
    launch_flat<pack_of<T>()>(stream, "fill_constant", out.numel, allow_packs(y),
                              device_common::Fill<T>{y, static_cast<T>(value)});
  });
}

void cast(Stream& stream, const ConstTensor& x, const Tensor& y) {
  if (x.dtype == y.dtype) {
    stream.copy(x.data, y.data, x.bytes());
    return;
  }
  dispatch_float(x.dtype, [&]<class From>(From) {
    dispatch_float(y.dtype, [&]<class To>(To) {
      if constexpr (!std::is_same_v<From, To>) {
        launch_flat<pack_of<From, To>()>(stream, "cast", x.numel, allow_packs(x.data, y.data),
                                         device_common::Cast<From, To>{x.as<From>(), y.as<To>()});
      }
    });
  });
}

void add(Stream& stream, const ConstTensor& x, const Tensor& accumulator) {
  dispatch_float(x.dtype, [&]<class T>(T) {
    dispatch_float(accumulator.dtype, [&]<class A>(A) {
      launch_flat<pack_of<T, A>()>(stream, "add", x.numel, allow_packs(x.data, accumulator.data),
                                   device_common::Add<T, A>{x.as<T>(), accumulator.as<A>()});
    });
  });
}

void move_towards(Stream& stream, const ConstTensor& x, float weight, const Tensor& average) {
  const device_common::MoveTowards work{x.as<float>(), weight, average.as<float>()};
  launch_flat<pack_of<float>()>(stream, "move_towards", x.numel, allow_packs(work.x, work.average),
                                work);
}

void exchange(Stream& stream, const Tensor& a, const Tensor& b) {
  const device_common::Exchange work{a.as<float>(), b.as<float>()};
  launch_flat<pack_of<float>()>(stream, "exchange", a.numel, allow_packs(work.a, work.b), work);
}

void residual_add(Stream& stream, const ConstTensor& residual, const ConstTensor& branch,
                  const Dropout& dropout, float scale, const Tensor& out) {
  dispatch_float(out.dtype, [&]<class T>(T) {
    const device_common::ResidualAdd<T> work{residual.as<T>(), branch.as<T>(),
                                             device_common::Mask(dropout), scale, out.as<T>()};
    launch_flat<pack_of<T>()>(
        stream, "residual_add", out.numel,
        allow_packs(work.residual, work.branch, work.out) && work.mask.keeps_packs(pack_of<T>()),
        work);
  });
}

void dropout_backward(Stream& stream, const ConstTensor& dy, const Dropout& dropout, float scale,
                      const Tensor& dx) {
  dispatch_float(dx.dtype, [&]<class T>(T) {
    const device_common::DropoutBackward<T> work{dy.as<T>(), device_common::Mask(dropout), scale,
                                                 dx.as<T>()};
    launch_flat<pack_of<T>()>(stream, "dropout_backward", dx.numel,
                              allow_packs(work.dy, work.dx) && work.mask.keeps_packs(pack_of<T>()),
                              work);
  });
}

void sum_in_order(Stream& stream, const ConstTensor* inputs, int num_inputs, const Tensor& out,
                  bool onto_out) {
  SHERD_CHECK(num_inputs >= 1 && num_inputs <= kMaxSumInputs, "a sum of {} buffers", num_inputs);
  dispatch_float(inputs[0].dtype, [&]<class In>(In) {
    dispatch_float(out.dtype, [&]<class Out>(Out) {
      device_common::SumInOrder<In, Out, kMaxSumInputs> work{
          {}, num_inputs, onto_out, out.as<Out>()};
      bool packs = allow_packs(work.out);
      for (int k = 0; k < num_inputs; ++k) {
        work.input[k] = inputs[k].as<In>();
        packs = packs && allow_packs(work.input[k]);
      }
      launch_flat<pack_of<In, Out>()>(stream, "sum_in_order", out.numel, packs, work);
    });
  });
}

void fill_uniform(Stream& stream, const Tensor& out, const RandomAddress& address,
                  std::int64_t first_element, float bound) {
  launch_flat<1>(stream, "fill_uniform", out.numel, false,
                 device_common::FillUniform{address, first_element, bound, out.as<float>()});
}

}  // namespace sherd::kernels::cuda
