// The coordinate check: flat with muP, and not where a group undoes its rates.
#include "engine/run/mup_check.h"

#include <gtest/gtest.h>

#include "tests/engine/run/small_runs.h"
#include "tests/support/values/error_text.h"

namespace sherd::testing {
namespace {

class MupCheckTest : public SmallRuns {
 protected:
  engine::MupCheckRequest request(std::vector<std::string> sets = {}) const {
    const std::string text = fmt::format(
        "model: {{num_layers: 2, hidden_size: 64, num_attention_heads: 8, vocab_size: 256, "
        "mup_base_hidden_size: 16}}\n"
        "data: {{path: {}}}\n"
        "training: {{seq_length: 16, global_batch_size: 4, micro_batch_size: 4, max_steps: 100}}\n"
        "optimizer: {{lr: 0.01}}\n",
        folder_.file("text"));
    engine::RecipeRequest request;
    request.path = "mine.yaml";
    request.text = text;
    request.sets = std::move(sets);
    return {std::move(request), 4, 4};
  }
};

TEST_F(MupCheckTest, IsFlatWithEveryOptimizerThatHasRules) {
  for (const char* type : {"adamw", "lion"}) {
    const engine::MupCheck check =
        engine::mup_check(request({std::string("optimizer.type=") + type}));
    EXPECT_EQ(check.widths, (std::vector<std::int64_t>{16, 32, 64, 128}));
    ASSERT_EQ(check.layers.size(), 4u);  // the embedding, two blocks, the logits
    EXPECT_TRUE(check.is_flat) << type << "\n" << engine::mup_check_text(check);
  }
}

TEST_F(MupCheckTest, RefusesARecipeWithoutABaseOrWithWidthsThatHeadsDontDivide) {
  EXPECT_NE(test::error_text<UsageError>([&] {
              engine::mup_check(request({"model.mup_base_hidden_size=0"}));
            }).find("there is no muP to check"),
            std::string::npos);
  EXPECT_NE(test::error_text<UsageError>([&] {
              engine::mup_check(request({"model.mup_base_hidden_size=12"}));
            }).find("which isn't whole"),
            std::string::npos);
}

}  // namespace
}  // namespace sherd::testing
