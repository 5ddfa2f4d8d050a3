#include <gtest/gtest.h>

#include <cmath>

#include "kernels/update.h"
#include "tests/support/oracles/oracle_update.h"
#include "tests/support/values/exact_sums.h"
#include "tests/support/values/tensors.h"

// LAMB, LARS and Muon: the updates whose rate belongs to a whole tensor. Every segment here is one.
namespace sherd::kernels {
namespace {

using oracle::UpdateState;
using test::Outputs;
using test::OwnedTensor;
using test::Values;

constexpr std::int64_t kNumel = 40017;
constexpr UpdateSegment kSegments[] = {
    {0, 1, 0.1f, 0, 0}, {1, 39, 0.0f, 1, 0}, {47, 20953, 0.1f, 2, 0}, {21000, 19000, 0.0f, 3, 0}};
constexpr std::size_t kNumSegments = std::size(kSegments);
// A direction has been summed and divided in f32; twice, where it enters a ratio.
constexpr test::Tolerance kTolerance{8e-6, 8e-6, 0.0};

UpdateCommon common_of(float gradient_scale) {
  UpdateCommon common;
  common.segments = kSegments;
  common.lr = 0.02f;
  common.gradient_scale = gradient_scale;
  return common;
}

struct Slice {
  explicit Slice(DType gradient_type, DType moment_type)
      : parameter(DType::kF32, test::random_values(kNumel, 1)),
        gradient(gradient_type, test::random_values(kNumel, 2)),
        first(moment_type, test::random_values(kNumel, 3, 0.5)),
        second(moment_type, [] {
          Values values = test::random_values(kNumel, 4, 0.5);
          for (double& value : values) value = std::abs(value) + 0.01;
          return values;
        }()) {}

  UpdateState values() const { return {parameter.values(), first.values(), second.values()}; }

