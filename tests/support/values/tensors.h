/// Shared by kernel tests: tensors that own their bytes, numbers to fill them with, and comparisons
/// that report where and by how much two results differ.
///
/// Tests, kernels and oracles exchange values as `std::vector<double>`. A tensor is filled with
/// values rounded once to its type and read back exactly, so kernel and oracle use the same
/// numbers.
#pragma once

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "core/stream.h"
#include "core/tensor.h"

namespace sherd::test {

using Values = std::vector<double>;

/// Uniform in [-scale, scale), from splitmix64: deterministic, and unrelated to Philox.
Values random_values(std::int64_t numel, std::uint64_t seed, double scale = 1.0);
/// Uniform in [0, bound).
std::vector<std::int32_t> random_tokens(std::int64_t numel, std::int64_t bound, std::uint64_t seed);

/// Elements of one type, aligned to 64 bytes, between two fences of 64 bytes of 0xff (a NaN in
/// every float type). A new tensor is also filled with 0xff, to reveal elements that a kernel
/// doesn't write and reads past the end. Writing a fence fails the test; the address sanitizer also
/// detects reads.
class OwnedTensor {
 public:
  OwnedTensor(DType dtype, std::int64_t numel);
  OwnedTensor(DType dtype, const Values& values);
  explicit OwnedTensor(const std::vector<std::int32_t>& tokens);
  OwnedTensor(const OwnedTensor& other);
  OwnedTensor(OwnedTensor&& other) noexcept;
  OwnedTensor& operator=(const OwnedTensor&) = delete;
  ~OwnedTensor();

  operator Tensor() { return tensor_; }             // NOLINT: an owner is the tensor it holds
  operator ConstTensor() const { return tensor_; }  // NOLINT
  const Tensor& tensor() const { return tensor_; }
  std::int64_t numel() const { return tensor_.numel; }
  Values values() const;

 private:
  unsigned char* block_ = nullptr;
  Tensor tensor_;
};

/// Scratch for a kernel, filled with 0xff: kernels must not rely on zeros.
inline OwnedTensor workspace(std::int64_t num_bytes) {
  return {DType::kU8, num_bytes};
}

Values values_of(ConstTensor tensor);
/// `values` rounded to `dtype`: the numbers that a tensor made from them holds.
Values rounded(DType dtype, const Values& values);
/// `value` as a tensor of one element holds it.
double rounded(DType dtype, double value);

/// |actual - expected| <= relative * |expected| + floor * rms(expected) + absolute, plus `of_terms`
/// times the sum of the terms' absolute values, if these are given.
struct Tolerance {
  double relative = 0.0;
  double floor = 0.0;
  double absolute = 0.0;
  double of_terms = 0.0;

  Tolerance times(double factor) const {
    return {relative * factor, floor * factor, absolute * factor, of_terms * factor};
  }
};

/// Arithmetic in f32, then one rounding to `dtype`.
///
///   f32    4e-6 of the element and of the array's rms: some tens of f32 roundings (2^-24 = 6e-8
///          each); sums of up to about 1000 terms whose signs cancel stay well below this.
///   bf16   one rounding to 8 significant bits, at most 2^-8; before it, as f32.
///   f16    one rounding to 11 significant bits, at most 2^-11; before it, as f32; below 2^-14 the
///          rounding is half a unit of 2^-24.
Tolerance rounded_once(DType dtype);
/// The same for attention. With bf16 heads, its weights (p and ds) are rounded to bf16, which
/// changes a sum by at most 2^-8 of the sum of its terms' absolute values.
Tolerance attended(DType dtype);
/// Tolerance, relative to the array's rms, for comparing kernels of which only one rounds weights
/// that way, if terms aren't known.
inline double weights_of_other_kernels(DType dtype) {
  return dtype == DType::kBF16 ? 0x1p-4 : 0.0;
}

::testing::AssertionResult close(const Values& actual, const Values& expected, Tolerance tolerance,
                                 const Values& sizes_of_terms = {});
inline ::testing::AssertionResult close(const OwnedTensor& actual, const Values& expected,
                                        Tolerance tolerance, const Values& sizes_of_terms = {}) {
  return close(actual.values(), expected, tolerance, sizes_of_terms);
}
/// |actual - expected| <= bounds, element by element.
::testing::AssertionResult within(const Values& actual, const Values& expected,
                                  const Values& bounds);
/// Same type, count and bytes; a NaN equals itself.
::testing::AssertionResult same_bits(ConstTensor actual, ConstTensor expected);

std::unique_ptr<Stream> compute_stream(int num_threads = 1);

using Outputs = std::vector<OwnedTensor>;
/// Calls `run` with streams of 1, 2 and 4 threads on every instruction set of this machine. Expects
/// bit-identical results from all, and returns the results of one thread.
Outputs on_any_number_of_threads(const std::function<Outputs(Stream&)>& run);

/// For parameterised tests over element types.
inline std::string type_name(const ::testing::TestParamInfo<DType>& info) {
  return std::string(name_of(info.param));
}
inline auto compute_types() {
  return ::testing::Values(DType::kF32, DType::kBF16, DType::kF16);
}

}  // namespace sherd::test
