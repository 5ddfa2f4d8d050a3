#include "engine/data/document_rows.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>

#include "core/error.h"
#include "engine/data/batcher.h"
#include "tests/support/models/small_tokenizer.h"
#include "tests/support/values/error_text.h"
#include "tests/support/values/temp_folder.h"

namespace sherd::data {
namespace {

using Ids = std::vector<std::int32_t>;

struct OwnedBatch {
  explicit OwnedBatch(std::int64_t tokens)
      : inputs(static_cast<std::size_t>(tokens)),
        targets(inputs),
        lengths(inputs),
        positions(inputs) {
    starts.resize(inputs.size() + 1);
  }
  Batch batch() {
    const auto tensor = [](Ids& ids) { return Tensor{ids.data(), DType::kI32, std::ssize(ids)}; };
    return {tensor(inputs), tensor(targets), tensor(starts), tensor(lengths), tensor(positions)};
  }
  Ids inputs, targets, lengths, positions, starts;
};

template <class T>
std::string le(const std::vector<std::int64_t>& values) {
  std::string bytes;
  for (const std::int64_t value : values) {
    const T narrow = static_cast<T>(value);
    bytes.append(reinterpret_cast<const char*>(&narrow), sizeof(T));
  }
  return bytes;
}

class DocumentRowsTest : public testing::Test {
 protected:
  /// Text files, each a document: "a", "b", ... repeated.
  void add_texts(const std::vector<int>& lengths) {
    char letter = 'a';
    for (const int length : lengths) {
      folder_.write(fmt::format("texts/{:03}", num_texts_++),
                    std::string(static_cast<std::size_t>(length), letter));
      letter = letter == 'z' ? 'a' : static_cast<char>(letter + 1);
    }
  }
  std::shared_ptr<const Dataset> open(std::int64_t seq_length) const {
    return open_dataset({.path = folder_.file("texts"),
                         .validation_fraction = 0,
                         .seq_length = seq_length,
                         .separate_documents = true});
  }
  /// Documents of one token file, as lengths.
  std::vector<std::int64_t> documents_of(const std::string& name, DataOptions options = {}) const {
    options.path = folder_.file(name);
    options.format = Format::kBin;
    options.vocab_size = 200;
    options.validation_fraction = 0;
    options.separate_documents = true;
    std::vector<std::int64_t> lengths;
    const auto data = open_dataset(options);
    for (const FilePart& part : data->parts(Split::kTrain)) lengths.push_back(part.count);
    return lengths;
  }

