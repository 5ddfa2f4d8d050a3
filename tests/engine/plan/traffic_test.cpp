// What the plan says a rank sends, against a communicator that counts what training steps send.

#include <gtest/gtest.h>

#include "engine/model/parameters.h"
#include "engine/schedule/order.h"
#include "kernels/block_codec.h"
#include "optim/compression.h"
#include "tests/support/models/model_forms.h"
#include "tests/support/models/wide_model.h"
#include "tests/support/runs/counted_training.h"
#include "tests/support/runs/training_harness.h"

namespace sherd::testing {
namespace {

using sharding::Collective;

TEST(Traffic, OfAPipelineHasItsMessagesAndTheTiedMatrix) {
  for (int stage = 0; stage <= 3; ++stage) {
    for (const auto& [order, chunks] :
         {std::pair(schedule::Order::k1F1B, 1), std::pair(schedule::Order::kInterleaved1F1B, 2),
          std::pair(schedule::Order::kZbH1, 1)}) {
      model::ModelShape shape = tiny_model(stage % 2 == 0);
      shape.num_layers = 5;
      shape.recompute = static_cast<model::Recompute>(stage % 3);
      engine::TrainingOptions options = tiny_training(shape);
      options.pipeline = {order, chunks, {}};
      options.optimizer.type =
          stage == 1 ? optim::OptimizerType::kMuon : optim::OptimizerType::kLamb;
      expect_steps_as_planned(options, {.world_size = 4,
                                        .axes = {{"pipeline", 2}, {"shard", 2}},
                                        .num_micro_steps = 4,
                                        .stage = stage});
    }
  }
}

// Sums of gradients of routing weights and gates, and counts of sequences.
TEST(Traffic, OfExpertsOnTensorAndContextRanksIsCounted) {
  using model::ContextMethod;
  int run = 0;
  for (const ModelForm& form : cuttable_expert_forms()) {
    for (const auto& [pipeline, context, tensor] :
         {std::tuple(1, 1, 4), std::tuple(1, 2, 2), std::tuple(2, 1, 2), std::tuple(2, 2, 1)}) {
      engine::TrainingOptions options = tiny_training(form.shape);
      options.model.tied = false;
      options.model.seq_length = 8;
      options.model.part.sequence_parallel = run % 2 == 0;
      options.model.context.method =
          run % 3 == 0 ? ContextMethod::kRing : ContextMethod::kAllGather;
      options.model.recompute = static_cast<model::Recompute>(run % 3);
      options.pipeline.order = schedule::Order::kZbH1;
      expect_steps_as_planned(
          options,
          {.world_size = 2 * pipeline * context * tensor,
           .axes = {{"pipeline", pipeline}, {"shard", 2}, {"context", context}, {"tensor", tensor}},
           .num_micro_steps = 2,
           .stage = run % 4});
      ++run;
    }
  }
}

// Gradients and parameters in blocks are bytes; a group of one sends none.
TEST(Traffic, OfBlocksIsBytesAtEveryStageWithReplicasAndGroupsOfTheBatch) {
  int run = 0;
  for (const auto blocks : {kernels::BlockFormat::kInt8, kernels::BlockFormat::kInt4}) {
    for (int stage = 0; stage <= 3; ++stage) {
      for (const int replicas : {1, 2, 3}) {
        for (const int shards : {1, 2}) {
          engine::TrainingOptions options = tiny_training(tiny_model(run % 2 == 0));
          options.precision.gather_blocks = blocks;
          options.precision.reduce_blocks = blocks;
          options.precision.replica_blocks = run % 4 == 3 ? kernels::BlockFormat::kF32 : blocks;
          const bool boundary = run % 3 == 0;
          expect_steps_as_planned(
              options, {.world_size = replicas * shards,
                        .axes = {{"replicate", replicas}, {"shard", shards}},
                        .num_micro_steps = 2,
                        .stage = stage,
                        .grad_sync = boundary ? sharding::GradSync::kBoundary
                                              : sharding::GradSync::kEveryMicroStep,
                        .batch_groups = replicas == 1 && !boundary && run % 2 == 0 ? 2 : 0});
          ++run;
        }
      }
    }
  }
}

TEST(Traffic, OfReplicasThatDivideTheOptimizerStateIsAnExchangeOfBlocks) {
  for (int stage = 1; stage <= 3; ++stage) {
    engine::TrainingOptions options = tiny_training(tiny_model(true));
    options.precision.replica_blocks = kernels::BlockFormat::kInt4;
    options.precision.gather_blocks = kernels::BlockFormat::kInt8;
    if (stage == 2) options.precision.reduce_blocks = kernels::BlockFormat::kInt8;
    expect_steps_as_planned(options, {.world_size = 4,
                                      .axes = {{"replicate", 2}, {"shard", 2}},
                                      .stage = stage,
                                      .divides_optimizer = true});
  }
}

TEST(Traffic, OfMultiTokenPredictionIsThatOfItsUnits) {
  int run = 0;
  for (int stage = 0; stage <= 3; ++stage) {
    for (const int context : {1, 2}) {
      engine::TrainingOptions options = tiny_training(tiny_model(run % 2 == 0));
      options.model.width = 24;
      options.model.query_heads = options.model.kv_heads = 4;
      options.model.seq_length = 8;
      options.model.positions = model::Positions::kRope;
      options.model.dropout = 0.0;
      options.model.mtp_layers = 1 + run % 2;
      options.model.mtp_loss = 0.3;
      options.model.recompute = static_cast<model::Recompute>(run % 3);
      expect_steps_as_planned(options, {.world_size = 2 * context,
                                        .axes = {{"shard", 2}, {"context", context}},
                                        .num_micro_steps = 1 + run % 2,
                                        .stage = stage});
      ++run;
    }
  }
}

// Whole units within a replica, shares of what is compressed between them.
TEST(Traffic, OfCompressedSumsIsCountedAtEveryStage) {
  int run = 0;
  for (int stage = 0; stage <= 3; ++stage) {
    for (const auto& [replicas, shards, pipeline, tensor] :
         {std::tuple(1, 2, 1, 1), std::tuple(2, 1, 1, 1), std::tuple(3, 2, 1, 1),
          std::tuple(2, 2, 2, 1), std::tuple(2, 1 + stage % 2, 1, 2)}) {
      engine::TrainingOptions options =
          tiny_training(tensor > 1 ? wide_model(true) : tiny_model(pipeline == 1));
      optim::Compression compression;
      if (run % 4 == 2) {
        options.optimizer.type = optim::OptimizerType::kDion;
        options.optimizer.dion_decoupled = true;
        compression.num_replicas = replicas;
        compression.dion.optimizer =
            std::make_shared<const optim::OptimizerOptions>(options.optimizer);
      } else if (run % 2 == 0) {
        compression.low_rank = {.rank = 1 + run % 3, .start_step = 0};
      } else {
        compression.sparse = {
            .compress_ratio = 0.02,
            .clip = run % 3 == 0 || tensor > 1 ? optim::LocalClip::kNone : optim::LocalClip::kNorm,
            .momentum = 0.9};
        options.optimizer.type = optim::OptimizerType::kSgd;
      }
      options.compression = std::make_shared<const optim::Compression>(compression);
      expect_steps_as_planned(options,
                              {.world_size = replicas * shards * pipeline * tensor,
                               .axes = {{"pipeline", pipeline},
                                        {"replicate", replicas},
                                        {"shard", shards},
                                        {"tensor", tensor}},
                               .num_micro_steps = 1 + run % 2,
                               .stage = stage,
                               .grad_sync = run % 3 == 0 ? sharding::GradSync::kBoundary
                                                         : sharding::GradSync::kEveryMicroStep});
      ++run;
    }
  }
}

std::vector<RunShape> setups(int world_size, int stage) {
  std::vector<RunShape> all;
  for (const int micro_steps : {1, 4}) {
    for (const auto sync : {sharding::GradSync::kBoundary, sharding::GradSync::kEveryMicroStep}) {
      for (int depth = 0; depth <= (stage == 3 ? 3 : 0); ++depth) {
        for (const bool reshard : {true, false}) {
          if (stage < 3 && !reshard) continue;  // used at stage 3
          all.push_back({.world_size = world_size,
                         .num_micro_steps = micro_steps,
                         .stage = stage,
                         .grad_sync = sync,
                         .prefetch_depth = depth,
                         .reshard_after_forward = reshard});
        }
      }
    }
  }
  return all;
}

TEST(Traffic, OfAStepIsWhatTheRanksSendAtEveryStageWorldAndPrefetch) {
  for (int world_size = 1; world_size <= 4; ++world_size) {
    for (int stage = 0; stage <= 3; ++stage) {
      for (const RunShape& setup : setups(world_size, stage)) {
        expect_steps_as_planned(tiny_training(tiny_model(setup.num_micro_steps == 4)), setup);
      }
    }
  }
}

TEST(Traffic, OfHybridShardingCrossesReplicasOncePerStep) {
  for (int stage = 0; stage <= 3; ++stage) {
    for (const int micro_steps : {1, 3}) {
      for (const auto sync : {sharding::GradSync::kBoundary, sharding::GradSync::kEveryMicroStep}) {
        for (const int shards : {1, 2}) {
          RunShape setup{.world_size = 2 * shards,
                         .axes = {{"replicate", 2}, {"shard", shards}},
                         .num_micro_steps = micro_steps,
                         .stage = stage};
          setup.grad_sync = sync;
          expect_steps_as_planned(tiny_training(tiny_model(shards == 2)), setup);
          setup.divides_optimizer = stage > 0;
          if (setup.divides_optimizer) {
            expect_steps_as_planned(tiny_training(tiny_model(shards == 1)), setup);
          }
        }
      }
    }
    for (const int num_groups : {2, 3, 6, 12}) {  // most end inside a micro-step
      RunShape groups{.world_size = 4, .num_micro_steps = 3, .stage = stage};
      groups.batch_groups = num_groups;
      expect_steps_as_planned(tiny_training(tiny_model(true)), groups);
    }
  }
}

TEST(Traffic, OfEveryOptimizerIsCountedToo) {
  using optim::OptimizerType;
  for (const OptimizerType type : {OptimizerType::kAdam, OptimizerType::kSgd, OptimizerType::kLion,
                                   OptimizerType::kLamb, OptimizerType::kLars, OptimizerType::kMuon,
                                   OptimizerType::kAdafactor, OptimizerType::kDion}) {
    for (int world_size = 1; world_size <= 4; ++world_size) {
      for (int stage = 0; stage <= 3; ++stage) {
        engine::TrainingOptions options = tiny_training(tiny_model(false));
        options.optimizer.type = type;
        options.optimizer.momentum = 0.9f;
        expect_steps_as_planned(options, {.world_size = world_size, .stage = stage});
      }
    }
  }
}

// More ranks than a block has matrices, so that some own none.
TEST(Traffic, OfFrozenParametersIsWhatTheirGathersSend) {
  for (const bool tied : {false, true}) {
    model::ModelShape shape = tiny_model(tied);
    shape.adapter = {.rank = 2, .targets = {"attention.query", "mlp.down"}};
    for (int stage = 0; stage <= 3; ++stage) {
      expect_steps_as_planned(tiny_training(shape),
                              {.world_size = 3, .num_micro_steps = 2, .stage = stage});
      shape.adapter.trained_modules = {"final_norm"};  // an edge unit with both
      engine::TrainingOptions quantised = tiny_training(shape);
      quantised.nf4_base = true;
      expect_steps_as_planned(quantised, {.world_size = 3, .num_micro_steps = 2, .stage = stage});
    }
  }
}

TEST(Traffic, OfMuonOnMoreRanksThanMatricesIsCountedToo) {
  engine::TrainingOptions options = tiny_training(tiny_model(true));
  options.optimizer.type = optim::OptimizerType::kMuon;
  for (const int stage : {0, 3})
    expect_steps_as_planned(options, {.world_size = 8, .stage = stage});
}

TEST(Traffic, GoesInTheTypesOfTheRecipe) {
  for (const DType parameters : {DType::kF32, DType::kBF16}) {
    for (const DType reduce : {DType::kF32, DType::kBF16}) {
      if (parameters == DType::kF32 && reduce != DType::kF32) continue;
      for (const DType accumulate : {DType::kF32, reduce}) {
        for (int stage = 0; stage <= 3; ++stage) {
          model::ModelShape shape = tiny_model(false);
          shape.dtype = parameters;
          engine::TrainingOptions options = tiny_training(shape);
          options.precision = {parameters, reduce, accumulate};
          expect_steps_as_planned(options, {.world_size = 3, .num_micro_steps = 2, .stage = stage});
        }
      }
    }
  }
}

// DESIGN §3's volumes, which bound a step of one micro-step: 2, 2, 2 and 3 elements per parameter,
// padding included, besides the step statistics. The bound is approached from below as the world grows.
TEST(Traffic, StaysWithinTwoOrThreeElementsPerParameter) {
  for (const bool tied : {false, true}) {
    for (const int world_size : {1, 2, 5, 64}) {
      for (int stage = 0; stage <= 3; ++stage) {
        const RunShape setup{.world_size = world_size, .stage = stage};
        const auto options = applied(tiny_training(tiny_model(tied)), setup);
        std::int64_t padded = 0;
        for (const UnitSpec& unit : model::parameter_table(options.model)) {
          std::int64_t numel = 0;
          for (const ParameterSpec& parameter : unit.parameters) {
            numel += (parameter.numel() + 63) / 64 * 64;
          }
          padded += (numel + 64 * world_size - 1) / (64 * world_size) * 64 * world_size;
        }
        std::int64_t elements = 0;
        const auto traffic = engine::TrainingStep::traffic(
            options, sharding::Mesh::sharded(world_size), 0, DeviceKind::kCpu);
        for (const sharding::Sent& sent : traffic.sent()) {
          if (sent.dtype == DType::kF32) elements += sent.bytes / 4;
        }
        const std::int64_t bound = (stage == 3 ? 3 : 2) * padded * (world_size - 1) / world_size;
        EXPECT_LE(elements, bound) << name_of(setup);
        EXPECT_GE(elements, stage == 3 ? bound / 2 : bound) << name_of(setup);
      }
    }
  }
}

TEST(Traffic, OfMoreBytesThan64BitsIsRefused) {
  sharding::Traffic traffic;
  const sharding::Callers many{.count = 1 << 16};
  EXPECT_THROW(traffic.add("all", Collective::kAllReduce, DType::kF32, std::int64_t{1} << 61, many),
               UsageError);
  traffic.add("all", Collective::kBroadcast, DType::kU8, std::int64_t{1} << 46, many);
  EXPECT_THROW(
      traffic.add("all", Collective::kBroadcast, DType::kU8, std::int64_t{1} << 46, many, 4),
      UsageError);
}

}  // namespace
}  // namespace sherd::testing
