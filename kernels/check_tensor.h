/// Checks that the kernels' device-independent functions make on their tensor arguments.
#pragma once

#include <string_view>

#include "core/error.h"
#include "core/tensor.h"

namespace sherd::kernels {

/// CHECKs that the tensor exists, with this type and exactly this many elements.
inline void check_tensor(std::string_view label, const ConstTensor& tensor, DType dtype,
                         std::int64_t numel) {
  SHERD_CHECK(tensor && tensor.dtype == dtype && tensor.numel == numel,
              "{} is {} [{}], expected {} [{}]", label, name_of(tensor.dtype), tensor.numel,
              name_of(dtype), numel);
}

}  // namespace sherd::kernels
