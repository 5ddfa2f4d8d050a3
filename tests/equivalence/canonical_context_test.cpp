// Canonical sums over tokens (engine/model/cut/canonical_sums.cpp): context ranks by both methods, and tensor ranks that share
// the tokens, are bit-identical to one rank, whatever else is sharded.

#include <gtest/gtest.h>

#include <map>

#include "engine/model/activations.h"
#include "engine/model/cut/tensor_cut.h"
#include "tests/equivalence/mesh_case.h"
#include "tests/support/models/model_forms.h"

namespace sherd::testing {
namespace {

using Case = MeshCase;
using model::ContextMethod;

// 16 positions: groups of two. With dropout, and with clipping that acts. Norms' weights begin at 0, where a last digit
// of a gradient shows.
engine::TrainingOptions options_of(model::ModelShape shape, ContextMethod method,
                                   DType dtype = DType::kF32,
                                   optim::OptimizerType type = optim::OptimizerType::kAdamW) {
  shape.head_size = 8;
  shape.sequences = 1;
  shape.seq_length = 16;
  shape.max_positions = 19;
  shape.norm_offset = 1.0;
  shape.context.method = method;
  model::sum_canonically(shape);
  engine::TrainingOptions options = tiny_training(shape, 0.5f);
  options.model.dtype = dtype;
  options.precision.parameters = dtype;
  options.optimizer.type = type;
  options.optimizer.momentum = 0.9f;
  return options;
}

void expect_equal_in_context(const engine::TrainingOptions& options, const Case& each,
                             int num_steps = 3) {
  EXPECT_EQ(difference(run(options, each, num_steps), same_batch(options, each, {}, num_steps)), "")
      << name_of(each) << ", method " << static_cast<int>(options.model.context.method)
      << ", sequence parallel " << options.model.part.sequence_parallel;
}

class CanonicalContext : public ::testing::TestWithParam<ContextMethod> {};
INSTANTIATE_TEST_SUITE_P(Methods, CanonicalContext,
                         ::testing::Values(ContextMethod::kUlysses, ContextMethod::kAllGather),
                         [](const auto& info) {
                           return info.param == ContextMethod::kUlysses ? "ulysses" : "all_gather";
                         });

TEST_P(CanonicalContext, EveryMeshHasTheBitsOfOneRank) {
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    const engine::TrainingOptions options = options_of(cuttable_form("llama"), GetParam(), dtype);
    for (const Case& each : {Case{.context = 2}, Case{.context = 4, .shards = 2, .stage = 1},
                             Case{.context = 2, .tensor = 2, .stage = 2, .micro_steps = 2},
                             Case{.context = 2, .shards = 3, .stage = 0, .micro_steps = 2},
                             Case{.context = 4, .stage = 3, .micro_steps = 2},
                             Case{.context = 2, .shards = 2, .replicas = 2, .stage = 3},
                             Case{.context = 2, .pipeline = 2, .stage = 2, .micro_steps = 3}}) {
      expect_equal_in_context(options, each);
    }
  }
}

// The tree of context ranks is inside the chain of a group of the batch, and before what replicas divide.
TEST_P(CanonicalContext, GroupsOfTheBatchAndDividedReplicasHaveTheBitsOfOneRank) {
  const engine::TrainingOptions options = options_of(cuttable_form("llama"), GetParam());
  const Case divided{
      .context = 2, .shards = 2, .replicas = 2, .stage = 3, .divides_optimizer = true};
  expect_equal_in_context(options, divided, 2);
  const Case ranks{.context = 2, .shards = 2, .stage = 2, .micro_steps = 2};
  EXPECT_EQ(difference(run(options, ranks, 2, 2), run(options, {.micro_steps = 4}, 2, 2)), "");
}

// As many ranks as there are groups; tied ends, learned positions, biases.
TEST_P(CanonicalContext, EightRanksHaveTheBitsOfOne) {
  const engine::TrainingOptions options = options_of(cuttable_form("gpt2"), GetParam());
  expect_equal_in_context(options, {.context = 8, .stage = 2, .micro_steps = 2}, 2);
  expect_equal_in_context(options, {.context = 2, .tensor = 4, .stage = 3}, 2);
}

TEST_P(CanonicalContext, SeveralSequencesOfAMicroBatchAreInEveryGroup) {
  for (const char* form : {"gpt2", "llama"}) {
    engine::TrainingOptions options = options_of(cuttable_form(form), GetParam());
    options.model.sequences = 3;
    options.model.dropout = 0.0;
    expect_equal_in_context(options, {.context = 4, .stage = 3, .micro_steps = 2}, 2);
    expect_equal_in_context(options, {.context = 2, .tensor = 2, .shards = 2, .stage = 1}, 2);
  }
}

// Enough tokens that logits are formed in chunks; a context rank has fewer tokens and needs fewer chunks.
TEST_P(CanonicalContext, ChunksOfLogitsChangeNoBit) {
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    engine::TrainingOptions options = options_of(cuttable_form("llama"), GetParam(), dtype);
    options.model.sequences = 16;
    options.model.dropout = 0.0;
    EXPECT_GT(model::logits_chunks_of_groups(options.model), 1);
    expect_equal_in_context(options, {.context = 2, .tensor = 2, .stage = 3}, 2);
    expect_equal_in_context(options, {.context = 4, .stage = 1}, 2);
  }
}

