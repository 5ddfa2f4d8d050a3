// The same documents as files, lines of .jsonl, packed, or a file of tokens are the same data: what is trained
// on, and what is held out.
#include <gtest/gtest.h>

#include <filesystem>
#include <nlohmann/json.hpp>
#include <random>

#include "core/error.h"
#include "engine/data/dataset.h"
#include "engine/data/tokenize/tokenize.h"
#include "tests/support/models/packed_text.h"
#include "tests/support/models/small_tokenizer.h"
#include "tests/support/values/error_text.h"
#include "tests/support/values/temp_folder.h"

namespace sherd::data {
namespace {

using Ids = std::vector<std::int32_t>;
using Documents = std::vector<Ids>;

constexpr std::int32_t kEnd = 258;  // small_tokenizer.h

/// Documents of 1 to 40 characters, all different, some beyond ASCII, with line breaks.
std::vector<std::string> some_texts(int count) {
  std::vector<std::string> texts;
  for (int i = 0; i < count; ++i) {
    std::string text(static_cast<std::size_t>(i * i % 40), static_cast<char>('a' + i % 26));
    texts.push_back(text + (i % 3 == 0 ? "the\n" : "\xc3\xa9") + std::to_string(i));
  }
  texts.insert(texts.begin() + 3, "x");  // one token: no target
  return texts;
}

std::string as_lines(const std::vector<std::string>& texts, const std::string& field = "text") {
  std::string lines;
  for (const std::string& text : texts) {
    lines += nlohmann::json{{field, text}, {"source", "nowhere"}}.dump() + "\n";
  }
  return lines + "\n{\"" + field + "\": \"\"}\n";  // neither is a document
}

class SameTextsTest : public testing::Test {
 protected:
  SameTextsTest() {
    folder_.write("tokenizer/tokenizer.json", test::small_tokenizer().dump());
    folder_.write("tokenizer/tokenizer_config.json", R"({"eos_token": "<|end|>"})");
  }

  /// The forms, each a path.
  std::vector<std::string> written(const std::vector<std::string>& texts) const {
    for (std::size_t i = 0; i < texts.size(); ++i) {
      folder_.write(fmt::format("files/{:04}.txt", i), texts[i]);
      const std::string name = fmt::format("packed/{:04}.txt", i);
      i % 2 == 0 ? folder_.write(name + ".gz", test::gzip(texts[i]))
                 : folder_.write(name + ".zst", test::zstd(texts[i]));
    }
    folder_.write("files/empty", "");
    const auto middle = texts.begin() + std::ssize(texts) / 3;
    folder_.write("parts/1.jsonl", as_lines({texts.begin(), middle}));
    folder_.write("parts/2.ndjson.zst", test::zstd(as_lines({middle, texts.end()})));
    return {folder_.file("files"), folder_.file("packed"), folder_.file("parts"),
            folder_.write("all.jsonl", as_lines(texts)),
            folder_.write("all.jsonl.gz", test::gzip(as_lines(texts)))};
  }
  std::string tokenized(const std::string& path, const std::string& to, bool eos) const {
    tokenize({.tokenizer = folder_.file("tokenizer"),
              .texts = {path},
              .to = folder_.file(to),
              .eos = eos});
    return folder_.file(to);
  }
  /// The same tokens without a header, which only end tokens divide.
  std::string raw(const std::string& path, const std::string& to) const {
    const auto data = open_dataset(
        {.path = path, .format = Format::kBin, .validation_fraction = 0, .vocab_size = 300});
    Ids ids(static_cast<std::size_t>(data->file(0).num_tokens()));
    data->file(0).read(0, std::ssize(ids), ids.data());
    std::string bytes;
    for (const std::int32_t id : ids) bytes += {static_cast<char>(id), static_cast<char>(id >> 8)};
    return folder_.write(to, bytes);
  }
  DataOptions options(Format format, double fraction, bool separate) const {
    return {.format = format,
            .validation_fraction = fraction,
            .vocab_size = 300,
            .seq_length = 16,
            .tokenizer =
                format == Format::kBin || format == Format::kText ? folder_.file("tokenizer") : "",
            .separate_documents = separate};
  }

