#include "core/memory.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <set>
#include <thread>

namespace sherd {
namespace {

std::int64_t of(const BytesByCategory& bytes, Category category) {
  return bytes[static_cast<std::size_t>(category)];
}

TEST(Allocator, GivesZeroedMemoryAlignedToPages) {
  HeapAllocator allocator;
  for (int round = 0; round < 2; ++round) {  // the second gets used memory again
    for (const std::int64_t numel : {0, 1, 1000, 5000}) {
      const Buffer buffer = allocator.acquire({"x", Category::kParameters, DType::kF32, numel});
      const Tensor& tensor = buffer.tensor();
      EXPECT_EQ(tensor.dtype, DType::kF32);
      EXPECT_EQ(tensor.numel, numel);
      EXPECT_EQ(reinterpret_cast<std::uintptr_t>(tensor.data) % 4096, 0u);
      for (std::int64_t i = 0; i < numel; ++i) {
        ASSERT_EQ(tensor.as<float>()[i], 0.0f);
        tensor.as<float>()[i] = 1.0f;
      }
    }
  }
}

TEST(Allocator, CountsWhatIsAliveByCategory) {
  HeapAllocator allocator;
  const Buffer parameters = allocator.acquire({"p", Category::kParameters, DType::kF32, 100});
  {
    const Buffer first = allocator.acquire({"a", Category::kActivations, DType::kBF16, 300});
    const Buffer second = allocator.acquire({"b", Category::kActivations, DType::kBF16, 50});
    EXPECT_EQ(of(allocator.current(), Category::kParameters), 400);
    EXPECT_EQ(of(allocator.current(), Category::kActivations), 700);
    EXPECT_EQ(allocator.current_bytes(), 1100);
  }
  EXPECT_EQ(of(allocator.current(), Category::kActivations), 0);
  EXPECT_EQ(of(allocator.current(), Category::kParameters), 400);
  EXPECT_EQ(allocator.current_bytes(), 400);
}

TEST(Allocator, PeakOfTheSumIsNotTheSumOfThePeaks) {
  HeapAllocator allocator;
  { const Buffer a = allocator.acquire({"a", Category::kActivations, DType::kU8, 700}); }
  { const Buffer b = allocator.acquire({"b", Category::kLogits, DType::kU8, 500}); }
  EXPECT_EQ(of(allocator.peak_by_category(), Category::kActivations), 700);
  EXPECT_EQ(of(allocator.peak_by_category(), Category::kLogits), 500);
  EXPECT_EQ(allocator.peak_bytes(), 700);
  EXPECT_EQ(allocator.current_bytes(), 0);
}

TEST(Allocator, RemembersEveryBufferInOrder) {
  HeapAllocator allocator;
  { const Buffer a = allocator.acquire({"a", Category::kData, DType::kI32, 3, kForward}); }
  const Buffer b = allocator.acquire({"b", Category::kWorkspace, DType::kU8, 5});
  const std::vector<BufferSpec> acquired = allocator.acquired();
  ASSERT_EQ(acquired.size(), 2u);
  EXPECT_EQ(acquired[0].name, "a");
  EXPECT_EQ(acquired[0].phases, Phases{kForward});
  EXPECT_EQ(acquired[0].bytes(), 12);
  EXPECT_EQ(acquired[1].name, "b");
  EXPECT_EQ(acquired[1].category, Category::kWorkspace);
}

TEST(Buffer, IsCountedOnceHoweverItMoves) {
  HeapAllocator allocator;
  Buffer a = allocator.acquire({"a", Category::kGradients, DType::kF32, 10});
  void* data = a.tensor().data;
  Buffer b = std::move(a);
  EXPECT_EQ(b.tensor().data, data);
  EXPECT_FALSE(a);  // NOLINT: moved from is empty
  EXPECT_EQ(allocator.current_bytes(), 40);

  b = allocator.acquire({"b", Category::kGradients, DType::kF32, 1});
  EXPECT_EQ(allocator.current_bytes(), 4) << "what it held is given back";
  b = Buffer();
  EXPECT_EQ(allocator.current_bytes(), 0);
  EXPECT_EQ(allocator.peak_bytes(), 44);
}

TEST(Allocator, CountsRightlyWhenManyThreadsCall) {
  HeapAllocator allocator;
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&allocator] {
      for (int k = 0; k < 200; ++k) {
        const Buffer buffer = allocator.acquire({"x", Category::kCommunication, DType::kU8, 64});
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(allocator.current_bytes(), 0);
  EXPECT_EQ(allocator.acquired().size(), 800u);
  EXPECT_LE(allocator.peak_bytes(), 4 * 64);
  EXPECT_GE(allocator.peak_bytes(), 64);
}

TEST(Categories, HaveDifferentNames) {
  std::set<std::string_view> names;
  for (int i = 0; i < kNumCategories; ++i) names.insert(name_of(static_cast<Category>(i)));
  EXPECT_EQ(names.size(), static_cast<std::size_t>(kNumCategories));
  EXPECT_EQ(names.count("?"), 0u);
}

}  // namespace
}  // namespace sherd
