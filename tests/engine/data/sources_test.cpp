// Batches from several sources, in stages.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <set>

#include "core/error.h"
#include "engine/data/batcher.h"
#include "tests/support/values/error_text.h"
#include "tests/support/values/temp_folder.h"

namespace sherd::data {
namespace {

using Ids = std::vector<std::int32_t>;

Tensor tensor_of(Ids& ids) {
  return {ids.data(), DType::kI32, std::ssize(ids)};
}

/// Three sources whose tokens are in different thousands, so a row tells where it comes from.
class SourcesTest : public testing::Test {
 protected:
  static constexpr std::int64_t kSeqLength = 8;

  SourcesTest() {
    for (int i = 0; i < 3; ++i) {
      std::string bytes;
      for (int t = 0; t < 400; ++t) {
        const int id = 1000 * (i + 1) + t;
        bytes.push_back(static_cast<char>(id & 0xff));
        bytes.push_back(static_cast<char>(id >> 8));
      }
      folder_.write(std::to_string(i) + ".bin", bytes);
    }
  }
  std::shared_ptr<const Dataset> open(int source) const {
    return open_dataset({.path = folder_.file(std::to_string(source) + ".bin"),
                         .format = Format::kBin,
                         .validation_fraction = 0.1,
                         .vocab_size = 65536,
                         .seq_length = kSeqLength});
  }
  BatchSources sources(const std::vector<double>& weights, std::vector<Stage> stages = {}) const {
    BatchSources all;
    for (std::size_t i = 0; i < weights.size(); ++i) {
      const auto dataset = open(static_cast<int>(i));
      all.training.push_back({std::to_string(i), dataset, weights[i]});
      all.validation.push_back({std::to_string(i), dataset});
    }
    all.stages = std::move(stages);
    return all;
  }
  static BatchShape shape(int world = 1, std::int64_t micro_steps = 4) {
    return {.seq_length = kSeqLength,
            .micro_batch_size = 4 / world,
            .num_micro_steps = micro_steps,
            .world = world,
            .seed = 7};
  }
  /// The first tokens of a step's rows, in the order of the global batch.
  static Ids rows_of(const Batcher& batcher, std::int64_t step) {
    const BatchShape& shape = batcher.shape();
    Ids first;
    for (std::int64_t micro_step = 0; micro_step < shape.num_micro_steps; ++micro_step) {
      for (int rank = 0; rank < shape.world; ++rank) {
        Ids inputs(static_cast<std::size_t>(shape.micro_batch_size * shape.seq_length));
        Ids targets = inputs;
        batcher.fill(step, micro_step, rank, {tensor_of(inputs), tensor_of(targets)});
        for (std::int64_t row = 0; row < shape.micro_batch_size; ++row) {
          first.push_back(inputs[static_cast<std::size_t>(row * shape.seq_length)]);
        }
      }
    }
    return first;
  }

