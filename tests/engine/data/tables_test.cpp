// The same texts as rows of Parquet and Arrow files and as lines of .jsonl are the same data.
#include <gtest/gtest.h>

#include "core/error.h"
#include "engine/data/dataset.h"
#include "engine/data/tokenize/tokenize.h"
#include "tests/support/models/packed_text.h"
#include "tests/support/models/small_tokenizer.h"
#include "tests/support/models/tables.h"
#include "tests/support/values/error_text.h"

namespace sherd::data {
namespace {

using Ids = std::vector<std::int32_t>;

class TablesTest : public testing::Test {
 protected:
  TablesTest() {
    folder_.write("tokenizer/tokenizer.json", test::small_tokenizer().dump());
    folder_.write("tokenizer/tokenizer_config.json", R"({"eos_token": "<|end|>"})");
    folder_.write("tokenizer/chat_template.jinja",
                  "{% for m in messages %}[{{ m.role }}]{{ m.content }}{{ m.tool_calls }}<|end|>"
                  "{% endfor %}{{ tools }}");
    lines_ = folder_.write("lines.jsonl", test::texts_as_lines());
  }
  void SetUp() override {
    if (!test::has_arrow()) GTEST_SKIP() << test::kNoArrow;
  }

  std::string write(const std::string& group, const std::string& name) const {
    return test::write_table(folder_, group, name);
  }
  /// Paths: files, a folder with two, a saved dataset.
  std::vector<std::string> forms() const {
    std::vector<std::string> paths;
    for (const char* name : {"zstd.parquet", "dictionary.parquet", "lz4.arrow",
                             "string_view_stream.arrow", "growing_dictionary.arrow"}) {
      paths.push_back(write("files", name));
    }
    for (const auto& [name, bytes] : test::tables().at("folders").items()) write("folders", name);
    paths.push_back(folder_.file("dataset"));
    paths.push_back(folder_.file("dataset/data-*.arrow"));
    return paths;
  }
  DataOptions options(const std::string& path, Format format, bool separate) const {
    DataOptions options{.path = path,
                        .format = format,
                        .validation_fraction = 0.3,
                        .vocab_size = 300,
                        .seq_length = 8,
                        .tokenizer = folder_.file("tokenizer"),
                        .separate_documents = separate};
    if (format == Format::kChars) options.vocab_size = num_distinct_characters(lines_);
    return options;
  }
  static std::string error(const DataOptions& options) {
    return test::error_text<DataError>([&] { open_dataset(options); });
  }
  static std::string tokens(const Dataset& data) {
    std::string all;
    for (int file = 0; file < data.num_files(); ++file) {
      Ids ids(static_cast<std::size_t>(data.file(file).num_tokens()));
      std::vector<std::uint8_t> trained(ids.size());
      data.file(file).read(0, std::ssize(ids), ids.data());
      if (data.file(file).has_untrained()) {
        data.file(file).read_trained(0, std::ssize(ids), trained.data());
      }
      for (std::size_t i = 0; i < ids.size(); ++i) all += fmt::format("{}:{} ", ids[i], trained[i]);
      all += "\n";
    }
    return all;
  }

