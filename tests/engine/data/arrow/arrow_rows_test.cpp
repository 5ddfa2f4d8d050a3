// Files of pyarrow and Hugging Face datasets, row by row, and what can't be read.
#include "engine/data/arrow/arrow_rows.h"

#include <gtest/gtest.h>

#include <optional>

#include "core/error.h"
#include "tests/support/models/tables.h"
#include "tests/support/values/error_text.h"

namespace sherd::data {
namespace {

using Json = nlohmann::json;
using Texts = std::vector<std::optional<std::string>>;

Texts read(const std::string& path, const std::string& column) {
  ArrowRows rows(path, column);
  Texts texts;
  for (ArrowRows::Row row; rows.next(row);) {
    texts.push_back(row.is_null ? std::nullopt : std::optional(std::string(row.text)));
  }
  ArrowRows::Row row;
  EXPECT_FALSE(rows.next(row)) << "the end stays the end";
  return texts;
}

std::vector<Json> read_objects(const std::string& path) {
  std::vector<Json> rows;
  for (const auto& text : read(path, "")) rows.push_back(Json::parse(text.value()));
  return rows;
}

Texts expected_texts() {
  Texts texts;
  for (const Json& text : test::tables().at("texts")) {
    texts.push_back(text.is_null() ? std::nullopt : std::optional(text.get<std::string>()));
  }
  return texts;
}

class ArrowRowsTest : public testing::Test {
 protected:
  void SetUp() override {
    if (!test::has_arrow()) GTEST_SKIP() << test::kNoArrow;
  }
  std::string write(const std::string& group, const std::string& name) const {
    return test::write_table(folder_, group, name);
  }
  /// The message without the path that it starts with.
  static std::string error(const std::string& path, const std::string& column = "text") {
    const std::string text = test::error_text<DataError>([&] { read(path, column); });
    EXPECT_TRUE(text.starts_with(path + ": ")) << text;
    EXPECT_EQ(text.find('\n'), std::string::npos) << text;
    return text.substr(std::min(text.size(), path.size() + 2));
  }

