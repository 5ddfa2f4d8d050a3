#include "engine/huggingface/end_tokens.h"

#include <gtest/gtest.h>

#include "tests/support/values/error_text.h"
#include "tests/support/values/temp_folder.h"

namespace sherd::huggingface {
namespace {

using Ids = std::vector<std::int32_t>;

class EndTokens : public ::testing::Test {
 protected:
  Ids of_folder() const { return end_tokens(checkpoint::posix_disk(), folder_.path()); }
  test::TempFolder folder_;
};

TEST_F(EndTokens, AreNoneWhereNoFileNamesThem) {
  EXPECT_EQ(of_folder(), Ids());
  folder_.write("config.json", R"({"eos_token_id": null})");
  EXPECT_EQ(of_folder(), Ids());
  EXPECT_EQ(end_tokens(checkpoint::posix_disk(), folder_.file("nowhere")), Ids());
}

TEST_F(EndTokens, AreOneOrAList) {
  folder_.write("config.json", R"({"eos_token_id": 7})");
  EXPECT_EQ(of_folder(), Ids{7});
  folder_.write("config.json", R"({"eos_token_id": [128001, 128009]})");
  EXPECT_EQ(of_folder(), (Ids{128001, 128009}));
}

TEST_F(EndTokens, OfTheGenerationSettingsComeFirst) {
  folder_.write("config.json", R"({"eos_token_id": 7})");
  folder_.write("generation_config.json", R"({"eos_token_id": 9})");
  EXPECT_EQ(of_folder(), Ids{9});
  folder_.write("generation_config.json", R"({"temperature": 0.7})");
  EXPECT_EQ(of_folder(), Ids{7}) << "which may say nothing of them";
}

TEST_F(EndTokens, OfAModelOfSeveralPartsMayBeInItsTextPart) {
  folder_.write("config.json", R"({"text_config": {"eos_token_id": [1, 106]}})");
  EXPECT_EQ(of_folder(), (Ids{1, 106}));
  folder_.write("config.json", R"({"eos_token_id": 7, "text_config": {"eos_token_id": [1, 106]}})");
  EXPECT_EQ(of_folder(), Ids{7});
}

TEST_F(EndTokens, AreReadThroughLinks) {
  std::filesystem::create_symlink(folder_.write("blobs/1", R"({"eos_token_id": 9})"),
                                  folder_.file("generation_config.json"));
  EXPECT_EQ(of_folder(), Ids{9});
}

TEST_F(EndTokens, ThatAreNoTokensAreErrors) {
  for (const char* value : {"-1", "1.5", "\"x\"", "[1, null]", "2147483648", "{}"}) {
    folder_.write("config.json", std::string(R"({"eos_token_id": )") + value + "}");
    const std::string error = test::error_text<DataError>([&] { of_folder(); });
    EXPECT_TRUE(error.starts_with(folder_.file("config.json") + ": eos_token_id is ")) << error;
  }
}

}  // namespace
}  // namespace sherd::huggingface
