// Recipes whose matrices can't be cut over so many tensor ranks, each refused with the nearest number that works.
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

}  // namespace
}  // namespace sherd::engine
