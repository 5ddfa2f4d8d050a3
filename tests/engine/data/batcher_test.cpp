#include "engine/data/batcher.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>

#include "tests/support/values/temp_folder.h"

namespace sherd::data {
namespace {

using Ids = std::vector<std::int32_t>;

Tensor tensor_of(Ids& ids) {
  return {ids.data(), DType::kI32, std::ssize(ids)};
}

/// Files in which every token is another number, so that a window tells where it comes from.
class BatcherTest : public testing::Test {
 protected:
  void add_file(const std::string& name, int num_tokens) {
    std::string bytes;
    for (int i = 0; i < num_tokens; ++i, ++next_id_) {
      bytes.push_back(static_cast<char>(next_id_ & 0xff));
      bytes.push_back(static_cast<char>(next_id_ >> 8));
    }
    folder_.write(name + ".bin", bytes);
  }
  std::shared_ptr<const Dataset> open(std::int64_t seq_length, double validation_fraction = 0) {
    return open_dataset({.path = folder_.path(),
                         .format = Format::kBin,
                         .validation_fraction = validation_fraction,
                         .vocab_size = 65536,
                         .seq_length = seq_length});
  }
  /// All rows of a step, in the order of the global batch; targets are checked on the way.
  static std::vector<Ids> rows_of(const Batcher& batcher, std::int64_t step) {
    const BatchShape& shape = batcher.shape();
    std::vector<Ids> rows;
    for (std::int64_t micro_step = 0; micro_step < shape.num_micro_steps; ++micro_step) {
      for (int rank = 0; rank < shape.world; ++rank) {
        Ids inputs(static_cast<std::size_t>(shape.micro_batch_size * shape.seq_length));
        Ids targets = inputs;
        batcher.fill(step, micro_step, rank, {tensor_of(inputs), tensor_of(targets)});
        append_rows(inputs, targets, shape.seq_length, rows);
      }
    }
    return rows;
  }
  /// In one text each token is the one before it plus one.
  static void append_rows(const Ids& inputs, const Ids& targets, std::int64_t seq_length,
                          std::vector<Ids>& rows) {
    for (auto row = inputs.begin(); row != inputs.end(); row += seq_length) {
      rows.emplace_back(row, row + seq_length);
      const auto target = targets.begin() + (row - inputs.begin());
      for (std::int64_t i = 0; i < seq_length; ++i) EXPECT_EQ(target[i], row[i] + 1);
    }
  }

