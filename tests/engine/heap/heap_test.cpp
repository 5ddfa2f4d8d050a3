// After its first steps a run allocates almost nothing on the heap: tensors are
// in the arena. This program counts every allocation of 4 KiB and more; twenty more steps must make
// none more.

#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>
#include <new>

#include "engine/recipe/recipe.h"
#include "engine/run/run.h"
#include "tests/support/values/temp_folder.h"

namespace {

constexpr std::size_t kLarge = 4096;
std::atomic<std::int64_t> large_allocations{0};

void* counted(std::size_t bytes, std::size_t alignment) {
  if (bytes >= kLarge) large_allocations.fetch_add(1);
  const std::size_t rounded = (bytes + alignment - 1) / alignment * alignment;
  void* memory = alignment <= alignof(std::max_align_t) ? std::malloc(bytes)
                                                        : std::aligned_alloc(alignment, rounded);
  if (!memory) throw std::bad_alloc();
  return memory;
}

}  // namespace

// Both sides are replaced here, which g++ doesn't see once they are inlined.
#pragma GCC diagnostic ignored "-Wmismatched-new-delete"

void* operator new(std::size_t bytes) {
  return counted(bytes, alignof(std::max_align_t));
}
void* operator new[](std::size_t bytes) {
  return counted(bytes, alignof(std::max_align_t));
}
void* operator new(std::size_t bytes, std::align_val_t alignment) {
  return counted(bytes, static_cast<std::size_t>(alignment));
}
void* operator new[](std::size_t bytes, std::align_val_t alignment) {
  return counted(bytes, static_cast<std::size_t>(alignment));
}
// What the library takes and gives back itself must come from the same place.
void* operator new(std::size_t bytes, const std::nothrow_t&) noexcept {
  return std::malloc(bytes);
}
void* operator new[](std::size_t bytes, const std::nothrow_t&) noexcept {
  return std::malloc(bytes);
}
void operator delete(void* memory) noexcept {
  std::free(memory);
}
void operator delete[](void* memory) noexcept {
  std::free(memory);
}
void operator delete(void* memory, std::size_t) noexcept {
  std::free(memory);
}
void operator delete[](void* memory, std::size_t) noexcept {
  std::free(memory);
}
void operator delete(void* memory, std::align_val_t) noexcept {
  std::free(memory);
}
void operator delete(void* memory, std::size_t, std::align_val_t) noexcept {
  std::free(memory);
}
void operator delete[](void* memory, std::align_val_t) noexcept {
  std::free(memory);
}
void operator delete[](void* memory, std::size_t, std::align_val_t) noexcept {
  std::free(memory);
}

namespace sherd::engine {
namespace {

// Saves take some KiB of heap for their metadata, as checkpoint/writer.h says; so nothing is saved.
// A micro-batch of 64 tokens of width 48 takes 12 KiB, so every tensor-sized buffer would be seen.
std::int64_t allocations_of_a_run(const test::TempFolder& folder, int stage, int num_steps,
                                  const std::string& more) {
  static int run = 0;  // Every run finds an empty output folder, so all of them start alike.
  RecipeRequest request;
  request.path = "heap.yaml";
  request.text = fmt::format(
      "run: {{name: heap, output_dir: {0}/run-{4}, num_threads: 2}}\n"
      "model: {{num_layers: 3, hidden_size: 48, num_attention_heads: 4, vocab_size: 256, "
      "max_seq_length: 32, dropout: 0.1}}\n"
      "data: {{path: {0}/text, format: bytes, validation_fraction: 0.1}}\n"
      "training: {{seq_length: 32, micro_batch_size: 2, gradient_accumulation_steps: 2, "
      "max_steps: {1}, sample_tokens: 0}}\n"
      "parallelism: {{data_parallel_shard_degree: 2}}\n"
      "zero_optimization: {{stage: {2}}}\n"
      "checkpoint: {{interval: 0}}\n"
      "{3}",
      folder.path(), num_steps, stage, more, run++);
  const std::int64_t before = large_allocations.load();
  train(resolve_recipe(request));
  return large_allocations.load() - before;
}

TEST(Heap, TwentyMoreStepsAllocateNothingLargeAtAnyStage) {
  const test::TempFolder folder;
  std::string text;
  for (int i = 0; i < 20000; ++i) text += static_cast<char>('a' + (i * 7 + i / 13) % 26);
  folder.write("text", text);
  // Whatever the process takes once, it takes in a run that isn't counted.
  allocations_of_a_run(folder, 0, 2, "optimizer: {type: adamw}");
  for (int stage = 0; stage <= 3; ++stage) {
    for (const std::string more :
         {"optimizer: {type: adamw}", "optimizer: {type: muon}",
          "optimizer: {type: lamb}\nmixed_precision: {param_dtype: bf16}",
          "optimizer: {type: sgd, momentum: 0.9}\nmixed_precision: {param_dtype: f16}\n"
          "loss_scaling: {mode: dynamic}\nactivation_checkpointing: {mode: full}"}) {
      const std::int64_t two = allocations_of_a_run(folder, stage, 2, more);
      const std::int64_t twenty_two = allocations_of_a_run(folder, stage, 22, more);
      EXPECT_EQ(two, twenty_two) << "stage " << stage << ", " << more;
      EXPECT_GT(two, 0) << "the counter counts";
    }
  }
}

}  // namespace
}  // namespace sherd::engine
