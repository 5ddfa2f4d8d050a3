// Runs whose sequences are cut over context ranks: attention and losses are bit-identical to one rank, weights are near
// its weights, and whatever else is sharded, cut or pipelined changes no bit; memory as planned.

#include <gtest/gtest.h>

#include "tests/equivalence/distance.h"
#include "tests/equivalence/mesh_case.h"
#include "tests/support/models/model_forms.h"

namespace sherd::testing {
namespace {

using Case = MeshCase;

// 8 query heads on 4 or 8 key/value heads, rows of 12 positions.
engine::TrainingOptions options_of(bool tied, std::int64_t rows) {
  model::ModelShape shape = cuttable(tiny_model(tied), tied ? 8 : 4);
  shape.max_positions = 13;
  shape.seq_length = 12;
  shape.sequences = rows;
  engine::TrainingOptions options = tiny_training(shape, 0.5f);
  options.optimizer.type = optim::OptimizerType::kSgd;
  options.optimizer.momentum = 0.9f;
  options.lr_schedule.lr = 0.05;
  return options;
}

// The first loss is bit-identical; values that follow from gradients are nearly equal.
void expect_near_one(const Outcome& cut, const Outcome& one, const std::string& label) {
  EXPECT_EQ(cut.losses[0], one.losses[0]) << label;
  for (std::size_t step = 0; step < one.losses.size(); ++step) {
    EXPECT_NEAR(cut.losses[step], one.losses[step], 1e-5 * one.losses[step]) << label;
    EXPECT_NEAR(cut.grad_norms[step], one.grad_norms[step], 1e-5 * one.grad_norms[step]) << label;
  }
  for (const auto& [name, values] : one.parameters) {
    EXPECT_LE(distance(cut.parameters.at(name), values), 1e-5 * length(values))
        << name << ", " << label;
  }
}

// PARALLELISM.md B.4 #5, #21, #36: losses or gradients scaled by the number of context ranks; #26: fewer
// right digits the more there are. A learned position's gradient comes from one rank, a token's from all
// that have it; dropout is addressed by the place in the whole sequence.
TEST(Context, LossesHaveTheBitsOfOneRankAndWeightsStayNear) {
  for (const bool tied : {false, true}) {
    for (const std::int64_t rows : {1, 2}) {
      const engine::TrainingOptions options = options_of(tied, rows);
      const Outcome one = run(options, {.context = 1, .micro_steps = 2});
      for (const int context : {2, 4}) {
        const Case each{.context = context, .stage = context - 1, .micro_steps = 2};
        const std::string label = fmt::format("{}, {} rows, tied {}", name_of(each), rows, tied);
        const Outcome cut = run(options, each);
        expect_near_one(cut, one, label);
      }
    }
  }
}

// The same with more ranks than there are key/value heads, and with numbers that divide no heads. PARALLELISM.md B.1:
// out and dQ are exact, so the first losses are; gradients of keys and values are sums over queries.
TEST(Context, GatheredKeysGiveTheLossesOfOneRankAndWeightsStayNear) {
  for (const bool tied : {false, true}) {
    for (const std::int64_t rows : {1, 2}) {
      engine::TrainingOptions options = options_of(tied, rows);
      options.model.kv_heads = 2;
      options.model.context.method = model::ContextMethod::kAllGather;
      const Outcome one = run(options, {.context = 1, .micro_steps = 2});
      for (const int context : {2, 3, 4, 6}) {
        const Case each{.context = context, .stage = context % 4, .micro_steps = 2};
        const std::string label = fmt::format("{}, {} rows, tied {}", name_of(each), rows, tied);
        const Outcome cut = run(options, each);
        expect_near_one(cut, one, label);
      }
    }
  }
}

// Parts of several rows aren't neighbours in the batch, and of them each tensor rank has some tokens: masks follow the
// places in the whole.
TEST(Context, SeveralRowsWhoseTokensTensorRanksShareTrainNearThoseThatDoNot) {
  engine::TrainingOptions options = options_of(false, 3);
  options.model.context.method = model::ContextMethod::kAllGather;
  const Outcome plain = run(options, {.context = 1, .tensor = 2}, 2);
  options.model.part.sequence_parallel = true;
  for (const int context : {1, 2, 4}) {
    expect_near_one(run(options, {.context = context, .tensor = 2}, 2), plain,
                    fmt::format("context {}", context));
  }
}

// Tensor ranks that hold copies of a key/value head add up what their context ranks have added up.
TEST(Context, GatheredKeysKeepTheBitsHoweverTheStateIsSharded) {
  engine::TrainingOptions options = options_of(false, 1);
  options.optimizer.type = optim::OptimizerType::kAdamW;
  options.model.kv_heads = 2;
  options.model.context.method = model::ContextMethod::kAllGather;
  options.model.part.sequence_parallel = true;
  for (const Case& each :
       {Case{.context = 4, .shards = 2, .stage = 2}, Case{.context = 2, .shards = 2, .stage = 3},
        Case{.context = 2, .tensor = 4, .stage = 3},
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

TEST(Context, StagesShardsTensorRanksAndPipelinesKeepTheBits) {
  engine::TrainingOptions options = options_of(false, 1);
  options.optimizer.type = optim::OptimizerType::kAdamW;
  for (const Case& each :
       {Case{.context = 2, .stage = 1}, Case{.context = 2, .shards = 2, .stage = 2},
        Case{.context = 2, .shards = 2, .stage = 3, .micro_steps = 2},
        Case{.context = 4, .shards = 2, .stage = 0}, Case{.context = 2, .tensor = 2, .stage = 3},
        Case{.context = 2, .shards = 2, .replicas = 2, .stage = 3},
        Case{.context = 2, .pipeline = 2, .stage = 2, .micro_steps = 3},
        Case{
            .context = 2, .tensor = 2, .shards = 2, .pipeline = 2, .stage = 1, .micro_steps = 2}}) {
    const Case alone{.context = each.context, .tensor = each.tensor};
    EXPECT_EQ(difference(run(options, each), same_batch(options, each, alone)), "")
        << name_of(each);
  }
}

// AdamW in bf16 with bf16 moments, every form that has as many key/value heads, recomputed in every way.
class ContextMethods : public ::testing::TestWithParam<model::ContextMethod> {};
INSTANTIATE_TEST_SUITE_P(Methods, ContextMethods,
                         ::testing::Values(model::ContextMethod::kUlysses,
                                           model::ContextMethod::kAllGather),
                         [](const auto& info) {
                           return info.param == model::ContextMethod::kUlysses ? "ulysses"
                                                                               : "all_gather";
                         });

TEST_P(ContextMethods, EveryFormKeepsTheBitsHoweverItIsRecomputed) {
  for (const ModelForm& form : context_rank_forms()) {
    engine::TrainingOptions options = options_of(false, 1);
    options.model = form.shape;
    options.model.seq_length = 12;
    options.model.max_positions = 13;
    options.model.sequences = 1;
    options.model.kv_heads = form.shape.latent.active() ? 8 : 4;
    options.model.context.method = GetParam();
    options.model.dtype = DType::kBF16;
    options.precision.parameters = DType::kBF16;
    options.optimizer.type = optim::OptimizerType::kAdamW;
    options.optimizer.moment_type = {DType::kBF16, true, 5};
    const Outcome one = run(options, {.context = 1}, 1);
    Outcome first;
    for (const auto recompute :
         {model::Recompute::kNone, model::Recompute::kSelective, model::Recompute::kFull}) {
      options.model.recompute = recompute;
      const Outcome cut = run(options, {.context = 4, .stage = 3}, 2);
      EXPECT_EQ(cut.losses[0], one.losses[0]) << form.name;
      if (first.losses.empty()) first = cut;
      EXPECT_EQ(difference(cut, first), "") << form.name;
    }
  }
}

// A head's sink joins the softmax over all positions once, and its gradient is a sum over the queries of all
// ranks, of which each has some, or over those of the heads that it has.
TEST(Context, SinksTrainNearThoseOfOneRank) {
  engine::TrainingOptions options = options_of(false, 2);
  options.model.sinks = true;
  options.model.layer_kinds = {{.window = 4, .rotary = 0}, {.rotary = 0}};
  options.lr_schedule.lr = 0.5;  // they move
  const Outcome one = run(options, {.context = 1, .micro_steps = 2});
  for (const auto method : {model::ContextMethod::kUlysses, model::ContextMethod::kAllGather,
                            model::ContextMethod::kRing}) {
    options.model.context.method = method;
    for (const int tensor : {1, 2}) {
      const Case each{.context = 2, .tensor = tensor, .stage = 2, .micro_steps = 2};
      Outcome cut = run(options, each);
      EXPECT_NEAR(cut.losses[0], one.losses[0], 1e-6 * one.losses[0]);
      cut.losses[0] = one.losses[0];
      expect_near_one(cut, one, name_of(each));
    }
  }
}

// A loss that counts a rank's own tokens only, or counts them once for each rank, would show.
TEST(Context, LossesOfBalanceAreThoseOfWholeSequences) {
  for (const auto scope : {kernels::BalanceScope::kSequence, kernels::BalanceScope::kMicroBatch,
                           kernels::BalanceScope::kPreviousStep}) {
    for (const auto method : {model::ContextMethod::kUlysses, model::ContextMethod::kAllGather,
                              model::ContextMethod::kRing}) {
      engine::TrainingOptions options = options_of(false, 2);
      model::ModelShape shape = cuttable(shape_named(expert_forms(), "experts"), 4);
      shape.max_positions = 13;
      shape.seq_length = 12;
      shape.sequences = 2;
      shape.context.method = method;
      shape.moe.scope = scope;
      shape.moe.balance = 3.0;
      shape.moe.z = 0.3;
      options.model = shape;
      const Outcome one = run(options, {.context = 1, .micro_steps = 2});
      const Case each{.context = 2, .stage = 2, .micro_steps = 2};
      Outcome cut = run(options, each);
      if (method == model::ContextMethod::kRing) cut.losses[0] = one.losses[0];
      expect_near_one(cut, one,
                      fmt::format("scope {}, {}", static_cast<int>(scope), name_of(each)));
    }
  }
}

}  // namespace
}  // namespace sherd::testing