  test::TempFolder folder_{test::memory_folder()};
};

TEST_F(ArrowRowsTest, HaveTheSameTextsInEveryFormTypeAndPacking) {
  const Texts expected = expected_texts();
  for (const auto& [name, bytes] : test::tables().at("files").items()) {
    EXPECT_EQ(read(write("files", name), "text"), expected) << name;
  }
  EXPECT_GE(test::tables().at("files").size(), 30u);
}

TEST_F(ArrowRowsTest, AreJsonOfAllColumnsIfNoneIsNamed) {
  for (const char* name : {"every_type.parquet", "every_type.arrow"}) {
    EXPECT_EQ(Json(read_objects(write("others", name))), test::tables().at("rows")) << name;
  }
  std::vector<Json> chats;
  for (const Json& text : test::tables().at("chats")) {
    chats.push_back(Json::parse(text.get<std::string>()));
  }
  for (const char* name : {"chats.parquet", "chats.arrow"}) {
    EXPECT_EQ(read_objects(write("others", name)), chats) << name;
  }
}

TEST_F(ArrowRowsTest, MayBeNoneOrAllNull) {
  for (const char* name : {"no_rows.parquet", "no_rows.arrow", "no_batches.arrow"}) {
    EXPECT_EQ(read(write("others", name), "text"), Texts()) << name;
    EXPECT_EQ(read(write("others", name), ""), Texts()) << name;
  }
  EXPECT_EQ(read(write("others", "all_null.parquet"), "text"), Texts(3));
}

// As of a text file: its reader says what isn't UTF-8, and where.
TEST_F(ArrowRowsTest, KeepTheBytesOfTextsThatArentUtf8) {
  for (const char* name : {"not_utf8.parquet", "not_utf8.arrow"}) {
    EXPECT_EQ(read(write("others", name), "text"), (Texts{"ok", "ab\xff", "the end"})) << name;
  }
}

TEST_F(ArrowRowsTest, NameTheColumnsWhereTheOneAskedForIsntThereOrHasNoTexts) {
  const std::string which = " data.field (--field of sherd tokenize) names the column of the text.";
  for (const char* name : {"snappy.parquet", "plain.arrow", "plain_stream.arrow"}) {
    const std::string path = write("files", name);
    EXPECT_EQ(error(path, "body"),
              "has no column \"body\"; its columns are meta, text, count." + which);
    EXPECT_EQ(error(path, "count"),
              "column \"count\" has the type int32, which isn't text; its columns are meta, text, "
              "count." +
                  which);
    EXPECT_TRUE(error(path, "meta").starts_with("column \"meta\" has the type struct<id: int64"))
        << error(path, "meta");
  }
  EXPECT_EQ(error(write("others", "twice.arrow")), "has 2 columns \"text\"." + which);
}

TEST_F(ArrowRowsTest, OfFilesThatArentSuchFilesAreAnErrorOfOneLine) {
  const std::string damaged = "; the file is damaged, cut short, or of another kind.";
  for (const char* name : {"a.parquet", "a.arrow"}) {
    for (const std::string& bytes :
         {std::string(), std::string("x"), std::string(1000, 'y'), std::string(1000, '\0'),
          std::string("ARROW1\0\0ARROW1", 14), std::string("PAR1PAR1")}) {
      const std::string text = error(folder_.write(name, bytes));
      EXPECT_TRUE(text.starts_with("can't be read (")) << text;
      EXPECT_TRUE(text.ends_with(damaged)) << text;
    }
  }
  const std::string parquet = write("files", "zstd.parquet");
  const std::string renamed = folder_.write("b.arrow", folder_.read("zstd.parquet"));
  EXPECT_TRUE(error(renamed).ends_with(damaged));
  write("files", "plain.arrow");
  EXPECT_TRUE(error(folder_.write("b.parquet", folder_.read("plain.arrow"))).ends_with(damaged));
  EXPECT_EQ(error(folder_.file("none.parquet")).find("can't be opened"), 0u);
  EXPECT_NE(error(folder_.write("lfs.parquet",
                                "version https://git-lfs.github.com/spec/v1\n"
                                "oid sha256:0\nsize 1\n"))
                .find("Git LFS"),
            std::string::npos);
  EXPECT_EQ(error(write("others", "no_end.arrow")),
            "can't be read (its end-of-stream marker is missing)" + damaged);
}

TEST_F(ArrowRowsTest, OfAFileThatIsCutAnywhereAreAnError) {
  for (const auto& [name, bytes] : test::tables().at("files").items()) {
    const std::string whole = test::from_base64(bytes.get<std::string>());
    for (std::size_t size = 1; size < whole.size(); size += name.starts_with("zstd") ? 1 : 37) {
      const std::string path = folder_.write("cut-" + name, whole.substr(0, size));
      EXPECT_NE(error(path), "(no error)") << name << " cut after " << size << " bytes";
    }
  }
}

// A changed byte may be part of a text. Whatever it is: rows or an error of one line.
TEST_F(ArrowRowsTest, OfAFileWithAChangedByteAreRowsOrAnError) {
  for (const auto& [name, bytes] : test::tables().at("files").items()) {
    const std::string whole = test::from_base64(bytes.get<std::string>());
    for (std::size_t place = 0; place < whole.size(); place += 11) {
      std::string changed = whole;
      changed[place] = static_cast<char>(changed[place] ^ (1 << place % 8));
      const std::string path = folder_.write("changed-" + name, changed);
      for (const char* column : {"text", ""}) {
        const std::string text = test::error_text<DataError>([&] { read(path, column); });
        EXPECT_EQ(text.find('\n'), std::string::npos) << text;
      }
    }
  }
}

TEST_F(ArrowRowsTest, OfManyBatchesComeInOrder) {
  const std::string path = write("files", "zstd_stream.arrow");
  ArrowRows first(path, "text"), second(path, "text");
  ArrowRows::Row a, b;
  while (first.next(a)) {
    ASSERT_TRUE(second.next(b));
    EXPECT_EQ(a.text, b.text);
  }
}

TEST(ArrowModule, IsNamedWithWhatInstallsItWhereItIsMissing) {
  EXPECT_EQ(test::error_text<DataError>(
                [] { load_arrow_module({"/none/libsherd_arrow.so"}, "texts/a.parquet"); }),
            "texts/a.parquet: needs libsherd_arrow.so, which this build of sherd lacks; run ./dev "
            "deps arrow, and build again.");
}

TEST(ArrowModule, IsRefusedIfItCantBeLoadedOrIsOfAnotherVersion) {
  const test::TempFolder folder;
  const std::string no_library = folder.write("libsherd_arrow.so", "no library");
  const std::string text =
      test::error_text<DataError>([&] { load_arrow_module({no_library}, "a.arrow"); });
  EXPECT_TRUE(
      text.starts_with("a.arrow: can't be read, because " + no_library + " can't be loaded ("))
      << text;
  EXPECT_EQ(test::error_text<DataError>([] { load_arrow_module({SHERD_WRONG_MODULE}, "a.arrow"); }),
            "a.arrow: can't be read, because " SHERD_WRONG_MODULE
            " belongs to another version of sherd (interface 999, not 2); build both from the same "
            "sources.");
}

TEST(ArrowModule, IsForTheNamesOfItsFiles) {
  EXPECT_TRUE(is_table("a.parquet"));
  EXPECT_TRUE(is_table("x/data-00000-of-00001.arrow"));
  for (const char* name : {"a.jsonl", "parquet", "a.parquet.gz", "a.arrow/b", ""}) {
    EXPECT_FALSE(is_table(name)) << name;
  }
}

}  // namespace
}  // namespace sherd::data
