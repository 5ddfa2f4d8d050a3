// Recipes whose matrices can't be cut over that many tensor ranks, each refused with the nearest number that works.
#include <gtest/gtest.h>

#include "tests/engine/recipe/recipe_support.h"

namespace sherd::engine {
namespace {

std::string refusal(std::vector<std::string> sets) {
  sets.insert(sets.begin(), {"model.hidden_size=48", "model.num_attention_heads=12",
                             "model.num_kv_heads=4", "model.ffn_hidden_size=96"});
  return error_of(kTinyRecipe, sets);
}

void expect_refused(const std::vector<std::string>& sets, const std::string& says) {
  const std::string error = refusal(sets);
  EXPECT_NE(error.find(says), std::string::npos) << error;
  EXPECT_EQ(error.find('\n'), std::string::npos) << error;
}

TEST(TensorRanksRules, NumbersThatDivideHeadsWidthsAndVocabularyAreTaken) {
  for (const char* degree : {"1", "2", "4", "12"}) {
    EXPECT_EQ(refusal({std::string("parallelism.tensor_parallel_degree=") + degree}), "no error")
        << degree;
  }
}

TEST(TensorRanksRules, OthersNameTheNearestThatWould) {
  expect_refused({"parallelism.tensor_parallel_degree=3"}, "2 would do.");
  expect_refused({"parallelism.tensor_parallel_degree=5"}, "4 would do.");
  expect_refused({"parallelism.tensor_parallel_degree=4", "model.ffn_hidden_size=98"},
                 "feed-forward width 98");
  expect_refused({"parallelism.tensor_parallel_degree=24"}, "12 would do.");
}

TEST(SequenceParallelRules, TensorRanksShareTheTokensOfAnyMicroBatch) {
  const std::string shares = "parallelism.sequence_parallel=true";
  for (const char* length : {"8", "9"}) {
    EXPECT_EQ(refusal({shares, "parallelism.tensor_parallel_degree=4",
                       std::string("training.seq_length=") + length}),
              "no error")
        << length;
  }
  expect_refused({shares},
                 "Use parallelism.tensor_parallel_degree: 2, or "
                 "parallelism.sequence_parallel: false.");
  expect_refused({shares, "parallelism.context_parallel_degree=2"},
                 "Use parallelism.tensor_parallel_degree: 2");
}

TEST(CanonicalSumRules, EightGroupsLimitWhatSharesThem) {
  const std::string canonical = "parallelism.sum_order=canonical";
  for (const char* degree : {"1", "2", "4"}) {
    EXPECT_EQ(refusal({canonical, std::string("parallelism.tensor_parallel_degree=") + degree}),
              "no error")
        << degree;
  }
  expect_refused({canonical, "parallelism.tensor_parallel_degree=12"},
                 "must be 1, 2, 4 or 8, divide heads and width");
  expect_refused({canonical, "parallelism.tensor_parallel_degree=8"}, "4 would do.");
  expect_refused({canonical, "model.ffn_hidden_size=100"},
                 "the width of the feed-forward layer, 100, can't be divided by 8; 104 would do.");
  expect_refused(
      {canonical, "mixed_precision.param_dtype=bf16", "mixed_precision.reduce_dtype=bf16"},
      "use mixed_precision.reduce_dtype: f32");
}

TEST(CanonicalSumRules, DocumentsApartArentSharedByContextRanks) {
  expect_refused({"parallelism.sum_order=canonical", "parallelism.context_parallel_degree=2",
                  "data.documents=separate"},
                 "use parallelism.context_parallel_degree: 1, or sum_order: rank");
}

TEST(CanonicalSumRules, ContextRanksAndTensorRanksShareWholeGroupsOfTokens) {
  const std::string canonical = "parallelism.sum_order=canonical",
                    shares = "parallelism.sequence_parallel=true",
                    gathers = "parallelism.context_parallel_method=all_gather",
                    one_row = "training.micro_batch_size=1";
  const auto context = [](int degree) {
    return fmt::format("parallelism.context_parallel_degree={}", degree);
  };
  const auto tensor = [](int degree) {
    return fmt::format("parallelism.tensor_parallel_degree={}", degree);
  };
  const auto length = [](int tokens) { return fmt::format("training.seq_length={}", tokens); };
  EXPECT_EQ(refusal({canonical, gathers, context(8), tensor(4), length(16)}), "no error");
  EXPECT_EQ(refusal({canonical, shares, gathers, context(2), tensor(4), length(16), one_row}),
            "no error");
  EXPECT_EQ(refusal({canonical, length(18)}), "no error");
  expect_refused({canonical, gathers, context(2), length(18)},
                 "can't share sequences of 18 tokens in whole groups; 24 would do.");
  expect_refused({canonical, shares, tensor(2), length(18), one_row}, "24 would do.");
  expect_refused({canonical, gathers, context(6), length(24)}, "4 would do.");
  expect_refused({canonical, shares, gathers, context(4), tensor(4), length(16), one_row},
                 "tensor ranks with sequence parallelism share, too. 2 would do.");
  expect_refused({canonical, shares, tensor(2), length(16), "training.micro_batch_size=2"},
                 "use training.micro_batch_size: 1, or sum_order: rank");
  expect_refused({canonical, shares, gathers, context(2), tensor(2), length(16),
                  "training.micro_batch_size=2"},
                 "use training.micro_batch_size: 1, or sum_order: rank");
}

// Each rank's micro-steps first would be another tree.
TEST(CanonicalSumRules, ContextRanksAddEveryMicroStepUnlessToldOtherwise) {
  const auto sync = [](const std::vector<std::string>& sets) {
    return resolve(kTinyRecipe, sets).values.zero_optimization.grad_sync;
  };
  const std::string canonical = "parallelism.sum_order=canonical",
                    context = "parallelism.context_parallel_degree=2";
  EXPECT_EQ(sync({canonical, context}), GradSync::kEveryMicroStep);
  EXPECT_EQ(sync({canonical}), GradSync::kBoundary);
  EXPECT_EQ(sync({context}), GradSync::kBoundary);
}

TEST(ContextRanksRules, NumbersThatDivideHeadsAndSequencesAreTaken) {
  for (const char* degree : {"1", "2", "4"}) {
    EXPECT_EQ(refusal({std::string("parallelism.context_parallel_degree=") + degree}), "no error")
        << degree;
  }
  expect_refused({"parallelism.context_parallel_degree=8"}, "4 would do,");
  expect_refused({"parallelism.context_parallel_degree=4", "training.seq_length=18"},
                 "sequences of 18 tokens");
  expect_refused({"parallelism.context_parallel_degree=4", "parallelism.tensor_parallel_degree=2"},
                 "2 would do,");
}

// 8 ranks are more than the 4 key/value heads, and 5 divide no heads.
TEST(ContextRanksRules, GatheredKeysNeedToDivideTheSequenceAlone) {
  const std::string gathers = "parallelism.context_parallel_method=all_gather";
  for (const auto& [degree, length] : {std::pair("8", "16"), std::pair("5", "15")}) {
    EXPECT_EQ(refusal({gathers, std::string("parallelism.context_parallel_degree=") + degree,
                       std::string("training.seq_length=") + length}),
              "no error")
        << degree;
  }
  expect_refused({gathers, "parallelism.context_parallel_degree=4", "training.seq_length=18"},
                 "sequences of 18 tokens: the number must divide that. 3 would do.");
  expect_refused(
      {"parallelism.context_parallel_degree=8"},
      "4 would do, or the method all_gather, for which it must divide the tokens alone.");
}

// Of which each rank has two parts.
TEST(ContextRanksRules, RingsNeedTwiceTheirNumberToDivideTheSequence) {
  const std::string ring = "parallelism.context_parallel_method=ring";
  for (const auto& [degree, length] : {std::pair("1", "7"), {"8", "16"}, {"5", "20"}}) {
    EXPECT_EQ(refusal({ring, std::string("parallelism.context_parallel_degree=") + degree,
                       std::string("training.seq_length=") + length}),
              "no error")
        << degree;
  }
  expect_refused({ring, "parallelism.context_parallel_degree=4", "training.seq_length=20"},
                 "4 context ranks can't share sequences of 20 tokens in a ring: twice the number "
                 "must divide that. 2 would do, or sequences of 24 tokens.");
  expect_refused({ring, "parallelism.context_parallel_degree=2", "training.seq_length=15"},
                 "1 would do, or sequences of 16 tokens.");
  expect_refused({ring, "parallelism.context_parallel_degree=2", "parallelism.sum_order=canonical",
                  "training.seq_length=16"},
                 "Use the method all_gather or ulysses, or sum_order: rank.");
}

TEST(ContextRanksRules, DocumentsDropoutInSeveralRowsTextsAndAdaptersAreServed) {
  const std::string degree = "parallelism.context_parallel_degree=2";
  for (std::vector<std::string> sets :
       {std::vector<std::string>{"data.documents=separate"},
        {"model.dropout=0.1", "training.micro_batch_size=2"},
        {"training.sample_tokens=5"},
        {"adapter.type=lora", "checkpoint.init_from=somewhere", "adapter.base_dtype=nf4"}}) {
    sets.push_back(degree);
    EXPECT_EQ(refusal(sets), "no error") << sets[0];
  }
}

TEST(TensorRanksRules, AdaptersAreServedAndABaseInFourBitsInWholeBlocks) {
  const auto lora = [](std::vector<std::string> sets) {
    sets.insert(sets.begin(), {"adapter.type=lora", "checkpoint.init_from=somewhere",
                               "parallelism.tensor_parallel_degree=4"});
    return sets;
  };
  EXPECT_EQ(refusal(lora({})), "no error");
  const std::string four_bits = "adapter.base_dtype=nf4";
  const std::vector<std::string> wide{four_bits, "model.hidden_size=256",
                                      "model.num_attention_heads=4"};
  const auto with_ffn = [&](const char* width) {
    std::vector<std::string> sets = wide;
    sets.push_back(std::string("model.ffn_hidden_size=") + width);
    return lora(sets);
  };
  EXPECT_EQ(refusal(with_ffn("512")), "no error");
  expect_refused(
      with_ffn("384"),
      "a rank's rows would be 256, 64 and 96 wide. Use parallelism.tensor_parallel_degree: "
      "2, or adapter.base_dtype: param_dtype.");
  expect_refused(lora({four_bits}), "Use parallelism.tensor_parallel_degree: 1, or");
  expect_refused(lora({"parallelism.sum_order=canonical"}), "adapters: use sum_order: rank");
}

}  // namespace
}  // namespace sherd::engine
