// Token ids in columns of Parquet and Arrow files: tests/reference/arrow/id_tables.py.
#include <gtest/gtest.h>

#include "core/error.h"
#include "engine/data/dataset.h"
#include "engine/data/files/id_table.h"
#include "tests/support/models/tables.h"
#include "tests/support/values/error_text.h"

namespace sherd::data {
namespace {

using Json = nlohmann::json;
using Rows = std::vector<std::vector<std::int32_t>>;

const Json& id_tables() {
  static const Json kTables = [] {
    std::ifstream file(SHERD_SOURCE_DIR "/tests/engine/data/arrow/id_tables.json");
    return Json::parse(file);
  }();
  return kTables;
}

Rows rows_of(const Json& rows) {
  Rows expected;
  for (const Json& row : rows) {
    expected.push_back(row.is_null() ? Rows::value_type() : row.get<Rows::value_type>());
  }
  return expected;
}

Rows documents_of(const TokenFile& file) {
  Rows rows;
  std::int64_t begin = 0;
  for (const std::int64_t end : file.document_ends()) {
    rows.emplace_back(static_cast<std::size_t>(end - begin));
    file.read(begin, end - begin, rows.back().data());
    begin = end;
  }
  return rows;
}

class IdTables : public testing::Test {
 protected:
  void SetUp() override {
    if (!test::has_arrow()) GTEST_SKIP() << test::kNoArrow;
  }
  std::string write(const char* group, const std::string& name) const {
    return folder_.write(name,
                         test::from_base64(id_tables().at(group).at(name).get<std::string>()));
  }
  std::string refusal(const std::string& name, const std::string& column = "input_ids") const {
    const std::string path = write("others", name);
    const std::string text = test::error_text<DataError>([&] { make_id_table(path, column, 60); });
    EXPECT_TRUE(text.starts_with(path + ": ")) << text;
    EXPECT_EQ(text.find('\n'), std::string::npos) << text;
    return text.substr(std::min(text.size(), path.size() + 2));
  }
  static DataOptions options(const std::string& path, const std::string& field, bool separate) {
    return {.path = path,
            .format = Format::kBin,
            .validation_fraction = 0,
            .vocab_size = 60,
            .seq_length = 4,
            .field = field,
            .separate_documents = separate};
  }

  test::TempFolder folder_{test::memory_folder()};
};

TEST_F(IdTables, HaveADocumentInEachRow) {
  for (const auto& [name, bytes] : id_tables().at("files").items()) {
    const auto file = make_id_table(write("files", name), "input_ids", 60);
    EXPECT_EQ(documents_of(*file), rows_of(id_tables().at("rows"))) << name;
  }
  const auto fixed = make_id_table(write("others", "fixed.parquet"), "input_ids", 60);
  EXPECT_EQ(documents_of(*fixed), rows_of(id_tables().at("fixed")));
}

TEST_F(IdTables, AreTokenFilesOfARun) {
  const std::string path = write("files", "int32.parquet");
  const auto joined = open_dataset(options(path, "input_ids", false));
  EXPECT_EQ(joined->num_tokens(Split::kTrain), 48);
  const auto separate = open_dataset(options(path, "input_ids", true));
  ASSERT_EQ(separate->parts(Split::kTrain).size(), 3u) << "with two tokens or more";
  EXPECT_EQ(separate->parts(Split::kTrain)[1].count, 4);
  EXPECT_EQ(open_dataset(options(folder_.path(), "input_ids", false))->num_tokens(Split::kTrain),
            48)
      << "of a folder";
  const auto mask = open_dataset(options(path, "mask", false));
  EXPECT_EQ(mask->num_tokens(Split::kTrain), 48);
  EXPECT_NE(mask->fingerprint(), joined->fingerprint()) << "another column of the same file";
}

TEST_F(IdTables, ArentReadInAFolderWithTokenFiles) {
  write("files", "int32.parquet");
  std::string ids;
  for (int i = 0; i < 20; ++i) ids += {static_cast<char>(i), '\0'};
  folder_.write("ids.bin", ids);
  EXPECT_EQ(open_dataset(options(folder_.path(), "input_ids", false))->num_tokens(Split::kTrain),
            20);
}

TEST_F(IdTables, AreRefusedWhereTheyHaveOtherThings) {
  EXPECT_EQ(refusal("large_id.parquet"),
            "row 1 of column \"input_ids\" has an id that isn't a token from 0 to 59.");
  EXPECT_EQ(refusal("huge_id.parquet"),
            "row 1 of column \"input_ids\" has an id that isn't a token from 0 to 59.");
  EXPECT_EQ(refusal("null_id.parquet"),
            "row 1 of column \"input_ids\" has an id that isn't a token from 0 to 59.");
  EXPECT_EQ(refusal("no_ids.parquet"), "column \"input_ids\" has no token ids.");
  EXPECT_EQ(refusal("floats.parquet"),
            "column \"input_ids\" has the type list<element: float>, which isn't a list of token "
            "ids; its columns are text, input_ids, mask. data.field names the column of the ids.");
  EXPECT_EQ(refusal("fixed.parquet", "text"),
            "column \"text\" has the type string, which isn't a list of token ids; its columns are "
            "text, input_ids, mask. data.field names the column of the ids.");
  EXPECT_EQ(refusal("fixed.parquet", "ids"),
            "has no column \"ids\"; its columns are text, input_ids, mask. data.field names the "
            "column of the ids.");
}

}  // namespace
}  // namespace sherd::data
