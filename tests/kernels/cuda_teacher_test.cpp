// A teacher's divergence and gradient on a GPU are the CPU's. Where ranks divide the vocabulary:
// cuda_cut_cross_entropy_test.cpp.
#include <gtest/gtest.h>

#include "tests/kernels/taught_case.h"

// T tokens, V vocabulary, K of the teacher's tokens.
namespace sherd::kernels {
namespace {

using test::Outputs;
using test::OwnedTensor;
using test::Place;

class CudaTeacher : public test::OnGpuInEveryType {};
INSTANTIATE_TEST_SUITE_P(Types, CudaTeacher, test::compute_types(), test::type_name);

TEST_P(CudaTeacher, GradientsAreTheCpus) {
  const DType type = GetParam();
  for (const TaughtCase& c : kTaughtCases) {
    SCOPED_TRACE(fmt::format("V {} K {}", c.vocab_size, c.top));
    const OwnedTensor logits(type, test::random_values(c.tokens * c.vocab_size, 2, 8.0));
    const OwnedTensor targets(c.targets());
    const TaughtTensors taught(c);
    const test::Work work = [&](Place& place) {
      Outputs out{logits, {DType::kF32, c.tokens}, {DType::kF32, c.tokens}};
      Teacher teacher = taught.on(place);
      teacher.divergences = place.out(out[2]);
      cross_entropy(place.stream(), {.tokens = c.tokens,
                                     .vocab_size = c.vocab_size,
                                     .logits = place.out(out[0]),
                                     .targets = place.in(targets),
                                     .losses = place.out(out[1]),
                                     .grad_scale = 0.125f,
                                     .form = c.form,
                                     .teacher = teacher});
      place.finish();
      return out;
    };
    expect_taught(type, test::on_gpu(work), test::on_cpu(work));
  }
}

}  // namespace
}  // namespace sherd::kernels
