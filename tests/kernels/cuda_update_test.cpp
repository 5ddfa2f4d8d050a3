// Optimizer updates on a GPU: the CPU's bits, and the oracle's orthogonal matrices.
#include <gtest/gtest.h>

#include <cmath>

#include "kernels/orthogonalise.h"
#include "kernels/update.h"
#include "tests/support/devices/place.h"
#include "tests/support/oracles/oracle_update.h"
#include "tests/support/values/exact_sums.h"

namespace sherd::kernels {
namespace {

using test::Outputs;
using test::OwnedTensor;
using test::Place;
using test::random_values;
using test::Values;

constexpr std::int64_t kNumel = 40017;

// As a slice is cut: tensors begun on another rank, padding between them. With starts that are no
// multiple of a pack, and with those that are; and more of them than one launch carries.
std::vector<UpdateSegment> odd_segments() {
  return {{0, 1, 0.1f, 3, 99},    {1, 39, 0.0f, 4, 0},       {47, 953, 0.1f, 5, 0},
          {1000, 3, 0.02f, 6, 0}, {1003, 23997, 0.1f, 7, 0}, {25000, 15000, 0.0f, 8, 0}};
}
std::vector<UpdateSegment> even_segments() {
  return {{0, 30, 0.1f, 3, 96},
          {32, 0, 0.1f, 4, 0},
          {32, 20001, 0.0f, 5, 0},
          {20040, 19977, 0.1f, 6, 0}};
}
std::vector<UpdateSegment> many_segments() {
  std::vector<UpdateSegment> segments;
  for (std::uint32_t i = 0; i < 150; ++i) segments.push_back({256 * i, 251, 0.01f * i, i, 3});
  return segments;
}

// Neighbours of one parameter, as CPUs share a slice; a GPU joins the first three.
std::vector<UpdateSegment> pieces() {
  return {{0, 1000, 0.1f, 3, 64},
          {1000, 2001, 0.1f, 3, 1064},
          {3001, 9999, 0.1f, 3, 3065},
          {13000, 27000, 0.1f, 3, 50000}};
}

struct Settings {
  std::vector<UpdateSegment> segments;
  DType gradient, moment;
  bool stochastic;
};

std::vector<Settings> settings() {
  std::vector<Settings> all;
  for (const auto& segments : {odd_segments(), even_segments(), many_segments(), pieces()}) {
    all.push_back({segments, DType::kF32, DType::kF32, false});
    all.push_back({segments, DType::kF32, DType::kBF16, false});
    all.push_back({segments, DType::kBF16, DType::kBF16, true});
    all.push_back({segments, DType::kF16, DType::kBF16, false});
  }
  return all;
}

/// What an update is given: a slice in the place where it runs.
struct Slice {
  UpdateCommon common;
  Tensor first, second, update, rounded;

