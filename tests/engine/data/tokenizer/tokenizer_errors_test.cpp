// Files are hostile: whatever is in them is an id list or one DataError.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <random>
#include <string>
#include <vector>

#include "core/error.h"
#include "engine/data/tokenizer/tokenizer.h"
#include "tests/support/models/small_tokenizer.h"
#include "tests/support/random/mutated_text.h"
#include "tests/support/values/error_text.h"
#include "tests/support/values/temp_folder.h"

namespace sherd::tokenizer {
namespace {

using nlohmann::json;

std::string refusal(const json& file) {
  return test::error_text<DataError>([&] { Tokenizer::parse(file.dump(), "t.json"); });
}

std::string refusal_with(const char* pointer, const json& value) {
  json file = test::small_tokenizer();
  file[json::json_pointer(pointer)] = value;
  return refusal(file);
}

TEST(TokenizerErrors, TheSmallFileIsGood) {
  EXPECT_EQ(refusal(test::small_tokenizer()), "(no error)");
  std::vector<std::int32_t> ids;
  Encoder(Tokenizer::parse(test::small_tokenizer().dump(), "t.json"))
      .encode("the<|end|>", SpecialTokens::kAsTokens, ids);
  EXPECT_EQ(ids, (std::vector<std::int32_t>{257, 258}));
}

TEST(TokenizerErrors, OtherModelsAreRefusedByName) {
  for (const std::string type : {"WordPiece", "Unigram", "WordLevel"}) {
    EXPECT_EQ(refusal_with("/model/type", type),
              "t.json.model: " + type + " isn't supported; Sherd knows tokenizers of type BPE.");
  }
  // Whatever else the file has that we don't know: the model says most.
  json file = test::small_tokenizer();
  file["model"]["type"] = "WordPiece";
  file["normalizer"]["type"] = "BertNormalizer";
  EXPECT_EQ(refusal(file),
            "t.json.model: WordPiece isn't supported; Sherd knows tokenizers of type BPE.");
  EXPECT_EQ(refusal_with("/model/dropout", 0.1),
            "t.json.model: dropout makes ids random and isn't supported; set it to null.");
  EXPECT_EQ(refusal_with("/model/end_of_word_suffix", "</w>"),
            "t.json.model: end_of_word_suffix isn't supported.");
}

TEST(TokenizerErrors, UnknownPartsAndKeysAreRefusedByName) {
  EXPECT_EQ(refusal_with("/normalizer/type", "Lowercase"),
            "t.json.normalizer: the normaliser Lowercase isn't supported.");
  EXPECT_EQ(refusal_with("/pre_tokenizer/pretokenizers/0/type", "Whitespace"),
            "t.json.pre_tokenizer.pretokenizers[0]: the pre-tokenizer Whitespace isn't supported.");
  EXPECT_EQ(refusal_with("/decoder/type", "WordPiece"),
            "t.json.decoder: the decoder WordPiece isn't supported.");
  EXPECT_EQ(refusal_with("/post_processor", {{"type", "Magic"}}),
            "t.json.post_processor: the post-processor Magic isn't supported.");
  EXPECT_EQ(refusal_with("/model/new_option", true),
            "t.json.model: \"new_option\" isn't a supported key.");
}

TEST(TokenizerErrors, WrongVocabulariesMergesAndIdsAreNamed) {
  EXPECT_EQ(refusal_with("/model/merges/1", "th x!"),
            "t.json.model.merges: merge 1 names \"x!\", which isn't in the vocabulary.");
  EXPECT_EQ(refusal_with("/model/merges/1", "the"),
            "t.json.model.merges: merge 1 isn't two tokens with a space between.");
  EXPECT_EQ(refusal_with("/model/merges/1", {"", "the"}),
            "t.json.model.merges: merge 1 names \"\", which isn't in the vocabulary.");
  EXPECT_EQ(refusal_with("/model/vocab/the", -1),
            "t.json.model.vocab: the id of \"the\" isn't a whole number from 0 to 16777215.");
  EXPECT_EQ(refusal_with("/model/vocab/the", 256),
            "t.json.model.vocab: two tokens have the id 256.");
  EXPECT_EQ(refusal_with("/model/vocab/the", 9000000),
            "t.json.model.vocab: 258 tokens have ids up to 9000000.");
  EXPECT_EQ(refusal_with("/added_tokens/0/id", 300),
            "t.json.added_tokens[0]: \"<|end|>\" has the id 300, but its place gives it 258.");
  EXPECT_EQ(refusal_with("/model/unk_token", "<unk>"),
            "t.json.model.unk_token: \"<unk>\" isn't in the vocabulary.");
}

TEST(TokenizerErrors, FoldersWithoutAUsableFileAreNamed) {
  const test::TempFolder folder;
  const auto error = [&] {
    return test::error_text<DataError>([&] { Tokenizer::open(folder.path()); });
  };
  EXPECT_EQ(error(), folder.path() +
                         ": has no tokenizer.json; give a folder with a Hugging Face "
                         "tokenizer.");
  folder.write("tokenizer.model", "x");
  EXPECT_NE(error().find("has tokenizer.model but no tokenizer.json"), std::string::npos);
  folder.write("tokenizer.json", "{\"model\": ");
  EXPECT_NE(error().find("isn't JSON"), std::string::npos);
  folder.write("tokenizer.json", test::small_tokenizer().dump());
  folder.write("tokenizer_config.json", R"({"eos_token": {"content": "<|x|>"}})");
  EXPECT_EQ(error(), folder.file("tokenizer_config.json") +
                         ": eos_token is \"<|x|>\", which isn't in tokenizer.json.");
  folder.write("tokenizer_config.json",
               R"({"bos_token": null, "eos_token": {"content": "<|end|>"}})");
  EXPECT_EQ(Tokenizer::open(folder.path())->end(), 258);
  EXPECT_FALSE(Tokenizer::open(folder.path())->beginning());
}

// transformers 5.23 and 4.57 add such a token after all others, whatever id the file gives.
TEST(TokenizerErrors, TokensThatOnlyAddedTokensJsonNamesAreRefused) {
  const test::TempFolder folder;
  const auto error = [&] {
    return test::error_text<DataError>([&] { Tokenizer::open(folder.path()); });
  };
  folder.write("tokenizer.json", test::small_tokenizer().dump());
  folder.write("added_tokens.json", R"({"<|end|>": 258})");
  EXPECT_EQ(error(), "(no error)");
  folder.write("added_tokens.json", R"({"<|end|>": 258, "<|more|>": 300})");
  const std::string expected =
      folder.file("added_tokens.json") +
      ": names the token \"<|more|>\", which tokenizer.json lacks; save the tokenizer with "
      "transformers' AutoTokenizer once, which writes it there.";
  EXPECT_EQ(error(), expected);
  folder.write("tokenizer_config.json", R"({"eos_token": "<|end|>"})");
  EXPECT_EQ(error(), expected);
  folder.write("tokenizer_config.json", R"({"added_tokens_decoder": {}})");  // hides the file there
  EXPECT_EQ(error(), "(no error)");
  // transformers adds what is named there, too.
  folder.write("tokenizer_config.json",
               R"({"added_tokens_decoder": {"258": {"content": "<|end|>"}}})");
  EXPECT_EQ(error(), "(no error)");
  folder.write("tokenizer_config.json",
               R"({"added_tokens_decoder": {"300": {"content": "<|more|>"}}})");
  EXPECT_NE(error().find("tokenizer_config.json: names the token \"<|more|>\""), std::string::npos);
  folder.write("tokenizer_config.json", "{}");
  folder.write("added_tokens.json", "[1]");
  EXPECT_EQ(error(), folder.file("added_tokens.json") + ": isn't a JSON object.");
}

TEST(TokenizerErrors, WrongPostProcessorsAreNamed) {
  const auto wrong = [](const char* pointer, const json& value) {
    json part = {{"type", "TemplateProcessing"},
                 {"single", {{{"SpecialToken", {{"id", "<s>"}}}}, {{"Sequence", {{"id", "A"}}}}}},
                 {"special_tokens", {{"<s>", {{"ids", {258}}}}}}};
    part[json::json_pointer(pointer)] = value;
    return refusal_with("/post_processor", part);
  };
  const std::string at = "t.json.post_processor";
  EXPECT_EQ(wrong("/type", "TemplateProcessing"), "(no error)");
  EXPECT_EQ(wrong("/special_tokens/<s>/ids/0", 259), at + ": adds the id 259, which no token has.");
  EXPECT_EQ(wrong("/special_tokens/<s>/ids/0", -1),
            at + ".special_tokens.<s>.ids[0]: expected a whole number from 0.");
  EXPECT_EQ(wrong("/special_tokens/<s>/ids/0", 1LL << 32),
            at + ".special_tokens.<s>.ids[0]: isn't a token id.");
  EXPECT_EQ(wrong("/single/0/SpecialToken/id", "<t>"), at + ".special_tokens: \"<t>\" is missing.");
  EXPECT_EQ(wrong("/single", json::array()), at + ".single: has no sequence.");
  const json pair = {{"type", "BertProcessing"}, {"cls", {"<s>", 258}}};
  EXPECT_EQ(refusal_with("/post_processor", {{"type", "Sequence"}, {"processors", {pair, pair}}}),
            at + ".processors[1]: a second post-processor that adds tokens isn't supported.");
}

TEST(TokenizerErrors, TokensBeforeADocumentMayBeNamedByTheConfigAlone) {
  const test::TempFolder folder;
  const auto before = [&](const json& file, const std::string& config) {
    folder.write("tokenizer.json", file.dump());
    folder.write("tokenizer_config.json", config);
    const auto tokenizer = Tokenizer::open(folder.path());
    const auto ids = tokenizer->before_document();
    return std::vector<std::int32_t>(ids.begin(), ids.end());
  };
  using Ids = std::vector<std::int32_t>;
  json file = test::small_tokenizer();
  EXPECT_EQ(before(file, R"({"bos_token": "<|end|>", "add_bos_token": true})"), Ids{258});
  EXPECT_EQ(before(file, R"({"bos_token": "<|end|>", "add_bos_token": false})"), Ids{});
  EXPECT_EQ(before(file, R"({"bos_token": "<|end|>"})"), Ids{});
  EXPECT_EQ(before(file, R"({"bos_token": null, "add_bos_token": true})"), Ids{});
  EXPECT_NE(test::error_text<DataError>([&] {
              before(file, R"({"add_bos_token": "yes"})");
            }).find("\"add_bos_token\" isn't true or false."),
            std::string::npos);
  // tokenizer.json decides if a part of it can say so.
  file["post_processor"] = {{"type", "TemplateProcessing"},
                            {"single", {{{"Sequence", {{"id", "A"}}}}}},
                            {"special_tokens", json::object()}};
  EXPECT_EQ(before(file, R"({"bos_token": "<|end|>", "add_bos_token": true})"), Ids{});
}

TEST(TokenizerErrors, TextThatIsNotUtf8IsNamedAndLeavesNoIds) {
  Encoder encoder(Tokenizer::parse(test::small_tokenizer().dump(), "t.json"));
  std::vector<std::int32_t> ids = {7};
  for (const std::string text : {"ab\xff", "ab\xed\xa0\x80", "ab\xc3", "ab\xf4\x90\x80\x80"}) {
    const std::string error =
        test::error_text<DataError>([&] { encoder.encode(text, SpecialTokens::kAsText, ids); });
    EXPECT_EQ(error.substr(0, 19), "not UTF-8 at byte 2") << error;
  }
  EXPECT_EQ(ids, (std::vector<std::int32_t>{7}));
}

TEST(TokenizerErrors, DeeplyNestedFilesAreRefused) {
  json part = {{"type", "NFC"}};
  for (int i = 0; i < 20; ++i) part = {{"type", "Sequence"}, {"normalizers", {part}}};
  EXPECT_NE(refusal_with("/normalizer", part).find("nested too deeply"), std::string::npos);
  EXPECT_NE(test::error_text<DataError>([] {
              Tokenizer::parse(std::string(100000, '['), "t.json");
            }).find("nested deeper than 100 levels"),
            std::string::npos);
}

void survive_mutations(int count) {
  std::mt19937 draw(7);
  // The vocabulary first: mutations mostly change what follows it.
  json file = test::small_tokenizer();
  const json model = file["model"];
  file.erase("model");
  const std::string text = "{\"model\":" + model.dump() + "," + file.dump().substr(1);
  ASSERT_LT(text.size(), 16384u);
  const std::string sample =
      "the the<|end|> Gr\xc3\xb6\xc3\x9f"
      "e 123  \n\n \xe4\xb8\x96\xe7\x95\x8c " +
      std::string(200, 't');
  int num_good = 0;
  for (int i = 0; i < count; ++i) {
    try {
      // Mostly after the vocabulary, where there is more to break.
      const std::size_t first = draw() % 4 == 0 ? 0 : text.size() / 2;
      const auto tokenizer = Tokenizer::parse(test::mutated_text(text, first, draw), "t.json");
      std::vector<std::int32_t> ids;
      Encoder(tokenizer).encode(sample, SpecialTokens::kAsTokens, ids);
      for (const std::int32_t id : ids) ASSERT_LT(id, tokenizer->vocab_size());
      tokenizer->decode(ids);
      ++num_good;
    } catch (const DataError& error) {
      ASSERT_EQ(std::string(error.what()).find('\n'), std::string::npos);
    }
  }
  EXPECT_GT(num_good, count / 100);  // some mutations only change an id or a pattern
  EXPECT_LT(num_good, count);
}

TEST(TokenizerErrors, MutatedFilesAreErrorsOrTokenizers) {
  survive_mutations(1500);
}

TEST(TokenizerErrorsSlow, AHundredThousandMutatedFilesAreErrorsOrTokenizers) {
  survive_mutations(100'000);
}

}  // namespace
}  // namespace sherd::tokenizer
