// Folders of Hugging Face datasets: which of their files are data, and in which order.
#include "engine/data/files/saved_dataset.h"

#include <gtest/gtest.h>

#include "core/error.h"
#include "engine/data/files/text_files.h"
#include "tests/support/values/error_text.h"
#include "tests/support/values/temp_folder.h"

namespace sherd::data {
namespace {

class SavedDataset : public testing::Test {
 protected:
  SavedDataset() {
    folder_.write("data/dataset_info.json", "{}");
    folder_.write("data/b.arrow", "");
    folder_.write("data/a.arrow", "");
    folder_.write("data/cache-0.arrow", "");
    use(R"({"_data_files": [{"filename": "b.arrow"}, {"filename": "a.arrow"}], "_split": null})");
  }
  void use(const std::string& state) const { folder_.write("data/state.json", state); }
  std::vector<std::string> found(const std::string& name) const {
    std::vector<std::string> names = find_text_files(folder_.file(name), "", "data.path").paths;
    for (std::string& path : names) path = path.substr(folder_.path().size() + 1);
    return names;
  }
  std::string error(const std::string& name) const {
    return test::error_text<DataError>([&] { found(name); });
  }

  test::TempFolder folder_;
};

TEST_F(SavedDataset, HasTheFilesOfItsStateInTheirOrder) {
  EXPECT_EQ(found("data"), (std::vector<std::string>{"data/b.arrow", "data/a.arrow"}));
}

TEST_F(SavedDataset, IsFoundInAFolder) {
  folder_.write("a.txt", "x");
  folder_.write("z.txt", "x");
  EXPECT_EQ(found(""), (std::vector<std::string>{"a.txt", "data/a.arrow", "data/b.arrow", "z.txt"}))
      << "files of several places are sorted";
}

TEST_F(SavedDataset, KeepsItsDescriptionsOutOfAGlob) {
  EXPECT_EQ(found("data/*"),
            (std::vector<std::string>{"data/a.arrow", "data/b.arrow", "data/cache-0.arrow"}));
}

TEST_F(SavedDataset, ThatNamesOtherFilesIsRefused) {
  const std::string state = folder_.file("data/state.json");
  const std::string expected =
      "; a folder written by save_to_disk of Hugging Face datasets was expected.";
  const auto expect = [&](const std::string& json, const std::string& problem) {
    use(json);
    EXPECT_EQ(error("data"), state + ": " + problem + expected);
  };
  expect("[", "isn't a JSON object");
  expect("{}", "has no list \"_data_files\"");
  expect(R"({"_data_files": []})", "lists no files");
  expect(R"({"_data_files": ["a.arrow"]})", "\"_data_files\" has an entry without a \"filename\"");
  expect(R"({"_data_files": [{"filename": "../a.arrow"}]})",
         "\"_data_files\" names ../a.arrow, which isn't an .arrow file here");
  expect(R"({"_data_files": [{"filename": "c.arrow"}]})", "names c.arrow, which isn't there");
  expect(
      R"({"_data_files": [{"filename": "a.arrow"}], "_indices_files": [{"filename": "i.arrow"}]})",
      "selects rows by a file of indices, which isn't read; save it with a newer version");
}

TEST_F(SavedDataset, ThatIsADictOfSplitsIsRefusedWithTheirNames) {
  folder_.write("dict/dataset_dict.json", R"({"splits": ["train", "test"]})");
  folder_.write("dict/train/a.arrow", "");
  const std::string path = folder_.file("dict");
  EXPECT_EQ(error("dict"), path +
                               ": is a Hugging Face DatasetDict with the splits train, test; give "
                               "the folder of one, such as " +
                               path + "/train.");
  EXPECT_NE(error("").find("with the splits train, test"), std::string::npos);
  folder_.write("dict/dataset_dict.json", "{}");
  EXPECT_NE(error("dict").find("lists no splits"), std::string::npos);
}

}  // namespace
}  // namespace sherd::data
