/// What kernel tests share: tensors that own their bytes, numbers to fill them with, and
/// comparisons that say where and by how much two results differ.
///
/// Values travel between tests, kernels and oracles as `std::vector<double>`. A tensor is filled
/// with values rounded once to its type and read back exactly, so kernel and oracle see the same
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

/// Uniform in [-scale, scale), from splitmix64: deterministic, and no relative of Philox.
Values random_values(std::int64_t numel, std::uint64_t seed, double scale = 1.0);
/// Uniform in [0, bound).
std::vector<std::int32_t> random_tokens(std::int64_t numel, std::int64_t bound, std::uint64_t seed);

/// Elements of one type, aligned to 64 bytes, between two fences of 64 bytes of 0xff (a NaN in
/// every float type). A new tensor is filled with 0xff too: what a kernel fails to write, or reads
/// beyond the end, shows. Writing a fence fails the test; the address sanitizer sees reads as well.
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

/// Scratch for a kernel, filled with 0xff: kernels may not count on zeros.
inline OwnedTensor workspace(std::int64_t num_bytes) {
  return {DType::kU8, num_bytes};
}

Values values_of(ConstTensor tensor);
/// `values` rounded to `dtype`: the numbers that a tensor made from them holds.
Values rounded(DType dtype, const Values& values);
/// `value` as a tensor of one element holds it.
double rounded(DType dtype, double value);

/// |actual - expected| <= relative * |expected| + floor * rms(expected) + absolute, and `of_terms` of what the sizes
/// of a sum's terms add up to, where these are given.
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
///          each); sums of up to about 1000 terms whose signs cancel stay well inside.
///   bf16   one rounding to 8 significant bits, 2^-8 at most; inside as f32.
///   f16    one rounding to 11 significant bits, 2^-11 at most; inside as f32; below 2^-14 the
///          rounding is half a unit of 2^-24.
Tolerance rounded_once(DType dtype);
/// The same of attention, whose weights (p and ds) are rounded to bf16 where its heads are bf16: a sum moves by at most
/// 2^-8 of its terms' sizes.
Tolerance attended(DType dtype);
/// What one kernel rounds that way and another doesn't, as a part of the array's rms, where terms aren't known.
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
/// Same type, same count, same bytes; a NaN equals itself.
::testing::AssertionResult same_bits(ConstTensor actual, ConstTensor expected);

std::unique_ptr<Stream> compute_stream(int num_threads = 1);

using Outputs = std::vector<OwnedTensor>;
/// Calls `run` with streams of 1, 2 and 4 threads on every instruction set of this machine, expects
/// the same bits from all, and returns what one thread computed.
Outputs on_any_number_of_threads(const std::function<Outputs(Stream&)>& run);

/// For parameterised tests over element types.
inline std::string type_name(const ::testing::TestParamInfo<DType>& info) {
  return std::string(name_of(info.param));
}
inline auto compute_types() {
  return ::testing::Values(DType::kF32, DType::kBF16, DType::kF16);
}

}  // namespace sherd::test