  test::TempFolder folder_;
};

TEST_F(SourcesTest, GiveEachStepTheRowsOfTheMixtureWhateverTheRanks) {
  const Batcher one(sources({5, 3, 2}), shape());
  const Mixture mixture({5, 3, 2});
  for (std::int64_t step = 0; step < 70; ++step) {  // into the second block of 1,024
    const Ids rows = rows_of(one, step);
    for (std::size_t row = 0; row < rows.size(); ++row) {
      const std::int64_t sample = step * 16 + static_cast<std::int64_t>(row);
      EXPECT_EQ(rows[row] / 1000, mixture.at(sample).source + 1);
    }
    for (const int world : {2, 4}) {
      EXPECT_EQ(rows_of(Batcher(sources({5, 3, 2}), shape(world)), step), rows);
    }
  }
}

TEST_F(SourcesTest, OfOneAloneAreTheRowsOfThatDataset) {
  const Batcher alone(open(0), shape());
  const Batcher listed(sources({0.3}), shape());
  const Batcher with_unused(sources({2, 0, 0}), shape());
  for (std::int64_t step = 0; step < 5; ++step) {
    EXPECT_EQ(rows_of(listed, step), rows_of(alone, step));
    EXPECT_EQ(rows_of(with_unused, step), rows_of(alone, step));
  }
  EXPECT_EQ(listed.fingerprints()[0].hash, alone.dataset().fingerprint());
  EXPECT_EQ(with_unused.fingerprints()[0].hash, alone.dataset().fingerprint());
}

TEST_F(SourcesTest, UseEverySequenceOnceBeforeAnyIsRepeatedAcrossStages) {
  const Batcher batcher(
      sources({1, 1, 0},
              {{.num_steps = 2, .weights = {1, 0, 1}}, {.num_steps = 1}, {.weights = {1, 3, 4}}}),
      shape());
  std::map<int, std::vector<std::int64_t>> numbers;
  std::map<int, std::set<std::int32_t>> rows;
  for (std::int64_t step = 0; step < 6; ++step) {
    const Ids of_step = rows_of(batcher, step);
    for (std::size_t row = 0; row < of_step.size(); ++row) {
      const auto place = batcher.place_of(step * 16 + static_cast<std::int64_t>(row));
      EXPECT_EQ(of_step[row] / 1000, place.source + 1);
      numbers[place.source].push_back(place.number);
      if (place.number < batcher.num_windows(place.source)) {
        EXPECT_TRUE(rows[place.source].insert(of_step[row]).second)
            << "repeated in its first epoch";
      }
    }
    for (int source = 0; source < 3; ++source) {
      EXPECT_EQ(batcher.num_used(source, step + 1), std::ssize(numbers[source]));
    }
  }
  for (const auto& [source, used] : numbers) {
    for (std::size_t i = 0; i < used.size(); ++i) {
      EXPECT_EQ(used[i], static_cast<std::int64_t>(i)) << "source " << source;
    }
  }
  EXPECT_EQ(batcher.num_used(1, 2), 0) << "it comes in the second stage";
}

TEST_F(SourcesTest, CountTheTokensOfARunThatHasSkippedData) {
  const Batcher batcher(
      sources({1, 1, 1}, {{.num_steps = 6, .weights = {1, 2, 0}}, {.weights = {0, 1, 1}}}),
      shape());
  const std::vector<Skip> skips = {{2, 1, false}, {2, 2, false}, {5, 4, false}, {40, 9, true}};
  std::vector<std::int64_t> tokens(3);
  for (std::int64_t step = 0; step < 12; ++step) {
    for (const std::int32_t id : rows_of(batcher, data_step(step, 0, skips))) {
      tokens[static_cast<std::size_t>(id / 1000 - 1)] += kSeqLength;
    }
    for (int source = 0; source < 3; ++source) {
      EXPECT_EQ(batcher.tokens_of(source, step + 1, skips),
                tokens[static_cast<std::size_t>(source)])
          << step;
      EXPECT_EQ(batcher.tokens_of(source, step + 1, {}), batcher.tokens_of(source, step + 1));
    }
  }
}

TEST_F(SourcesTest, KeepTheirRowsIfALaterStageChanges) {
  const auto batcher = [&](std::vector<double> last) {
    return Batcher(sources({1, 1, 1}, {{.num_steps = 3, .weights = {1, 1, 0}},
                                       {.num_steps = 2, .weights = {1, 2, 3}},
                                       {.weights = std::move(last)}}),
                   shape());
  };
  const Batcher one = batcher({1, 1, 1}), other = batcher({0, 0, 1});
  for (std::int64_t step = 0; step < 5; ++step) EXPECT_EQ(rows_of(one, step), rows_of(other, step));
  EXPECT_NE(rows_of(one, 5), rows_of(other, 5));
  ASSERT_EQ(one.fingerprints().size(), 3u);
  for (std::size_t stage : {0, 1}) {
    EXPECT_EQ(one.fingerprints()[stage].hash, other.fingerprints()[stage].hash);
  }
  EXPECT_NE(one.fingerprints()[2].hash, other.fingerprints()[2].hash);
  EXPECT_EQ(one.fingerprints()[2].first_step, 5);
}

TEST_F(SourcesTest, WithoutASequenceAreRefusedWithTheSmallestWeightThatWorks) {
  const std::string error = test::error_text<DataError>([&] {
    Batcher(sources({1, 1e-6}), shape());
  });
  EXPECT_EQ(error,
            "data.sources: the weight of \"1\" gives it none of 1024 sequences. The smallest "
            "weight that works is 0.000489; 0 leaves it out.");
}

// Joined rows are one document of the whole row in a batch with separate documents.
TEST_F(SourcesTest, WithJoinedAndSeparateDocumentsShareABatch) {
  BatchSources mixed;
  const auto text = [&](const std::string& name, bool separate) {
    std::string bytes;
    for (int i = 0; i < 81; ++i) bytes += static_cast<char>(33 + i);
    return open_dataset({.path = folder_.write(name, bytes),
                         .validation_fraction = 0,
                         .seq_length = kSeqLength,
                         .separate_documents = separate});
  };
  mixed.training = {{"joined", text("joined", false), 1}, {"separate", text("separate", true), 1}};
  const Batcher batcher(std::move(mixed), shape(1, 1));
  const std::size_t tokens = 4 * kSeqLength;
  Ids inputs(tokens), targets(tokens), starts(tokens + 1), lengths(tokens), positions(tokens);
  batcher.fill(0, 0, 0,
               {tensor_of(inputs), tensor_of(targets), tensor_of(starts), tensor_of(lengths),
                tensor_of(positions)});
  std::int64_t with_target = 0;
  for (std::size_t row = 0; row < 4; ++row) {
    EXPECT_EQ(starts[row], static_cast<std::int32_t>(8 * row));
    EXPECT_EQ(lengths[row], 8);
    for (std::size_t i = 0; i < 8; ++i) {
      EXPECT_EQ(positions[8 * row + i], static_cast<std::int32_t>(i));
      EXPECT_EQ(inputs[8 * row + i], inputs[8 * row] + static_cast<std::int32_t>(i));
    }
    EXPECT_EQ(targets[8 * row], inputs[8 * row] + 1);
  }
  for (const std::int32_t target : targets) with_target += target != kNoTarget ? 1 : 0;
  EXPECT_EQ(batcher.num_targets(0), with_target);
  EXPECT_EQ(lengths[4], 0);
  EXPECT_EQ(starts[tokens], static_cast<std::int32_t>(tokens));
}

TEST_F(SourcesTest, ValidationSetsAreReadInTheirOrder) {
  BatchSources all = sources({1, 1, 1});
  all.main_validation = 2;
  const Batcher batcher(std::move(all), shape());
  ASSERT_EQ(batcher.num_validation_sets(), 3);
  EXPECT_EQ(batcher.main_validation(), 2);
  for (int set = 0; set < 3; ++set) {
    EXPECT_EQ(batcher.num_validation_windows(set), 4) << "of 40 tokens";
    Ids inputs(kSeqLength), targets(kSeqLength);
    batcher.fill_validation(1, 1, {tensor_of(inputs), tensor_of(targets)}, set);
    EXPECT_EQ(inputs[0], 1000 * (set + 1) + 360 + 8);
    EXPECT_EQ(targets[0], inputs[1]);
  }
}

}  // namespace
}  // namespace sherd::data
