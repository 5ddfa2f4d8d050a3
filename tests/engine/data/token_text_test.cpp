#include "engine/data/token_text.h"

#include <gtest/gtest.h>

#include <numeric>

#include "core/error.h"
#include "tests/support/models/small_tokenizer.h"
#include "tests/support/values/error_text.h"

namespace sherd::data {
namespace {

using Ids = std::vector<std::int32_t>;

TEST(ByteText, ShowsPrintableTextAndEscapesTheRest) {
  const auto text = make_byte_text(300);
  EXPECT_EQ(text->text(text->ids("Hi,\n\t\xc3\xa4!")), "Hi,\n\t\xc3\xa4!");
  EXPECT_EQ(text->text(Ids{27, '[', '2', 'J', 0, 127, '\r'}), "\\x1b[2J\\x00\\x7f\\x0d");
  EXPECT_EQ(text->text(Ids{0xc3, 'a', 0xff}), "\\xc3a\\xff");
  EXPECT_EQ(text->text(Ids{'a', 299, 'b', -1}), "a<299>b<-1>");
  EXPECT_EQ(text->text(Ids{0xc2, 0x9b}), "\\u009b");  // C1's "control sequence"
  EXPECT_EQ(text->text(Ids{}), "");
}

TEST(ByteText, NeverShowsAControlCharacter) {
  Ids all(256);
  std::iota(all.begin(), all.end(), 0);
  for (const char c : make_byte_text(256)->text(all)) {
    EXPECT_TRUE(c == '\n' || c == '\t' || (c >= ' ' && c != 127)) << static_cast<int>(c);
  }
}

TEST(ByteText, RefusesBytesOutsideTheVocabulary) {
  EXPECT_EQ(make_byte_text(128)->ids("az"), (Ids{'a', 'z'}));
  EXPECT_EQ(test::error_text<UsageError>([] { make_byte_text(128)->ids("\xc3\xa4"); }),
            "prompt: byte 195 isn't in the vocabulary of 128 tokens; leave it out.");
}

TEST(CharacterText, NumbersCharactersInOrder) {
  const auto text = make_character_text({'\x01', '\n', 'a', 'b', 0xe4, 0x4e8c});
  EXPECT_EQ(text->ids("b\xc3\xa4"
                      "a\xe4\xba\x8c\n"),
            (Ids{3, 4, 2, 5, 1}));
  EXPECT_EQ(text->text(Ids{3, 4, 2, 5, 1}),
            "b\xc3\xa4"
            "a\xe4\xba\x8c\n");
  EXPECT_EQ(text->text(Ids{0, 6, -1}), "\\x01<6><-1>");
}

TEST(CharacterText, RefusesAPromptItCannotNumber) {
  const auto text = make_character_text({'a', 'b'});
  EXPECT_EQ(test::error_text<UsageError>([&] { text->ids("a\xe2\x82\xac"); }),
            "prompt: character \"\xe2\x82\xac\" (U+20AC) isn't among the 2 characters of the "
            "training text; leave it out.");
  EXPECT_EQ(test::error_text<UsageError>([&] { text->ids("ab\xff"); }),
            "prompt: not UTF-8 at byte 2.");
}

TEST(IdText, ShowsAndReadsIds) {
  const auto text = make_id_text(50257);
  EXPECT_EQ(text->text(Ids{0, 50256}), "<0> <50256>");
  EXPECT_EQ(text->ids(" 12 \n50256 "), (Ids{12, 50256}));
  EXPECT_EQ(text->ids(""), Ids{});
  for (const std::string bad : {"50257", "-1", "1x", "one", "99999999999"}) {
    EXPECT_EQ(test::error_text<UsageError>([&] { text->ids("3 " + bad); }),
              "prompt: \"" + bad +
                  "\" isn't a token id from 0 to 50256; data.format bin knows no text, so give ids "
                  "separated by spaces.");
  }
}

TEST(TokenText, OnlyATokenizerPutsTokensBeforeADocument) {
  nlohmann::json file = test::small_tokenizer();
  file["post_processor"] = {{"type", "BertProcessing"}, {"cls", {"<|end|>", 258}}};
  const auto text = make_tokenizer_text(tokenizer::Tokenizer::parse(file.dump(), "t.json"), 258);
  EXPECT_EQ(text->before_document(), Ids{258});
  EXPECT_EQ(text->ids("the"), Ids{257});
  EXPECT_EQ(make_byte_text(256)->before_document(), Ids{});
}

}  // namespace
}  // namespace sherd::data
