#include "engine/data/dataset.h"

#include <gtest/gtest.h>

#include <filesystem>

#include "core/error.h"
#include "tests/support/values/error_text.h"
#include "tests/support/values/temp_folder.h"
#include "tests/where.h"

namespace sherd::data {
namespace {

using Ids = std::vector<std::int32_t>;

Ids read_all(const TokenFile& file) {
  Ids ids(static_cast<std::size_t>(file.num_tokens()));
  file.read(0, file.num_tokens(), ids.data());
  return ids;
}

class DatasetTest : public testing::Test {
 protected:
  static std::string error(const DataOptions& options) {
    return test::error_text<DataError>([&] { open_dataset(options); });
  }
  test::TempFolder folder_;
};

void expect_part(const FilePart& part, int file, std::int64_t first, std::int64_t count) {
  EXPECT_EQ(part.file, file);
  EXPECT_EQ(part.first, first);
  EXPECT_EQ(part.count, count);
}

TEST_F(DatasetTest, ReadsBytesAsTokens) {
  const auto data =
      open_dataset({.path = folder_.write("a", {"a\0\xff z", 5}), .validation_fraction = 0});
  EXPECT_EQ(read_all(data->file(0)), (Ids{'a', 0, 255, ' ', 'z'}));
  EXPECT_EQ(data->text().text(Ids{'h', 'i'}), "hi");
  EXPECT_EQ(data->vocab_size(), 256);
}

TEST_F(DatasetTest, ReadsLittleEndianPairsAsTokens) {
  const auto data = open_dataset({.path = folder_.write("a", {"\x01\x00\x02\x01\xff\xff", 6}),
                                  .format = Format::kBin,
                                  .validation_fraction = 0,
                                  .vocab_size = 65536});
  EXPECT_EQ(read_all(data->file(0)), (Ids{1, 258, 65535}));
}

TEST_F(DatasetTest, NumbersCharactersOfAllTextTogether) {
  folder_.write("train/ascii", "cab");
  folder_.write("train/more", "a\xc3\xa4z");
  const auto data = open_dataset({.path = folder_.file("train"),
                                  .format = Format::kChars,
                                  .validation_path = folder_.write("val",
                                                                   "\xe2\x82\xac"
                                                                   "b"),
                                  .vocab_size = 6});  // a b c z ä €
  EXPECT_EQ(read_all(data->file(0)), (Ids{2, 0, 1}));
  EXPECT_EQ(read_all(data->file(1)), (Ids{0, 4, 3}));
  EXPECT_EQ(read_all(data->file(2)), (Ids{5, 1}));
  EXPECT_EQ(data->text().text(Ids{5, 4}), "\xe2\x82\xac\xc3\xa4");
}

TEST_F(DatasetTest, SplitsTheEndOffEveryFile) {
  folder_.write("1", std::string(1000, 'x'));
  folder_.write("2", std::string(15, 'x'));
  folder_.write("3", "x");
  const auto data = open_dataset({.path = folder_.path()});
  const auto& train = data->parts(Split::kTrain);
  ASSERT_EQ(train.size(), 2u);
  expect_part(train[0], 0, 0, 900);
  expect_part(train[1], 1, 0, 13);
  const auto& validation = data->parts(Split::kValidation);
  ASSERT_EQ(validation.size(), 2u);
  expect_part(validation[0], 0, 900, 100);
  expect_part(validation[1], 1, 13, 2);
  EXPECT_EQ(data->num_tokens(Split::kTrain), 913);
  EXPECT_EQ(data->num_tokens(Split::kValidation), 103);
  EXPECT_EQ(data->summary(),
            "3 files, 913 tokens train, 103 tokens validation (100 in whole sequences)\n"
            "validation: skipped the text of 1 file, together shorter than a sequence, 1 token");
}

TEST_F(DatasetTest, JoinsWhatIsShorterThanASequence) {
  folder_.write("1", "ab");
  folder_.write("2", "cd\n");
  folder_.write("3", "0123456789");
  folder_.write("4", "ef");
  folder_.write("5", "wxyz");
  const auto data =
      open_dataset({.path = folder_.path(), .validation_fraction = 0, .seq_length = 4});
  const auto& train = data->parts(Split::kTrain);
  ASSERT_EQ(train.size(), 2u);
  expect_part(train[0], 2, 0, 10);
  // A line break between texts, unless the first of the two ends with one.
  const std::string joined = "ab\ncd\nef\nwxyz";
  expect_part(train[1], 5, 0, std::ssize(joined));
  const TokenFile& file = data->file(5);
  for (std::int64_t first = 0; first <= std::ssize(joined); ++first) {
    for (std::int64_t count = 0; first + count <= std::ssize(joined); ++count) {
      Ids ids(static_cast<std::size_t>(count));
      file.read(first, count, ids.data());
      const std::string expected =
          joined.substr(static_cast<std::size_t>(first), static_cast<std::size_t>(count));
      EXPECT_EQ(std::string(ids.begin(), ids.end()), expected) << first << ", " << count;
    }
  }
  EXPECT_EQ(data->summary(),
            "5 files, 21 tokens train, 0 tokens validation\n"
            "training: joined the text of 4 files, each shorter than a sequence, 11 tokens");
}

TEST_F(DatasetTest, JoinsWithTheVocabularysOwnLineBreakOrWithNothing) {
  const auto joined = [&](const DataOptions& options) {
    const auto data = open_dataset(options);
    EXPECT_EQ(data->parts(Split::kTrain).size(), 1u);
    return read_all(data->file(data->parts(Split::kTrain)[0].file));
  };
  DataOptions options{
      .path = folder_.file("text/*"), .validation_fraction = 0, .vocab_size = 4, .seq_length = 5};
  options.format = Format::kChars;
  folder_.write("text/1", "b\nb");  // \n is 0
  folder_.write("text/2", "cab");
  EXPECT_EQ(joined(options), (Ids{2, 0, 2, 0, 3, 1, 2}));
  folder_.write("text/1", "bdb");  // no line break in this vocabulary
  EXPECT_EQ(joined(options), (Ids{1, 3, 1, 2, 0, 1}));
  folder_.write("bin/1.bin", {"\1\0\2\0", 4});
  folder_.write("bin/2.bin", {"\3\0\4\0\5\0", 6});
  options.path = folder_.file("bin");
  options.format = Format::kBin;
  options.vocab_size = 65536;
  options.seq_length = 4;
  EXPECT_EQ(joined(options), (Ids{1, 2, 3, 4, 5}));
}

TEST_F(DatasetTest, JoinsEachSplitByItself) {
  for (char name = 'a'; name < 'd'; ++name)
    folder_.write(std::string(1, name), std::string(10, name));
  const auto data =
      open_dataset({.path = folder_.path(), .validation_fraction = 0.3, .seq_length = 8});
  const auto text = [&](Split split) {
    const Ids ids = read_all(data->file(data->parts(split).at(0).file));
    return std::string(ids.begin(), ids.end());
  };
  EXPECT_EQ(text(Split::kTrain), "aaaaaaa\nbbbbbbb\nccccccc");
  EXPECT_EQ(text(Split::kValidation), "aaa\nbbb\nccc");
  EXPECT_EQ(data->summary(),
            "3 files, 21 tokens train, 9 tokens validation (8 in whole sequences)\n"
            "training: joined the text of 3 files, each shorter than a sequence, 21 tokens\n"
            "validation: joined the text of 3 files, each shorter than a sequence, 9 tokens");
}

TEST_F(DatasetTest, KeepsEverythingForTrainingWhenNoValidationIsAskedFor) {
  const auto data =
      open_dataset({.path = folder_.write("1", "0123456789"), .validation_fraction = 0});
  EXPECT_EQ(data->num_tokens(Split::kTrain), 10);
  EXPECT_TRUE(data->parts(Split::kValidation).empty());
}

TEST_F(DatasetTest, SplitsShakespeareAsNanoGptDoes) {
  const std::string path = SHERD_SOURCE_DIR "/../shared/data/tinyshakespeare.txt";
  if (!std::filesystem::exists(path)) GTEST_SKIP() << path << " isn't here";
  const auto data =
      open_dataset({.path = path, .format = Format::kChars, .vocab_size = 65, .seq_length = 64});
  EXPECT_EQ(data->num_tokens(Split::kTrain), 1003854);  // nanoGPT, data/shakespeare_char/readme.md
  EXPECT_EQ(data->num_tokens(Split::kValidation), 111540);
  EXPECT_EQ(data->summary(),
            "1 file, 1,003,854 tokens train, 111,540 tokens validation (111,488 in whole "
            "sequences)");
  // In nanoGPT's vocabulary "\n !$&',-.3:;?ABC...xyz" the text begins 18, 47, 56, 57, 58.
  Ids first(5);
  data->file(0).read(0, 5, first.data());
  EXPECT_EQ(first, (Ids{18, 47, 56, 57, 58}));
  EXPECT_EQ(data->text().text(first), "First");
  EXPECT_EQ(data->text().ids("\n !Az"), (Ids{0, 1, 2, 13, 64}));
}

TEST_F(DatasetTest, PassesOverEmptyAndBinaryFilesOfAFolderAndSaysSo) {
  folder_.write("a.txt", "0123456789");
  folder_.write("empty", "");
  folder_.write("picture", {"\x89PNG\0\0", 6});
  const auto data = open_dataset({.path = folder_.path(), .validation_fraction = 0});
  EXPECT_EQ(data->num_files(), 1);
  EXPECT_EQ(data->summary(),
            "1 file (1 empty and 1 binary ones skipped), 10 tokens train, 0 tokens validation");
}

TEST_F(DatasetTest, RefusesAFolderWithoutText) {
  folder_.write("empty", "");
  folder_.write("picture", {"\x89PNG\0\0", 6});
  EXPECT_EQ(error({.path = folder_.path()}),
            folder_.path() +
                ": none of its 2 files has text (1 empty, 1 binary); set data.path to text.");
  const std::string empty = folder_.file("empty");
  EXPECT_EQ(error({.path = empty}), empty + ": is empty; set data.path to text.");
  const std::string text = folder_.write("text", "0123456789");
  EXPECT_EQ(error({.path = text, .validation_path = empty}),
            empty + ": is empty; set data.validation_path to text.");
}

TEST_F(DatasetTest, RefusesAFileInBothSplits) {
  folder_.write("a", "0123456789");
  const std::string b = folder_.write("b", "0123456789");
  std::filesystem::create_hard_link(b, folder_.file("c"));
  EXPECT_EQ(error({.path = folder_.file("[ab]"), .validation_path = folder_.file("c")}),
            folder_.file("c") +
                ": is in data.validation_path and in data.path; validate with files that aren't "
                "trained on, or set data.validation_fraction instead.");
}

TEST_F(DatasetTest, RefusesIdsOutsideTheVocabulary) {
  const std::string bytes = folder_.write("bytes", "abc\xc3\xa4");
  EXPECT_EQ(error({.path = bytes, .vocab_size = 128}),
            bytes +
                ": token id 195 at byte 3, but model.vocab_size 128 allows ids up to 127; raise "
                "model.vocab_size or give text of this vocabulary.");
  const std::string bin = folder_.write("bin", {"\x01\x00\x02\x01\x05\x00", 6});
  EXPECT_EQ(
      error({.path = bin, .format = Format::kBin, .validation_fraction = 0, .vocab_size = 258}),
      bin +
          ": token id 258 at byte 2, but model.vocab_size 258 allows ids up to 257; raise "
          "model.vocab_size or give text of this vocabulary.");
  EXPECT_EQ(
      error({.path = bin, .format = Format::kBin, .validation_fraction = 0, .vocab_size = 259}),
      "(no error)");
}

// Files are looked through in pieces of 65,536 tokens: the first, the third, and a begun fourth.
TEST_F(DatasetTest, RefusesAnIdOutsideTheVocabularyWhereverItStands) {
  constexpr std::size_t kTokens = 3 * 65536 + 9;
  for (const std::size_t at : {std::size_t{0}, std::size_t{2 * 65536}, kTokens - 1}) {
    std::string text(2 * kTokens, '\0');
    text[2 * at] = 7;
    const std::string path = folder_.write("a.bin", text);
    const std::string message =
        error({.path = path, .format = Format::kBin, .validation_fraction = 0, .vocab_size = 7});
    EXPECT_NE(message.find("token id 7 at byte " + std::to_string(2 * at) + ","), std::string::npos)
        << message;
  }
}

TEST_F(DatasetTest, RefusesAVocabularyOfAnotherSize) {
  const std::string path = folder_.write("text", "hello world");
  for (const int vocab_size : {7, 9}) {
    EXPECT_EQ(error({.path = path, .format = Format::kChars, .vocab_size = vocab_size}),
              path + ": the text has 8 distinct characters, but model.vocab_size is " +
                  std::to_string(vocab_size) + "; set model.vocab_size to 8.");
  }
}

TEST_F(DatasetTest, RefusesTextThatIsNotUtf8) {
  const std::string path = folder_.write("latin1", "na\xefve");
  EXPECT_EQ(error({.path = path, .format = Format::kChars, .vocab_size = 5}),
            path +
                ": not UTF-8 at byte 2 (0xef); convert the file to UTF-8, or set data.format to "
                "bytes.");
}

TEST_F(DatasetTest, RefusesHalfAToken) {
  const std::string path = folder_.write("a.bin", "12345");
  EXPECT_EQ(error({.path = path, .format = Format::kBin, .vocab_size = 65536}),
            path +
                ": has 5 bytes, but data.format bin is 2 bytes per token; the file is cut short "
                "or not of this format.");
}

TEST_F(DatasetTest, RefusesTextShorterThanOneSequence) {
  folder_.write("1", std::string(8, 'x'));
  folder_.write("2", std::string(5, 'x'));
  DataOptions options{.path = folder_.path(), .validation_fraction = 0, .seq_length = 14};
  EXPECT_EQ(error(options),
            folder_.path() +
                ": training text shorter than one sequence: training.seq_length 14 needs 15 "
                "tokens, and there are 13; give longer text or a shorter training.seq_length.");
  options.seq_length = 13;  // both, and a line break between them
  EXPECT_EQ(error(options), "(no error)");
  options.validation_fraction = 0.1;
  options.seq_length = 3;
  EXPECT_EQ(error(options),
            folder_.path() +
                ": validation text shorter than one sequence: training.seq_length 3 needs 4 "
                "tokens, and there are 2; give longer text or a shorter training.seq_length.");
}

TEST_F(DatasetTest, NoticesThatAFileHasShrunk) {
  const std::string path = folder_.write("a", std::string(9000, 'x'));
  const auto data = open_dataset({.path = path});
  std::filesystem::resize_file(path, 10);
  std::int32_t id = 0;
  EXPECT_EQ(test::error_text<DataError>([&] { data->file(0).read(8999, 1, &id); }),
            path +
                ": had 9000 bytes when it was opened and has 10 now; text must not change while "
                "it is trained on.");
}

TEST_F(DatasetTest, FingerprintIsOfTheTextAndItsSplitNotOfNames) {
  std::string text(5 << 20, 'x');
  const auto print = [&](const char* name, double fraction = 0.1) {
    return open_dataset({.path = folder_.write(name, text), .validation_fraction = fraction})
        ->fingerprint();
  };
  const std::uint64_t original = print("a");
  EXPECT_EQ(print("b"), original);
  EXPECT_NE(print("a", 0.2), original);
  for (const std::size_t place : {std::size_t{0}, text.size() / 2, text.size() - 1}) {
    std::string changed = text;
    for (std::size_t i = place; i < std::min(place + (64u << 10), text.size()); ++i) {
      changed[i] = 'y';
    }
    changed.swap(text);
    EXPECT_NE(print("a"), original) << "changed at " << place;
    changed.swap(text);
  }
  text.push_back('x');
  EXPECT_NE(print("a"), original);
}

// Runs begun before short files were joined go on where that changes nothing for them.
TEST_F(DatasetTest, FingerprintTellsWhetherTrainingTextIsJoined) {
  const auto print = [&](std::int64_t seq_length, double fraction) {
    return open_dataset({.path = folder_.file("text"),
                         .validation_fraction = fraction,
                         .seq_length = seq_length})
        ->fingerprint();
  };
  folder_.write("text/1", std::string(100, 'x'));
  folder_.write("text/2", std::string(50, 'y'));
  folder_.write("text/3", std::string(50, 'z'));
  EXPECT_EQ(print(10, 0), print(49, 0)) << "all are long";
  EXPECT_NE(print(10, 0), print(50, 0)) << "two are joined";
  EXPECT_NE(print(50, 0), print(60, 0)) << "windows lie elsewhere in what is joined";
  EXPECT_EQ(print(4, 0.1), print(6, 0.1)) << "only what validates is joined";
}

TEST_F(DatasetTest, MisuseIsOurBug) {
  const auto data =
      open_dataset({.path = folder_.write("a", "0123456789"), .validation_fraction = 0});
  Ids ids(20);
  EXPECT_DEATH(data->file(0).read(8, 3, ids.data()), "tokens \\[8, \\+3\\) of 10");
  EXPECT_DEATH(data->file(0).read(-1, 3, ids.data()), "tokens \\[-1, \\+3\\) of 10");
}

}  // namespace
}  // namespace sherd::data