  test::TempFolder folder_;
  int next_id_ = 0;
};

// Files of 41, 17 and 9 tokens give max(5 - 1, 1), 1 and 1 windows of 8: two epochs are 12 samples, three
// steps of 5, of which the last has 2.
TEST_F(BatcherTest, SoManyEpochsHaveEveryWindowSoOftenAndTheLastStepWhatIsLeft) {
  for (const int tokens : {41, 17, 9}) add_file(std::to_string(tokens), tokens);
  const auto data = open(8);
  for (const int world : {1, 5}) {
    BatchShape shape{.seq_length = 8, .micro_batch_size = 5 / world, .world = world, .seed = 3};
    const Batcher endless(data, shape);
    EXPECT_EQ(endless.num_steps(), 0);
    EXPECT_EQ(endless.num_samples(9), 45);
    shape.num_epochs = 2;
    const Batcher batcher(data, shape);
    ASSERT_EQ(batcher.num_windows(), 6);
    ASSERT_EQ(batcher.num_steps(), 3);
    EXPECT_EQ(batcher.num_samples(3), 12);
    EXPECT_EQ(batcher.num_targets(1), 40);
    EXPECT_EQ(batcher.num_targets(2), 16);
    EXPECT_EQ(batcher.num_targets(3), 40) << "after the end, for runs that skip data";
    for (int part = 0; part < 5; ++part) {
      EXPECT_EQ(batcher.num_targets(1, part, 5), 8);
      EXPECT_EQ(batcher.num_targets(2, part, 5), part < 2 ? 8 : 0);
    }
    for (std::int64_t step = 0; step < 5; ++step) {
      std::vector<Ids> rows, targets;
      for (int rank = 0; rank < world; ++rank) {
        const auto tokens = static_cast<std::size_t>(shape.micro_batch_size * 8);
        Ids inputs(tokens, -7), of_rank(tokens, -7), expected(tokens);
        batcher.fill(step, 0, rank, {tensor_of(inputs), tensor_of(of_rank)});
        Ids whole(tokens), whole_targets(tokens);
        endless.fill(step, 0, rank, {tensor_of(whole), tensor_of(whole_targets)});
        for (std::size_t i = 0; i < tokens; ++i) {
          const auto row = step * 5 + rank * shape.micro_batch_size + static_cast<int>(i) / 8;
          const bool is_padding = row >= 12 && row < 15;
          EXPECT_EQ(of_rank[i], is_padding ? kNoTarget : whole_targets[i]) << row;
          EXPECT_EQ(inputs[i], is_padding ? 0 : whole[i]) << row;
        }
      }
    }
  }
}

TEST_F(BatcherTest, AnEpochVisitsEveryWindowOnceAndStaysInsideFiles) {
  const std::vector<int> sizes = {101, 7, 8, 9, 15, 16, 17, 24, 1};
  for (std::size_t i = 0; i < sizes.size(); ++i) add_file(std::to_string(i), sizes[i]);
  const auto data = open(8);
  const Batcher batcher(data, {.seq_length = 8, .micro_batch_size = 1, .seed = 3});
  // q = (n - 1) / 8 is 12, 1, 1, 1, 2, 2 of the long ones, and 1 of 7 + 8 + 1 joined tokens:
  // max(q - 1, 1) windows each.
  ASSERT_EQ(batcher.num_windows(), 11 + 1 + 1 + 1 + 1 + 1 + 1);
  for (std::int64_t epoch = 0; epoch < 50; ++epoch) {
    std::map<int, std::set<std::int64_t>> starts;
    for (std::int64_t s = 0; s < batcher.num_windows(); ++s) {
      const auto place = batcher.training_place(epoch * batcher.num_windows() + s);
      EXPECT_GE(place.first, 0);
      EXPECT_LE(place.first + 9, data->file(place.file).num_tokens());
      EXPECT_TRUE(starts[place.file].insert(place.first).second);
    }
    EXPECT_EQ(starts[0].size(), 11u);
    EXPECT_EQ(*starts[0].rbegin() - *starts[0].begin(), 80) << "windows lie end to end";
  }
}

TEST_F(BatcherTest, ReachesEveryTokenOverTheEpochs) {
  add_file("a", 30);
  const Batcher batcher(open(8), {.seq_length = 8, .micro_batch_size = 1, .seed = 1});
  std::set<std::int32_t> seen;
  for (std::int64_t step = 0; step < 400; ++step) {
    const std::vector<Ids> rows = rows_of(batcher, step);
    for (const std::int32_t id : rows.front()) {
      seen.insert(id);
      seen.insert(id + 1);
    }
  }
  EXPECT_EQ(seen.size(), 30u);
}

TEST_F(BatcherTest, WindowsStayOutOfTheOtherSplit) {
  add_file("a", 200);
  add_file("b", 55);
  const Batcher batcher(open(5, 0.3), {.seq_length = 5, .micro_batch_size = 2, .seed = 9});
  const auto trains = [](std::int32_t id) { return id < 140 || (id >= 200 && id < 238); };
  for (std::int64_t step = 0; step < 300; ++step) {
    for (const Ids& row : rows_of(batcher, step)) {
      EXPECT_TRUE(trains(row.front()) && trains(row.back() + 1));
    }
  }
  for (std::int64_t w = 0; w < batcher.num_validation_windows(); ++w) {
    Ids inputs(5), targets(5);
    batcher.fill_validation(w, 1, {tensor_of(inputs), tensor_of(targets)});
    EXPECT_FALSE(trains(inputs.front()) || trains(targets.back()));
  }
}

TEST_F(BatcherTest, IsAPureFunction) {
  add_file("a", 500);
  const BatchShape shape{.seq_length = 10, .micro_batch_size = 3, .num_micro_steps = 2, .seed = 5};
  const Batcher one(open(10), shape), two(open(10), shape);
  const auto later = rows_of(one, 77);
  rows_of(two, 3);
  EXPECT_EQ(rows_of(two, 77), later);
  EXPECT_EQ(rows_of(one, 77), later);
}

TEST_F(BatcherTest, OtherSeedsAndEpochsAreOtherOrders) {
  add_file("a", 500);
  const auto data = open(10);
  const auto epoch = [&](std::uint64_t seed, std::int64_t which) {
    const Batcher batcher(data, {.seq_length = 10, .micro_batch_size = 1, .seed = seed});
    Ids order;
    for (std::int64_t s = 0; s < batcher.num_windows(); ++s) {
      const std::int64_t sample = which * batcher.num_windows() + s;
      order.push_back(static_cast<std::int32_t>(batcher.training_place(sample).first));
    }
    return order;
  };
  std::set<Ids> orders;
  std::set<std::int32_t> offsets;
  for (int i = 0; i < 20; ++i) {
    for (const Ids& order : {epoch(1, i), epoch(100 + static_cast<std::uint64_t>(i), 0)}) {
      orders.insert(order);
      offsets.insert(*std::min_element(order.begin(), order.end()));
    }
  }
  EXPECT_EQ(orders.size(), 40u);
  EXPECT_GE(offsets.size(), 10u) << "the first window doesn't always start at the same token";
}

TEST_F(BatcherTest, RowsDoNotDependOnTheNumberOfRanks) {
  for (int i = 0; i < 5; ++i) add_file(std::to_string(i), 90 + 37 * i);
  for (int i = 5; i < 9; ++i) add_file(std::to_string(i), i - 3);
  const auto data = open(6);
  const auto rows = [&](int world, std::int64_t micro_steps, std::int64_t micro_batch) {
    const Batcher batcher(data, {.seq_length = 6,
                                 .micro_batch_size = micro_batch,
                                 .num_micro_steps = micro_steps,
                                 .world = world,
                                 .seed = 11});
    std::vector<Ids> all;
    for (std::int64_t step = 0; step < 30; ++step) {
      for (Ids& row : rows_of(batcher, step)) all.push_back(std::move(row));
    }
    return all;
  };
  const auto alone = rows(1, 4, 3);
  EXPECT_EQ(alone.size(), 360u);
  EXPECT_EQ(rows(4, 1, 3), alone);
  EXPECT_EQ(rows(2, 2, 3), alone);
  EXPECT_EQ(rows(3, 2, 2), alone);
  EXPECT_EQ(rows(1, 1, 12), alone);
}

TEST_F(BatcherTest, ValidatesAllWholeWindowsInOrder) {
  add_file("a", 11);  // windows at 0 and 5
  add_file("b", 5);   // none of its own
  add_file("c", 6);   // one
  add_file("d", 4);   // joined with b: one, and three tokens after it
  folder_.write("train.txt", std::string(100, '\0'));
  const auto data = open_dataset({.path = folder_.file("train.txt"),
                                  .format = Format::kBin,
                                  .validation_path = folder_.file("*.bin"),
                                  .vocab_size = 65536,
                                  .seq_length = 5});
  const Batcher batcher(data, {.seq_length = 5, .micro_batch_size = 1});
  ASSERT_EQ(batcher.num_validation_windows(), 4);
  Ids inputs(15), targets(15);
  batcher.fill_validation(0, 3, {tensor_of(inputs), tensor_of(targets)});
  EXPECT_EQ(inputs, (Ids{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 16, 17, 18, 19, 20}));
  EXPECT_EQ(targets, (Ids{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 17, 18, 19, 20, 21}));
  Ids last_inputs(5), last_targets(5);
  batcher.fill_validation(2, 1, {tensor_of(last_inputs), tensor_of(last_targets)});
  EXPECT_EQ(last_inputs, (Ids{16, 17, 18, 19, 20}));
  batcher.fill_validation(3, 1, {tensor_of(last_inputs), tensor_of(last_targets)});
  EXPECT_EQ(last_inputs, (Ids{11, 12, 13, 14, 15}));
  EXPECT_EQ(last_targets, (Ids{12, 13, 14, 15, 22}));
}

TEST_F(BatcherTest, ReachesEveryTokenOfManyShortFiles) {
  for (int i = 0; i < 40; ++i) add_file(std::to_string(100 + i), 1 + i % 5);
  const auto data = open(8, 0.3);
  const Batcher batcher(data, {.seq_length = 8, .micro_batch_size = 1, .seed = 4});
  std::set<std::int32_t> trained, validated;
  for (std::int64_t sample = 0; sample < 40 * batcher.num_windows(); ++sample) {
    const auto place = batcher.training_place(sample);
    Ids ids(9);
    data->file(place.file).read(place.first, 9, ids.data());
    trained.insert(ids.begin(), ids.end());
  }
  for (std::int64_t window = 0; window < batcher.num_validation_windows(); ++window) {
    Ids inputs(8), targets(8);
    batcher.fill_validation(window, 1, {tensor_of(inputs), tensor_of(targets)});
    validated.insert(inputs.begin(), inputs.end());
    validated.insert(targets.begin(), targets.end());
  }
  EXPECT_EQ(std::ssize(trained), data->num_tokens(Split::kTrain));
  EXPECT_GT(std::ssize(validated), data->num_tokens(Split::kValidation) - 8);
  for (const std::int32_t id : validated) EXPECT_FALSE(trained.contains(id)) << id;
}

// Printed by the version before short files were joined: what is long lies where it lay.
TEST_F(BatcherTest, FilesThatAreAllLongKeepTheOrderTheyHad) {
  add_file("a", 200);
  add_file("b", 90);
  const auto data = open(7, 0.2);
  const Batcher batcher(data, {.seq_length = 7, .micro_batch_size = 1, .seed = 17});
  std::vector<std::pair<int, std::int64_t>> places;
  for (std::int64_t sample = 30; sample < 36; ++sample) {
    const auto place = batcher.training_place(sample);
    places.emplace_back(place.file, place.first);
  }
  const std::vector<std::pair<int, std::int64_t>> expected = {{1, 42}, {0, 61}, {1, 56},
                                                              {1, 28}, {0, 68}, {0, 96}};
  EXPECT_EQ(places, expected);
  EXPECT_EQ(data->fingerprint(), 7359161621572768500u);
}

TEST_F(BatcherTest, SamplesValidationFromEveryStart) {
  add_file("a", 40);
  add_file("b", 30);
  const Batcher batcher(open(5, 0.5), {.seq_length = 5, .micro_batch_size = 1, .seed = 2});
  std::set<std::int32_t> starts;
  for (std::int64_t batch = 0; batch < 100; ++batch) {
    Ids inputs(20), targets(20), again(20);
    batcher.fill_validation_sample(4, 4 * batch, 4, {tensor_of(inputs), tensor_of(targets)});
    for (int row = 0; row < 4; ++row) {
      batcher.fill_validation_sample(
          4, 4 * batch + row, 1,
          {tensor_of(again).part(row * 5, 5), tensor_of(targets).part(row * 5, 5)});
    }
    EXPECT_EQ(inputs, again) << "a window alone is the window among others";
    std::vector<Ids> rows;
    append_rows(inputs, targets, 5, rows);
    for (const Ids& row : rows) starts.insert(row.front());
  }
  std::set<std::int32_t> expected;  // of tokens 20-39 and 55-69, those with 5 more after them
  for (std::int32_t id = 20; id < 35; ++id) expected.insert(id);
  for (std::int32_t id = 55; id < 65; ++id) expected.insert(id);
  EXPECT_EQ(starts, expected);
}

TEST_F(BatcherTest, MisuseIsOurBug) {
  add_file("a", 100);
  const Batcher batcher(open(5), {.seq_length = 5, .micro_batch_size = 2, .world = 2});
  Ids inputs(10), targets(10), small(9);
  EXPECT_DEATH(batcher.fill(0, 0, 2, {tensor_of(inputs), tensor_of(targets)}), "rank 2 of 2");
  EXPECT_DEATH(batcher.fill(0, 1, 0, {tensor_of(inputs), tensor_of(targets)}), "micro-step 1 of 1");
  EXPECT_DEATH(batcher.fill(0, 0, 0, {tensor_of(inputs), tensor_of(small)}), "9 targets");
  EXPECT_DEATH(batcher.fill_validation(0, 2, {tensor_of(inputs), tensor_of(targets)}),
               "validation window 0 of 0");
}

}  // namespace
}  // namespace sherd::data
