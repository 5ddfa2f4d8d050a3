// Element-wise kernels on a GPU: the CPU's bits, whatever the size and wherever a tensor begins.
#include <gtest/gtest.h>

#include <limits>

#include "kernels/activation.h"
#include "kernels/block_codec.h"
#include "kernels/columns.h"
#include "kernels/nf4.h"
#include "kernels/pointwise.h"
#include "kernels/rotary.h"
#include "tests/support/devices/place.h"
#include "tests/support/oracles/oracle_rotary.h"
#include "tests/support/values/exact_sums.h"

namespace sherd::kernels {
namespace {

using test::Outputs;
using test::OwnedTensor;
using test::Place;
using test::random_values;

// Sizes next to those of packs, blocks and a grid's limit.
constexpr std::int64_t kSizes[] = {1, 7, 8, 63, 131, 4099, 50021};
constexpr Dropout kDropout{0.25f, {0x5eed5eed5eedull, 3, 12}, 5};

class CudaPointwise : public test::OnGpuInEveryType {};
INSTANTIATE_TEST_SUITE_P(Types, CudaPointwise, test::compute_types(), test::type_name);

TEST_P(CudaPointwise, ColumnsForAdaptersAndUniformNumbersHaveTheCpusBits) {
  for (const Columns columns :
       {Columns{1, 1, 0, 1}, Columns{5, 700, 3, 300}, Columns{9, 24, 16, 8}}) {
    const OwnedTensor wide = filled(columns.rows * columns.width, 1);
    const OwnedTensor narrow = filled(columns.rows * columns.count, 2);
    same_bits_as_cpu(
        [&](Place& place) {
          Outputs out{wide, narrow};
          add_to_columns(place.stream(), columns, place.in(narrow), 0.3f, place.out(out[0]));
          take_columns(place.stream(), columns, place.in(wide), 0.3f, place.out(out[1]));
          place.finish();
          return out;
        },
        "columns");
  }
  same_bits_as_cpu(
      [&](Place& place) {
        Outputs out{{DType::kF32, 4099}};
        fill_uniform(place.stream(), place.out(out[0]), kDropout.address, 77, 0.3f);
        place.finish();
        return out;
      },
      "uniform numbers");
}

TEST_P(CudaPointwise, AveragesHaveTheCpusBits) {
  for (const std::int64_t numel : kSizes) {
    const OwnedTensor x(DType::kF32, test::random_values(numel, 1));
    const OwnedTensor y(DType::kF32, test::random_values(numel, 2));
    same_bits_as_cpu(
        [&](Place& place) {
          Outputs out;
          for (int i = 0; i < 3; ++i) out.emplace_back(DType::kF32, numel);
          Stream& stream = place.stream();
          const Tensor average = place.out(out[0]), a = place.out(out[1]), b = place.out(out[2]);
          cast(stream, place.in(y), average);
          move_towards(stream, place.in(x), 0.3f, average);
          cast(stream, place.in(x), a);
          cast(stream, place.in(y), b);
          exchange(stream, a, b);
          place.finish();
          return out;
        },
        fmt::format("{} elements", numel));
  }
}

TEST_P(CudaPointwise, FillsCastsSumsAndDropoutHaveTheCpusBits) {
  for (const std::int64_t numel : kSizes) {
    const OwnedTensor x = filled(numel, 1), residual = filled(numel, 2);
    same_bits_as_cpu(
        [&](Place& place) {
          Outputs out;
          for (int i = 0; i < 7; ++i) out.emplace_back(GetParam(), numel);
          Stream& stream = place.stream();
          fill_zero(stream, place.out(out[0]));
          fill_constant(stream, place.out(out[1]), 0.3f);
          residual_add(stream, place.in(residual), place.in(x), kDropout, place.out(out[2]));
          residual_add(stream, place.in(residual), place.in(x), {}, place.out(out[3]));
          dropout_backward(stream, place.in(x), kDropout, place.out(out[4]));
          residual_add(stream, place.in(residual), place.in(x), kDropout, place.out(out[5]), 0.3f);
          dropout_backward(stream, place.in(x), kDropout, place.out(out[6]), 0.3f);
          place.finish();
          return out;
        },
        fmt::format("{} elements", numel));
  }
}

TEST_P(CudaPointwise, CastsAndAdditionsBetweenAllTypesHaveTheCpusBits) {
  // Large values overflow f16 to infinity, small ones become subnormal.
  for (const double scale : {1.0, 1e5, 1e-6}) {
    for (const DType other : {DType::kF32, DType::kBF16, DType::kF16}) {
      const OwnedTensor x = filled(4099, 1, scale);
      // Finite: infinities of both signs would add up to a NaN, whose bits a processor chooses.
      const OwnedTensor before(other, random_values(4099, 2, scale / 10));
      same_bits_as_cpu(
          [&](Place& place) {
            Outputs out{{other, 4099}, before};
            cast(place.stream(), place.in(x), place.out(out[0]));
            add(place.stream(), place.in(x), place.out(out[1]));
            place.finish();
            return out;
          },
          fmt::format("to {}, scale {}", name_of(other), scale));
    }
  }
}

TEST_P(CudaPointwise, PartsThatBeginAnywhereHaveTheBitsOfTheWhole) {
  const OwnedTensor x = filled(3001, 1), residual = filled(3001, 2);
  for (std::int64_t first = 0; first < 10; ++first) {
    const std::int64_t numel = 2987;
    Dropout dropout = kDropout;
    dropout.first_element += first;
    same_bits_as_cpu(
        [&](Place& place) {
          Outputs out{{GetParam(), 3001}};
          const Tensor part = place.out(Tensor(out[0]).part(first, numel));
          residual_add(place.stream(), place.in(ConstTensor(residual).part(first, numel)),
                       place.in(ConstTensor(x).part(first, numel)), dropout, part);
          place.finish();
          return out;
        },
        fmt::format("from element {}", first));
  }
}

// A GPU adds in f64, which the CPU's exact sum differs from by a rounding for each addition. The last of these has more
// partial sums than a block has threads.
TEST_P(CudaPointwise, SumOfSquaresIsTheCpus) {
  for (const std::int64_t numel : {1, 15, 4096, 4097, 200003, 1030 * 4096}) {
    const OwnedTensor x = filled(numel, 3, 2.0);
    const test::Work work = [&](Place& place) {
      Outputs out{test::exact_sums(1)};
      const std::int64_t bytes = sum_of_squares_workspace_bytes(numel);
      const Tensor scratch = place.scratch(bytes);
      sum_of_squares(place.stream(), place.in(x), place.out(out[0]),
                     {scratch.data, DType::kF64, bytes / 8});
      place.finish();
      return out;
    };
    const Outputs gpu = test::on_gpu(work), cpu = test::on_cpu(work);
    EXPECT_TRUE(test::close(OwnedTensor(DType::kF64, test::values_of_sums(gpu[0])),
                            test::values_of_sums(cpu[0]), {1e-12, 0.0, 0.0}))
        << numel << " elements";
  }
}

TEST_P(CudaPointwise, FindsTheFirstNonFiniteElement) {
  for (const std::int64_t numel : {1, 1000, 300007}) {
    for (const std::int64_t at : {std::int64_t{-1}, std::int64_t{0}, numel / 2, numel - 1}) {
      test::Values values = random_values(numel, 4);
      if (at >= 0) {
        values[static_cast<std::size_t>(numel - 1)] = std::numeric_limits<double>::quiet_NaN();
        values[static_cast<std::size_t>(at)] = -std::numeric_limits<double>::infinity();
      }
      const OwnedTensor x(GetParam(), values);
      test::on_gpu([&](Place& place) {
        EXPECT_EQ(find_non_finite(place.stream(), place.in(x)), at);
        return Outputs{};
      });
    }
  }
}

TEST_P(CudaPointwise, ActivationsHaveTheCpusBitsInBothDirections) {
  for (const ActivationKind kind :
       {ActivationKind::kGelu, ActivationKind::kGeluErf, ActivationKind::kRelu2,
        ActivationKind::kSwiGlu, ActivationKind::kGeGlu}) {
    for (const auto& [tokens, width] : {std::pair{1, 1}, {3, 13}, {5, 8}, {17, 200}, {301, 64}}) {
      const ActivationShape shape{kind, tokens, width};
      const std::int64_t numel = shape.tokens * shape.width;
      const std::int64_t inputs = (is_gated(kind) ? 2 : 1) * numel;
      const OwnedTensor x = filled(inputs, 5, 12.0), dy = filled(numel, 6);
      same_bits_as_cpu(
          [&](Place& place) {
            Outputs out{{GetParam(), numel}, {GetParam(), inputs}};
            const ConstTensor in = place.in(x);
            activation_forward(place.stream(), {shape, in, place.out(out[0])});
            activation_backward(place.stream(), {shape, in, place.in(dy), place.out(out[1])});
            place.finish();
            return out;
          },
          fmt::format("T {} F {}", tokens, width));
    }
  }
}

TEST_P(CudaPointwise, RotaryHasTheCpusBitsInBothDirections) {
  struct Case {
    std::int64_t B, S, H, G, K;
  };
  for (const Case& c : {Case{1, 1, 1, 1, 2}, Case{2, 13, 4, 4, 10}, Case{1, 130, 6, 2, 24},
                        Case{2, 65, 4, 2, 64}}) {
    const OwnedTensor table(DType::kF32, oracle::rotary_table(c.S, c.K, 10000.0));
    const OwnedTensor before = filled(c.B * c.S * (c.H + 2 * c.G) * c.K, 7);
    for (const bool inverse : {false, true}) {
      same_bits_as_cpu(
          [&](Place& place) {
            Outputs out{before};
            rotary(place.stream(),
                   {c.B, c.S, c.H, c.G, c.K, place.in(table), place.out(out[0]), inverse});
            place.finish();
            return out;
          },
          fmt::format("K {}", c.K));
    }
  }
}

class CudaNumbers : public test::OnGpu {};

TEST_F(CudaNumbers, TheRotaryTableIsTheDoubleTableRoundedOnce) {
  for (const auto& [positions, width] : {std::pair{1, 2}, {7, 6}, {150, 64}, {1024, 10}}) {
    const Outputs out = test::on_gpu([&](Place& place) {
      Outputs outputs{{DType::kF32, std::int64_t{positions} * width}};
      rotary_table(place.stream(), place.out(outputs[0]), positions, width, {.theta = 10000.0});
      place.finish();
      return outputs;
    });
    EXPECT_TRUE(test::close(out[0], oracle::rotary_table(positions, width, 10000.0),
                            {0x1p-24, 0.0, 1e-12}));
  }
}

TEST_F(CudaNumbers, TablesOfScaledAndPartialFrequenciesAreTheCpusToTheLastBit) {
  RotaryFrequencies llama3{.theta = 5e5, .scaling = RotaryScaling::kLlama3};
  llama3.factor = 8.0, llama3.original_length = 64;
  RotaryFrequencies yarn{.theta = 1e4, .fraction = 0.5, .scaling = RotaryScaling::kYarn};
  yarn.factor = 4.0, yarn.original_length = 32;
  for (const RotaryFrequencies& frequencies : {llama3, yarn, RotaryFrequencies{.fraction = 0.25}}) {
    const test::Work work = [&](Place& place) {
      Outputs out{{DType::kF32, 150 * 64}};
      rotary_table(place.stream(), place.out(out[0]), 150, 64, frequencies);
      place.finish();
      return out;
    };
    EXPECT_TRUE(
        test::close(test::on_gpu(work)[0], test::on_cpu(work)[0].values(), {0x1p-23, 0.0, 1e-12}));
  }
}

TEST_P(CudaPointwise, Nf4HasTheCpusCodesScalesAndValues) {
  for (const std::int64_t numel : {1, 64, 131, 4099, 50021}) {
    const OwnedTensor x(DType::kF32, random_values(numel, 8, 0.02));
    const std::int64_t blocks = nf4_blocks(numel);
    same_bits_as_cpu(
        [&](Place& place) {
          Outputs out{{DType::kU8, (numel + 1) / 2},
                      {DType::kF32, blocks},
                      {DType::kU8, blocks},
                      {DType::kF32, nf4_ranges(numel)},
                      {GetParam(), numel}};
          const Tensor codes = place.out(out[0]), scales = place.out(out[1]);
          const Tensor scale_codes = place.out(out[2]), ranges = place.out(out[3]);
          nf4_encode(place.stream(), place.in(x), codes, scales);
          nf4_encode_scales(place.stream(), scales, scale_codes, ranges);
          nf4_decode(place.stream(), {codes, scale_codes, ranges, 0}, place.out(out[4]));
          place.finish();
          return out;
        },
        fmt::format("{} numbers", numel));
  }
}

// Blocks of ordinary numbers, of zeros, of tiny ones, and with what isn't finite.
TEST_P(CudaPointwise, NumbersInBlocksHaveTheCpusBytesAndSums) {
  constexpr int kParts = 3;
  for (const std::int64_t numel : {1, 63, 64, 131, 4099, 50021}) {
    std::vector<double> values = random_values(kParts * numel, 8, 3.0);
    constexpr double kInfinity = std::numeric_limits<double>::infinity();
    for (std::int64_t i = 0; i < kParts * numel; ++i) {
      const std::int64_t block = i / kCodecBlock % 7;
      auto& value = values[static_cast<std::size_t>(i)];
      if (block == 1) value = 0.0;
      if (block == 2) value *= 1e-39;
      if (block == 3 && i % 50 == 7) value = i % 100 == 7 ? kInfinity : -kInfinity;
      if (block == 4 && i % 90 == 5) value = std::numeric_limits<double>::quiet_NaN();
    }
    const OwnedTensor x(DType::kF32, values);
    for (const BlockFormat format : {BlockFormat::kF32, BlockFormat::kInt8, BlockFormat::kInt4}) {
      const std::int64_t bytes = coded_bytes(format, numel), stride = (bytes + 7) / 4 * 4;
      same_bits_as_cpu(
          [&](Place& place) {
            Outputs out{{DType::kU8, kParts * stride},
                        {GetParam(), numel},
                        {GetParam(), numel},
                        {GetParam(), numel}};
            const ConstTensor all = place.in(x);
            const Tensor coded = place.out(out[0]), sum = place.out(out[1]);
            for (int part = 0; part < kParts; ++part) {
              encode_blocks(place.stream(), format, all.part(part * numel, numel),
                            coded.part(part * stride, bytes));
            }
            const CodedParts parts{coded.part(0, bytes), stride, kParts};
            sum_blocks(place.stream(), format, parts, sum);
            const Tensor more = place.out(out[2]);
            sum_blocks(place.stream(), format, {coded.part(stride, bytes), stride, 1}, more);
            sum_blocks(place.stream(), format, parts, more, true);
            round_to_blocks(place.stream(), format, all.part(numel, numel), place.out(out[3]));
            place.finish();
            return out;
          },
          fmt::format("{} numbers in {}", numel, name_of(format)));
    }
  }
}

TEST_P(CudaPointwise, PartsOfATensorInNf4HaveTheirOwnGroupsRanges) {
  constexpr std::int64_t kBlocks = 3 * kNf4Group, kNumel = kBlocks * kNf4Block;
  const OwnedTensor x(DType::kF32, random_values(kNumel, 8, 0.02));
  for (const std::int64_t first : {std::int64_t{0}, kNf4Group - 1, 2 * kNf4Group + 7}) {
    const std::int64_t numel = 5 * kNf4Block + 3;
    same_bits_as_cpu(
        [&](Place& place) {
          Outputs out{{DType::kU8, kNumel / 2},
                      {DType::kF32, kBlocks},
                      {DType::kU8, kBlocks},
                      {DType::kF32, nf4_ranges(kNumel)},
                      {GetParam(), numel}};
          const Tensor codes = place.out(out[0]), scales = place.out(out[1]);
          const Tensor scale_codes = place.out(out[2]), ranges = place.out(out[3]);
          nf4_encode(place.stream(), place.in(x), codes, scales);
          nf4_encode_scales(place.stream(), scales, scale_codes, ranges);
          nf4_decode(place.stream(),
                     {codes.part(first * kNf4Block / 2, (numel + 1) / 2),
                      scale_codes.part(first, nf4_blocks(numel)), ranges, first},
                     place.out(out[4]));
          place.finish();
          return out;
        },
        fmt::format("from block {}", first));
  }
}

TEST_F(CudaNumbers, NormalNumbersAreTheCpusToTheLastBit) {
  for (const std::int64_t first : {std::int64_t{0}, std::int64_t{3}, std::int64_t{1} << 33}) {
    const test::Work work = [&](Place& place) {
      Outputs out{{DType::kF32, 5003}};
      fill_normal(place.stream(), place.out(out[0]), {42, 7, 9}, first, 0.1f, 0.02f);
      place.finish();
      return out;
    };
    const Outputs expected = test::on_cpu(work);
    // One unit in the last place, where f64 falls next to a tie.
    EXPECT_TRUE(test::close(test::on_gpu(work)[0], expected[0].values(), {0x1p-23, 0.0, 0.0}));
  }
}

TEST_F(CudaNumbers, NothingIsDoneToNothing) {
  test::on_gpu([](Place& place) {
    Stream& stream = place.stream();
    const Tensor none{place.scratch(64).data, DType::kF32, 0};
    fill_zero(stream, none);
    fill_constant(stream, none, 1.0f);
    cast(stream, none, {place.scratch(64).data, DType::kBF16, 0});
    add(stream, none, none);
    fill_normal(stream, none, {}, 0, 0.0f, 1.0f);
    EXPECT_EQ(find_non_finite(stream, none), -1);
    Outputs out{test::exact_sums(1)};
    sum_of_squares(stream, none, place.out(out[0]), {none.data, DType::kF64, 0});
    place.finish();
    EXPECT_EQ(out[0].values()[0], 0.0);
    return out;
  });
}

}  // namespace
}  // namespace sherd::kernels
