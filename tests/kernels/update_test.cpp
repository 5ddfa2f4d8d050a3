#include "kernels/update.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "tests/support/oracles/oracle_update.h"
#include "tests/support/values/tensors.h"

namespace sherd::kernels {
namespace {

using oracle::UpdateState;
using test::Outputs;
using test::OwnedTensor;
using test::Values;

// A slice as the flat layout makes them, long enough for several tasks: tensors with and without
// decay, one of them begun on another rank, padding between and after them.
constexpr std::int64_t kUpdateNumel = 40017;
constexpr UpdateSegment kUpdateSegments[] = {{0, 1, 0.1f, 3, 99},       {1, 39, 0.0f, 4, 0},
                                             {47, 953, 0.1f, 5, 0},     {1000, 3, 0.02f, 6, 0},
                                             {1003, 23997, 0.1f, 7, 0}, {25000, 15000, 0.0f, 8, 0}};
bool is_padding(std::int64_t i) {
  return (i >= 40 && i < 47) || i >= 40000;
}

Values values_with_padding(std::uint64_t seed) {
  Values values = test::random_values(kUpdateNumel, seed);
  for (std::int64_t i = 0; i < kUpdateNumel; ++i) {
    if (is_padding(i)) values[static_cast<std::size_t>(i)] = 0.0;
  }
  return values;
}

// An element-wise optimizer, as the kernel and as the oracle take it.
struct Optimizer {
  const char* name;
  void (*step)(Stream&, const UpdateCommon&, Tensor first, Tensor second,
               std::int64_t update_number);
  void (*oracle)(UpdateState&, const Values& gradient, const UpdateCommon&,
                 std::int64_t update_number);
};

AdamUpdate adam(const UpdateCommon& common, bool decoupled, std::int64_t update_number) {
  return {.common = common,
          .exp_avg = {},
          .exp_avg_sq = {},
          .decoupled_decay = decoupled,
          .beta1 = 0.9f,
          .beta2 = 0.95f,
          .eps = 1e-8f,
          .update_number = update_number};
}

template <bool kDecoupled>
void adam_step(Stream& stream, const UpdateCommon& common, Tensor first, Tensor second,
               std::int64_t update_number) {
  AdamUpdate args = adam(common, kDecoupled, update_number);
  args.exp_avg = first;
  args.exp_avg_sq = second;
  adam_update(stream, args);
}
template <bool kDecoupled>
void adam_oracle(UpdateState& state, const Values& gradient, const UpdateCommon& common,
                 std::int64_t update_number) {
  oracle::adam_update(state, gradient, adam(common, kDecoupled, update_number));
}

template <bool kMomentum>
void sgd_step(Stream& stream, const UpdateCommon& common, Tensor first, Tensor, std::int64_t) {
  sgd_update(stream, {common, kMomentum ? first : Tensor(), kMomentum ? 0.9f : 0.0f});
}
template <bool kMomentum>
void sgd_oracle(UpdateState& state, const Values& gradient, const UpdateCommon& common,
                std::int64_t) {
  oracle::sgd_update(state, gradient, {common, {}, kMomentum ? 0.9f : 0.0f});
}

void lion_step(Stream& stream, const UpdateCommon& common, Tensor first, Tensor, std::int64_t) {
  lion_update(stream, {common, first});
}
void lion_oracle(UpdateState& state, const Values& gradient, const UpdateCommon& common,
                 std::int64_t) {
  oracle::lion_update(state, gradient, {common, {}});
}

const Optimizer kOptimizers[] = {{"adamw", adam_step<true>, adam_oracle<true>},
                                 {"adam", adam_step<false>, adam_oracle<false>},
                                 {"sgd_with_momentum", sgd_step<true>, sgd_oracle<true>},
                                 {"sgd", sgd_step<false>, sgd_oracle<false>},
                                 {"lion", lion_step, lion_oracle}};

struct Settings {
  DType gradient = DType::kF32, moment = DType::kF32;
  float gradient_scale = 1.0f;
  bool stochastic = false;
  std::int64_t num_steps = 20;
};

OwnedTensor gradient_of_step(const Settings& settings, std::int64_t step) {
  return {settings.gradient, values_with_padding(static_cast<std::uint64_t>(100 + step))};
}

UpdateCommon common_of(const Settings& settings, std::int64_t step) {
  UpdateCommon common;
  common.segments = kUpdateSegments;
  common.lr = 0.01f;
  common.gradient_scale = settings.gradient_scale;
  common.rounding.stochastic = settings.stochastic;
  common.rounding.address = {77, static_cast<std::uint32_t>(step), 0};
  return common;
}

// The segments of elements [first, first + count), counted from there.
std::vector<UpdateSegment> cut_segments(std::int64_t first, std::int64_t count) {
  std::vector<UpdateSegment> out;
  for (const UpdateSegment& segment : kUpdateSegments) {
    const std::int64_t begin = std::max(segment.first, first);
    const std::int64_t end = std::min(segment.first + segment.count, first + count);
    if (begin >= end) continue;
    out.push_back({begin - first, end - begin, segment.weight_decay, segment.parameter,
                   segment.first_element + begin - segment.first});
  }
  return out;
}

// Borders of slices of every length, from one element on, at deterministic random places.
std::vector<std::int64_t> random_cuts(std::uint64_t seed) {
  std::vector<std::int64_t> cuts{0, 1, 8, 41, kUpdateNumel};
  for (const std::int32_t cut : test::random_tokens(9, kUpdateNumel, seed)) cuts.push_back(cut);
  std::sort(cuts.begin(), cuts.end());
  return cuts;
}

// Parameter and moments.
Outputs begin(const Settings& settings) {
  return {{DType::kF32, values_with_padding(1)},
          {settings.moment, Values(kUpdateNumel, 0.0)},
          {settings.moment, Values(kUpdateNumel, 0.0)}};
}

void take_step(Stream& stream, const Optimizer& optimizer, const Settings& settings,
               std::int64_t step, const std::vector<std::int64_t>& cuts, Outputs& state) {
  const OwnedTensor gradient = gradient_of_step(settings, step);
  for (std::size_t i = 0; i + 1 < cuts.size(); ++i) {
    const std::int64_t first = cuts[i], count = cuts[i + 1] - first;
    const std::vector<UpdateSegment> segments = cut_segments(first, count);
    UpdateCommon common = common_of(settings, step);
    common.parameter = Tensor(state[0]).part(first, count);
    common.gradient = ConstTensor(gradient).part(first, count);
    common.segments = segments;
    optimizer.step(stream, common, Tensor(state[1]).part(first, count),
                   Tensor(state[2]).part(first, count), step);
  }
}

Outputs run(Stream& stream, const Optimizer& optimizer, const Settings& settings,
            const std::vector<std::int64_t>& cuts = {0, kUpdateNumel}) {
  Outputs state = begin(settings);
  for (std::int64_t step = 1; step <= settings.num_steps; ++step) {
    take_step(stream, optimizer, settings, step, cuts, state);
  }
  return state;
}

class Update : public ::testing::TestWithParam<Optimizer> {};
INSTANTIATE_TEST_SUITE_P(Optimizers, Update, ::testing::ValuesIn(kOptimizers),
                         [](const auto& info) { return std::string(info.param.name); });

TEST_P(Update, MatchesTheOracleOverTwentyStepsOnAnyNumberOfThreads) {
  for (const Settings& settings : {Settings{}, Settings{.gradient_scale = 0.3f},
                                   Settings{.gradient = DType::kBF16, .gradient_scale = 0.125f},
                                   Settings{.gradient = DType::kF16, .gradient_scale = 0.3f}}) {
    const Outputs out = test::on_any_number_of_threads(
        [&](Stream& stream) { return run(stream, GetParam(), settings); });
    const Outputs initial = begin(settings);
    UpdateState state{initial[0].values(), initial[1].values(), initial[2].values()};
    for (std::int64_t step = 1; step <= settings.num_steps; ++step) {
      GetParam().oracle(state, gradient_of_step(settings, step).values(), common_of(settings, step),
                        step);
    }
    // 20 steps of an f32 recursion: each rounds some ten times at 6e-8, decayed by beta.
    const test::Tolerance tolerance{4e-6, 4e-6, 0.0};
    EXPECT_TRUE(test::close(out[0], state.parameter, tolerance));
    EXPECT_TRUE(test::close(out[1], state.first_moment, tolerance));
    EXPECT_TRUE(test::close(out[2], state.second_moment, tolerance));
  }
}

// Moments in bf16 are rounded once a step: every step starts from what the last one stored.
TEST_P(Update, RoundsMomentsInBFloat16OnceAStep) {
  const Settings settings{.gradient = DType::kBF16, .moment = DType::kBF16};
  const auto stream = test::compute_stream(2);
  Outputs out = begin(settings);
  for (std::int64_t step = 1; step <= 3; ++step) {
    UpdateState state{out[0].values(), out[1].values(), out[2].values()};
    take_step(*stream, GetParam(), settings, step, {0, kUpdateNumel}, out);
    GetParam().oracle(state, gradient_of_step(settings, step).values(), common_of(settings, step),
                      step);
    EXPECT_TRUE(test::close(out[0], state.parameter, test::rounded_once(DType::kF32)));
    EXPECT_TRUE(test::close(out[1], state.first_moment, test::rounded_once(DType::kBF16)));
    EXPECT_TRUE(test::close(out[2], state.second_moment, test::rounded_once(DType::kBF16)));
  }
}

TEST_P(Update, BitsDoNotDependOnTheCuts) {
  const auto stream = test::compute_stream(2);
  for (const Settings& settings :
       {Settings{.gradient_scale = 0.3f, .num_steps = 3}, Settings{.gradient = DType::kBF16,
                                                          .moment = DType::kBF16,
                                                          .stochastic = true,
                                                          .num_steps = 3}}) {
    const Outputs whole = run(*stream, GetParam(), settings);
    for (const std::uint64_t seed : {1u, 2u, 3u}) {
      const Outputs cut = run(*stream, GetParam(), settings, random_cuts(seed));
      for (std::size_t i = 0; i < whole.size(); ++i) {
        EXPECT_TRUE(test::same_bits(cut[i], whole[i])) << "state " << i << ", cuts " << seed;
      }
    }
  }
}

TEST_P(Update, PaddingStaysZero) {
  for (const bool stochastic : {false, true}) {
    const Settings settings{.moment = stochastic ? DType::kBF16 : DType::kF32,
                            .stochastic = stochastic};
    for (const OwnedTensor& state : run(*test::compute_stream(2), GetParam(), settings)) {
      const Values values = state.values();
      for (std::int64_t i = 0; i < kUpdateNumel; ++i) {
        if (is_padding(i)) {
          ASSERT_EQ(values[static_cast<std::size_t>(i)], 0.0) << "element " << i;
        }
      }
    }
  }
}

// Padding is left unmodified; the other 16 bits are those of the stored parameter, for any number of threads.
TEST_P(Update, AlsoRoundsWhatBecomesOfTheParameters) {
  const Settings settings{.num_steps = 3};
  for (const DType type : {DType::kBF16, DType::kF16}) {
    const auto updated = [&](Stream& stream, Tensor rounded) {
      Outputs state = begin(settings);
      const OwnedTensor gradient = gradient_of_step(settings, 1);
      UpdateCommon common = common_of(settings, 1);
      common.parameter = state[0];
      common.gradient = gradient;
      common.rounded = rounded;
      GetParam().step(stream, common, state[1], state[2], 1);
      return state;
    };
    const Outputs out = test::on_any_number_of_threads([&](Stream& stream) {
      OwnedTensor rounded(type, Values(kUpdateNumel, 7.0));
      Outputs state = updated(stream, rounded);
      state.push_back(rounded);
      return state;
    });
    const Outputs alone = updated(*test::compute_stream(), {});
    for (std::size_t i = 0; i < alone.size(); ++i) EXPECT_TRUE(test::same_bits(out[i], alone[i]));
    Values expected = out[0].values();
    for (std::int64_t i = 0; i < kUpdateNumel; ++i) {
      if (is_padding(i)) expected[static_cast<std::size_t>(i)] = 7.0;
    }
    EXPECT_TRUE(test::same_bits(out[3], OwnedTensor(type, expected)));
  }
}

TEST(AdamUpdate, CorrectsTheBiasOfEarlyAndLateSteps) {
  // At step 100000 both corrections are 1 to the last bit; at step 1 they are 1 - beta.
  for (const std::int64_t step : {std::int64_t{1}, std::int64_t{100000}}) {
    OwnedTensor p(DType::kF32, Values{1.0}), m(DType::kF32, Values{0.5}),
        v(DType::kF32, Values{2.0});
    const OwnedTensor g(DType::kF32, Values{-0.25});
    const UpdateSegment segment{0, 1, 0.1f};
    AdamUpdate args;
    args.common.parameter = p;
    args.common.gradient = g;
    args.common.segments = {&segment, 1};
    args.common.lr = 0.1f;
    args.exp_avg = m;
    args.exp_avg_sq = v;
    args.update_number = step;
    UpdateState state{{1.0}, {0.5}, {2.0}};
    oracle::adam_update(state, {-0.25}, args);
    adam_update(*test::compute_stream(), args);
    EXPECT_TRUE(test::close(p, state.parameter, {1e-6, 0.0, 0.0})) << "step " << step;
  }
}

// One step of momentum from zero stores the gradient: a value 0.3 of the way between neighbours.
Values stochastically_rounded(std::int64_t numel, std::uint32_t step, std::uint32_t parameter) {
  const double between = 1.0 + 0.3 * 0x1p-7;
  const auto n = static_cast<std::size_t>(numel);
  OwnedTensor p(DType::kF32, Values(n, 0.0)), m(DType::kBF16, Values(n, 0.0));
  const OwnedTensor g(DType::kF32, Values(n, between));
  const UpdateSegment segment{0, numel, 0.0f, parameter, 0};
  SgdUpdate args;
  args.common.parameter = p;
  args.common.gradient = g;
  args.common.segments = {&segment, 1};
  args.common.lr = 1.0f;
  args.common.rounding = {true, {5, step, 0}};
  args.momentum_buffer = m;
  args.momentum = 0.5f;
  sgd_update(*test::compute_stream(2), args);
  return m.values();
}

TEST(StochasticRounding, GoesUpInProportion) {
  constexpr std::int64_t kCount = 100000;
  double up = 0.0;
  for (const double value : stochastically_rounded(kCount, 1, 0)) {
    ASSERT_TRUE(value == 1.0 || value == 1.0 + 0x1p-7) << value << " is no neighbour";
    up += value > 1.0 ? 1.0 : 0.0;
  }
  // Five standard deviations of a binomial count.
  EXPECT_NEAR(up / kCount, 0.3, 5.0 * std::sqrt(0.3 * 0.7 / kCount));
}

TEST(StochasticRounding, DiffersFromStepToStepAndFromTensorToTensor) {
  const Values values = stochastically_rounded(1000, 1, 0);
  EXPECT_EQ(values, stochastically_rounded(1000, 1, 0));
  EXPECT_NE(values, stochastically_rounded(1000, 2, 0));
  EXPECT_NE(values, stochastically_rounded(1000, 1, 1));
}

// From the same words, whichever moment is likelier to go up would go up wherever the other does.
TEST(StochasticRounding, RoundsTheTwoMomentsOfAdamIndependently) {
  constexpr std::size_t kCount = 1000;
  OwnedTensor p(DType::kF32, Values(kCount, 0.0));
  OwnedTensor m(DType::kBF16, Values(kCount, 0.0)), v(DType::kBF16, Values(kCount, 0.0));
  const OwnedTensor g(DType::kF32, Values(kCount, 1.0 + 0.3 * 0x1p-7));
  const UpdateSegment segment{0, kCount, 0.0f, 0, 0};
  AdamUpdate args;
  args.common.parameter = p;
  args.common.gradient = g;
  args.common.segments = {&segment, 1};
  args.common.rounding = {true, {5, 1, 0}};
  args.exp_avg = m;
  args.exp_avg_sq = v;
  args.beta1 = args.beta2 = 0.5f;
  adam_update(*test::compute_stream(), args);
  const Values first = m.values(), second = v.values();
  std::size_t only_first = 0, only_second = 0;
  for (std::size_t i = 0; i < kCount; ++i) {
    only_first += first[i] > 0.5 && second[i] == 0.5 ? 1 : 0;
    only_second += first[i] == 0.5 && second[i] > 0.5 ? 1 : 0;
  }
  EXPECT_GT(only_first, 0u);
  EXPECT_GT(only_second, 0u);
}

// The oracles against numbers computed by hand from the papers' formulas.
TEST(UpdateOracle, TakesTheStepOfThePaper) {
  const UpdateSegment segment{0, 1, 0.5f};
  UpdateCommon common;
  common.segments = {&segment, 1};
  common.lr = 0.25f;

  // First step: m_hat = g, v_hat = g^2, so p moves by lr * sign(g), and decays by lr * 0.5 * p.
  AdamUpdate adamw = adam(common, true, 1);
  adamw.eps = 0.0f;
  UpdateState state{{2.0}, {0.0}, {0.0}};
  oracle::adam_update(state, {-4.0}, adamw);
  EXPECT_NEAR(state.parameter[0], 2.0 - 0.25 * 0.5 * 2.0 + 0.25, 1e-12);
  // Coupled, the decay only joins the gradient: its sign stays.
  adamw.decoupled_decay = false;
  state = {{2.0}, {0.0}, {0.0}};
  oracle::adam_update(state, {-4.0}, adamw);
  EXPECT_NEAR(state.parameter[0], 2.25, 1e-12);

  // g = 0.5 * 4 + 0.5 * 2 = 3; m = 0.5 + 3 = 3.5; p = 2 - 0.25 * 3.5
  common.gradient_scale = 0.5f;
  state = {{2.0}, {1.0}, {}};
  oracle::sgd_update(state, {4.0}, {common, {}, 0.5f});
  EXPECT_DOUBLE_EQ(state.first_moment[0], 3.5);
  EXPECT_DOUBLE_EQ(state.parameter[0], 1.125);

  // 0.5 * -1 + 0.5 * 2 > 0: p = 2 - 0.25 (1 + 0.5 * 2); m = 0.75 * -1 + 0.25 * 2
  state = {{2.0}, {-1.0}, {}};
  oracle::lion_update(state, {4.0}, {common, {}, 0.5f, 0.75f});
  EXPECT_DOUBLE_EQ(state.parameter[0], 1.5);
  EXPECT_DOUBLE_EQ(state.first_moment[0], -0.25);
}

}  // namespace
}  // namespace sherd::kernels
