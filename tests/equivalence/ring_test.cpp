// Runs whose context ranks pass keys and values round a ring: losses and weights near those of one rank; whatever else is
// sharded, cut or pipelined changes no bit, nor does when transfers arrive; memory as planned in every run.

#include <gtest/gtest.h>

#include "tests/equivalence/document_training.h"
#include "tests/equivalence/near_one_rank.h"
#include "tests/support/models/model_forms.h"

namespace sherd::testing {
namespace {

using Case = MeshCase;

constexpr std::int64_t kLength = 24;  // halves of 6, 4 and 3 positions on 2, 3 and 4 ranks

engine::TrainingOptions ringed(model::ModelShape shape) {
  shape.context.method = model::ContextMethod::kRing;
  shape.seq_length = kLength;
  shape.max_positions = kLength + 1;
  engine::TrainingOptions options = tiny_training(shape, 0.5f);
  options.optimizer.type = optim::OptimizerType::kSgd;
  options.optimizer.momentum = 0.9f;
  options.lr_schedule.lr = 0.05;
  return options;
}

// 8 query heads on 2 key/value heads.
engine::TrainingOptions options_of(bool tied, std::int64_t rows) {
  engine::TrainingOptions options = ringed(cuttable(tiny_model(tied), 2));
  options.model.sequences = rows;
  return options;
}

// The first loss comes from the same weights; f32 has 1.2e-7.
void expect_near_one(const engine::TrainingOptions& options, const Outcome& cut, const Outcome& one,
                     const std::string& label) {
  EXPECT_NEAR(cut.losses[0], one.losses[0], 1e-6 * one.losses[0]) << label;
  expect_near(options, cut, one, 1e-4, label);
}

// PARALLELISM.md B.4 #5, #21, #36, #26: losses or gradients scaled by the number of context ranks; fewer right digits
// the more there are. Positions, dropout's addresses and targets are those of the whole sequence.
TEST(RingTraining, HasTheLossesAndWeightsOfOneRankNearly) {
  for (const bool tied : {false, true}) {
    for (const std::int64_t rows : {1, 3}) {
      const engine::TrainingOptions options = options_of(tied, rows);
      const Outcome one = run(options, {.context = 1, .micro_steps = 2});
      for (const int context : {2, 3, 4}) {
        const Case each{.context = context, .stage = context - 1, .micro_steps = 2};
        expect_near_one(options, run(options, each), one,
                        fmt::format("{}, {} rows, tied {}", name_of(each), rows, tied));
      }
    }
  }
}

// Windows by layer, soft caps, norms of heads and of projections, two rotary tables, branches side by side; AdamW in bf16
// with bf16 moments on three ranks, recomputed in every way.
TEST(RingTraining, EveryFormKeepsTheBitsHoweverItIsRecomputed) {
  for (const ModelForm& form : context_rank_forms()) {
    engine::TrainingOptions options = ringed(form.shape);
    const Outcome one = run(options, {.context = 1}, 1);
    EXPECT_NEAR(run(options, {.context = 3}, 1).losses[0], one.losses[0], 1e-6 * one.losses[0])
        << form.name;
    options.model.dtype = DType::kBF16;
    options.precision.parameters = DType::kBF16;
    options.optimizer.type = optim::OptimizerType::kAdamW;
    options.optimizer.moment_type = {DType::kBF16, true, 5};
    Outcome first;
    for (const auto recompute :
         {model::Recompute::kNone, model::Recompute::kSelective, model::Recompute::kFull}) {
      options.model.recompute = recompute;
      const Outcome cut = run(options, {.context = 3, .stage = 3}, 2);
      if (first.losses.empty()) first = cut;
      EXPECT_EQ(difference(cut, first), "") << form.name;
    }
  }
}

// Tensor ranks that hold copies of a key/value head add up what their rings have added up; ranks that share tokens,
// replicas that divide the optimizer, halves of backwards.
TEST(RingTraining, StagesShardsTensorRanksReplicasAndPipelinesKeepTheBits) {
  for (const bool shares_tokens : {false, true}) {
    engine::TrainingOptions options = options_of(false, 2);
    options.optimizer.type = optim::OptimizerType::kAdamW;
    options.model.part.sequence_parallel = shares_tokens;
    for (const Case& each :
         {Case{.context = 2, .stage = 1}, Case{.context = 4, .shards = 2, .stage = 2},
          Case{.context = 2, .shards = 2, .stage = 3, .micro_steps = 2},
          Case{.context = 2, .tensor = 4, .stage = 3},
          Case{.context = 2, .shards = 2, .replicas = 2, .stage = 3, .divides_optimizer = true},
          Case{.context = 3, .pipeline = 2, .stage = 2, .micro_steps = 3},
          Case{.context = 2,
          .tensor = 2,
          .pipeline = 2,
          .stage = 1,
          .micro_steps = 2,
          .order = schedule::Order::kZbH1}}) {
      const Case alone{.context = each.context, .tensor = each.tensor};
      EXPECT_EQ(difference(run(options, each), same_batch(options, each, alone)), "")
          << name_of(each);
    }
  }
}

TEST(RingTraining, OnTensorRanksItIsNearTensorRanksAlone) {
  engine::TrainingOptions options = options_of(false, 3);
  const Outcome plain = run(options, {.context = 1, .tensor = 4}, 2);
  options.model.part.sequence_parallel = true;
  expect_near_one(options, run(options, {.context = 2, .tensor = 4}, 2), plain, "tokens shared");
}

// A wait that is missing shows where what it is for comes late: transfers, or the computation.
TEST(RingTraining, WhenTransfersComeChangesNoBit) {
  const engine::TrainingOptions options = options_of(true, 2);
  for (const int context : {2, 4}) {
    RunShape setup = setup_of({.context = context, .stage = 2});
    setup.delay_seed = 0;
    const Outcome plain = train(options, setup, 2);
    for (const char* slow : {"ring", "ring.in", "ring.out", "compute"}) {
      setup.slow_stream = slow;
      EXPECT_EQ(difference(train(options, setup, 2), plain), "") << context << ", slow " << slow;
    }
    setup.slow_stream = "";
    for (const std::uint64_t seed : {3u, 4u}) {
      setup.delay_seed = seed;
      setup.threads_per_rank = 2;
      EXPECT_EQ(difference(train(options, setup, 2), plain), "") << context << ", seed " << seed;
    }
  }
}

// Masks of an adapter's dropout follow a token's place in the whole. Of the lowest block, with B and A in its MLP alone,
// nothing goes round in the backward.
TEST(RingTraining, AdaptersTrainNearOneRank) {
  for (const bool in_attention : {true, false}) {
    engine::TrainingOptions options = options_of(false, 2);
    options.model.adapter = {.rank = 3, .scale = 1.5, .dropout = 0.2};
    options.model.adapter.targets = {"mlp.down"};
    if (in_attention) {
      options.model.adapter.targets = {"attention.query", "attention.key", "mlp.gate"};
      options.model.adapter.trained_modules = {"head", "norm2"};
    }
    const Outcome one = run(options, {.context = 1, .micro_steps = 2});
    for (const int context : {2, 4}) {
      const Case each{.context = context, .stage = context - 1, .micro_steps = 2};
      expect_near_one(options, run(options, each), one, name_of(each));
    }
  }
}

class RingDocuments : public DocumentTraining {
 protected:
  RingDocuments() : DocumentTraining(kLength) {}
  static RunShape on_ranks(int context, int shards, int stage, int pipeline = 1) {
    return {.world_size = context * shards * pipeline,
            .axes = {{"pipeline", pipeline}, {"shard", shards}, {"context", context}},
            .num_micro_steps = 4 / shards,
            .stage = stage};
  }
};

// They begin and end anywhere in the ranks' halves; positions restart with each.
TEST_F(RingDocuments, ThatAreApartTrainNearOneRank) {
  for (const bool tied : {false, true}) {
    engine::TrainingOptions options = options_of(tied, 2);
    options.model.recompute = tied ? model::Recompute::kFull : model::Recompute::kNone;
    const Outcome one = train(options, on_ranks(1, 1, 0), 3);
    for (const int context : {2, 3, 4}) {
      const Outcome cut = train(options, on_ranks(context, 1, context - 1), 3);
      EXPECT_EQ(cut.losses.back(), one.losses.back()) << "tokens of the evaluation";
      for (std::size_t i = 0; i < one.losses.size(); ++i) {
        EXPECT_NEAR(cut.losses[i], one.losses[i], (i == 0 ? 1e-6 : 1e-5) * one.losses[i]) << i;
      }
      for (const auto& [name, values] : one.parameters) {
        EXPECT_LE(distance(cut.parameters.at(name), values), 1e-5 * length(values)) << name;
      }
    }
  }
}

TEST_F(RingDocuments, KeepTheirBitsHoweverTheStateIsSharded) {
  const engine::TrainingOptions options = options_of(false, 2);
  const Outcome alone = train(options, on_ranks(2, 1, 0), 3);
  for (const auto& [shards, stage, pipeline] :
       {std::tuple(2, 3, 1), std::tuple(2, 1, 1), std::tuple(1, 2, 2)}) {
    EXPECT_EQ(difference(train(options, on_ranks(2, shards, stage, pipeline), 3), alone), "");
  }
}

// 16,384 positions on four ranks: each holds keys and values of two ranks' parts, and trains in the memory that was
// planned, which is about a fourth of one rank's.
TEST(RingTrainingSlow, ALongSequenceTrainsInAFourthOfTheMemory) {
  engine::TrainingOptions options = options_of(false, 1);
  options.model.seq_length = 16384;
  options.model.max_positions = 16384;
  options.model.num_layers = 1;
  const auto activations = [&](const Case& each) {
    const auto buffers = engine::training_buffers(
        applied(options, setup_of(each)), {.mesh = mesh_of(setup_of(each)), .num_threads = 1});
    std::int64_t bytes = 0;
    for (const BufferSpec& buffer : buffers) {
      if (buffer.category == Category::kActivations) bytes += buffer.bytes();
    }
    return bytes;
  };
  const Case ring{.context = 4, .stage = 3};
  EXPECT_LT(activations(ring), 0.4 * static_cast<double>(activations({})));
  const Outcome cut = run(options, ring, 1);
  options.model.context.method = model::ContextMethod::kAllGather;
  const Outcome gathered = run(options, ring, 1);
  EXPECT_NEAR(cut.losses[0], gathered.losses[0], 1e-6 * gathered.losses[0]);
  EXPECT_NEAR(cut.grad_norms[0], gathered.grad_norms[0], 1e-4 * gathered.grad_norms[0]);
}

}  // namespace
}  // namespace sherd::testing
