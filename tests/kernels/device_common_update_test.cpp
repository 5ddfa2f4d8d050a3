// The bodies of the GPU's updates, compiled for the host and walked over whole slices: the bits of
// the CPU's updates, for every type of gradient and moment, with and without random rounding.
#include <gtest/gtest.h>

#include "kernels/device_common/layerwise_update.h"
#include "tests/support/values/tensors.h"

namespace sherd::kernels {
namespace {

using test::OwnedTensor;
using test::random_values;
using test::same_bits;

const std::vector<UpdateSegment> kSegments = {
    {0, 61, 0.1f, 3, 1000}, {64, 9000, 0.0f, 4, 0}, {9088, 130, 0.01f, 5, 77}};
const std::vector<float> kRatios = {0.5f, 1.25f, 2.0f};
constexpr std::int64_t kNumel = 9280;

/// A slice's tensors, twice: one for the CPU's kernel, one for the body.
struct Slices {
  OwnedTensor parameter, gradient, first, second, update;

  Slices(DType gradient_type, DType moment)
      : parameter(DType::kF32, random_values(kNumel, 1)),
        gradient(gradient_type, random_values(kNumel, 2)),
        first(moment, random_values(kNumel, 3, 0.1)),
        second(moment, squares()),
        update(DType::kF32, random_values(kNumel, 4)) {}

  static test::Values squares() {
    test::Values values = random_values(kNumel, 5, 0.1);
    for (double& value : values) value *= value;
    return values;
  }
  UpdateCommon common(bool stochastic) const {
    return {.parameter = parameter.tensor(),
            .gradient = gradient,
            .segments = kSegments,
            .lr = 0.01f,
            .gradient_scale = 0.37f,
            .rounding = {stochastic, {5, 6, 0}}};
  }
};

template <int N, class Body>
void run_segments(const Body& work, bool with_ratios = false) {
  const device_common::SegmentTable table = device_common::make_segment_table(
      kSegments, with_ratios ? std::span(kRatios) : std::span<const float>());
  for (std::int64_t block = 0; block < table.num_blocks(); ++block) {
    for (int thread = 0; thread < device_common::kThreads; ++thread) {
      device_common::walk_segments<N>(table, block, thread, device_common::kThreads, work);
    }
  }
}

void expect_same(const Slices& actual, const Slices& expected) {
  EXPECT_TRUE(same_bits(actual.parameter, expected.parameter));
  EXPECT_TRUE(same_bits(actual.first, expected.first));
  EXPECT_TRUE(same_bits(actual.second, expected.second));
  EXPECT_TRUE(same_bits(actual.update, expected.update));
}

template <class Types>
class BodyUpdate : public ::testing::Test {
 public:
  using G = typename Types::first_type;
  using S = typename Types::second_type;
  static constexpr int N = device_common::pack_of<G, S, float>();
  std::unique_ptr<Stream> stream = test::compute_stream();

