// Texts of many lengths on a GPU: its libraries are asked for few.
#include <gtest/gtest.h>

#include <set>

#include "engine/recipe/recipe.h"
#include "engine/run/run.h"
#include "tests/emulated_gpu/on_machine.h"
#include "tests/fake_cuda/blas.h"
#include "tests/support/models/generated_text.h"
#include "tests/support/values/temp_folder.h"

namespace sherd::testing {
namespace {

TEST(NcclDecoding, PromptsOfAnyLengthArePassesOfFewLengths) {
  const test::TempFolder folder;
  folder.write("text.txt", std::string(40, 'a') + std::string(300, 'b'));
  constexpr std::int64_t kContext = 256;
  on_machine(1, 1, [&] {
    const auto machine = engine::cuda_machine(1, {});
    engine::RecipeRequest request;
    request.path = "tiny.yaml";
    request.text =
        "model: {num_layers: 1, hidden_size: 16, num_attention_heads: 2, vocab_size: 2}\n"
        "data: {path: " +
        folder.file("text.txt") +
        ", format: chars, validation_fraction: 0}\n"
        "training: {seq_length: 256, global_batch_size: 1, max_steps: 1}\n"
        "checkpoint: {interval: 1}\n";
    request.sets = {"run.output_dir=" + folder.file("run")};
    engine::train(engine::resolve_recipe(request), machine);
    engine::TrainedModelRequest model;
    model.checkpoint = folder.file("run/checkpoints/step-0000000001");
    model.machine = machine;
    fake_cuda::set_blas({});
    for (const std::size_t length : {1u, 3u, 7u, 20u, 63u, 64u, 65u, 100u, 128u, 200u}) {
      test::generated_text(model, std::string(length, 'a'), {.num_tokens = 2});
    }
    std::set<std::int64_t>
        lengths;  // rows of matmuls, but of the head: those of the last token alone
    for (const fake_cuda::Matmul& matmul : fake_cuda::matmuls()) lengths.insert(matmul.n);
    EXPECT_EQ(lengths, (std::set<std::int64_t>{1, 64, 128, kContext}));
  });
}

}  // namespace
}  // namespace sherd::testing
