/// Where a kernel test's tensors lie: one test body runs on the CPU and, where there is a GPU, on
/// that, through the same fronts.
///
///   Outputs work(Place& place) {
///     OwnedTensor y(...);
///     relu(place.stream(), place.in(x), place.out(y));   // tensors of the host go in
///     place.finish();                                    // and their results come back
///     return {y};
///   }
///
/// On a GPU every tensor stands between two fences of 64 bytes of 0xff, as far from a multiple of
/// 64 as on the host, and starts as what the host's holds. `finish` waits, brings back what went
/// out, and fails the test if a fence was written.
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
/// Twice, and expects the same bits.
Outputs on_gpu(const Work& work, CudaStreamOptions options = {});

/// Skips its tests, with the reason, where there is no GPU.
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

/// Every output has the same bits.
::testing::AssertionResult same_bits(const Outputs& actual, const Outputs& expected);

}  // namespace sherd::test