TEST_P(CanonicalContext, PipelinesWithHalvesOfBackwardsHaveTheBitsOfOneRank) {
  engine::TrainingOptions options = options_of(cuttable_form("llama"), GetParam());
  options.model.part.sequence_parallel = true;
  expect_equal_in_context(options,
                          {.context = 2,
                           .tensor = 2,
                           .pipeline = 2,
                           .stage = 1,
                           .micro_steps = 2,
                           .order = schedule::Order::kZbH1},
                          2);
}

// Key/value heads of which ranks hold copies: what their query heads add up to goes over context ranks before.
TEST(CanonicalContext, GatheredKeysThatTensorRanksShareHaveTheBitsOfOneRank) {
  for (const char* form : {"one_kv_head", "fewer_kv_heads_than_ranks"}) {
    for (const DType dtype : {DType::kF32, DType::kBF16}) {
      const engine::TrainingOptions options =
          options_of(cuttable_form(form), ContextMethod::kAllGather, dtype);
      expect_equal_in_context(options, {.context = 4, .stage = 1}, 2);
      expect_equal_in_context(options, {.context = 2, .tensor = 4, .stage = 2}, 2);
    }
  }
}

TEST(CanonicalSequenceParallel, EveryMeshHasTheBitsOfOneRank) {
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    engine::TrainingOptions options =
        options_of(cuttable_form("llama"), ContextMethod::kUlysses, dtype);
    options.model.part.sequence_parallel = true;
    for (const Case& each : {Case{.tensor = 2, .stage = 1, .micro_steps = 2},
                             Case{.tensor = 4, .shards = 2, .stage = 3}, Case{.tensor = 8},
                             Case{.context = 2, .tensor = 2, .shards = 2, .stage = 2}}) {
      expect_equal_in_context(options, each);
    }
  }
}

TEST(CanonicalContext, SixteenRanksHaveTheBitsOfOne) {
  engine::TrainingOptions options = options_of(cuttable_form("gpt2"), ContextMethod::kAllGather);
  options.model.part.sequence_parallel = true;
  expect_equal_in_context(options, {.context = 2, .tensor = 4, .shards = 2, .stage = 3}, 2);
}

TEST(CanonicalContext, OptimizersThatNeedWholeTensorsHaveTheBitsOfOneRank) {
  for (const auto type :
       {optim::OptimizerType::kLamb, optim::OptimizerType::kLars, optim::OptimizerType::kMuon}) {
    engine::TrainingOptions options =
        options_of(cuttable_form("llama"), ContextMethod::kAllGather, DType::kF32, type);
    options.model.part.sequence_parallel = true;
    expect_equal_in_context(options, {.context = 2, .tensor = 2, .shards = 2, .stage = 3}, 2);
  }
}

class CanonicalTokenForms : public ::testing::TestWithParam<ModelForm> {};
INSTANTIATE_TEST_SUITE_P(Forms, CanonicalTokenForms, ::testing::ValuesIn(cuttable_forms()),
                         [](const auto& info) { return info.param.name; });

TEST_P(CanonicalTokenForms, HaveTheBitsOfOneRankHoweverTheyAreRecomputed) {
  int turn = 0;
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    for (const auto recompute :
         {model::Recompute::kNone, model::Recompute::kSelective, model::Recompute::kFull}) {
      const auto method = turn % 2 == 0 ? ContextMethod::kAllGather : ContextMethod::kUlysses;
      engine::TrainingOptions options = options_of(GetParam().shape, method, dtype);
      options.model.recompute = recompute;
      options.model.part.sequence_parallel = turn % 3 != 0;
      // Ulysses deals out the key/value heads of a tensor rank.
      int context = turn == 2 ? 2 : 4;
      if (method == ContextMethod::kUlysses) context = options.model.kv_heads % 4 == 0 ? 2 : 1;
      expect_equal_in_context(options, {.context = context, .tensor = 2, .stage = turn % 4}, 2);
      ++turn;
    }
  }
}

// The whole product within the limits: context ranks times tensor ranks that share tokens are at most 8.
TEST(CanonicalSlow, EveryMeshOfTensorAndContextRanksHasTheBitsOfOneRank) {
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    for (const ContextMethod method : {ContextMethod::kUlysses, ContextMethod::kAllGather}) {
      engine::TrainingOptions options = options_of(cuttable_form("llama"), method, dtype);
      std::map<int, Outcome> expected;  // by micro-batches
      for (const int micro_batches : {2, 4}) {
        expected.emplace(micro_batches, run(options, {.micro_steps = micro_batches}, 10));
      }
      for (const bool shares_tokens : {false, true}) {
        options.model.part.sequence_parallel = shares_tokens;
        for (const int tensor : {1, 2, 4, 8}) {
          for (const int context : {1, 2, 4}) {
            const bool deals = method == ContextMethod::kUlysses;
            if (deals && context > 1 && options.model.kv_heads % (tensor * context) != 0) continue;
            if (shares_tokens && (tensor == 1 || tensor * context > 8)) continue;
            if (!deals && context == 1) continue;  // as with ulysses
            for (const int shards : {1, 2}) {
              for (int stage = 0; stage <= 3; ++stage) {
                const Case each{.context = context,
                                .tensor = tensor,
                                .shards = shards,
                                .stage = stage,
                                .micro_steps = 2};
                EXPECT_EQ(difference(run(options, each, 10), expected.at(2 * shards)), "")
                    << name_of(each) << ", sequence parallel " << shares_tokens << ", "
                    << name_of(dtype) << ", method " << static_cast<int>(method);
              }
            }
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace sherd::testing
