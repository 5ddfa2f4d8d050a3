#include "engine/data/files/token_layout.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <string>
#include <thread>
#include <vector>

#include "core/error.h"
#include "engine/data/dataset.h"
#include "tests/support/models/small_tokenizer.h"
#include "tests/support/runs/few_threads.h"
#include "tests/support/values/error_text.h"
#include "tests/support/values/temp_folder.h"

namespace sherd::data {
namespace {

using Ids = std::vector<std::int32_t>;

/// Little-endian.
template <class T>
std::string le(std::initializer_list<std::int64_t> values) {
  std::string bytes;
  for (const std::int64_t value : values) {
    const T narrow = static_cast<T>(value);
    bytes.append(reinterpret_cast<const char*>(&narrow), sizeof(T));
  }
  return bytes;
}
std::string padded(std::string bytes, std::size_t size) {
  bytes.resize(size);
  return bytes;
}

class TokenLayoutTest : public testing::Test {
 protected:
  /// All ids of one file, or the error.
  std::string ids(const std::string& name, std::int64_t token_bytes = 0,
                  const std::string& tokenizer = {}) const {
    return test::error_text<DataError>([&] {
             const auto data = open_dataset({.path = folder_.file(name),
                                             .format = Format::kBin,
                                             .validation_fraction = 0,
                                             .vocab_size = 200000,
                                             .tokenizer = tokenizer,
                                             .token_bytes = token_bytes});
             Ids ids(static_cast<std::size_t>(data->file(0).num_tokens()));
             data->file(0).read(0, std::ssize(ids), ids.data());
             shown_.clear();
             for (const std::int32_t id : ids) shown_ += std::to_string(id) + " ";
           }) == "(no error)"
               ? shown_
               : test::error_text<DataError>([&] {
                   open_dataset({.path = folder_.file(name),
                                 .format = Format::kBin,
                                 .validation_fraction = 0,
                                 .vocab_size = 200000,
                                 .tokenizer = tokenizer,
                                 .token_bytes = token_bytes});
                 }).substr(folder_.path().size() + 1);
  }
  /// Sherd's header as its manual has it, written here by hand.
  static std::string sherd_file(std::int64_t tokens, std::int64_t width = 4) {
    return "SHERDTOK" + le<std::uint32_t>({1, width}) + le<std::uint64_t>({tokens, 2, 200000}) +
           std::string(16, 'd') + le<std::uint64_t>({0}) + le<std::uint32_t>({7, 150000, 9}) +
           std::string(4, '\0') + le<std::uint64_t>({1, 3});
  }
  test::TempFolder folder_;
  mutable std::string shown_;
};

TEST_F(TokenLayoutTest, ReadsTheFilesThatPeopleHave) {
  folder_.write("sherd.bin", sherd_file(3));
  EXPECT_EQ(ids("sherd.bin"), "7 150000 9 ");
  folder_.write("nanogpt.bin", le<std::uint16_t>({7, 50256, 9}));
  EXPECT_EQ(ids("nanogpt.bin", 2), "7 50256 9 ");
  folder_.write("wide.bin", le<std::uint32_t>({7, 150000}));
  EXPECT_EQ(ids("wide.bin", 4), "7 150000 ");
  folder_.write("llmc.bin",
                padded(le<std::int32_t>({20240520, 1, 3}), 1024) + le<std::uint16_t>({7, 8, 9}));
  EXPECT_EQ(ids("llmc.bin"), "7 8 9 ");
  folder_.write("llama.bin",
                padded(le<std::int32_t>({20240801, 7, 2}), 1024) + le<std::uint32_t>({7, 128000}));
  EXPECT_EQ(ids("llama.bin"), "7 128000 ");
  folder_.write("llmq.bin", padded("BIN.TOK\n" + le<std::int32_t>({2, 4, 2, 200000, 0}), 1024) +
                                le<std::int32_t>({7, 150000}));
  EXPECT_EQ(ids("llmq.bin"), "7 150000 ");
  folder_.write("d.ds", le<std::uint32_t>({7, 150000, 9}));
  folder_.write("d.ds.index", le<std::uint64_t>({2, 3}));
  EXPECT_EQ(ids("d.ds", 4), "7 150000 9 ");
}

TEST_F(TokenLayoutTest, ReadsMegatronsTypes) {
  const auto index = [&](int type, std::int64_t width) {
    return std::string("MMIDIDX\0\0", 9) + le<std::uint64_t>({1}) +
           std::string(1, static_cast<char>(type)) + le<std::uint64_t>({2, 3}) +
           le<std::int32_t>({2, 1}) + le<std::int64_t>({0, 2 * width}) +
           le<std::int64_t>({0, 1, 2});
  };
  folder_.write("m.bin", le<std::uint16_t>({7, 8, 9}));
  folder_.write("m.idx", index(8, 2));
  EXPECT_EQ(ids("m.bin"), "7 8 9 ");
  folder_.write("m.bin", le<std::int32_t>({7, 150000, 9}));
  folder_.write("m.idx", index(4, 4));
  EXPECT_EQ(ids("m.bin"), "7 150000 9 ");
  folder_.write("m.bin", le<std::int64_t>({7, 150000, 9}));
  folder_.write("m.idx", index(5, 8));
  EXPECT_EQ(ids("m.bin"), "7 150000 9 ");
  folder_.write("m.idx", index(6, 8));
  EXPECT_EQ(ids("m.bin"), "m.idx: its type 6 isn't a token type (uint8, uint16, int32, int64).");
  folder_.write("m.idx", index(5, 4));
  EXPECT_EQ(ids("m.bin"), "m.idx: sequence 1 doesn't begin where the one before ends.");
  folder_.write("m.idx", index(5, 8).substr(0, 60));
  EXPECT_NE(ids("m.bin").find("doesn't fit its Megatron header"), std::string::npos);
}

TEST_F(TokenLayoutTest, EveryCutOfAFileWithAHeaderIsAnError) {
  for (const std::string& whole : {sherd_file(3), padded(le<std::int32_t>({20240801, 7, 2}), 1024) +
                                                      le<std::uint32_t>({7, 128000})}) {
    // Shorter than 8 bytes it is a raw file.
    for (std::size_t size = 8; size < whole.size(); size += size < 200 ? 1 : 97) {
      folder_.write("cut.bin", whole.substr(0, size));
      EXPECT_NE(ids("cut.bin").find("doesn't fit its"), std::string::npos) << size;
    }
  }
}

TEST_F(TokenLayoutTest, HeadersThatLieAreErrors) {
  folder_.write("a.bin", sherd_file(std::int64_t{1} << 62));
  EXPECT_NE(ids("a.bin").find("doesn't fit its Sherd header"), std::string::npos);
  folder_.write("a.bin", sherd_file(3, 3));
  EXPECT_EQ(ids("a.bin"),
            "a.bin: version 1 of Sherd's token files with 3 bytes a token isn't supported.");
  std::string ends = sherd_file(3);
  ends[ends.size() - 8] = 2;
  folder_.write("a.bin", ends);
  EXPECT_EQ(ids("a.bin"), "a.bin: its documents end at token 2, but it has 3 tokens.");
  ends[ends.size() - 16] = 5;
  folder_.write("a.bin", ends);
  EXPECT_EQ(ids("a.bin"), "a.bin: document 1 ends before it begins.");
  folder_.write("a.bin", padded(le<std::int32_t>({20240520, 1, -5}), 1024));
  EXPECT_NE(ids("a.bin").find("doesn't fit its llm.c header"), std::string::npos);
}

TEST_F(TokenLayoutTest, WidthsAreNeverGuessed) {
  folder_.write("d.ds", le<std::uint32_t>({7}));
  folder_.write("d.ds.index", le<std::uint64_t>({1}));
  EXPECT_EQ(ids("d.ds"),
            "d.ds: datatrove's files don't say how wide a token is; set data.token_bytes.");
  folder_.write("sherd.bin", sherd_file(3));
  EXPECT_EQ(
      ids("sherd.bin", 2),
      "sherd.bin: has 4 bytes a token by its header, but data.token_bytes is 2; leave it out.");
  std::string wide;
  for (int i = 1; i < 100; ++i) wide += le<std::uint32_t>({i});
  folder_.write("wide.bin", wide);
  EXPECT_EQ(ids("wide.bin"),
            "wide.bin: every second 2-byte token is 0, so this seems to have 4 bytes a token; set "
            "data.token_bytes to 4.");
  EXPECT_EQ(ids("wide.bin", 4).substr(0, 6), "1 2 3 ");
}

// A file of 4 bytes a token whose ids don't all fit two looks like any other file of two.
TEST_F(TokenLayoutTest, AVocabularyThatTwoBytesCantNameNeedsAWidth) {
  std::string wide;
  for (int i = 0; i < 4000; ++i) wide += le<std::uint32_t>({i % 50 == 0 ? 70000 : i});
  const auto path = folder_.write("wide.bin", wide);
  const auto opened = [&](std::int64_t vocab_size, std::int64_t token_bytes) {
    return test::error_text<DataError>([&] {
      make_token_file(std::make_shared<MappedFile>(path), vocab_size, token_bytes, nullptr);
    });
  };
  EXPECT_EQ(opened(128256, 0), path +
                                   ": has no header that says how wide a token is, and 2 bytes "
                                   "can't name 128256 tokens; set "
                                   "data.token_bytes to 2 or 4.");
  EXPECT_EQ(opened(128256, 4), "(no error)");
  EXPECT_EQ(opened(65536, 2), "(no error)");
}

TEST_F(TokenLayoutTest, IdsOutsideTheVocabularyAreNamedWhateverTheirWidth) {
  folder_.write("a.bin", le<std::int32_t>({7, 200000}));
  EXPECT_EQ(ids("a.bin", 4).substr(0, 59),
            "a.bin: token id 200000 at byte 4, but model.vocab_size 2000");
  folder_.write("a.bin", le<std::int32_t>({7, -1}));
  EXPECT_EQ(ids("a.bin", 4).substr(0, 36), "a.bin: token id -1 at byte 4, but mo");
  folder_.write("a.bin", le<std::int64_t>({7, std::int64_t{1} << 40}));
  EXPECT_EQ(ids("a.bin", 8).substr(0, 35), "a.bin: token id 1099511627776 at by");
}

TEST_F(TokenLayoutTest, AFileOfAnotherTokenizerIsRefused) {
  folder_.write("tokenizer/tokenizer.json", test::small_tokenizer().dump());
  folder_.write("a.bin", sherd_file(3));
  EXPECT_NE(ids("a.bin", 0, folder_.file("tokenizer")).find("made with another tokenizer"),
            std::string::npos);
}

// What a resume compares in place of data.token_bytes and data.tokenizer.
TEST_F(TokenLayoutTest, TheFingerprintIsOfWhatTheTokensAreAndNotOfHowTheyAreShown) {
  std::string raw;
  for (int i = 1; i < 100; ++i) raw += le<std::uint16_t>({i, i + 1});
  DataOptions options{.path = folder_.write("raw.bin", raw),
                      .format = Format::kBin,
                      .vocab_size = 1 << 16,
                      .seq_length = 4};
  const auto print = [&] { return open_dataset(options)->fingerprint(); };
  const std::uint64_t pairs = print();
  options.token_bytes = 2;
  EXPECT_EQ(print(), pairs) << "as it is without a word";
  options.vocab_size = 1 << 24;
  EXPECT_EQ(print(), pairs);
  options.token_bytes = 4;
  EXPECT_NE(print(), pairs) << "other tokens from the same bytes";
  options.token_bytes = 2;
  folder_.write("tokenizer/tokenizer.json", test::small_tokenizer().dump());
  options.tokenizer = folder_.file("tokenizer");
  EXPECT_EQ(print(), pairs) << "the tokens are in the file";
}

TEST_F(TokenLayoutTest, TheFingerprintOfTextIsOfItsTokenizerToo) {
  nlohmann::json tokenizer = test::small_tokenizer();
  folder_.write("tokenizer/tokenizer.json", tokenizer.dump());
  folder_.write("text/long", "one two three four five six seven");
  DataOptions options{.path = folder_.file("text"),
                      .format = Format::kText,
                      .validation_fraction = 0,
                      .vocab_size = 300,
                      .seq_length = 8,
                      .tokenizer = folder_.file("tokenizer")};
  const auto print = [&] { return open_dataset(options)->fingerprint(); };
  const std::uint64_t original = print();
  // "q" and "x" change places; neither is in the text, so all of its ids stay.
  std::swap(tokenizer["model"]["vocab"]["q"], tokenizer["model"]["vocab"]["x"]);
  folder_.write("other/tokenizer.json", tokenizer.dump());
  options.tokenizer = folder_.file("other");
  EXPECT_EQ(open_dataset(options)->num_tokens(Split::kTrain), 32) << "\"th\" is one";
  EXPECT_NE(print(), original);

  // The end of a document is between texts that are joined, and nowhere else.
  options.tokenizer = folder_.file("tokenizer");
  const auto ends_with = [&](const char* token) {
    folder_.write("tokenizer/tokenizer_config.json", nlohmann::json{{"eos_token", token}}.dump());
    return print();
  };
  EXPECT_EQ(ends_with("<|end|>"), original) << "nothing is joined";
  folder_.write("text/short", "eight");
  folder_.write("text/shorter", "nine");
  EXPECT_NE(ends_with("<|end|>"), ends_with("the"));
}

TEST_F(TokenLayoutTest, AThreadForEncodingThatTheMachineRefusesIsAnErrorInASentence) {
  if (std::thread::hardware_concurrency() < 2) GTEST_SKIP() << "one core: no thread is asked for";
  folder_.write("tokenizer/tokenizer.json", test::small_tokenizer().dump());
  folder_.write("text/1", "one two three");
  folder_.write("text/2", "four five six");
  std::filesystem::permissions(folder_.path(), std::filesystem::perms::all);
  const DataOptions options{.path = folder_.file("text"),
                            .format = Format::kText,
                            .validation_fraction = 0,
                            .vocab_size = 300,
                            .seq_length = 4,
                            .tokenizer = folder_.file("tokenizer")};
  EXPECT_EXIT(
      {
        test::allow_threads(0);
        try {
          open_dataset(options);
        } catch (const TrainingError& error) {
          std::fputs(error.what(), stderr);
          std::_Exit(error.exit_code());
        }
      },
      testing::ExitedWithCode(5), "refused a thread that encodes text: .*ulimit -u");
}

TEST_F(TokenLayoutTest, TextIsEncodedWhenItIsOpened) {
  folder_.write("tokenizer/tokenizer.json", test::small_tokenizer().dump());
  const std::string text = folder_.write("a.txt", "the th<|end|>");
  DataOptions options{.path = text,
                      .format = Format::kText,
                      .validation_fraction = 0,
                      .vocab_size = 259,
                      .seq_length = 4,
                      .tokenizer = folder_.file("tokenizer")};
  const auto data = open_dataset(options);
  Ids first(4);
  data->file(0).read(0, 4, first.data());
  EXPECT_EQ(first, (Ids{257, ' ', 256, '<'}));
  EXPECT_EQ(data->text().text(first), "the th<");
  EXPECT_EQ(data->text().text(Ids{258, 257, 999}), "<|end|>the<999>");
  EXPECT_EQ(data->text().ids("the<|end|>"), (Ids{257, 258}));
  options.vocab_size = 258;
  EXPECT_EQ(test::error_text<DataError>([&] { open_dataset(options); }),
            folder_.file("tokenizer") +
                ": the tokenizer has 259 ids, but model.vocab_size is 258; give the model's own "
                "tokenizer, or a model of 259 ids or more.");
  options.vocab_size = 300;
  folder_.write("a.txt", "the \xff");
  EXPECT_EQ(test::error_text<DataError>([&] { open_dataset(options); }),
            text + ": not UTF-8 at byte 4 (0xff); convert the file to UTF-8, or leave it out.");
}

}  // namespace
}  // namespace sherd::data
