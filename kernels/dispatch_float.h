/// Maps a tensor's type to a C++ type, for the CPU and GPU forms of kernels.
#pragma once

#include "core/dtype.h"
#include "core/error.h"

namespace sherd::kernels {

/// Calls `function(T{})` with the C++ type of a floating-point tensor type.
template <class Function>
decltype(auto) dispatch_float(DType dtype, Function&& function) {
  switch (dtype) {
    case DType::kF32:
      return function(float{});
    case DType::kBF16:
      return function(BFloat16{});
    case DType::kF16:
      return function(Float16{});
    default:
      break;
  }
  SHERD_CHECK(false, "{} where f32, bf16 or f16 was expected", name_of(dtype));
  __builtin_unreachable();
}

}  // namespace sherd::kernels
