#include "tests/kernels/attention_maxima.h"

namespace sherd::kernels {
namespace {

using test::Outputs;
using test::OwnedTensor;

using CudaAttentionMaxima = test::OnGpuInEveryType;
INSTANTIATE_TEST_SUITE_P(Types, CudaAttentionMaxima, test::compute_types(), test::type_name);

// Whichever form computes attention itself.
TEST_P(CudaAttentionMaxima, AreTorchsForEveryMask) {
  for (const MaximaCase& c : maxima_cases()) {
    const OwnedTensor qkv = c.qkv(GetParam());
    EXPECT_EQ(numbers_of(test::on_gpu(maxima_work(c, qkv))[kMaximaWords]), c.largest);
    EXPECT_EQ(numbers_of(test::on_gpu(maxima_work(c, qkv, true, true))[kMaximaWords]), c.largest);
  }
}

TEST_P(CudaAttentionMaxima, ArentCappedAndLeaveTheResultsAsTheyAre) {
  for (MaximaCase c : maxima_cases()) {
    c.shape.softcap = 1.5f;
    const OwnedTensor qkv = c.qkv(GetParam());
    const Outputs with = test::on_gpu(maxima_work(c, qkv));
    const Outputs without = test::on_gpu(maxima_work(c, qkv, false));
    EXPECT_EQ(numbers_of(with[kMaximaWords]), c.largest);
    EXPECT_TRUE(test::same_bits(with[kMaximaOut], without[kMaximaOut]));
    EXPECT_TRUE(test::same_bits(with[kMaximaLse], without[kMaximaLse]));
  }
}

}  // namespace
}  // namespace sherd::kernels