  /// Runs `cpu(slices, common)` and `device(slices, common)` from the same state.
  template <class Cpu, class Device>
  void compare(Cpu&& cpu, Device&& device) {
    for (const bool stochastic : {false, true}) {
      Slices expected(dtype_of<G>, dtype_of<S>), actual(dtype_of<G>, dtype_of<S>);
      cpu(expected, expected.common(stochastic));
      device(actual, actual.common(stochastic));
      expect_same(actual, expected);
    }
  }
};
using UpdateTypes =
    ::testing::Types<std::pair<float, float>, std::pair<BFloat16, float>, std::pair<Float16, float>,
                     std::pair<float, BFloat16>, std::pair<BFloat16, BFloat16>>;
TYPED_TEST_SUITE(BodyUpdate, UpdateTypes);

TYPED_TEST(BodyUpdate, AdamAndAdamW) {
  using Test = TestFixture;
  for (const bool decoupled : {false, true}) {
    const auto args = [&](Slices& s, const UpdateCommon& common) {
      return AdamUpdate{common, s.first, s.second, decoupled, 0.9f, 0.95f, 1e-8f, 7};
    };
    this->compare([&](Slices& s, const UpdateCommon& c) { adam_update(*this->stream, args(s, c)); },
                  [&](Slices& s, const UpdateCommon& c) {
                    run_segments<Test::N>(
                        device_common::Adam<typename Test::G, typename Test::S>(args(s, c)));
                  });
  }
}

TYPED_TEST(BodyUpdate, SgdWithAndWithoutMomentum) {
  using Test = TestFixture;
  for (const float momentum : {0.0f, 0.9f}) {
    const auto args = [&](Slices& s, const UpdateCommon& common) {
      return SgdUpdate{common, momentum > 0.0f ? s.first.tensor() : Tensor{}, momentum};
    };
    this->compare(
        [&](Slices& s, const UpdateCommon& c) { sgd_update(*this->stream, args(s, c)); },
        [&](Slices& s, const UpdateCommon& c) {
          run_segments<Test::N>(device_common::Sgd<typename Test::G, typename Test::S>(args(s, c)));
        });
  }
}

TYPED_TEST(BodyUpdate, Lion) {
  using Test = TestFixture;
  this->compare(
      [&](Slices& s, const UpdateCommon& c) {
        lion_update(*this->stream, {c, s.first, 0.9f, 0.99f});
      },
      [&](Slices& s, const UpdateCommon& c) {
        run_segments<Test::N>(
            device_common::Lion<typename Test::G, typename Test::S>({c, s.first, 0.9f, 0.99f}));
      });
}

TYPED_TEST(BodyUpdate, Lamb) {
  using Test = TestFixture;
  const auto args = [](Slices& s, const UpdateCommon& common) {
    return LambUpdate{common, s.first, s.second, 0.9f, 0.999f, 1e-6f, 3};
  };
  this->compare(
      [&](Slices& s, const UpdateCommon& c) {
        lamb_moments(*this->stream, args(s, c));
        lamb_apply(*this->stream, args(s, c), kRatios);
      },
      [&](Slices& s, const UpdateCommon& c) {
        run_segments<Test::N>(
            device_common::LambMoments<typename Test::G, typename Test::S>(args(s, c)));
        run_segments<Test::N>(device_common::LambDirection<typename Test::S>(args(s, c)), true);
      });
}

TYPED_TEST(BodyUpdate, Lars) {
  using Test = TestFixture;
  this->compare(
      [&](Slices& s, const UpdateCommon& c) {
        lars_apply(*this->stream, {c, s.first, 0.9f}, kRatios);
      },
      [&](Slices& s, const UpdateCommon& c) {
        run_segments<Test::N>(
            device_common::Lars<typename Test::G, typename Test::S>({c, s.first, 0.9f}), true);
      });
}

TYPED_TEST(BodyUpdate, MuonsElementWiseParts) {
  using Test = TestFixture;
  const auto args = [](Slices& s, const UpdateCommon& common) {
    return MuonUpdate{common, s.first, s.update, 0.95f};
  };
  this->compare(
      [&](Slices& s, const UpdateCommon& c) {
        muon_momentum(*this->stream, args(s, c));
        muon_apply(*this->stream, args(s, c), kRatios);
      },
      [&](Slices& s, const UpdateCommon& c) {
        run_segments<Test::N>(
            device_common::MuonMomentum<typename Test::G, typename Test::S>(args(s, c)));
        run_segments<4>(device_common::MuonApply(args(s, c)), true);
      });
}

TEST(JoinNeighbours, JoinsStretchesOfOneParameterAndNothingElse) {
  UpdateSegment shifted{900, 100, 0.1f, 2, 600};
  shifted.random_shift = 5;
  const std::vector<UpdateSegment> segments = {
      {0, 100, 0.1f, 1, 40},    {100, 50, 0.1f, 1, 140},
      {150, 50, 0.1f, 1, 190},             // one stretch
      {200, 100, 0.1f, 2, 0},              // another parameter
      {300, 100, 0.0f, 2, 100},            // another decay
      {408, 100, 0.0f, 2, 200},            // after padding
      {508, 92, 0.0f, 2, 301},             // not the next element
      {600, 300, 0.1f, 2, 300}, shifted};  // other random bits
  const auto joined = device_common::join_neighbours(segments);
  std::vector<std::int64_t> firsts;
  std::int64_t count = 0;
  for (const UpdateSegment& each : joined) firsts.push_back(each.first), count += each.count;
  EXPECT_EQ(firsts, (std::vector<std::int64_t>{0, 200, 300, 408, 508, 600, 900}));
  EXPECT_EQ(joined[0].count, 200);
  EXPECT_EQ(joined[0].first_element, 40);
  EXPECT_EQ(count, 992);
}

}  // namespace
}  // namespace sherd::kernels