  UpdateCommon rounds() const {
    UpdateCommon with = common;
    with.rounded = rounded;
    return with;
  }
};

// The same work on both devices, from the same numbers; every output must be bit-identical.
void has_the_cpus_bits(const std::function<void(Stream&, const Slice&)>& step) {
  for (const Settings& s : settings()) {
    SCOPED_TRACE(fmt::format("{} segments, gradient {}, moments {}", s.segments.size(),
                             name_of(s.gradient), name_of(s.moment)));
    const OwnedTensor gradient(s.gradient, random_values(kNumel, 2));
    Values squares = random_values(kNumel, 4, 0.5);
    for (double& value : squares) value = std::abs(value) + 0.01;
    const test::Work work = [&](Place& place) {
      Outputs out{{DType::kF32, random_values(kNumel, 1)},
                  {s.moment, random_values(kNumel, 3, 0.5)},
                  {s.moment, squares},
                  {DType::kF32, random_values(kNumel, 5)},
                  {s.gradient == DType::kF16 ? DType::kF16 : DType::kBF16, Values(kNumel, 7.0)}};
      Slice slice;
      slice.common.parameter = place.out(out[0]);
      slice.common.gradient = place.in(gradient);
      slice.common.segments = s.segments;
      slice.common.lr = 0.01f;
      slice.common.gradient_scale = 0.3f;
      slice.common.rounding = {s.stochastic, {77, 5, 0}};
      slice.first = place.out(out[1]);
      slice.second = place.out(out[2]);
      slice.update = place.out(out[3]);
      slice.rounded = place.out(out[4]);
      step(place.stream(), slice);
      place.finish();
      return out;
    };
    EXPECT_TRUE(test::same_bits(test::on_gpu(work), test::on_cpu(work)));
  }
}

std::vector<float> ratios_of(const UpdateCommon& common) {
  std::vector<float> ratios;
  for (std::size_t i = 0; i < common.segments.size(); ++i) {
    ratios.push_back(0.5f + 0.01f * static_cast<float>(i));
  }
  return ratios;
}

LambUpdate lamb(const Slice& slice) {
  return {.common = slice.common,
          .exp_avg = slice.first,
          .exp_avg_sq = slice.second,
          .beta1 = 0.9f,
          .beta2 = 0.999f,
          .eps = 1e-6f,
          .update_number = 7};
}

class CudaUpdate : public test::OnGpu {};

TEST_F(CudaUpdate, AdamAndAdamWHaveTheCpusBits) {
  for (const bool decoupled : {true, false}) {
    has_the_cpus_bits([=](Stream& stream, const Slice& slice) {
      for (std::int64_t update_number : {1, 2, 3}) {
        adam_update(stream, {.common = slice.rounds(),
                             .exp_avg = slice.first,
                             .exp_avg_sq = slice.second,
                             .decoupled_decay = decoupled,
                             .beta1 = 0.9f,
                             .beta2 = 0.95f,
                             .eps = 1e-8f,
                             .update_number = update_number});
      }
    });
  }
}

// Adam's and Lion's moments in 8 bits: parts of tensors, more of them than a launch carries.
TEST_F(CudaUpdate, MomentsIn8BitsHaveTheCpusBits) {
  constexpr std::int64_t kSize = 40000;
  std::vector<UpdateSegment> few = {
      {0, 128, 0.1f, 3, 64}, {128, 19999, 0.0f, 4, 0}, {20160, 19840, 0.1f, 5, 640}};
  std::vector<UpdateSegment> many;
  for (std::uint32_t i = 0; i < 150; ++i) many.push_back({256 * i, 251, 0.01f * i, i, 64});
  for (const auto& segments : {few, many}) {
    for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF16}) {
      const test::Work work = [&](Place& place) {
        const Values zeros(kSize, 0.0), no_scales(kSize / 64, 0.0);
        Outputs out{{DType::kF32, random_values(kSize, 1)},
                    {DType::kU8, zeros},
                    {DType::kU8, zeros},
                    {DType::kF32, no_scales},
                    {DType::kF32, no_scales},
                    {DType::kBF16, Values(kSize, 7.0)},
                    {DType::kU8, zeros},
                    {DType::kF32, no_scales}};
        const OwnedTensor gradient(dtype, random_values(kSize, 2));
        UpdateCommon common = {.parameter = place.out(out[0]),
                               .gradient = place.in(gradient),
                               .segments = segments,
                               .lr = 0.01f,
                               .gradient_scale = 0.3f};
        common.rounded = place.out(out[5]);
        UpdateCommon lion = common;
        common.scales = place.out(out[3]);
        common.second_scales = place.out(out[4]);
        lion.scales = place.out(out[7]);
        const Tensor first = place.out(out[1]), second = place.out(out[2]),
                     of_lion = place.out(out[6]);
        for (std::int64_t update_number : {1, 2, 3}) {
          adam_update(place.stream(), {.common = common,
                                       .exp_avg = first,
                                       .exp_avg_sq = second,
                                       .beta2 = 0.95f,
                                       .update_number = update_number});
          lion_update(place.stream(), {lion, of_lion});
        }
        place.finish();
        return out;
      };
      EXPECT_TRUE(test::same_bits(test::on_gpu(work), test::on_cpu(work)));
    }
  }
}

TEST_F(CudaUpdate, SgdAndLionHaveTheCpusBits) {
  has_the_cpus_bits([](Stream& stream, const Slice& slice) {
    sgd_update(stream, {slice.rounds(), slice.first, 0.9f});
    sgd_update(stream, {slice.common, {}, 0.0f});
    lion_update(stream, {.common = slice.rounds(), .exp_avg = slice.second});
  });
}

TEST_F(CudaUpdate, ElementWisePartsOfLambLarsAndMuonHaveTheCpusBits) {
  has_the_cpus_bits([](Stream& stream, const Slice& slice) {
    const std::vector<float> ratios = ratios_of(slice.common);
    lamb_moments(stream, lamb(slice));
    lamb_apply(stream, lamb(slice), ratios);
    lars_apply(stream, {slice.common, slice.first, 0.9f}, ratios);
    const MuonUpdate muon{slice.common, slice.first, slice.update, 0.95f};
    muon_momentum(stream, muon);
    muon_apply(stream, muon, ratios);
    stream.synchronize();  // the ratios are this function's
  });
}

