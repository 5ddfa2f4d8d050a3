// The equality ladder with a quantised base (QLoRA): matrices rest as NF4 and are decoded into gather
// slots at every stage. Memory is compared with its plan in every run (training_harness.h).
#include <gtest/gtest.h>

#include "engine/model/parameters.h"
#include "engine/plan/memory_plan.h"
#include "engine/train/units/frozen_weights.h"
#include "kernels/nf4.h"
#include "sharding/zero/parameter_gather.h"
#include "tests/support/models/weighed_forms.h"
#include "tests/support/runs/training_harness.h"
#include "tests/support/values/tensors.h"

namespace sherd::testing {
namespace {

constexpr int kQuantisedSteps = 3;

model::ModelShape adapted_model(bool tied) {
  model::ModelShape shape = tiny_model(tied);
  shape.adapter = {.rank = 3, .scale = 1.5, .dropout = 0.2};
  shape.adapter.targets = {"attention.qkv", "attention.output", "mlp.up", "mlp.down"};
  if (!tied) shape.adapter.trained_modules = {"head", "norm2"};
  return shape;
}

engine::TrainingOptions quantised(const model::ModelShape& shape) {
  engine::TrainingOptions options = tiny_training(shape, 0.5f);
  options.nf4_base = true;
  options.precision.parameters = shape.dtype;
  return options;
}

std::string compare(const model::ModelShape& shape, const RunShape& a, const RunShape& b) {
  return difference(train(quantised(shape), a, kQuantisedSteps),
                    train(quantised(shape), b, kQuantisedSteps));
}

TEST(QuantisedLadder, StagesWorldsMicroStepsPrefetchAndDelaysChangeNoBit) {
  int run = 0;
  for (const bool tied : {false, true}) {
    for (const int world : {1, 2, 4}) {
      const int num_micro_steps = world == 2 ? 4 : 1;
      const RunShape reference{.world_size = world, .num_micro_steps = num_micro_steps, .stage = 0};
      for (int stage = 0; stage <= 3; ++stage, ++run) {
        EXPECT_EQ(compare(adapted_model(tied), reference,
                          {.world_size = world,
                           .num_micro_steps = num_micro_steps,
                           .stage = stage,
                           .prefetch_depth = run % 4,
                           .reshard_after_forward = run % 3 != 0,
                           .threads_per_rank = 1 + run % 2,
                           .delay_seed = run % 2 ? 700u + run : 0u}),
                  "")
            << "stage " << stage << " of " << world << " ranks";
      }
    }
  }
}

// Experts of each form rest as codes, too, whole or divided over ranks; routers don't.
TEST(QuantisedLadder, ExpertsHaveTheSameBitsHoweverRanksHoldThem) {
  int run = 0;
  for (const ModelForm& form : expert_forms()) {
    model::ModelShape shape = form.shape;
    shape.adapter = {.rank = 3, .scale = 1.5};
    shape.adapter.targets = {"attention.qkv", "attention.output"};
    shape.moe.experts = 8;
    shape.moe.ffn_width = 64;  // a rank's experts are whole blocks of codes
    if (shape.moe.groups > 1) shape.moe.groups = 4;
    const RunShape one{.num_micro_steps = 4};
    for (const auto& [expert, shard] : {std::pair(1, 2), std::pair(2, 1), std::pair(2, 2)}) {
      const int stage = 1 + run++ % 3;
      const RunShape ranks{
          .world_size = expert * shard,
          .axes = {{"pipeline", 1}, {"replicate", 1}, {"expert", expert}, {"shard", shard}},
          .num_micro_steps = 4 / (expert * shard),
          .stage = stage};
      EXPECT_EQ(compare(shape, one, ranks), "")
          << form.name << ", " << expert << " x " << shard << " ranks at stage " << stage;
    }
  }
}

/// The digest of a base whose elements follow from their place, as every rank has it.
std::string digest_of_base(const engine::TrainingOptions& of, const RunShape& setup) {
  const engine::TrainingOptions options = applied(of, setup);
  std::string digest;
  run_ranks(setup, [&](sharding::Rank& rank) {
    engine::ShardedModel model(options, rank);
    rank.guard([&] {
      const std::string own = model.frozen().load([](const sharding::State& wanted) {
        for (const sharding::StatePiece& piece : wanted.pieces) {
          const auto& tensor = wanted.tensors[static_cast<std::size_t>(piece.tensor)];
          for (std::int64_t i = 0; i < piece.count; ++i) {
            const std::int64_t element =
                sharding::element_of_tensor(tensor, piece.band, piece.first_element + i);
            piece.data.as<float>()[i] = static_cast<float>(element % 89 - 44) / 64.0f;
          }
        }
      });
      if (rank.rank == 0) digest = own;
    });
  });
  return digest;
}

// Otherwise a run couldn't go on with other expert ranks.
TEST(Quantised, ABaseWithExpertsHasOneDigestHoweverRanksHoldThem) {
  model::ModelShape shape = shape_named(expert_forms(), "experts");
  shape.adapter = {.rank = 3, .scale = 1.5};
  shape.adapter.targets = {"attention.qkv"};
  shape.moe.experts = 8;
  shape.moe.ffn_width = 64;
  engine::TrainingOptions options = quantised(shape);
  for (const bool four_bits : {true, false}) {
    options.nf4_base = four_bits;
    const std::string one = digest_of_base(options, {});
    for (const auto& [expert, shard] : {std::pair(2, 1), std::pair(2, 2), std::pair(4, 1)}) {
      const RunShape ranks{
          .world_size = expert * shard,
          .axes = {{"pipeline", 1}, {"replicate", 1}, {"expert", expert}, {"shard", shard}},
          .stage = 3};
      EXPECT_EQ(digest_of_base(options, ranks), one) << expert << " x " << shard;
    }
  }
}

TEST(QuantisedLadder, OneRankWithFourMicroStepsIsTwoWithTwoAndFourWithOne) {
  const RunShape one{.world_size = 1, .num_micro_steps = 4};
  for (const int stage : {0, 2, 3}) {
    for (const DType dtype : {DType::kF32, DType::kBF16}) {
      model::ModelShape shape = adapted_model(false);
      shape.dtype = dtype;
      EXPECT_EQ(compare(shape, one, {.world_size = 2, .num_micro_steps = 2, .stage = stage}), "");
      EXPECT_EQ(compare(shape, one, {.world_size = 4, .stage = stage}), "");
    }
  }
}

TEST(QuantisedLadder, ADeviceWithMemoryOfItsOwnChangesNoBit) {
  for (const int stage : {0, 3}) {
    const RunShape here{.world_size = 2, .stage = stage};
    RunShape apart = here;
    apart.place = RunShape::Place::kApart;
    EXPECT_EQ(compare(adapted_model(false), here, apart), "") << "stage " << stage;
  }
}

using Gathered = std::map<std::string, test::Values>;

/// Every parameter as a forward sees it, by name.
Gathered gathered(const engine::TrainingOptions& options, const RunShape& setup) {
  Gathered values;
  run_ranks(setup, [&](sharding::Rank& rank) {
    engine::ShardedModel model(applied(options, setup), rank);
    rank.guard([&] {
      const std::vector<UnitSpec> table = model::parameter_table(options.model);
      for (int unit = 0; unit < std::ssize(table); ++unit) {
        model.parameters().plan({unit});
        const std::vector<Tensor> views = model.parameters().get(unit);
        rank.compute().synchronize();
        for (std::size_t i = 0; rank.rank == setup.world_size - 1 && i < views.size(); ++i) {
          const auto* first = views[i].as<float>();
          values[table[static_cast<std::size_t>(unit)].parameters[i].name].assign(
              first, first + views[i].numel);
        }
        model.parameters().release(unit);
      }
      rank.compute().synchronize();
    });
  });
  return values;
}

/// The codes that a rank with all of a matrix would compute.
test::Values through_nf4(const test::Values& values) {
  test::OwnedTensor x(DType::kF32, values), out(DType::kF32, x.numel());
  const std::int64_t blocks = kernels::nf4_blocks(x.numel());
  test::OwnedTensor codes(DType::kU8, (x.numel() + 1) / 2), scales(DType::kF32, blocks);
  test::OwnedTensor scale_codes(DType::kU8, blocks);
  test::OwnedTensor ranges(DType::kF32, kernels::nf4_ranges(x.numel()));
  const auto stream = make_cpu_compute_stream({});
  kernels::nf4_encode(*stream, x, codes, scales);
  kernels::nf4_encode_scales(*stream, scales, scale_codes, ranges);
  kernels::nf4_decode(*stream, {codes, scale_codes, ranges, 0}, out);
  stream->synchronize();
  return out.values();
}

TEST(Quantised, FrozenMatricesOfBlocksAreThoseEncodedWholeAndAllElseIsAsItIs) {
  const model::ModelShape shape = adapted_model(false);
  const Gathered plain = gathered(tiny_training(shape), {});
  int num_quantised = 0;
  for (const auto& [world, stage] : {std::pair(1, 0), std::pair(3, 0), std::pair(4, 3)}) {
    const Gathered found = gathered(quantised(shape), {.world_size = world, .stage = stage});
    ASSERT_EQ(found.size(), plain.size());
    for (const auto& [name, values] : plain) {
      const bool matrix = name.starts_with("block") && name.ends_with(".weight") &&
                          name.find("norm") == std::string::npos;
      num_quantised += matrix;
      EXPECT_EQ(found.at(name), matrix ? through_nf4(values) : values) << name;
    }
  }
  EXPECT_GT(num_quantised, 0);
}

TEST(Quantised, ExpertsAreEncodedAsOneMatrixAndRoutersAreNot) {
  std::vector<ModelForm> forms = expert_forms_on_cpus();
  forms.push_back({"latents_and_experts", shape_named(latent_forms(), "latents_and_experts")});
  for (const ModelForm& form : sink_forms()) {
    if (form.shape.moe.active()) forms.push_back(form);
  }
  for (const ModelForm& form : forms) {
    model::ModelShape shape = form.shape;
    shape.adapter = {.rank = 3, .scale = 1.5};
    shape.adapter.targets = {"attention.qkv"};
    const Gathered plain = gathered(tiny_training(shape), {});
    const Gathered found = gathered(quantised(shape), {.world_size = 2, .stage = 3});
    int num_experts = 0;
    for (const auto& [name, values] : plain) {
      if (name.ends_with(".moe.router.weight")) {
        EXPECT_EQ(found.at(name), values) << form.name << " " << name;
      }
      if (name.find(".moe.experts.") == std::string::npos || !name.ends_with(".weight")) continue;
      ++num_experts;
      EXPECT_EQ(found.at(name), through_nf4(values)) << form.name << " " << name;
    }
    EXPECT_GT(num_experts, 0) << form.name;
  }
}

// More than the 2^22 elements that are read at once, in groups of scales that lie on several ranks.
TEST(Quantised, AMatrixThatIsReadInPartsIsEncodedAsAWhole) {
  model::ModelShape shape = adapted_model(true);
  shape.num_layers = 1;
  shape.width = 256;
  shape.ffn_width = 16'400;
  const Gathered plain = gathered(tiny_training(shape), {});
  const Gathered found = gathered(quantised(shape), {.world_size = 4, .stage = 3});
  for (const char* name : {"block.0.mlp.up.weight", "block.0.mlp.down.weight"}) {
    ASSERT_GT(plain.at(name).size(), std::size_t{1} << 22);
    EXPECT_TRUE(found.at(name) == through_nf4(plain.at(name))) << name;
  }
}

std::vector<std::uint8_t> bytes_at_rest(const engine::ShardedModel& model) {
  std::vector<std::uint8_t> bytes;
  for (const sharding::UnitState& unit : model.units()) {
    if (!unit.plan().has_quantised()) continue;
    const auto* first = unit.quantised().as<std::uint8_t>();
    bytes.insert(bytes.end(), first, first + unit.quantised().numel);
  }
  return bytes;
}

TEST(Quantised, TrainingLeavesEveryByte) {
  for (const int stage : {0, 3}) {
    const RunShape setup{.world_size = 2, .stage = stage};
    const engine::TrainingOptions options = applied(quantised(adapted_model(false)), setup);
    run_ranks(setup, [&](sharding::Rank& rank) {
      engine::ShardedModel model(options, rank);
      engine::TrainingStep training_step(options, model);
      std::vector<std::int32_t> memory;
      rank.guard([&] {
        rank.compute().synchronize();
        const auto before = bytes_at_rest(model);
        for (int step = 0; step < kQuantisedSteps; ++step) {
          training_step.run(step, tokens_for(options, rank, memory));
        }
        rank.compute().synchronize();
        EXPECT_FALSE(before.empty());
        EXPECT_EQ(bytes_at_rest(model), before);
      });
    });
  }
}

// By hand: 33 bytes for 64 elements, each matrix padded to whole blocks and each unit to whole blocks of
// all four ranks; and a mean and a range for each 16,384 of a matrix.
TEST(Quantised, MatricesTakeThirtyThreeBytesForSixtyFourElementsAndTheirRanges) {
  const auto up = [](std::int64_t numel, std::int64_t multiple) {
    return (numel + multiple - 1) / multiple * multiple;
  };
  const model::ModelShape shape = adapted_model(true);
  for (const int stage : {0, 3}) {
    const RunShape setup{.world_size = 4, .stage = stage};
    std::int64_t codes = 0, ranges = 0;
    for (const BufferSpec& buffer : engine::training_buffers(
             applied(quantised(shape), setup), {.mesh = mesh_of(setup), .num_threads = 1})) {
      if (buffer.name.ends_with(".nf4") && buffer.phases == kAlways) codes += buffer.bytes();
      if (buffer.name.ends_with(".nf4_ranges")) ranges += buffer.bytes();
    }
    std::int64_t expected_codes = 0, expected_ranges = 0;
    for (const UnitSpec& unit : model::parameter_table(shape)) {
      std::int64_t elements = 0;
      for (const ParameterSpec& parameter : unit.parameters) {
        if (parameter.shape.size() != 2 || unit.unit_class != UnitClass::kBlock ||
            parameter.name.find(".lora_") != std::string::npos) {
          continue;
        }
        elements += up(parameter.numel(), 64);
        expected_ranges += 4 * (1 + up(parameter.numel(), 64 * 256) / (64 * 256));
      }
      expected_codes += up(elements, 4 * 64) / 64 * 33 / (stage == 3 ? 4 : 1);
    }
    EXPECT_EQ(codes, expected_codes) << stage;
    EXPECT_EQ(ranges, expected_ranges) << stage;
  }
}

}  // namespace
}  // namespace sherd::testing
