/// Views of elements in memory: a pointer, a type, a count. They own nothing.
///
/// Everything that computes takes a `Tensor` (written) or a `ConstTensor` (read). Shapes are stated
/// by the function that takes them, row-major, last index fastest.
#pragma once

#include <cstdint>

#include "core/dtype.h"
#include "core/error.h"

namespace sherd {

/// Elements [first, first + count) of a tensor.
struct ElementRange {
  std::int64_t first = 0, count = 0;
  bool operator==(const ElementRange&) const = default;
};

struct Tensor {
  void* data = nullptr;
  DType dtype = DType::kF32;
  std::int64_t numel = 0;

  explicit operator bool() const { return data != nullptr; }
  std::int64_t bytes() const { return numel * static_cast<std::int64_t>(size_of(dtype)); }

  template <class T>
  T* as() const {
    SHERD_CHECK(data == nullptr || dtype == dtype_of<T>, "a {} tensor read as {}", name_of(dtype),
                name_of(dtype_of<T>));
    return static_cast<T*>(data);
  }
  /// Elements [first, first + count).
  Tensor part(std::int64_t first, std::int64_t count) const {
    SHERD_CHECK(first >= 0 && count >= 0 && first + count <= numel, "part [{}, +{}) of {} elements",
                first, count, numel);
    return {static_cast<char*>(data) + first * static_cast<std::int64_t>(size_of(dtype)), dtype,
            count};
  }
};

struct ConstTensor {
  const void* data = nullptr;
  DType dtype = DType::kF32;
  std::int64_t numel = 0;

  ConstTensor() = default;
  ConstTensor(const void* data_, DType dtype_, std::int64_t numel_)
      : data(data_), dtype(dtype_), numel(numel_) {}
  ConstTensor(const Tensor& tensor)  // NOLINT: a writable view is a readable one
      : data(tensor.data), dtype(tensor.dtype), numel(tensor.numel) {}

  explicit operator bool() const { return data != nullptr; }
  std::int64_t bytes() const { return numel * static_cast<std::int64_t>(size_of(dtype)); }

  template <class T>
  const T* as() const {
    SHERD_CHECK(data == nullptr || dtype == dtype_of<T>, "a {} tensor read as {}", name_of(dtype),
                name_of(dtype_of<T>));
    return static_cast<const T*>(data);
  }
  ConstTensor part(std::int64_t first, std::int64_t count) const {
    SHERD_CHECK(first >= 0 && count >= 0 && first + count <= numel, "part [{}, +{}) of {} elements",
                first, count, numel);
    return {static_cast<const char*>(data) + first * static_cast<std::int64_t>(size_of(dtype)),
            dtype, count};
  }
};

}  // namespace sherd