  static Documents documents(const Dataset& data, Split split) {
    Documents documents;
    for (const FilePart& part : data.parts(split)) {
      Ids ids(static_cast<std::size_t>(part.count));
      data.file(part.file).read(part.first, part.count, ids.data());
      if (ids.back() == kEnd) ids.pop_back();
      documents.push_back(ids);
    }
    return documents;
  }
  static void expect_same(const Dataset& data, const Dataset& expected) {
    for (const Split split : {Split::kTrain, Split::kValidation}) {
      EXPECT_EQ(documents(data, split), documents(expected, split));
    }
  }

  test::TempFolder folder_;
};

TEST_F(SameTextsTest, AreTheSameDataInEveryForm) {
  const std::vector<std::string> forms = written(some_texts(40));
  for (const Format format : {Format::kBytes, Format::kChars, Format::kText}) {
    for (const bool separate : {false, true}) {
      DataOptions options = this->options(format, 0.1, separate);
      options.path = forms[0];
      if (format == Format::kChars) options.vocab_size = num_distinct_characters(forms[0]);
      const auto expected = open_dataset(options);
      EXPECT_FALSE(expected->parts(Split::kValidation).empty());
      for (const std::string& form : forms) {
        SCOPED_TRACE(form);
        options.path = form;
        const auto data = open_dataset(options);
        expect_same(*data, *expected);
        EXPECT_EQ(data->fingerprint(), expected->fingerprint()) << "a run goes on with either";
      }
    }
  }
}

TEST_F(SameTextsTest, AreTheSameDocumentsInAFileOfTokens) {
  const std::vector<std::string> texts = some_texts(40);
  for (const double fraction : {0.01, 0.1, 0.5, 0.9}) {
    const test::TempFolder out;
    const std::vector<std::string> forms = written(texts);
    DataOptions options = this->options(Format::kText, fraction, true);
    options.path = forms[0];
    const auto expected = open_dataset(options);
    options.format = Format::kBin;
    for (const std::string& form : forms) {
      SCOPED_TRACE(form);
      const std::string name = std::filesystem::path(form).filename();
      for (const bool eos : {false, true}) {
        const std::string to = fmt::format("{}-{}-{}.bin", name, fraction, eos);
        options.path = tokenized(form, to, eos);
        const auto data = open_dataset(options);
        // With an end token, "x" has a target: the end.
        Documents train = documents(*data, Split::kTrain), held_out;
        held_out = documents(*data, Split::kValidation);
        for (Documents* all : {&train, &held_out}) std::erase(*all, Ids{'x'});
        EXPECT_EQ(train, documents(*expected, Split::kTrain));
        EXPECT_EQ(held_out, documents(*expected, Split::kValidation));
        if (!eos) continue;
        options.path = raw(options.path, "raw-" + to);
        expect_same(*open_dataset(options), *data);
      }
    }
  }
}

/// Documents of up to 120 pieces: letters, line ends, quotes, characters of two to four bytes, and the
/// spelling of the end token. Some are empty.
std::vector<std::string> random_texts(std::mt19937& random) {
  const std::vector<std::string> pieces = {"a",
                                           "b",
                                           " ",
                                           "the ",
                                           "\n",
                                           "\r\n",
                                           "\t",
                                           "7",
                                           "\"",
                                           "\\",
                                           "\xc3\xa9",
                                           "\xe2\x82\xac",
                                           "{",
                                           "}",
                                           "<",
                                           "<|end|>",
                                           "\xf0\x9f\x98\x80"};
  const auto whole = [&](int least, int most) {
    return std::uniform_int_distribution(least, most)(random);
  };
  std::vector<std::string> texts(static_cast<std::size_t>(whole(4, 60)));
  for (std::string& text : texts) {
    for (int i = whole(0, 9) == 0 ? 0 : whole(1, 120); i > 0; --i) {
      text += pieces[static_cast<std::size_t>(whole(0, static_cast<int>(pieces.size()) - 1))];
    }
  }
  texts.insert(texts.end(), {"there are always", "documents to train on"});
  return texts;
}

/// Those that have a target without an end token.
Documents with_targets(Documents documents) {
  std::erase_if(documents, [](const Ids& ids) { return ids.size() < 2; });
  return documents;
}

class RandomTexts : public SameTextsTest {
 protected:
  void compare(unsigned first, unsigned last) {
    for (unsigned seed = first; seed < last; ++seed) {
      SCOPED_TRACE(fmt::format("seed {}", seed));
      std::filesystem::remove_all(folder_.file("files"));
      std::filesystem::remove_all(folder_.file("packed"));
      std::mt19937 random(seed);
      compare(written(random_texts(random)), random);
    }
  }

