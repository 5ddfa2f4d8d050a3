#include "engine/data/prefetcher.h"

#include <gtest/gtest.h>

#include <atomic>
#include <future>
#include <vector>

#include "core/error.h"
#include "tests/support/values/error_text.h"

namespace sherd::data {
namespace {

/// Batches of one token each.
struct Tokens {
  std::array<std::int32_t, 4> storage{};
  std::array<Batch, 2> buffers() {
    const auto token = [this](std::size_t i) { return Tensor{&storage[i], DType::kI32, 1}; };
    return {Batch{token(0), token(1)}, Batch{token(2), token(3)}};
  }
};

void put(const Batch& batch, std::int64_t step, std::int64_t micro_step) {
  *batch.inputs.as<std::int32_t>() = static_cast<std::int32_t>(step);
  *batch.targets.as<std::int32_t>() = static_cast<std::int32_t>(micro_step);
}

TEST(BatchPrefetcher, HandsOutMicroBatchesInOrder) {
  Tokens tokens;
  BatchPrefetcher prefetcher([](std::int64_t step, std::int64_t micro_step,
                                const Batch& batch) { put(batch, step, micro_step); },
                             5, 3, tokens.buffers());
  for (int step = 5; step < 200; ++step) {
    for (int micro_step = 0; micro_step < 3; ++micro_step) {
      const Batch batch = prefetcher.next();
      ASSERT_EQ(*batch.inputs.as<std::int32_t>(), step);
      ASSERT_EQ(*batch.targets.as<std::int32_t>(), micro_step);
    }
  }
}

TEST(BatchPrefetcher, FillsTheNextBatchWhileOneIsInUseButNeverThatOne) {
  Tokens tokens;
  std::promise<void> third_filled;
  std::atomic<int> num_filled{0};
  BatchPrefetcher prefetcher(
      [&](std::int64_t step, std::int64_t, const Batch& batch) {
        put(batch, step, 0);
        if (++num_filled == 3) third_filled.set_value();
      },
      0, 1, tokens.buffers());
  prefetcher.next();
  const Batch in_use = prefetcher.next();  // gives the first buffer back
  third_filled.get_future().wait();        // into which the third batch goes meanwhile
  EXPECT_EQ(*in_use.inputs.as<std::int32_t>(), 1);
  EXPECT_EQ(num_filled, 3) << "a fourth batch would overwrite the one in use";
}

TEST(BatchPrefetcher, RethrowsAtTheBatchThatFailed) {
  Tokens tokens;
  BatchPrefetcher prefetcher(
      [](std::int64_t step, std::int64_t micro_step, const Batch&) {
        if (step == 1 && micro_step == 1) throw DataError("a.txt: shrank.");
      },
      0, 2, tokens.buffers());
  for (int i = 0; i < 3; ++i) EXPECT_NO_THROW(prefetcher.next());
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(test::error_text<DataError>([&] { prefetcher.next(); }), "a.txt: shrank.");
  }
}

TEST(BatchPrefetcher, StopsWithoutBeingAsked) {
  Tokens tokens;
  const auto fill = [](std::int64_t, std::int64_t, const Batch&) {};
  for (int i = 0; i < 100; ++i) BatchPrefetcher(fill, 0, 1, tokens.buffers());
  for (int i = 0; i < 100; ++i) {
    BatchPrefetcher prefetcher(fill, 0, 1, tokens.buffers());
    prefetcher.next();
  }
}

TEST(BatchPrefetcher, WaitsAtItsEndForTheBatchBeingFilledAndNoMore) {
  Tokens tokens;
  std::promise<void> started, go_on;
  std::future<void> releaser;
  int num_filled = 0;
  {
    BatchPrefetcher prefetcher(
        [&, go = go_on.get_future().share()](std::int64_t step, std::int64_t, const Batch&) {
          if (step == 0) started.set_value();
          go.wait();
          ++num_filled;
        },
        0, 1, tokens.buffers());
    started.get_future().wait();
    releaser = std::async(std::launch::async, [&] { go_on.set_value(); });
  }
  EXPECT_GE(num_filled, 1);
  EXPECT_LE(num_filled, 2) << "there are two buffers, and nobody took a batch";
}

}  // namespace
}  // namespace sherd::data