  test::TempFolder folder_;
  int num_texts_ = 0;
};

// By hand: 8 tokens a row; the document of 11 is cut into 8 and 3, whose rest sits with the 5.
TEST_F(DocumentRowsTest, AreInputsTargetsPositionsAndPlacesOfDocuments) {
  folder_.write("texts/a", "abcdefghijk");
  folder_.write("texts/b", "vwxyz");
  const Batcher batcher(open(8), {.seq_length = 8, .micro_batch_size = 2, .seed = 1});
  ASSERT_EQ(batcher.num_windows(), 2);
  OwnedBatch batch(16);
  batcher.fill(0, 0, 0, batch.batch());
  const bool whole_first = batch.inputs[0] == 'a';
  const std::size_t whole = whole_first ? 0 : 8, packed = 8 - whole;
  const auto row = [](const Ids& ids, std::size_t first) {
    return Ids(ids.begin() + static_cast<std::ptrdiff_t>(first),
               ids.begin() + static_cast<std::ptrdiff_t>(first) + 8);
  };
  EXPECT_EQ(row(batch.inputs, whole), (Ids{'a', 'b', 'c', 'd', 'e', 'f', 'g', 'h'}));
  EXPECT_EQ(row(batch.targets, whole), (Ids{'b', 'c', 'd', 'e', 'f', 'g', 'h', 'i'}));
  EXPECT_EQ(row(batch.inputs, packed), (Ids{'v', 'w', 'x', 'y', 'z', 'i', 'j', 'k'}));
  EXPECT_EQ(row(batch.targets, packed), (Ids{'w', 'x', 'y', 'z', kNoTarget, 'j', 'k', kNoTarget}));
  EXPECT_EQ(row(batch.positions, packed), (Ids{0, 1, 2, 3, 4, 0, 1, 2}));
  const Ids starts = whole_first ? Ids{0, 8, 13, 16} : Ids{0, 5, 8, 16};
  EXPECT_EQ(Ids(batch.starts.begin(), batch.starts.begin() + 4), starts);
  EXPECT_EQ(batch.starts.back(), 16);
  EXPECT_EQ(batcher.num_targets(0), 14);
}

TEST_F(DocumentRowsTest, WithoutPackingEachDocumentHasARowAndPaddingHasNoTarget) {
  add_texts({5, 3});
  const Batcher batcher(
      open(8), {.seq_length = 8, .micro_batch_size = 2, .seed = 1, .packing = Packing::kNone});
  OwnedBatch batch(16);
  batcher.fill(0, 0, 0, batch.batch());
  Ids lengths = {batch.lengths[0], batch.lengths[1]};
  std::sort(lengths.begin(), lengths.end());
  EXPECT_EQ(lengths, (Ids{3, 5}));
  EXPECT_EQ(batch.starts[1], 8);
  EXPECT_EQ(std::count(batch.targets.begin(), batch.targets.end(), kNoTarget), 16 - 4 - 2);
}

TEST_F(DocumentRowsTest, AnEpochHasEveryTokenOnceAndTheNextOneAnotherOrder) {
  std::vector<int> lengths;
  for (int i = 0; i < 120; ++i) lengths.push_back(2 + i * 7 % 23);
  add_texts(lengths);
  const Batcher batcher(open(16), {.seq_length = 16, .micro_batch_size = 1, .seed = 9});
  const auto epoch = [&](std::int64_t number) {
    std::vector<std::pair<Ids, Ids>> rows;
    for (std::int64_t i = 0; i < batcher.num_windows(); ++i) {
      OwnedBatch batch(16);
      batcher.fill(number * batcher.num_windows() + i, 0, 0, batch.batch());
      rows.emplace_back(batch.inputs, batch.targets);
    }
    return rows;
  };
  const auto first = epoch(0);
  std::int64_t targets = 0;
  for (const auto& [inputs, of_row] : first) {
    targets += std::count_if(of_row.begin(), of_row.end(), [](int t) { return t >= 0; });
  }
  std::int64_t expected = 0;
  for (const int length : lengths) expected += length - 1;
  EXPECT_EQ(targets, expected);
  EXPECT_NE(epoch(1), first);
  EXPECT_EQ(epoch(0), first);
}

// A document's letter and length tell it from all others.
TEST_F(DocumentRowsTest, SoManyEpochsHaveEveryDocumentSoOftenWithAndWithoutPacking) {
  std::map<std::pair<std::int32_t, std::int32_t>, int> expected;
  std::vector<int> lengths;
  for (int i = 0; i < 26; ++i) {
    lengths.push_back(2 + i * 7 % 11);
    expected[{'a' + i, lengths.back()}] = 3;
  }
  add_texts(lengths);
  for (const Packing packing : {Packing::kBestFit, Packing::kNone}) {
    const Batcher batcher(
        open(12),
        {.seq_length = 12, .micro_batch_size = 5, .seed = 4, .packing = packing, .num_epochs = 3});
    const std::int64_t rows = 3 * batcher.num_windows();
    EXPECT_EQ(batcher.num_steps(), rows / 5 + (rows % 5 > 0 ? 1 : 0));
    std::map<std::pair<std::int32_t, std::int32_t>, int> seen;
    for (std::int64_t step = 0; step < batcher.num_steps(); ++step) {
      OwnedBatch batch(60);
      batcher.fill(step, 0, 0, batch.batch());
      for (std::size_t i = 0; i < 60; ++i) {
        const std::int32_t length = batch.lengths[i];
        if (length > 0) ++seen[{batch.inputs[static_cast<std::size_t>(batch.starts[i])], length}];
      }
      EXPECT_EQ(batcher.num_targets(step),
                60 - std::count(batch.targets.begin(), batch.targets.end(), kNoTarget));
    }
    EXPECT_EQ(seen, expected);
  }
}

TEST_F(DocumentRowsTest, StepsHaveTheSameRowsOnAnyNumberOfRanks) {
  std::vector<int> lengths;
  for (int i = 0; i < 60; ++i) lengths.push_back(2 + i * 11 % 19);
  add_texts(lengths);
  const auto data = open(12);
  std::vector<Ids> first;
  for (const int world : {1, 2, 4}) {
    const Batcher batcher(data, {.seq_length = 12,
                                 .micro_batch_size = 8 / world / 2,
                                 .num_micro_steps = 2,
                                 .world = world,
                                 .seed = 4});
    std::vector<Ids> rows;
    for (std::int64_t step = 0; step < 12; ++step) {  // into the second epoch
      std::int64_t targets = 0;
      for (std::int64_t micro = 0; micro < 2; ++micro) {
        for (int rank = 0; rank < world; ++rank) {
          OwnedBatch batch(8 / world / 2 * 12);
          batcher.fill(step, micro, rank, batch.batch());
          targets += std::count_if(batch.targets.begin(), batch.targets.end(),
                                   [](int t) { return t >= 0; });
          for (auto row = batch.inputs.begin(); row != batch.inputs.end(); row += 12) {
            rows.emplace_back(row, row + 12);
          }
        }
      }
      EXPECT_EQ(batcher.num_targets(step), targets);
    }
    if (first.empty()) first = rows;
    EXPECT_EQ(rows, first) << world << " ranks";
  }
}

TEST_F(DocumentRowsTest, EndWhereMegatronsIndexSays) {
  folder_.write("m.bin", le<std::uint16_t>({1, 2, 3, 4, 5, 6, 7, 8, 9}));
  folder_.write("m.idx", std::string("MMIDIDX\0\0", 9) + le<std::uint64_t>({1}) + '\x08' +
                             le<std::uint64_t>({3, 3}) + le<std::int32_t>({2, 3, 4}) +
                             le<std::int64_t>({0, 4, 10}) + le<std::int64_t>({0, 2, 3}));
  EXPECT_EQ(documents_of("m.bin"), (std::vector<std::int64_t>{5, 4}));
}

TEST_F(DocumentRowsTest, EndWhereDatatrovesIndexSays) {
  folder_.write("d.bin", le<std::uint16_t>({1, 2, 3, 4, 5, 6, 7}));
  folder_.write("d.bin.index", le<std::uint64_t>({3, 4, 4, 7}));
  DataOptions options;
  options.token_bytes = 2;
  EXPECT_EQ(documents_of("d.bin", options), (std::vector<std::int64_t>{3, 3}))
      << "a document of one token, and an empty one, have no target";
}

TEST_F(DocumentRowsTest, OfAFileThatDoesNotSayAreAnError) {
  folder_.write("raw.bin", le<std::uint16_t>({1, 2, 3}));
  EXPECT_NE(test::error_text<DataError>([&] {
              documents_of("raw.bin");
            }).find("doesn't say where its documents end"),
            std::string::npos);
}

TEST_F(DocumentRowsTest, AFractionIsHeldOutInWholeDocuments) {
  folder_.write("d.bin", le<std::uint16_t>({1, 2, 3, 4, 5, 6, 7, 8, 9, 10}));
  folder_.write("d.bin.index", le<std::uint64_t>({4, 7, 10}));
  const auto data = open_dataset({.path = folder_.file("d.bin"),
                                  .format = Format::kBin,
                                  .validation_fraction = 0.2,
                                  .vocab_size = 20,
                                  .token_bytes = 2,
                                  .separate_documents = true});
  ASSERT_EQ(data->parts(Split::kTrain).size(), 2u);
  ASSERT_EQ(data->parts(Split::kValidation).size(), 1u);
  EXPECT_EQ(data->parts(Split::kValidation)[0].first, 7);
}

}  // namespace
}  // namespace sherd::data