 private:
  void compare(const std::vector<std::string>& forms, std::mt19937& random) {
    DataOptions options = this->options(random() % 2 == 0 ? Format::kText : Format::kBytes,
                                        0.02 * (1 + random() % 30), random() % 2 == 0);
    const auto opened = [&](const std::string& form) -> std::shared_ptr<const Dataset> {
      options.path = form;
      try {
        return open_dataset(options);
      } catch (const Error&) {
        return nullptr;  // too little is held out for a sequence
      }
    };
    const auto expected = opened(forms[0]);
    for (const std::string& form : forms) {
      SCOPED_TRACE(form);
      const auto data = opened(form);
      ASSERT_EQ(data == nullptr, expected == nullptr) << "refused in one form only";
      if (!data) continue;
      expect_same(*data, *expected);
      EXPECT_EQ(data->fingerprint(), expected->fingerprint());
    }
    if (!expected) return;
    if (options.format != Format::kText || !options.separate_documents) return;
    options.format = Format::kBin;
    for (const std::string& form : forms) {
      SCOPED_TRACE(form);
      std::filesystem::remove(folder_.file("all.bin"));
      options.path = tokenized(form, "all.bin", random() % 2 == 0);
      const auto data = open_dataset(options);
      for (const Split split : {Split::kTrain, Split::kValidation}) {
        EXPECT_EQ(with_targets(documents(*data, split)), with_targets(documents(*expected, split)));
      }
    }
  }
};

TEST_F(RandomTexts, AreTheSameDataInEveryForm) {
  compare(0, 12);
}

class RandomTextsSlow : public RandomTexts {};

TEST_F(RandomTextsSlow, AreTheSameDataInEveryForm) {
  compare(12, 4000);
}

// By hand: of ten, the fifth and the tenth; never a part of one.
TEST_F(SameTextsTest, WholeDocumentsAreHeldOutEvenlyAmongAll) {
  std::vector<std::string> texts;
  for (char letter = 'a'; letter < 'k'; ++letter) texts.emplace_back(10, letter);
  for (const std::string& form : written(texts)) {
    DataOptions options = this->options(Format::kBytes, 0.2, true);
    options.path = form;
    const auto data = open_dataset(options);
    const Documents held_out = documents(*data, Split::kValidation);
    EXPECT_EQ(held_out, (Documents{Ids(10, 'e'), Ids(10, 'j')})) << form;
    EXPECT_EQ(documents(*data, Split::kTrain).size(), 8u);
    EXPECT_EQ(data->num_tokens(Split::kTrain), 80);
    EXPECT_EQ(data->num_tokens(Split::kValidation), 20);
  }
}

TEST_F(SameTextsTest, HoldOutAsManyAsTheFractionSaysRoundedUpAndLeaveOne) {
  for (const auto& [count, fraction, held_out] :
       {std::tuple(2, 0.01, 1), std::tuple(2, 0.99, 1), std::tuple(3, 0.9, 2),
        std::tuple(10, 0.3, 3), std::tuple(100, 0.07, 7), std::tuple(101, 0.07, 8)}) {
    DataOptions options = this->options(Format::kBytes, fraction, true);
    options.path = folder_.write(
        "a.jsonl", as_lines(std::vector<std::string>(static_cast<std::size_t>(count), "abc")));
    const auto data = open_dataset(options);
    EXPECT_EQ(std::ssize(data->parts(Split::kValidation)), held_out) << count << ", " << fraction;
    EXPECT_EQ(std::ssize(data->parts(Split::kTrain)), count - held_out);
  }
  DataOptions options = this->options(Format::kBytes, 0.1, true);
  options.path = folder_.write("one", "only one");
  EXPECT_EQ(test::error_text<DataError>([&] { open_dataset(options); }),
            options.path +
                ": has one document, so none can be held out for validation; set "
                "data.validation_fraction: 0, or data.validation_path.");
}

TEST_F(SameTextsTest, SayHowManyDocumentsAFileHas) {
  DataOptions options = this->options(Format::kBytes, 0, false);
  options.path =
      folder_.write("a.jsonl", as_lines({"0123456789012345678", "ab", "cdefghijklmnopq"}));
  EXPECT_EQ(open_dataset(options)->summary(),
            "1 file of 3 documents, 36 tokens train, 0 tokens validation\n"
            "training: joined the text of 2 documents, each shorter than a sequence, 17 tokens");
}

TEST_F(SameTextsTest, AreSkippedAndCountedWhereTheyAreNull) {
  DataOptions options = this->options(Format::kBytes, 0, true);
  options.path = folder_.write(
      "a.jsonl", "{\"text\": null}\n{\"text\": \"abc\"}\n{\"text\": \"\"}\n{\"text\": null}\n");
  const auto data = open_dataset(options);
  EXPECT_EQ(documents(*data, Split::kTrain), (Documents{{'a', 'b', 'c'}}));
  EXPECT_EQ(data->summary(),
            "1 file, 3 tokens train, 0 tokens validation\nskipped 2 documents whose text is null");
}

TEST_F(SameTextsTest, HaveTheirTextUnderAnotherKeyIfTheRecipeSaysSo) {
  DataOptions options = this->options(Format::kBytes, 0, true);
  options.path = folder_.write("a.jsonl", as_lines({"ab", "cd"}, "body"));
  EXPECT_EQ(test::error_text<DataError>([&] { open_dataset(options); }),
            options.path +
                ":1: has no \"text\"; data.field names the string that is a line's text, and "
                "data.format: chat reads conversations.");
  options.field = "body";
  EXPECT_EQ(documents(*open_dataset(options), Split::kTrain), (Documents{{'a', 'b'}, {'c', 'd'}}));
}

TEST_F(SameTextsTest, AreRefusedWhereAnotherFormatOrCommandReadsThem) {
  const auto error = [&](DataOptions options, const std::string& path) {
    options.path = path;
    return test::error_text<DataError>([&] { open_dataset(options); });
  };
  const std::vector<std::string> forms = written(some_texts(40));
  const DataOptions bin = options(Format::kBin, 0, true), bytes = options(Format::kBytes, 0, true);
  const std::string reads = ": data.format bin reads files of tokens, ";
  const std::string instead = "; make one with sherd tokenize, or set another data.format.";
  EXPECT_EQ(error(bin, forms[3]), forms[3] + reads + "not lines of text" + instead);
  EXPECT_EQ(error(bin, forms[4]), forms[4] + reads + "unpacked" + instead);
  const std::string tokens = tokenized(forms[0], "tokens.bin", false);
  EXPECT_EQ(error(bytes, tokens), tokens + ": is a file of tokens; set data.format: bin.");
  const std::string xz = folder_.write("a.txt.xz",
                                       "\xfd"
                                       "7zXZ");
  EXPECT_EQ(error(bytes, xz), xz + ": a .xz file isn't read as text; give plain text, .jsonl, "
                                   "either packed as .gz or .zst, or .parquet or .arrow.");
  const std::string damaged = folder_.write("b.txt.gz", "not packed");
  EXPECT_NE(error(bytes, damaged).find("damaged or cut short"), std::string::npos);
}

// A folder's packed files are looked into as its plain ones are.
TEST_F(SameTextsTest, PassOverPackedFilesThatAreEmptyOrBinary) {
  folder_.write("texts/a.txt", "0123456789");
  folder_.write("texts/b.gz", test::gzip(""));
  folder_.write("texts/c.zst", test::zstd(std::string("a\0b", 3)));
  folder_.write("texts/d.jsonl", "\n");
  DataOptions options = this->options(Format::kBytes, 0, false);
  options.seq_length = 4;
  options.path = folder_.file("texts");
  EXPECT_EQ(open_dataset(options)->summary(),
            "1 file (2 empty and 1 binary ones skipped), 10 tokens train, 0 tokens validation");
}

}  // namespace
}  // namespace sherd::data