TEST_F(CudaUpdate, NormsOfLambAndLarsAreTheCpusToDoublePrecision) {
  for (const Settings& s : settings()) {
    const OwnedTensor gradient(s.gradient, random_values(kNumel, 2));
    Values squares(kNumel, 0.25);
    const auto num_sums = static_cast<std::int64_t>(2 * s.segments.size());
    const test::Work work = [&](Place& place) {
      Outputs out{test::exact_sums(num_sums), test::exact_sums(num_sums)};
      OwnedTensor parameter(DType::kF32, random_values(kNumel, 1));
      OwnedTensor first(s.moment, random_values(kNumel, 3, 0.5)), second(s.moment, squares);
      Slice slice;
      slice.common.parameter = place.out(parameter);
      slice.common.gradient = place.in(gradient);
      slice.common.segments = s.segments;
      slice.common.gradient_scale = 0.3f;
      slice.first = place.out(first);
      slice.second = place.out(second);
      lamb_norms(place.stream(), lamb(slice), place.out(out[0]));
      lars_norms(place.stream(), {slice.common, slice.first, 0.9f}, place.out(out[1]));
      place.finish();
      return out;
    };
    const Outputs gpu = test::on_gpu(work), cpu = test::on_cpu(work);
    for (std::size_t i : {0u, 1u}) {
      EXPECT_TRUE(test::close(OwnedTensor(DType::kF64, test::values_of_sums(gpu[i])),
                              test::values_of_sums(cpu[i]), {1e-12, 0.0, 0.0}));
    }
  }
}

TEST_F(CudaUpdate, ASliceWithoutSegmentsStaysAsItIs) {
  const Outputs out = test::on_gpu([](Place& place) {
    Outputs outputs{{DType::kF32, random_values(64, 1)}, {DType::kF32, random_values(64, 2)}};
    const OwnedTensor gradient(DType::kF32, random_values(64, 3));
    UpdateCommon common;
    common.parameter = place.out(outputs[0]);
    common.gradient = place.in(gradient);
    common.lr = 1.0f;
    lion_update(place.stream(), {.common = common, .exp_avg = place.out(outputs[1])});
    place.finish();
    return outputs;
  });
  EXPECT_TRUE(test::same_bits(out[0], OwnedTensor(DType::kF32, random_values(64, 1))));
  EXPECT_TRUE(test::same_bits(out[1], OwnedTensor(DType::kF32, random_values(64, 2))));
}

void orthogonalise_in(DType dtype, Place& place, const Tensor& matrix, std::int64_t rows,
                      std::int64_t columns, Polynomials polynomials = Polynomials::kJordan) {
  const std::int64_t floats = orthogonalise_workspace_numel(rows, columns, dtype);
  orthogonalise(place.stream(), {matrix,
                                 rows,
                                 columns,
                                 dtype,
                                 {place.scratch(floats * 4).data, DType::kF32, floats},
                                 polynomials});
}

TEST_F(CudaUpdate, OrthogonalMatricesMatchTheOracle) {
  for (const auto& [rows, columns] :
       {std::pair{1, 1}, {1, 7}, {7, 1}, {13, 31}, {31, 13}, {64, 64}, {96, 200}, {200, 96}}) {
    SCOPED_TRACE(fmt::format("{} x {}", rows, columns));
    const OwnedTensor matrix(DType::kF32, random_values(std::int64_t{rows} * columns, 1));
    const Outputs out = test::on_gpu([&](Place& place) {
      Outputs outputs{matrix};
      orthogonalise_in(DType::kF32, place, place.out(outputs[0]), rows, columns);
      place.finish();
      return outputs;
    });
    // As in orthogonalise_test.cpp: five steps multiply small singular values, and errors with
    // them.
    EXPECT_TRUE(test::close(out[0], oracle::orthogonalise(matrix.values(), rows, columns),
                            {1e-4, 1e-4, 0.0}));
    const Outputs polar = test::on_gpu([&](Place& place) {
      Outputs outputs{matrix};
      orthogonalise_in(DType::kF32, place, place.out(outputs[0]), rows, columns,
                       Polynomials::kPolarExpress);
      place.finish();
      return outputs;
    });
    EXPECT_TRUE(test::close(
        polar[0], oracle::orthogonalise(matrix.values(), rows, columns, DType::kF64, true),
        {2e-4, 2e-4, 0.0}));
  }
}

// As in orthogonalise_test.cpp: every sum of a diagonal matrix's products has one term, so nothing is left to the
// order of sums.
TEST_F(CudaUpdate, InBf16DiagonalMatricesHaveTheCpusBits) {
  for (const auto& [rows, columns] : {std::pair{24, 40}, {40, 24}, {33, 33}}) {
    SCOPED_TRACE(fmt::format("{} x {}", rows, columns));
    const std::int64_t width = columns;
    Values values(static_cast<std::size_t>(rows * columns), 0.0);
    const Values diagonal = random_values(std::min(rows, columns), 5);
    for (std::size_t i = 0; i < diagonal.size(); ++i) {
      values[i * static_cast<std::size_t>(width + 1)] = diagonal[i];
    }
    const OwnedTensor matrix(DType::kF32, values);
    const auto work = [&](Place& place) {
      Outputs outputs{matrix};
      orthogonalise_in(DType::kBF16, place, place.out(outputs[0]), rows, columns);
      place.finish();
      return outputs;
    };
    EXPECT_TRUE(test::same_bits(test::on_gpu(work), test::on_cpu(work)));
  }
}

}  // namespace
}  // namespace sherd::kernels
