#include "kernels/update.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "tests/support/oracle_update.h"
#include "tests/support/tensors.h"

namespace sherd::kernels {
namespace {

using test::Outputs;
using test::OwnedTensor;
using test::Values;

// A slice as the flat layout makes them, long enough for several tasks: tensors with and without
// decay, padding between and after them (elements 40 .. 46 belong to no segment, the last 17 to one
// of their own).
constexpr std::int64_t kNumel = 40017;
constexpr UpdateSegment kSegments[] = {{0, 1, 0.1f},     {1, 39, 0.0f},       {47, 953, 0.1f},
                                       {1000, 3, 0.02f}, {1003, 23997, 0.1f}, {25000, 15000, 0.0f},
                                       {40000, 17, 0.0f}};
bool is_padding(std::int64_t i) {
  return (i >= 40 && i < 47) || i >= 40000;
}

Values values_with_padding(std::uint64_t seed, double scale = 1.0) {
  Values values = test::random_values(kNumel, seed, scale);
  for (std::int64_t i = 0; i < kNumel; ++i) {
    if (is_padding(i)) values[static_cast<std::size_t>(i)] = 0.0;
  }
  return values;
}

Values gradient_of_step(std::int64_t step) {
  return test::rounded(DType::kF32, values_with_padding(static_cast<std::uint64_t>(100 + step)));
}

// The segments of elements [first, first + count), counted from there.
std::vector<UpdateSegment> cut_segments(std::int64_t first, std::int64_t count) {
  std::vector<UpdateSegment> out;
  for (const UpdateSegment& segment : kSegments) {
    const std::int64_t begin = std::max(segment.first, first);
    const std::int64_t end = std::min(segment.first + segment.count, first + count);
    if (begin < end) out.push_back({begin - first, end - begin, segment.weight_decay});
  }
  return out;
}

// Borders of slices of every length, from one element on, at deterministic random places.
std::vector<std::int64_t> random_cuts(std::uint64_t seed) {
  std::vector<std::int64_t> cuts{0, 1, 8, 41, kNumel};
  for (const std::int32_t cut : test::random_tokens(9, kNumel, seed)) cuts.push_back(cut);
  std::sort(cuts.begin(), cuts.end());
  return cuts;
}

struct Settings {
  float weight = 1.0f;    // of the gradient
  float momentum = 0.9f;  // sgd
  std::int64_t num_steps = 20;
};

AdamWUpdate adamw_arguments(std::int64_t step, const Settings& settings) {
  AdamWUpdate args;
  args.segments = kSegments;
  args.lr = 0.01f;
  args.beta1 = 0.9f;
  args.beta2 = 0.95f;
  args.time_step = step;
  args.gradient_scale = settings.weight;
  return args;
}

// Parameter and moments after all steps; every step takes the slices between `cuts` one by one.
Outputs run_adamw(Stream& stream, const Settings& settings,
                  const std::vector<std::int64_t>& cuts = {0, kNumel}) {
  Outputs state{{DType::kF32, values_with_padding(1)},
                {DType::kF32, Values(kNumel, 0.0)},
                {DType::kF32, Values(kNumel, 0.0)}};
  for (std::int64_t step = 1; step <= settings.num_steps; ++step) {
    const OwnedTensor gradient(DType::kF32, gradient_of_step(step));
    for (std::size_t i = 0; i + 1 < cuts.size(); ++i) {
      const std::int64_t first = cuts[i], count = cuts[i + 1] - first;
      const std::vector<UpdateSegment> segments = cut_segments(first, count);
      AdamWUpdate args = adamw_arguments(step, settings);
      args.parameter = Tensor(state[0]).part(first, count);
      args.exp_avg = Tensor(state[1]).part(first, count);
      args.exp_avg_sq = Tensor(state[2]).part(first, count);
      args.gradient = ConstTensor(gradient).part(first, count);
      args.segments = segments;
      adamw_update(stream, args);
    }
  }
  return state;
}

SgdUpdate sgd_arguments(const Settings& settings) {
  SgdUpdate args;
  args.segments = kSegments;
  args.lr = 0.05f;
  args.momentum = settings.momentum;
  args.gradient_scale = settings.weight;
  return args;
}

Outputs run_sgd(Stream& stream, const Settings& settings,
                const std::vector<std::int64_t>& cuts = {0, kNumel}) {
  Outputs state{{DType::kF32, values_with_padding(1)}, {DType::kF32, Values(kNumel, 0.0)}};
  for (std::int64_t step = 1; step <= settings.num_steps; ++step) {
    const OwnedTensor gradient(DType::kF32, gradient_of_step(step));
    for (std::size_t i = 0; i + 1 < cuts.size(); ++i) {
      const std::int64_t first = cuts[i], count = cuts[i + 1] - first;
      const std::vector<UpdateSegment> segments = cut_segments(first, count);
      SgdUpdate args = sgd_arguments(settings);
      args.parameter = Tensor(state[0]).part(first, count);
      if (settings.momentum != 0.0f) args.momentum_buffer = Tensor(state[1]).part(first, count);
      args.gradient = ConstTensor(gradient).part(first, count);
      args.segments = segments;
      sgd_update(stream, args);
    }
  }
  return state;
}

// 20 steps of an f32 recursion: each step rounds some ten times at 6e-8, decayed by beta.
constexpr test::Tolerance kTwentySteps{4e-6, 4e-6, 0.0};

TEST(AdamW, MatchesTheOracleOverTwentyStepsOnAnyNumberOfThreads) {
  for (const float weight : {1.0f, 0.125f, 0.3f}) {
    const Settings settings{.weight = weight};
    const Outputs out =
        test::on_any_number_of_threads([&](Stream& stream) { return run_adamw(stream, settings); });
    oracle::AdamWState state{test::rounded(DType::kF32, values_with_padding(1)),
                             Values(kNumel, 0.0), Values(kNumel, 0.0)};
    for (std::int64_t step = 1; step <= settings.num_steps; ++step) {
      oracle::adamw_update(state, gradient_of_step(step), adamw_arguments(step, settings));
    }
    EXPECT_TRUE(test::close(out[0], state.parameter, kTwentySteps)) << "scale " << weight;
    EXPECT_TRUE(test::close(out[1], state.exp_avg, kTwentySteps));
    EXPECT_TRUE(test::close(out[2], state.exp_avg_sq, kTwentySteps));
  }
}

TEST(AdamW, CorrectsTheBiasOfLateSteps) {
  // At step 100000 both corrections are 1 to the last bit; at step 1 they are 1 - beta.
  for (const std::int64_t step : {std::int64_t{1}, std::int64_t{100000}}) {
    OwnedTensor p(DType::kF32, Values{1.0}), m(DType::kF32, Values{0.5}),
        v(DType::kF32, Values{2.0});
    const OwnedTensor g(DType::kF32, Values{-0.25});
    const UpdateSegment segment{0, 1, 0.1f};
    AdamWUpdate args{.parameter = p,
                     .gradient = g,
                     .exp_avg = m,
                     .exp_avg_sq = v,
                     .segments = {&segment, 1},
                     .lr = 0.1f,
                     .time_step = step};
    oracle::AdamWState state{{1.0}, {0.5}, {2.0}};
    oracle::adamw_update(state, {-0.25}, args);
    adamw_update(*test::compute_stream(), args);
    EXPECT_TRUE(test::close(p, state.parameter, {1e-6, 0.0, 0.0})) << "step " << step;
  }
}

TEST(AdamW, BitsDoNotDependOnTheCuts) {
  const Settings settings{.weight = 0.3f, .num_steps = 3};
  const auto stream = test::compute_stream(2);
  const Outputs whole = run_adamw(*stream, settings);
  for (const std::uint64_t seed : {1u, 2u, 3u}) {
    const Outputs cut = run_adamw(*stream, settings, random_cuts(seed));
    for (std::size_t i = 0; i < whole.size(); ++i) {
      EXPECT_TRUE(test::same_bits(cut[i], whole[i])) << "state " << i << ", cuts " << seed;
    }
  }
}

TEST(AdamW, PaddingStaysZero) {
  const Outputs out = run_adamw(*test::compute_stream(2), {});
  for (const OwnedTensor& state : out) {
    for (std::int64_t i = 0; i < kNumel; ++i) {
      if (is_padding(i)) {
        ASSERT_EQ(state.tensor().as<float>()[i], 0.0f) << "element " << i;
      }
    }
  }
}

TEST(Sgd, MatchesTheOracleOverTwentyStepsOnAnyNumberOfThreads) {
  for (const Settings& settings :
       {Settings{}, Settings{.weight = 0.3f}, Settings{.weight = 0.3f, .momentum = 0.0f}}) {
    const Outputs out =
        test::on_any_number_of_threads([&](Stream& stream) { return run_sgd(stream, settings); });
    oracle::SgdState state{test::rounded(DType::kF32, values_with_padding(1)), Values(kNumel, 0.0)};
    for (std::int64_t step = 1; step <= settings.num_steps; ++step) {
      oracle::sgd_update(state, gradient_of_step(step), sgd_arguments(settings));
    }
    EXPECT_TRUE(test::close(out[0], state.parameter, kTwentySteps));
    EXPECT_TRUE(test::close(out[1], state.momentum_buffer, kTwentySteps));
  }
}

TEST(Sgd, BitsDoNotDependOnTheCuts) {
  const auto stream = test::compute_stream(2);
  for (const float momentum : {0.9f, 0.0f}) {
    const Settings settings{.weight = 0.3f, .momentum = momentum, .num_steps = 3};
    const Outputs whole = run_sgd(*stream, settings);
    for (const std::uint64_t seed : {4u, 5u}) {
      const Outputs cut = run_sgd(*stream, settings, random_cuts(seed));
      EXPECT_TRUE(test::same_bits(cut[0], whole[0]));
      EXPECT_TRUE(test::same_bits(cut[1], whole[1]));
    }
  }
}

TEST(Sgd, PaddingStaysZero) {
  const Outputs out = run_sgd(*test::compute_stream(2), {});
  for (const OwnedTensor& state : out) {
    for (std::int64_t i = 0; i < kNumel; ++i) {
      if (is_padding(i)) {
        ASSERT_EQ(state.tensor().as<float>()[i], 0.0f) << "element " << i;
      }
    }
  }
}

// The oracles against numbers computed by hand from the papers' formulas.
TEST(UpdateOracle, TakesTheStepOfThePaper) {
  const UpdateSegment segment{0, 1, 0.5f};
  AdamWUpdate adamw;
  adamw.segments = {&segment, 1};
  adamw.lr = 0.25f;
  adamw.eps = 0.0f;
  oracle::AdamWState adamw_state{{2.0}, {0.0}, {0.0}};
  // First step: m_hat = g, v_hat = g^2, so p moves by lr * sign(g), and decays by lr * 0.5 * p.
  oracle::adamw_update(adamw_state, {-4.0}, adamw);
  EXPECT_NEAR(adamw_state.parameter[0], 2.0 - 0.25 * 0.5 * 2.0 + 0.25, 1e-12);

  SgdUpdate sgd;
  sgd.segments = {&segment, 1};
  sgd.lr = 0.25f;
  sgd.momentum = 0.5f;
  sgd.gradient_scale = 0.5f;
  oracle::SgdState sgd_state{{2.0}, {1.0}};
  oracle::sgd_update(sgd_state, {4.0}, sgd);
  // g = 0.5 * 4 + 0.5 * 2 = 3; m = 0.5 + 3 = 3.5; p = 2 - 0.25 * 3.5
  EXPECT_DOUBLE_EQ(sgd_state.momentum_buffer[0], 3.5);
  EXPECT_DOUBLE_EQ(sgd_state.parameter[0], 1.125);
}

}  // namespace
}  // namespace sherd::kernels
