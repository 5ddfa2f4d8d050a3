// Passes that are shorter than what memory was planned for: a sample grows from one token on.
#include <fmt/core.h>
#include <gtest/gtest.h>

#include "checkpoint/format/manifest.h"
#include "engine/inference/evaluate.h"
#include "engine/run/run.h"
#include "tests/support/models/generated_text.h"
#include "tests/support/values/temp_folder.h"

namespace sherd::engine {
namespace {

constexpr const char* kRecipe = R"(run: {{output_dir: {0}/{1}, device: cpu, num_threads: {3}}}
model: {{num_layers: 1, hidden_size: {2}, num_attention_heads: 6, vocab_size: 256}}
data: {{path: {0}/text.txt}}
training: {{seq_length: 64, micro_batch_size: 2, max_steps: 1, sample_tokens: 8, eval_batches: 1}}
mixed_precision: {{param_dtype: {1}}}
checkpoint: {{interval: 1}}
)";

std::string text() {
  std::string text;
  for (int i = 0; i < 3000; ++i) text += static_cast<char>('a' + i * i / 7 % 26);
  return text;
}

// Widths 192 and 384 ended the process in 16 bits: few rows needed more workspace than many.
TEST(ShortPasses, OfASampleFitTheMemoryThatIsPlannedForWholeBatchesInEveryPrecision) {
  for (const auto& [width, num_threads] : {std::pair(192, 1), std::pair(384, 2)}) {
    const test::TempFolder folder;
    folder.write("text.txt", text());
    for (const char* type : {"f32", "bf16", "f16"}) {
      const auto recipe =
          resolve_recipe({.path = "short.yaml",
                          .text = fmt::format(kRecipe, folder.path(), type, width, num_threads),
                          .sets = {},
                          .ranks = {}});
      train(recipe);
      const std::string checkpoint =
          folder.file(fmt::format("{}/checkpoints/{}", type, checkpoint::step_directory_name(1)));
      const std::string sample =
          test::generated_text({.checkpoint = checkpoint, .ranks = 1}, "ab", {.num_tokens = 70});
      EXPECT_TRUE(sample.starts_with("ab")) << sample;
      EXPECT_GE(sample.size(), 72u);
    }
  }
}

// Two ranks hold everything for a sample. That once took stage 0's way to add gradients, which
// doesn't go with these types.
TEST(ShortPasses, ASampleOfAStage3RunTakesEveryTypeThatItsTrainingTook) {
  const test::TempFolder folder;
  folder.write("text.txt", text());
  train(resolve_recipe({.path = "short.yaml",
                        .text = fmt::format(kRecipe, folder.path(), "bf16", 24, 1),
                        .sets = {"zero_optimization.stage=3", "mixed_precision.reduce_dtype=bf16",
                                 "mixed_precision.grad_accum_dtype=f32"},
                        .ranks = 2}));
  const std::string checkpoint =
      folder.file("bf16/checkpoints/" + checkpoint::step_directory_name(1));
  const std::string sample =
      test::generated_text({.checkpoint = checkpoint, .ranks = 2}, "ab", {.num_tokens = 5});
  EXPECT_TRUE(sample.starts_with("ab")) << sample;
  EXPECT_GE(sample.size(), 7u);
}

// A run's ranks have parts of every sequence, and of matrices; a whole model samples the same from its checkpoint.
TEST(ShortPasses, ARunOnContextRanksEndsWithTheTextThatItsCheckpointGives) {
  const test::TempFolder folder;
  folder.write("text.txt", text());
  int number = 0;
  for (const char* mesh :
       {"context_parallel_degree: 2", "context_parallel_degree: 4, context_parallel_method: ring",
        "context_parallel_degree: 4, "
        "context_parallel_method: all_gather, tensor_parallel_degree: 2"}) {
    ::testing::internal::CaptureStdout();
    train(resolve_recipe({.path = "short.yaml",
                          .text = fmt::format(kRecipe, folder.path(), "f32", 24, 1) +
                                  fmt::format("parallelism: {{{}}}\n", mesh),
                          .sets = {"training.sample_prompt=ab", "training.sample_temperature=0",
                                   "model.ffn_hidden_size=64",
                                   "run.output_dir=" + folder.file(std::to_string(number))},
                          .ranks = 1}));
    const std::string printed = ::testing::internal::GetCapturedStdout();
    const std::string checkpoint =
        folder.file(fmt::format("{}/checkpoints/{}", number++, checkpoint::step_directory_name(1)));
    const std::string sample = test::generated_text({.checkpoint = checkpoint, .ranks = 1}, "ab",
                                                    {.num_tokens = 8, .temperature = 0.0});
    EXPECT_NE(printed.find("sample:\n" + sample), std::string::npos) << printed << sample;
  }
}

}  // namespace
}  // namespace sherd::engine
