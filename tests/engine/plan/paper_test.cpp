// Table 1 of the ZeRO paper (Rajbhandari et al., arXiv:1910.02054), counted by the planner.

#include "engine/plan/paper_convention.h"

#include <gtest/gtest.h>

#include <cmath>

#include "engine/model/parameters.h"
#include "engine/train/from_recipe.h"
#include "tests/engine/plan/plan_support.h"

namespace sherd::engine {
namespace {

constexpr int kWorlds[] = {1, 4, 16, 64, 256, 1024};

struct PaperModel {
  const char* name;
  std::int64_t num_parameters;  ///< of the paper
  const char* shape;
  std::array<std::array<const char*, 3>, 6> gigabytes;  ///< as printed, by world and stage
};

// Shapes of ours with as many parameters, padded, as lets every cell round as the paper's.
const PaperModel kModels[] = {
    {"7.5B",
     7'500'000'000,
     "{num_layers: 32, hidden_size: 4096, num_attention_heads: 32, ffn_hidden_size: 12832, "
     "vocab_size: 37468}",
     {{{"120", "120", "120"},
       {"52.5", "41.25", "30"},
       {"35.6", "21.6", "7.5"},
       {"31.4", "16.6", "1.88"},
       {"30.4", "15.4", "0.47"},
       {"30.1", "15.1", "0.12"}}}},
    {"128B",
     128'000'000'000,
     "{num_layers: 51, hidden_size: 12288, num_attention_heads: 96, ffn_hidden_size: 49152, "
     "vocab_size: 194880}",
     {{{"2048", "2048", "2048"},
       {"896", "704", "512"},
       {"608", "368", "128"},
       {"536", "284", "32"},
       {"518", "263", "8"},
       {"513.5", "257.8", "2"}}}},
    {"1T",
     1'000'000'000'000,
     "{num_layers: 95, hidden_size: 25600, num_attention_heads: 200, ffn_hidden_size: 102400, "
     "vocab_size: 149568, tie_embeddings: true}",
     {{{"16000", "16000", "16000"},
       {"7000", "5500", "4000"},
       {"4750", "2875", "1000"},
       {"4187", "2219", "250"},
       {"4047", "2055", "62.5"},
       {"4012", "2014", "15.6"}}}}};

double half_a_unit(const std::string& printed) {
  const std::size_t point = printed.find('.');
  const auto decimals = point == std::string::npos ? 0 : printed.size() - point - 1;
  return 0.5 * std::pow(10.0, -static_cast<double>(decimals));
}

TEST(PaperConvention, GivesEveryCellOfTheZeroPapersTable) {
  int cells = 0;
  for (const PaperModel& model : kModels) {
    const auto recipe =
        resolved(fmt::format("model: {}\ndata: {{path: nowhere}}\n"
                             "training: {{seq_length: 1024, micro_batch_size: 1, max_steps: 10}}\n",
                             model.shape));
    const TrainingOptions options = training_options(recipe.values);
    const auto count = static_cast<double>(model::num_parameters(options.model));
    EXPECT_NEAR(count / static_cast<double>(model.num_parameters), 1.0, 5e-4) << model.name;
    for (std::size_t world = 0; world < 6; ++world) {
      for (int stage = 1; stage <= 3; ++stage) {
        const std::string printed = model.gigabytes[world][static_cast<std::size_t>(stage) - 1];
        const double bytes = static_cast<double>(paper_state_bytes(options, stage, kWorlds[world]));
        EXPECT_LE(std::abs(bytes / 1e9 - std::stod(printed)), half_a_unit(printed) * (1 + 1e-12))
            << model.name << ", " << kWorlds[world] << " ranks, stage " << stage << ": "
            << bytes / 1e9 << ", printed " << printed;
        ++cells;
      }
    }
  }
  EXPECT_EQ(cells, 54);
}

// Ours keeps no 16-bit copy at stage 3, so it is smaller by 2 bytes per parameter of the slice.
TEST(PaperConvention, DiffersFromOursByThe16BitCopyAtStage3) {
  const auto recipe = resolved(
      kSmallRecipe, {"zero_optimization.stage=3", "mixed_precision.param_dtype=bf16",
                     "mixed_precision.reduce_dtype=bf16", "mixed_precision.grad_accum_dtype=bf16"});
  const WorldPlan world = plan_world(recipe.values);
  const MemoryPlan& plan = world.worst();
  std::int64_t ours = 0, slice = 0;
  for (const PlannedBuffer& buffer : plan.buffers()) {
    const Category category = buffer.spec.category;
    if (category == Category::kMaster) slice += buffer.spec.numel;
    if (category == Category::kMaster || category == Category::kGradients ||
        category == Category::kOptimizer || category == Category::kParameters) {
      ours += buffer.spec.bytes();
    }
  }
  EXPECT_EQ(ours, 14 * slice);
  EXPECT_EQ(paper_state_bytes(training_options(recipe.values), 3, 4), 16 * slice);
}

}  // namespace
}  // namespace sherd::engine
