// Cross entropy on a GPU: against the double oracle and the CPU.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "kernels/token.h"
#include "tests/support/devices/place.h"
#include "tests/support/oracles/oracle_token.h"

namespace sherd::kernels {
namespace {

using test::Outputs;
using test::OwnedTensor;
using test::Place;
using test::random_values;
using test::Values;

class CudaCrossEntropy : public test::OnGpuInEveryType {};
INSTANTIATE_TEST_SUITE_P(Types, CudaCrossEntropy, test::compute_types(), test::type_name);

TEST_P(CudaCrossEntropy, MatchesTheOracle) {
  const DType type = GetParam();
  for (const auto& [tokens, vocab] :
       {std::pair{1, 1}, {3, 7}, {5, 512}, {2, 4096}, {33, 1003}, {2, 50257}, {1, 50304}}) {
    SCOPED_TRACE(fmt::format("T {} V {}", tokens, vocab));
    std::vector<std::int32_t> target_ids = test::random_tokens(tokens, vocab, 1);
    const OwnedTensor logits(type, random_values(std::int64_t{tokens} * vocab, 2, 8.0));
    oracle::Loss expected = oracle::cross_entropy(vocab, logits.values(), target_ids);
    if (tokens > 1) {  // a row without a target
      target_ids[1] = kNoTarget;
      expected.losses[1] = 0.0;
      std::fill_n(expected.gradients.begin() + vocab, vocab, 0.0);
    }
    const OwnedTensor targets(target_ids);
    for (const bool gradient : {true, false}) {
      const Outputs out = test::on_gpu([&](Place& place) {
        Outputs outputs{logits, {DType::kF32, tokens}};
        cross_entropy(place.stream(), {.tokens = tokens,
                                       .vocab_size = vocab,
                                       .logits = place.out(outputs[0]),
                                       .targets = place.in(targets),
                                       .losses = place.out(outputs[1]),
                                       .gradient = gradient,
                                       .grad_scale = 0.125f});
        place.finish();
        return outputs;
      });
      EXPECT_TRUE(test::close(out[1], expected.losses, {4e-6, 4e-6, 4e-6}));
      if (!gradient) {
        EXPECT_TRUE(test::same_bits(out[0], logits));
        continue;
      }
      Values scaled = expected.gradients;
      for (double& value : scaled) value *= 0.125;
      test::Tolerance tolerance = test::rounded_once(type);
      tolerance.absolute += 1e-7;
      EXPECT_TRUE(test::close(out[0], scaled, tolerance));
    }
  }
}

TEST_P(CudaCrossEntropy, ABrokenLogitReachesTheLossAndTheGradient) {
  for (const std::int64_t vocab : {37, 1531}) {
    for (const double bad : {std::nan(""), std::numeric_limits<double>::infinity()}) {
      for (const std::int64_t at : {std::int64_t{0}, std::int64_t{5}, vocab - 1}) {
        Values values = random_values(vocab, 1, 1.0);
        values[static_cast<std::size_t>(at)] = bad;
        const OwnedTensor logits(GetParam(), values), targets(std::vector<std::int32_t>{6});
        const Outputs out = test::on_gpu([&](Place& place) {
          Outputs outputs{logits, {DType::kF32, 1}};
          cross_entropy(place.stream(), {.tokens = 1,
                                         .vocab_size = vocab,
                                         .logits = place.out(outputs[0]),
                                         .targets = place.in(targets),
                                         .losses = place.out(outputs[1]),
                                         .gradient = true,
                                         .grad_scale = 1.0f});
          place.finish();
          return outputs;
        });
        EXPECT_FALSE(std::isfinite(out[1].values()[0])) << bad << " at " << at;
        EXPECT_FALSE(std::isfinite(out[0].values()[static_cast<std::size_t>(at)])) << bad << at;
      }
    }
  }
}

TEST_P(CudaCrossEntropy, ZLossesAndTheirGradientsAreTheCpus) {
  const DType type = GetParam();
  for (const LogitsForm& form : {LogitsForm{}, LogitsForm{0.5f, 3.0f}}) {
    for (const auto& [tokens, vocab] : {std::pair{3, 7}, {5, 512}, {33, 1003}, {2, 50304}}) {
      for (const bool gradient : {true, false}) {
        SCOPED_TRACE(fmt::format("T {} V {} cap {}", tokens, vocab, form.softcap));
        std::vector<std::int32_t> ids = test::random_tokens(tokens, vocab, 1);
        ids[1] = kNoTarget;
        const OwnedTensor targets(ids);
        const OwnedTensor logits(type, random_values(std::int64_t{tokens} * vocab, 2, 8.0));
        const test::Work work = [&](Place& place) {
          Outputs out{logits, {DType::kF32, tokens}, {DType::kF32, tokens}};
          cross_entropy(place.stream(), {.tokens = tokens,
                                         .vocab_size = vocab,
                                         .logits = place.out(out[0]),
                                         .targets = place.in(targets),
                                         .losses = place.out(out[1]),
                                         .gradient = gradient,
                                         .grad_scale = 0.125f,
                                         .form = form,
                                         .z_loss = {0.05f, place.out(out[2])}});
          place.finish();
          return out;
        };
        const Outputs gpu = test::on_gpu(work), cpu = test::on_cpu(work);
        EXPECT_TRUE(test::close(gpu[1], cpu[1].values(), {4e-6, 4e-6, 4e-6}));
        EXPECT_TRUE(test::close(gpu[2], cpu[2].values(), {1e-5, 1e-6, 1e-6}));
        EXPECT_EQ(gpu[2].values()[1], 0.0) << "a row without a target";
        test::Tolerance tolerance = test::rounded_once(type).times(2);
        tolerance.absolute += 1e-6;
        EXPECT_TRUE(test::close(gpu[0], cpu[0].values(), tolerance));
      }
    }
  }
}

// The CPU's form of it has been compared with the double oracle; sums are in another order here.
TEST_P(CudaCrossEntropy, OfScaledAndCappedLogitsIsTheCpus) {
  const DType type = GetParam();
  for (const LogitsForm& form :
       {LogitsForm{0.25f, 0.0f}, LogitsForm{1.0f, 3.0f}, LogitsForm{0.5f, 30.0f}}) {
    for (const auto& [tokens, vocab] : {std::pair{3, 7}, {5, 512}, {33, 1003}, {2, 50304}}) {
      SCOPED_TRACE(
          fmt::format("T {} V {} scale {} cap {}", tokens, vocab, form.scale, form.softcap));
      std::vector<std::int32_t> ids = test::random_tokens(tokens, vocab, 1);
      ids[1] = kNoTarget;
      const OwnedTensor targets(ids);
      const OwnedTensor logits(type, random_values(std::int64_t{tokens} * vocab, 2, 8.0));
      const test::Work work = [&](Place& place) {
        Outputs out{logits, {DType::kF32, tokens}, logits};
        cross_entropy(place.stream(), {.tokens = tokens,
                                       .vocab_size = vocab,
                                       .logits = place.out(out[0]),
                                       .targets = place.in(targets),
                                       .losses = place.out(out[1]),
                                       .gradient = true,
                                       .grad_scale = 0.125f,
                                       .form = form});
        shape_logits(place.stream(), form, place.out(out[2]));
        place.finish();
        return out;
      };
      const Outputs gpu = test::on_gpu(work), cpu = test::on_cpu(work);
      EXPECT_TRUE(test::close(gpu[1], cpu[1].values(), {4e-6, 4e-6, 4e-6}));
      test::Tolerance tolerance = test::rounded_once(type).times(2);
      tolerance.absolute += 1e-7;
      EXPECT_TRUE(test::close(gpu[0], cpu[0].values(), tolerance));
      EXPECT_TRUE(test::same_bits(gpu[2], cpu[2]));
    }
  }
}

}  // namespace
}  // namespace sherd::kernels