  test::TempFolder folder_{test::memory_folder()};
  std::string lines_;
};

TEST_F(TablesTest, AreTheSameDataAsLines) {
  for (const Format format : {Format::kBytes, Format::kChars, Format::kText}) {
    for (const bool separate : {false, true}) {
      const auto expected = open_dataset(options(lines_, format, separate));
      EXPECT_NE(expected->summary().find("\nskipped 2 documents whose text is null"),
                std::string::npos)
          << expected->summary();
      for (const std::string& path : forms()) {
        SCOPED_TRACE(path);
        const auto data = open_dataset(options(path, format, separate));
        EXPECT_EQ(tokens(*data), tokens(*expected));
        EXPECT_EQ(data->fingerprint(), expected->fingerprint()) << "a run goes on with either";
        const auto without_files = [](const std::string& summary) {
          return summary.substr(summary.find(" of "));
        };
        EXPECT_EQ(without_files(data->summary()), without_files(expected->summary()));
      }
    }
  }
}

TEST_F(TablesTest, AreTheSameTokenFiles) {
  const auto tokenized = [this](const std::string& path, const std::string& field) {
    std::filesystem::remove(folder_.file("out.bin"));
    const TokenizeResult result = tokenize({.tokenizer = folder_.file("tokenizer"),
                                            .texts = {path},
                                            .to = folder_.file("out.bin"),
                                            .field = field,
                                            .eos = true,
                                            .batch_bytes = 50});
    EXPECT_EQ(result.documents, 9) << path;
    EXPECT_EQ(result.empty_documents, 3) << path << ": one empty, two null";
    return folder_.read("out.bin");
  };
  const std::string expected = tokenized(lines_, "text");
  for (const std::string& path : forms()) EXPECT_EQ(tokenized(path, "text"), expected) << path;
}

TEST_F(TablesTest, NameTheirRowsInMessages) {
  const std::string path = write("others", "not_utf8.parquet");
  DataOptions options = this->options(path, Format::kText, true);
  EXPECT_TRUE(error(options).starts_with(path + ":2: not UTF-8 at byte 2 (0xff); "))
      << error(options);
  std::vector<std::string> bad;
  const TokenizeResult result =
      tokenize({.tokenizer = folder_.file("tokenizer"),
                .texts = {path},
                .to = folder_.file("out.bin"),
                .skip_bad = true,
                .on_bad_document = [&](const std::string& one) { bad.push_back(one); }});
  EXPECT_EQ(bad, std::vector<std::string>{path + ":2: not UTF-8 at byte 2 (0xff)"});
  EXPECT_EQ(result.documents, 2);
}

TEST_F(TablesTest, OfConversationsAreTheSameDataAsLines) {
  std::string lines;
  for (const auto& row : test::tables().at("chats")) lines += row.get<std::string>() + "\n";
  DataOptions options = this->options(folder_.write("chats.jsonl", lines), Format::kChat, true);
  options.seq_length = 512;
  options.validation_fraction = 0;
  const auto expected = open_dataset(options);
  EXPECT_EQ(expected->chat_counts().conversations, 4);
  EXPECT_EQ(expected->chat_counts().num_dropped(), 1);
  for (const char* name : {"chats.parquet", "chats.arrow"}) {
    options.path = write("others", name);
    const auto data = open_dataset(options);
    EXPECT_EQ(tokens(*data), tokens(*expected));
    std::string summary = data->summary();
    const std::size_t place = summary.find(options.path + ":4: ");
    ASSERT_NE(place, std::string::npos) << summary;
    EXPECT_EQ(summary.replace(place, options.path.size(), folder_.file("chats.jsonl")),
              expected->summary());
  }
}

TEST_F(TablesTest, WithoutTextAreAnError) {
  for (const char* name :
       {"no_rows.parquet", "no_rows.arrow", "no_batches.arrow", "all_null.parquet"}) {
    const std::string path = write("others", name);
    EXPECT_EQ(error(options(path, Format::kBytes, false)),
              path + ": is empty; set data.path to text.");
  }
  const std::string path = folder_.write("empty.parquet", "");
  EXPECT_EQ(error(options(path, Format::kBytes, false)),
            path + ": is empty; set data.path to text.");
}

TEST_F(TablesTest, AreRefusedWhereTheyCantBeRead) {
  const std::string tables = write("files", "gzip.parquet");
  EXPECT_EQ(
      error(options(tables, Format::kBin, false)),
      tables +
          ": column \"text\" has the type string, which isn't a list of token ids; its columns "
          "are meta, text, count. data.field names the column of the ids.");
  const std::string packed =
      folder_.write("a.parquet.gz", test::gzip(folder_.read("gzip.parquet")));
  EXPECT_EQ(error(options(packed, Format::kBytes, false)),
            packed + ": unpack it; Parquet and Arrow files are packed inside.");
  forms();
  EXPECT_EQ(error(options(folder_.file("splits"), Format::kBytes, false)),
            folder_.file("splits") +
                ": is a Hugging Face DatasetDict with the splits train, test; give the folder of "
                "one, such as " +
                folder_.file("splits/train") + ".");
}

}  // namespace
}  // namespace sherd::data
