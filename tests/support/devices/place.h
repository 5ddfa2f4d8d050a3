/// Where a kernel test's tensors are: one test body runs on the CPU and, if there is one, on the
/// GPU, through the same functions.
///
///   Outputs work(Place& place) {
///     OwnedTensor y(...);
///     relu(place.stream(), place.in(x), place.out(y));   // takes host tensors
///     place.finish();                                    // copies the results back
///     return {y};
///   }
///
/// On a GPU every tensor is between two fences of 64 bytes of 0xff, with the same offset from a
/// multiple of 64 as on the host, and starts with the host tensor's contents. `finish` waits,
/// copies outputs back, and fails the test if a fence was overwritten.
#pragma once

#include "core/cuda_device.h"
#include "kernels/device.h"
#include "tests/support/values/tensors.h"

namespace sherd::test {

class Place {
 public:
  virtual ~Place() = default;
  virtual Stream& stream() = 0;
  /// Valid until `finish`. Empty tensors stay empty.
  virtual ConstTensor in(ConstTensor host) = 0;
  virtual Tensor out(Tensor host) = 0;
  /// Scratch for a kernel, filled with 0xff.
  virtual Tensor scratch(std::int64_t num_bytes) = 0;
  virtual void finish() = 0;

  kernels::ComputeDevice device() { return kernels::compute_device(stream()); }
};

using Work = std::function<Outputs(Place&)>;

Outputs on_cpu(const Work& work);
/// Runs `work` twice and expects bit-identical results.
Outputs on_gpu(const Work& work, CudaStreamOptions options = {});

/// Skips its tests, with the reason, if there is no GPU.
class OnGpu : public ::testing::Test {
 protected:
  void SetUp() override;
};
class OnGpuInEveryType : public ::testing::TestWithParam<DType> {
 protected:
  void SetUp() override;
  /// Random numbers in the test's type.
  OwnedTensor filled(std::int64_t numel, std::uint64_t seed, double scale = 1.0) const {
    return {GetParam(), random_values(numel, seed, scale)};
  }
  static void same_bits_as_cpu(const Work& work, const std::string& label);
};

/// Every output is bit-identical.
::testing::AssertionResult same_bits(const Outputs& actual, const Outputs& expected);

}  // namespace sherd::test
