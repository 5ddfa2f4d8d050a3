// Copies of weights are compared, and a bit that one rank's memory has lost is found on that rank.

#include "engine/train/weight_check.h"

#include <gtest/gtest.h>

#include "core/error.h"
#include "tests/equivalence/mesh_case.h"
#include "tests/support/models/model_forms.h"
#include "tests/support/values/error_text.h"

namespace sherd::testing {
namespace {

using Case = MeshCase;
using Place = RunShape::Place;

/// Called on each rank before each step.
using BeforeStep =
    std::function<void(const sharding::Rank& rank, std::int64_t step, engine::ShardedModel& model)>;

Outcome train_checked(engine::TrainingOptions options, const RunShape& setup, int interval,
                      const BeforeStep& before_step = {}) {
  options = applied(std::move(options), setup);
  options.weight_hash_interval = interval;
  Outcome outcome;
  outcome.parameters = empty_parameters(options.model);
  run_ranks(setup, [&](sharding::Rank& rank) {
    engine::ShardedModel model(options, rank);
    engine::TrainingStep training_step(options, model);
    std::vector<std::int32_t> memory;
    const engine::NextBatch tokens = tokens_for(options, rank, memory);
    rank.guard([&] {
      for (std::int64_t step = 0; step < 3; ++step) {
        rank.gather().synchronize();
        if (before_step) before_step(rank, step, model);
        const engine::StepResult result = training_step.run(step, tokens);
        if (rank.rank != 0) continue;
        outcome.losses.push_back(result.loss);
        outcome.grad_norms.push_back(result.grad_norm);
      }
      collect_parameters(model, outcome.parameters);
    });
  });
  return outcome;
}

Outcome train_checked(engine::TrainingOptions options, const Case& each, int interval,
                      const BeforeStep& before_step = {}, Place place = Place::kHost) {
  options.pipeline.order = each.order;
  options.pipeline.chunks_per_rank = schedule::default_chunks_per_rank(each.order);
  RunShape setup = setup_of(each);
  setup.place = place;
  return train_checked(std::move(options), setup, interval, before_step);
}

engine::TrainingOptions options_of(bool tied, DType dtype) {
  model::ModelShape shape = cuttable(tiny_model(tied), tied ? 8 : 4);
  shape.max_positions = 13;
  shape.seq_length = 12;
  shape.dtype = dtype;
  engine::TrainingOptions options = tiny_training(shape, 0.5f);
  options.precision.parameters = dtype;
  return options;
}

TEST(WeightCheck, FindsNoDifferenceWhereThereIsNoneAndChangesNoBit) {
  const Case cases[] = {{.shards = 3, .stage = 0},
                        {.shards = 3, .stage = 1},
                        {.shards = 2, .stage = 2, .micro_steps = 2},
                        {.shards = 2, .replicas = 2, .stage = 3},
                        {.shards = 2, .replicas = 2, .stage = 1, .divides_optimizer = true},
                        {.shards = 1, .replicas = 3, .stage = 3, .divides_optimizer = true},
                        {.tensor = 2, .shards = 2, .stage = 2},
                        {.tensor = 4, .stage = 3},
                        {.context = 2, .shards = 2, .stage = 2},
                        {.context = 2, .tensor = 2, .stage = 3},
                        {.pipeline = 2, .stage = 0, .micro_steps = 2},
                        {.tensor = 2, .pipeline = 2, .stage = 1, .micro_steps = 2}};
  for (const Case& each : cases) {
    for (const bool tied : {false, true}) {
      for (const DType dtype : {DType::kF32, DType::kBF16}) {
        const engine::TrainingOptions options = options_of(tied, dtype);
        EXPECT_EQ(difference(train_checked(options, each, 0), train_checked(options, each, 1)), "")
            << name_of(each);
      }
    }
  }
}

TEST(WeightCheck, FindsNoDifferenceBetweenRanksThatDivideExpertsNorInAFrozenBase) {
  for (const ModelForm& form : expert_forms()) {
    engine::TrainingOptions options = tiny_training(form.shape);
    options.model.moe.experts = 8;
    if (options.model.moe.groups > 1) options.model.moe.groups = 4;
    for (const int stage : {1, 3}) {
      const RunShape setup{.world_size = 4,
                           .axes = {{"pipeline", 1}, {"replicate", 1}, {"expert", 2}, {"shard", 2}},
                           .stage = stage};
      EXPECT_NO_THROW(train_checked(options, setup, 1)) << form.name << " stage " << stage;
    }
  }
  engine::TrainingOptions adapted = options_of(false, DType::kF32);
  adapted.model.width = 64;  // whole blocks of codes for each of two ranks
  adapted.model.head_size = 16;
  adapted.model.ffn_width = 128;
  adapted.model.adapter = {.rank = 3, .scale = 1.5};
  adapted.model.adapter.targets = {"attention.qkv", "mlp.down"};
  for (const bool quantised : {false, true}) {
    adapted.nf4_base = quantised;
    for (const Case& each : {Case{.shards = 3, .stage = 2}, Case{.tensor = 2, .stage = 1},
                             Case{.shards = 2, .replicas = 2, .stage = 3}}) {
      EXPECT_NO_THROW(train_checked(adapted, each, 1)) << name_of(each) << quantised;
    }
  }
}

// Of memory that the host may not be able to reach.
void flip_a_bit(const sharding::Rank& rank, const Tensor& values, std::int64_t element) {
  auto* const place = static_cast<unsigned char*>(values.part(element, 1).data);
  unsigned char byte = 0;
  rank.compute().copy(place, &byte, 1);
  rank.compute().synchronize();
  byte ^= 1;
  rank.compute().copy(&byte, place, 1);
  rank.compute().synchronize();
}

// Before step 2 of those counted from 1, in the first element of the last unit.
BeforeStep flips_on(int at) {
  return [at](const sharding::Rank& rank, std::int64_t step, engine::ShardedModel& model) {
    if (rank.rank != at || step != 1) return;
    const sharding::UnitState& unit = model.units().back();
    flip_a_bit(rank,
               unit.resident_parameters().numel > 0 ? unit.resident_parameters()
               : unit.coded_part()                  ? unit.coded_part()
                                                    : unit.fp32_slice(unit.own_slice()),
               0);
  };
}

std::string refusal(const engine::TrainingOptions& options, const Case& each, int interval,
                    const BeforeStep& before_step, Place place = Place::kHost) {
  return test::error_text<TrainingError>(
      [&] { train_checked(options, each, interval, before_step, place); });
}

TEST(WeightCheck, NamesTheRankWhoseCopyHasAFlippedBit) {
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    const engine::TrainingOptions options = options_of(false, dtype);
    for (int stage = 0; stage < 3; ++stage) {
      for (const int rank : {0, 2}) {
        const std::string others = rank == 0 ? "ranks 1 and 2" : "ranks 0 and 1";
        const std::string text = refusal(options, {.shards = 3, .stage = stage}, 1, flips_on(rank));
        EXPECT_TRUE(text.starts_with("step 2: the copy of ")) << text;
        EXPECT_TRUE(text.ends_with(fmt::format(
            " on rank {} differs from that on {} (training.weight_hash_interval). All copies "
            "agreed at step 1; resume from the newest checkpoint up to that step, and suspect the "
            "memory of the machine of rank {}.",
            rank, others, rank)))
            << text;
      }
    }
  }
}

TEST(WeightCheck, ComparesReplicasSlicesAndWhatTensorRanksShare) {
  const engine::TrainingOptions options = options_of(false, DType::kF32);
  EXPECT_NE(refusal(options, {.shards = 2, .replicas = 3, .stage = 3}, 1, flips_on(3))
                .find(" on rank 3 differs from that on ranks 1 and 5 "),
            std::string::npos);
  // The norm of the first layer.
  const BeforeStep flips_a_norm = [](const sharding::Rank& rank, std::int64_t step,
                                     engine::ShardedModel& model) {
    if (rank.rank != 1 || step != 1) return;
    for (const sharding::UnitState& unit : model.units()) {
      for (int i = 0; i < std::ssize(unit.spec().parameters); ++i) {
        if (unit.spec().parameters[static_cast<std::size_t>(i)].name != "block.0.norm1.weight") {
          continue;
        }
        return flip_a_bit(rank, unit.resident_parameters(), unit.layout().offset(i));
      }
    }
    FAIL() << "no such parameter";
  };
  const std::string text = refusal(options, {.tensor = 4, .stage = 2}, 1, flips_a_norm);
  EXPECT_NE(text.find("the copy of block.0.norm1.weight on rank 1 differs from that on ranks 0, 2 "
                      "and 3 "),
            std::string::npos)
      << text;
}

TEST(WeightCheck, ComparesTheBytesOfPartsThatReplicasGatherInBlocks) {
  engine::TrainingOptions options = options_of(false, DType::kBF16);
  options.precision.gather_blocks = kernels::BlockFormat::kInt8;
  const Case each{.shards = 2, .replicas = 3, .stage = 3, .divides_optimizer = true};
  EXPECT_EQ(difference(train_checked(options, each, 0), train_checked(options, each, 1)), "");
  const std::string text = refusal(options, each, 1, flips_on(3));
  EXPECT_NE(text.find("the copy of head on rank 3 differs from that on ranks 1 and 5 "),
            std::string::npos)
      << text;
}

TEST(WeightCheck, OfTwoCopiesNeitherIsRight) {
  const std::string text =
      refusal(options_of(false, DType::kF32), {.shards = 2, .stage = 0}, 2, flips_on(1));
  EXPECT_NE(text.find(" on ranks 0 and 1 differ, and no majority says which are right"),
            std::string::npos)
      << text;
  EXPECT_NE(text.find("Nothing was compared before in this run; resume from its newest checkpoint"),
            std::string::npos)
      << text;
}

// A unit is larger than the staging memory, through which its hashes are computed.
TEST(WeightCheck, ReadsTheMemoryOfADeviceInParts) {
  engine::TrainingOptions options = options_of(false, DType::kF32);
  options.model.vocab_size = 80'000;
  options.model.num_layers = 1;
  const std::int64_t head = options.model.vocab_size * options.model.width;
  ASSERT_GT(4 * head, engine::WeightCheck::kStagingBytes);
  for (const Place place : {Place::kApart, Place::kApartDeferred}) {
    const Case each{.shards = 3, .stage = 2};
    EXPECT_EQ(difference(train_checked(options, each, 0, {}, place),
                         train_checked(options, each, 1, {}, place)),
              "");
    for (const std::int64_t element : {std::int64_t{0}, head - 1}) {
      const BeforeStep flips = [&](const sharding::Rank& rank, std::int64_t step,
                                   engine::ShardedModel& model) {
        if (rank.rank != 2 || step != 1) return;
        const sharding::UnitState& unit = model.units().back();  // the last norm and the head
        ASSERT_EQ(unit.spec().parameters.back().name, "head.weight");
        const std::int64_t first =
            unit.layout().offset(static_cast<int>(std::ssize(unit.spec().parameters)) - 1);
        flip_a_bit(rank, unit.resident_parameters(), first + element);
      };
      const std::string text = refusal(options, each, 1, flips, place);
      EXPECT_TRUE(
          text.starts_with("step 2: the copy of head.weight on rank 2 differs from that on "
                           "ranks 0 and 1 "))
          << text;
    }
  }
}

TEST(WeightCheck, LooksAtItsIntervalOnly) {
  EXPECT_EQ(refusal(options_of(false, DType::kF32), {.shards = 3, .stage = 0}, 4, flips_on(1)),
            "(no error)");
  EXPECT_TRUE(refusal(options_of(false, DType::kF32), {.shards = 3, .stage = 0}, 3, flips_on(1))
                  .starts_with("step 3: "));
}

}  // namespace
}  // namespace sherd::testing
