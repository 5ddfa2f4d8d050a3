// Moments in 8 bits are those of one rank at every stage and world, codes and scales.

#include "optim/eight_bits.h"

#include <gtest/gtest.h>

#include <cstring>
#include <map>
#include <mutex>

#include "core/error.h"
#include "tests/optim/optimizer_runs.h"

namespace sherd::optim {
namespace {

using sherd::testing::RunShape;

// Bytes of whole parameters and moments, by kind and parameter.
using Bytes = std::map<std::pair<std::string, std::uint32_t>, std::string>;

OptimizerOptions options_of(OptimizerType type) {
  OptimizerOptions options;
  options.type = type;
  options.beta2 = 0.98f;
  options.decay.rate = 0.1f;
  options.moment_type.in_8_bits = true;
  return options;
}

void put(Bytes& bytes, const MomentPiece& piece) {
  std::string& whole = bytes[{piece.kind, piece.parameter}];
  const std::size_t size = size_of(piece.data.dtype);
  const std::size_t first = static_cast<std::size_t>(piece.first_element) * size;
  const auto count = static_cast<std::size_t>(piece.data.bytes());
  if (whole.size() < first + count) whole.resize(first + count);
  std::memcpy(whole.data() + first, piece.data.data, count);
}

Bytes after_twenty_steps(OptimizerType type, const RunShape& shape) {
  Bytes bytes;
  std::mutex mutex;
  sherd::testing::run_ranks(shape, [&](sharding::Rank& rank) {
    const auto units = test::make_units(
        straddling_units(),
        sharding::placement_of(shape.stage, sharding::GradSync::kEveryMicroStep), rank);
    for (const sharding::UnitState& unit : units) test::fill_slices(unit, initial_value);
    const auto optimizer = make_optimizer(options_of(type), rank, units);
    rank.guard([&] {
      for (int t = 1; t <= 20; ++t) {
        for (const sharding::UnitState& unit : units) {
          fill_gradients(unit, [t](std::uint32_t parameter, std::int64_t element) {
            return gradient_value(t, parameter, element);
          });
        }
        take_step(rank.compute(), *optimizer, units, update_step(0.02f, t));
      }
      const std::lock_guard lock(mutex);
      for (const MomentPiece& piece : optimizer->moment_pieces()) put(bytes, piece);
      for (const sharding::UnitState& unit : units) {
        for (const int slice : unit.updated_slices()) {
          for (const sharding::Piece& piece : unit.layout().pieces(slice)) {
            put(bytes,
                {"param", slice, unit.spec().parameters[piece.parameter].index, piece.first_element,
                 unit.fp32_slice(slice).part(piece.position, piece.count)});
          }
        }
      }
    });
  });
  return bytes;
}

TEST(EightBitMoments, AreThoseOfOneRankAtEveryStageAndWorld) {
  for (const OptimizerType type : {OptimizerType::kAdamW, OptimizerType::kLion}) {
    const Bytes one = after_twenty_steps(type, {});
    EXPECT_EQ((one.at({"exp_avg", 0}).size()), 37 * 11);
    EXPECT_EQ((one.at({"exp_avg_scale", 0}).size()), 4 * 7);  // 407 elements
    for (const RunShape& shape : stages_and_worlds()) {
      EXPECT_EQ(after_twenty_steps(type, shape), one) << sherd::testing::name_of(shape);
    }
  }
}

TEST(EightBitMoments, TakeAByteAnElementAndFourForSixtyFour) {
  const sharding::ShardingPlan plan{
      sharding::Mesh::sharded(2),
      {sharding::UnitPlan(straddling_units()[1], sharding::placement_of(3), {},
                          sharding::Mesh::sharded(2))}};
  std::map<std::string, std::int64_t> bytes;
  for (const BufferSpec& buffer :
       descriptor_of(OptimizerType::kAdamW).buffers(options_of(OptimizerType::kAdamW), plan, 0)) {
    bytes[buffer.name] = buffer.numel * static_cast<std::int64_t>(size_of(buffer.dtype));
  }
  const std::int64_t numel = plan.units[0].updated_numel();
  EXPECT_EQ(bytes, (std::map<std::string, std::int64_t>{{"block.0.exp_avg", numel},
                                                        {"block.0.exp_avg_scale", numel / 16},
                                                        {"block.0.exp_avg_sq", numel},
                                                        {"block.0.exp_avg_sq_scale", numel / 16}}));
}

ParameterSpec part_of(std::vector<std::int64_t> whole, std::vector<Box> boxes) {
  ParameterSpec parameter{"matrix", whole, {}, 0, {}};
  parameter.cut = ParameterCut{"matrix", Cut::kRows, whole, {}, {}};
  for (const Box& box : boxes) parameter.cut->held.push_back({box});
  return parameter;
}

TEST(EightBitMoments, ARanksPartHasWholeBlocks) {
  const auto check = [](const ParameterSpec& parameter) {
    check_blocks({"unit", UnitClass::kBlock, {parameter}});
  };
  check(part_of({6, 96}, {{0, 2, 0, 96}}));  // 192 elements
  check(part_of({6, 96}, {{2, 2, 0, 96}, {4, 2, 0, 96}}));
  check(part_of({6, 128}, {{0, 6, 64, 64}}));
  check(part_of({5, 13}, {{0, 5, 0, 13}}));  // all of it
  check(part_of({130}, {{64, 66, 0, 1}}));   // the rest of it
  EXPECT_THROW(check(part_of({6, 96}, {{0, 1, 0, 96}})), UsageError);
  EXPECT_THROW(check(part_of({6, 96}, {{1, 2, 0, 96}})), UsageError);
  EXPECT_THROW(check(part_of({6, 96}, {{0, 6, 0, 48}})), UsageError);
  EXPECT_THROW(check(part_of({6, 192}, {{0, 6, 96, 96}})), UsageError);
  EXPECT_THROW(check(part_of({6, 200}, {{0, 6, 64, 64}})), UsageError);
  EXPECT_THROW(check(part_of({130}, {{65, 65, 0, 1}})), UsageError);
}

}  // namespace
}  // namespace sherd::optim