  OwnedTensor parameter, gradient, first, second;
};

std::vector<float> lamb_ratios(const Values& squares) {
  std::vector<float> ratios;
  for (std::size_t s = 0; s < kNumSegments; ++s) {
    ratios.push_back(static_cast<float>(std::sqrt(squares[s] / squares[kNumSegments + s])));
  }
  return ratios;
}

Values as_values(const std::vector<float>& ratios) {
  return {ratios.begin(), ratios.end()};
}

Values joined(const oracle::SegmentNorms& norms) {
  Values all = norms.parameter;
  all.insert(all.end(), norms.other.begin(), norms.other.end());
  return all;
}

struct Types {
  DType gradient, moment;
};
class UpdateByNorm : public ::testing::TestWithParam<Types> {};
INSTANTIATE_TEST_SUITE_P(
    Types, UpdateByNorm,
    ::testing::Values(Types{DType::kF32, DType::kF32}, Types{DType::kBF16, DType::kF32},
                      Types{DType::kF16, DType::kF32}, Types{DType::kBF16, DType::kBF16}),
    [](const auto& info) {
      return fmt::format("{}_gradient_{}_moments", name_of(info.param.gradient),
                         name_of(info.param.moment));
    });

TEST_P(UpdateByNorm, LambMatchesTheOracleCallByCallOnAnyNumberOfThreads) {
  const Slice before(GetParam().gradient, GetParam().moment);
  LambUpdate args;
  args.common = common_of(0.3f);
  args.beta2 = 0.95f;
  args.update_number = 3;
  const Outputs out = test::on_any_number_of_threads([&](Stream& stream) {
    Slice slice = before;
    OwnedTensor sums = test::exact_sums(2 * kNumSegments);
    LambUpdate call = args;
    call.common.parameter = slice.parameter;
    call.common.gradient = slice.gradient;
    call.exp_avg = slice.first;
    call.exp_avg_sq = slice.second;
    lamb_moments(stream, call);
    lamb_norms(stream, call, sums);
    const std::vector<float> ratios = lamb_ratios(test::values_of_sums(sums));
    lamb_apply(stream, call, ratios);
    return Outputs{slice.parameter, slice.first, slice.second, sums};
  });

  UpdateState state = before.values();
  oracle::lamb_moments(state, before.gradient.values(), args);
  EXPECT_TRUE(test::close(out[1], state.first_moment, test::rounded_once(GetParam().moment)));
  EXPECT_TRUE(test::close(out[2], state.second_moment, test::rounded_once(GetParam().moment)));
  // What follows reads the moments as they are stored.
  state.first_moment = out[1].values();
  state.second_moment = out[2].values();
  EXPECT_TRUE(test::close(OwnedTensor(DType::kF64, test::values_of_sums(out[3])),
                          joined(oracle::lamb_norms(state, args)), kTolerance));
  oracle::lamb_apply(state, args, as_values(lamb_ratios(test::values_of_sums(out[3]))));
  EXPECT_TRUE(test::close(out[0], state.parameter, kTolerance));
}

TEST_P(UpdateByNorm, LarsMatchesTheOracleCallByCallOnAnyNumberOfThreads) {
  const Slice before(GetParam().gradient, GetParam().moment);
  const std::vector<float> ratios{0.5f, 0.1f, 0.02f, 2.0f};
  LarsUpdate args;
  args.common = common_of(0.3f);
  const Outputs out = test::on_any_number_of_threads([&](Stream& stream) {
    Slice slice = before;
    OwnedTensor sums = test::exact_sums(2 * kNumSegments);
    LarsUpdate call = args;
    call.common.parameter = slice.parameter;
    call.common.gradient = slice.gradient;
    call.momentum_buffer = slice.first;
    lars_norms(stream, call, sums);
    lars_apply(stream, call, ratios);
    return Outputs{slice.parameter, slice.first, sums};
  });
  UpdateState state = before.values();
  const Values gradient = before.gradient.values();
  EXPECT_TRUE(test::close(OwnedTensor(DType::kF64, test::values_of_sums(out[2])),
                          joined(oracle::lars_norms(state, gradient, args)), kTolerance));
  oracle::lars_apply(state, gradient, args, as_values(ratios));
  EXPECT_TRUE(test::close(out[0], state.parameter, kTolerance));
  EXPECT_TRUE(test::close(out[1], state.first_moment, test::rounded_once(GetParam().moment)));
}

TEST_P(UpdateByNorm, MuonMatchesTheOracleCallByCallOnAnyNumberOfThreads) {
  const Slice before(GetParam().gradient, GetParam().moment);
  const std::vector<float> ratios{0.5f, 0.1f, 0.02f, 2.0f};
  MuonUpdate args;
  args.common = common_of(0.3f);
  const Outputs out = test::on_any_number_of_threads([&](Stream& stream) {
    Slice slice = before;
    OwnedTensor update(DType::kF32, Values(kNumel, 0.0));
    MuonUpdate call = args;
    call.common.parameter = slice.parameter;
    call.common.gradient = slice.gradient;
    call.momentum_buffer = slice.first;
    call.update = update;
    muon_momentum(stream, call);
    muon_apply(stream, call, ratios);
    return Outputs{slice.parameter, slice.first, update};
  });
  UpdateState state = before.values();
  const Values update = oracle::muon_momentum(state, before.gradient.values(), args);
  EXPECT_TRUE(test::close(out[1], state.first_moment, test::rounded_once(GetParam().moment)));
  EXPECT_TRUE(test::close(out[2], update, kTolerance));
  oracle::muon_apply(state, out[2].values(), args, as_values(ratios));
  EXPECT_TRUE(test::close(out[0], state.parameter, kTolerance));
}

// The oracles against numbers computed by hand.
TEST(UpdateByNormOracle, TakesTheStepOfThePaper) {
  const UpdateSegment segment{0, 2, 0.5f};
  LarsUpdate lars;
  lars.common.segments = {&segment, 1};
  lars.common.lr = 0.25f;
  lars.momentum = 0.5f;
  UpdateState state{{3.0, 4.0}, {1.0, 0.0}, {}};
  EXPECT_DOUBLE_EQ(oracle::lars_norms(state, {1.0, 0.0}, lars).parameter[0], 25.0);
  // m = 0.5 * 1 + 0.25 * 2 * (1 + 0.5 * 3) = 1.75;  m = 0.25 * 2 * (0 + 0.5 * 4) = 1
  oracle::lars_apply(state, {1.0, 0.0}, lars, {2.0});
  EXPECT_EQ(state.first_moment, (Values{1.75, 1.0}));
  EXPECT_EQ(state.parameter, (Values{1.25, 3.0}));

  // From zero moments r = sign(g) + 0.5 p = (1 + 1.5, -1 + 2).
  LambUpdate lamb;
  lamb.common = lars.common;
  lamb.eps = 0.0f;
  state = {{3.0, 4.0}, {0.0, 0.0}, {0.0, 0.0}};
  oracle::lamb_moments(state, {8.0, -1.0}, lamb);
  EXPECT_NEAR(oracle::lamb_norms(state, lamb).other[0], 2.5 * 2.5 + 1.0, 1e-12);
  oracle::lamb_apply(state, lamb, {2.0});
  EXPECT_NEAR(state.parameter[0], 3.0 - 0.25 * 2.0 * 2.5, 1e-12);

  MuonUpdate muon;
  muon.common = lars.common;
  muon.momentum = 0.5f;
  state = {{3.0, 4.0}, {1.0, 0.0}, {}};
  EXPECT_EQ(oracle::muon_momentum(state, {1.0, 2.0}, muon), (Values{1.0, 1.5}));
  EXPECT_EQ(state.first_moment, (Values{1.0, 1.0}));
}

}  // namespace
}  // namespace sherd::kernels
