#include "sharding/zero/gradient_reduction.h"

#include <gtest/gtest.h>

#include "kernels/block_codec.h"
#include "tests/sharding/sharding_support.h"
#include "tests/support/values/tensors.h"

namespace sherd::sharding {
namespace {

constexpr int kBlocks = 3;

struct Case {
  int stage = 2;
  GradSync grad_sync = GradSync::kEveryMicroStep;
  int num_micro_steps = 1;
  int world_size = 2;
  bool tied = false;
  std::uint64_t delay_seed = 0;
  DType reduce = DType::kF32;  ///< of slots and reductions; accumulated in f32
  kernels::BlockFormat blocks = kernels::BlockFormat::kF32;
};

std::string name_of(const Case& example) {
  return fmt::format("stage {} {} micro-steps {} world {}{}", example.stage,
                     example.grad_sync == GradSync::kBoundary ? "boundary" : "every",
                     example.num_micro_steps, example.world_size, example.tied ? " tied" : "");
}

/// A rank's own gradient of one element in one micro-step of one step.
struct Source {
  int step = 0;
  int micro_step = 0;
  int rank = 0;
};
float contribution(const Source& source, std::uint64_t parameter, std::int64_t element,
                   std::uint64_t share = 0) {
  const auto address =
      static_cast<std::uint64_t>((source.step * 8 + source.micro_step) * 8 + source.rank);
  return test::number(parameter, static_cast<std::uint64_t>(element), address, share);
}

float rounded(const Case& example, float value) {
  return example.reduce == DType::kBF16 ? static_cast<float>(BFloat16(value)) : value;
}

/// A tied embedding's first tensor gets the head's share, then the embedding's on top.
bool has_two_shares(const Case& example, std::uint32_t parameter) {
  return example.tied && parameter == 0;
}
float own_gradient(const Case& example, const Source& source, std::uint32_t parameter,
                   std::int64_t element) {
  const float first = rounded(example, contribution(source, parameter, element));
  if (!has_two_shares(example, parameter)) return first;
  return rounded(example, first + contribution(source, parameter, element, 1));
}

// What one rank sends of a parameter, as its owner decodes it: `whole` has all elements. Vectors are sent
// as they are.
void round_blocks(const Case& example, const ParameterSpec& parameter, std::vector<float>& whole) {
  if (parameter.shape.size() == 1 || example.blocks == kernels::BlockFormat::kF32) return;
  const Tensor tensor{whole.data(), DType::kF32, static_cast<std::int64_t>(whole.size())};
  const auto stream = test::compute_stream(1);
  kernels::round_to_blocks(*stream, example.blocks, tensor, tensor);
  stream->synchronize();
}

// The step's gradient of a parameter if ranks send blocks: as `expected`, of rounded addends.
std::vector<float> expected_in_blocks(const Case& example, int step,
                                      const ParameterSpec& parameter) {
  const auto numel = static_cast<std::size_t>(parameter.numel());
  std::vector<float> total;
  const auto add = [](std::vector<float>& sum, const std::vector<float>& addend) {
    if (sum.empty()) {
      sum = addend;
    } else {
      for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += addend[i];
    }
  };
  const auto own = [&](int micro_step, int rank) {
    std::vector<float> values(numel);
    for (std::size_t i = 0; i < numel; ++i) {
      values[i] = own_gradient(example, {step, micro_step, rank}, parameter.index,
                               static_cast<std::int64_t>(i));
    }
    return values;
  };
  if (example.grad_sync == GradSync::kBoundary) {
    for (int rank = 0; rank < example.world_size; ++rank) {
      std::vector<float> sum;
      for (int i = 0; i < example.num_micro_steps; ++i) add(sum, own(i, rank));
      round_blocks(example, parameter, sum);
      add(total, sum);
    }
    return total;
  }
  for (int i = 0; i < example.num_micro_steps * example.world_size; ++i) {
    std::vector<float> values = own(i / example.world_size, i % example.world_size);
    round_blocks(example, parameter, values);
    add(total, values);
  }
  return total;
}

// What the step's gradient is: at the boundary each rank's micro-steps, then these sums; else all in one
// chain, as a single rank would add them.
float expected(const Case& example, int step, std::uint32_t parameter, std::int64_t element) {
  const bool boundary = example.grad_sync == GradSync::kBoundary;
  const int outer = boundary ? example.world_size : 1;
  const int inner = example.num_micro_steps * (boundary ? 1 : example.world_size);
  float total = 0.0f;
  for (int i = 0; i < outer; ++i) {
    float part = 0.0f;
    for (int j = 0; j < inner; ++j) {
      const Source source{step, boundary ? j : j / example.world_size,
                          boundary ? i : j % example.world_size};
      const float value = own_gradient(example, source, parameter, element);
      part = j == 0 ? value : part + value;
    }
    total = i == 0 ? part : total + part;
  }
  return total;
}

float at(const Tensor& view, std::int64_t i) {
  return view.dtype == DType::kBF16 ? static_cast<float>(view.as<BFloat16>()[i])
                                    : view.as<float>()[i];
}
void put(const Tensor& view, std::int64_t i, float value) {
  if (view.dtype == DType::kBF16) {
    view.as<BFloat16>()[i] = BFloat16(value);
  } else {
    view.as<float>()[i] = value;
  }
}

void write(const UnitState& unit, const std::vector<Tensor>& views, const Source& source) {
  for (std::size_t p = 0; p < views.size(); ++p) {
    for (std::int64_t i = 0; i < views[p].numel; ++i) {
      put(views[p], i, contribution(source, unit.spec().parameters[p].index, i));
    }
  }
}

// The backward of one micro-step, as a model runs it: head, blocks downwards, embedding.
void backward(const Case& example, const std::vector<UnitState>& units,
              GradientReduction& gradients, const Source& source) {
  gradients.begin_micro_step(source.micro_step);
  const int head = example.tied ? 0 : kBlocks + 1;
  write(units[head], gradients.open(head), source);
  if (!example.tied) gradients.close(head);
  for (int unit = kBlocks; unit >= 1; --unit) {
    write(units[unit], gradients.open(unit), source);
    gradients.close(unit);
  }
  const std::vector<Tensor> views = gradients.open(0);
  if (example.tied) {
    for (std::int64_t i = 0; i < views[0].numel; ++i) {
      put(views[0], i, at(views[0], i) + contribution(source, 0, i, 1));
    }
  } else {
    write(units[0], views, source);
  }
  gradients.close(0);
}

void check(const Case& example, const UnitState& unit, int step) {
  for (const int slice_index : unit.updated_slices()) {
    const Tensor slice = unit.gradient(slice_index);
    std::vector<bool> covered(static_cast<std::size_t>(slice.numel), false);
    for (const Piece& piece : unit.layout().pieces(slice_index)) {
      const ParameterSpec& parameter = unit.spec().parameters[piece.parameter];
      const bool in_blocks = example.blocks != kernels::BlockFormat::kF32;
      std::vector<float> sums;
      if (in_blocks) sums = expected_in_blocks(example, step, parameter);
      for (std::int64_t i = 0; i < piece.count; ++i) {
        covered[static_cast<std::size_t>(piece.position + i)] = true;
        ASSERT_EQ(slice.as<float>()[piece.position + i],
                  in_blocks ? sums[static_cast<std::size_t>(piece.first_element + i)]
                            : expected(example, step, parameter.index, piece.first_element + i))
            << name_of(example) << ": " << unit.name() << " step " << step;
      }
    }
    for (std::int64_t i = 0; i < slice.numel; ++i) {
      if (covered[static_cast<std::size_t>(i)]) continue;
      ASSERT_EQ(slice.as<float>()[i], 0.0f) << name_of(example) << ": padding of " << unit.name();
    }
  }
}

void run_steps(const Case& example, int num_steps) {
  testing::run_ranks(
      {.world_size = example.world_size, .delay_seed = example.delay_seed}, [&](Rank& rank) {
        const std::vector<UnitState> units = test::make_units(
            test::small_units(kBlocks, example.tied),
            placement_of(example.stage, example.grad_sync), rank,
            {DType::kF32, example.reduce, DType::kF32, kernels::BlockFormat::kF32, example.blocks});
        GradientReduction gradients(rank, units, example.num_micro_steps);
        rank.guard([&] {
          for (int step = 0; step < num_steps; ++step) {
            for (int micro_step = 0; micro_step < example.num_micro_steps; ++micro_step) {
              backward(example, units, gradients, {step, micro_step, rank.rank});
            }
            gradients.finish();
            for (const UnitState& unit : units) check(example, unit, step);
          }
        });
      });
}

// Two steps, so that slots and accumulators hold another unit's or the last step's numbers.
TEST(GradientReduction, AddsMicroStepsAndRanksAsAPlainLoopDoesBitForBit) {
  for (int stage = 0; stage <= 3; ++stage) {
    for (const GradSync grad_sync : {GradSync::kEveryMicroStep, GradSync::kBoundary}) {
      for (int micro_steps = 1; micro_steps <= 3; ++micro_steps) {
        for (int world = 1; world <= 3; ++world) {
          for (const bool tied : {false, true}) {
            run_steps({stage, grad_sync, micro_steps, world, tied}, 2);
          }
        }
      }
    }
  }
}

TEST(GradientReduction, ComputesTheSameThoughStreamsAreLate) {
  for (int stage = 0; stage <= 3; ++stage) {
    for (const GradSync grad_sync : {GradSync::kEveryMicroStep, GradSync::kBoundary}) {
      run_steps({stage, grad_sync, 2, 3, stage % 2 == 0, 5u + static_cast<unsigned>(stage)}, 3);
    }
  }
}

// What ranks send is bf16; all of it adds up in f32.
TEST(GradientReduction, ReducesInBF16AndAccumulatesInF32) {
  for (int stage = 0; stage <= 3; ++stage) {
    for (int micro_steps = 1; micro_steps <= 3; ++micro_steps) {
      for (int world = 1; world <= 3; ++world) {
        Case example{stage, GradSync::kEveryMicroStep, micro_steps, world, world == 2};
        example.reduce = DType::kBF16;
        run_steps(example, 2);
      }
    }
  }
}

// Each rank's gradient is rounded, a lone rank's too, and what comes of it is added in rank order.
TEST(GradientReduction, AddsBlocksAsAPlainLoopDoesBitForBit) {
  for (const auto blocks : {kernels::BlockFormat::kInt8, kernels::BlockFormat::kInt4}) {
    for (int stage = 0; stage <= 3; ++stage) {
      for (const GradSync grad_sync : {GradSync::kEveryMicroStep, GradSync::kBoundary}) {
        for (int world = 1; world <= 3; ++world) {
          Case example{stage, grad_sync, 1 + (stage + world) % 3, world, world == 2};
          example.blocks = blocks;
          example.delay_seed = world == 3 ? 5u + static_cast<unsigned>(stage) : 0u;
          run_steps(example, 2);
        }
      }
    }
  }
}

TEST(GradientReduction, OpeningAnOpenUnitGivesTheSameViewsWithWhatStandsInThem) {
  for (int stage = 0; stage <= 3; ++stage) {
    testing::run_ranks({.world_size = 1}, [&](Rank& rank) {
      const auto units = test::make_units(test::small_units(1, true), placement_of(stage), rank);
      GradientReduction gradients(rank, units, 2);
      rank.guard([&] {
        for (int micro_step = 0; micro_step < 2; ++micro_step) {
          gradients.begin_micro_step(micro_step);
          const std::vector<Tensor> first = gradients.open(0);
          first[0].as<float>()[5] = 3.0f;
          const std::vector<Tensor> again = gradients.open(0);
          EXPECT_EQ(again[0].data, first[0].data);
          EXPECT_EQ(again[0].as<float>()[5], 3.0f);
          gradients.close(0);
        }
        gradients.finish();
      });
    });
  }
}

// FACTS §6.5 and the header: two slots for blocks, one for the edges, none where the only
// micro-step writes a full accumulator.
TEST(GradientReduction, HoldsAsManySlotsAsItSays) {
  struct Row {
    int stage;
    GradSync grad_sync;
    int micro_steps, slots;
  };
  for (const Row& row :
       {Row{0, GradSync::kBoundary, 1, 0}, Row{1, GradSync::kBoundary, 1, 0},
        Row{1, GradSync::kBoundary, 4, 2}, Row{1, GradSync::kEveryMicroStep, 4, 3},
        Row{2, GradSync::kEveryMicroStep, 1, 3}, Row{3, GradSync::kEveryMicroStep, 4, 3}}) {
    testing::run_ranks({.world_size = 2}, [&](Rank& rank) {
      const auto units = test::make_units(test::small_units(kBlocks, false),
                                          placement_of(row.stage, row.grad_sync), rank);
      const GradientReduction gradients(rank, units, row.micro_steps);
      int slots = 0;
      for (const BufferSpec& buffer : rank.memory->acquired()) {
        slots += buffer.category == Category::kUnreducedGradients;
      }
      EXPECT_EQ(slots, row.slots) << "stage " << row.stage << ", micro-steps " << row.micro_steps;
    });
  }
}

TEST(GradientReduction, ShowsEachUnitsOwnGradientBeforeItIsReduced) {
  for (int stage = 0; stage <= 3; ++stage) {
    const Case example{.stage = stage};
    testing::run_ranks({.world_size = 2}, [&](Rank& rank) {
      const auto units =
          test::make_units(test::small_units(kBlocks, false), placement_of(stage), rank);
      GradientReduction gradients(rank, units, 1);
      std::vector<int> seen;
      gradients.inspect = [&](int unit, UnitEnd, const Tensor& full) {
        seen.push_back(unit);
        const Tensor view = units[unit].layout().views(full)[0];
        EXPECT_EQ(view.as<float>()[0],
                  contribution({0, 0, rank.rank}, units[unit].spec().parameters[0].index, 0));
      };
      rank.guard([&] {
        backward(example, units, gradients, {0, 0, rank.rank});
        gradients.finish();
      });
      EXPECT_EQ(seen, (std::vector<int>{4, 3, 2, 1, 0}));
    });
  }
}

TEST(GradientReductionDeathTest, MisuseIsOurBug) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  testing::run_ranks({.world_size = 1}, [](Rank& rank) {
    const auto units = test::make_units(test::small_units(kBlocks, false), placement_of(3), rank);
    GradientReduction gradients(rank, units, 1);
    gradients.begin_micro_step(0);
    EXPECT_DEATH(gradients.close(1), "close of block.0 without an open");
    gradients.open(0);
    EXPECT_DEATH(gradients.begin_micro_step(0), "the gradient of embedding was left open");
    EXPECT_DEATH(gradients.open(kBlocks + 1), "the gradient slot for head is still open");
    gradients.close(0);
    EXPECT_DEATH(gradients.close(0), "close of embedding without an open");
    rank.guard([] {});
  });
}

TEST(GradientReductionDeathTest, AtTheBoundaryTheAccumulatorItselfIsReducedSoTypesMustAgree) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  Rank rank = test::lone_rank(0, 1);
  rank.compute_stream = make_cpu_compute_stream({});
  const auto units =
      test::make_units(test::small_units(1, true), placement_of(1, GradSync::kBoundary), rank,
                       {DType::kBF16, DType::kBF16, DType::kF32});
  EXPECT_DEATH(GradientReduction(rank, units, 1), "accumulated in f32 can't be reduced in bf16");
}

}  // namespace
}  // namespace sherd::sharding
