// Tokenizers and texts that would take all time or memory. Nothing is timed: without its limit each of these would run
// for minutes to years, or take terabytes.
#include <gtest/gtest.h>
#include <unicode/normalizer2.h>
#include <unicode/uniset.h>

#include <random>

#include "core/error.h"
#include "engine/data/tokenizer/named_tokens.h"
#include "engine/data/tokenizer/normal_form.h"
#include "engine/data/tokenizer/pattern/split_pattern.h"
#include "engine/data/tokenizer/tokenizer.h"
#include "engine/data/utf8.h"
#include "tests/support/models/small_tokenizer.h"
#include "tests/support/values/error_text.h"
#include "tests/support/values/temp_folder.h"

namespace sherd::tokenizer {
namespace {

using Json = nlohmann::json;

std::shared_ptr<const Tokenizer> parsed(const Json& json) {
  return Tokenizer::parse(json.dump(), "t.json");
}

std::string error_of(const Json& json, const std::string& text = "aaaa") {
  return test::error_text<DataError>([&] {
    const auto tokenizer = parsed(json);
    std::vector<std::int32_t> ids;
    Encoder(tokenizer).encode(text, SpecialTokens::kAsTokens, ids);
    tokenizer->decode(ids, false);
  });
}

Json replace(const std::string& from, const std::string& to) {
  return {{"type", "Replace"}, {"pattern", {{"String", from}}}, {"content", to}};
}
Json replace_regex(const std::string& from, const std::string& to) {
  return {{"type", "Replace"}, {"pattern", {{"Regex", from}}}, {"content", to}};
}
Json prepend(const std::string& text) {
  return {{"type", "Prepend"}, {"prepend", text}};
}

Json with_normalizers(const std::vector<Json>& normalizers) {
  Json json = test::small_tokenizer();
  json["normalizer"] = {{"type", "Sequence"}, {"normalizers", normalizers}};
  return json;
}

std::string utf8(const std::vector<char32_t>& points) {
  std::string text;
  for (const char32_t point : points) data::append_utf8(text, point);
  return text;
}

std::string normal(NormalForm form, const std::string& text) {
  std::string result;
  EXPECT_TRUE(to_normal_form(form, text, result));
  return result;
}

// U+0300 is of class 230, U+0315 of class 232 (UnicodeData.txt); a and U+0300 compose to U+00E0.
TEST(TokenizerBudget, AnyNumberOfCombiningMarksIsComposed) {
  constexpr std::size_t kPairs = 300'000;
  std::vector<char32_t> points = {'a'}, sorted(kPairs, 0x300);
  for (std::size_t i = 0; i < kPairs; ++i) points.insert(points.end(), {0x315, 0x300});
  sorted.resize(2 * kPairs, 0x315);
  std::vector<char32_t> composed = sorted, decomposed = sorted;
  composed[0] = 0xe0;
  decomposed.insert(decomposed.begin(), 'a');
  EXPECT_EQ(normal(NormalForm::kNfc, utf8(points)), utf8(composed));
  EXPECT_EQ(normal(NormalForm::kNfkc, utf8(points)), utf8(composed));
  EXPECT_EQ(normal(NormalForm::kNfd, utf8(points)), utf8(decomposed));
  EXPECT_EQ(normal(NormalForm::kNfkd, utf8(points)), utf8(decomposed));
  // U+0F73 is of class 0 and decomposes to U+0F71 U+0F72, of classes 129 and 130.
  std::vector<char32_t> vowels(2 * kPairs, 0xf71);
  std::fill(vowels.begin() + kPairs, vowels.end(), 0xf72);
  EXPECT_EQ(normal(NormalForm::kNfc, utf8(std::vector<char32_t>(kPairs, 0xf73))), utf8(vowels));
}

// Against ICU itself, whose own way is quick enough for runs of some hundred.
TEST(TokenizerBudget, LongRunsOfMarksBecomeWhatShortOnesDo) {
  UErrorCode status = U_ZERO_ERROR;
  const icu::UnicodeSet known(u"[:age=9.0:]", status),
      marks(u"[[:M:][:ccc=230:]\\uFF9E\\U0001E4EC]", status);
  ASSERT_TRUE(U_SUCCESS(status));
  const icu::Normalizer2* const forms[] = {
      icu::Normalizer2::getNFCInstance(status), icu::Normalizer2::getNFDInstance(status),
      icu::Normalizer2::getNFKCInstance(status), icu::Normalizer2::getNFKDInstance(status)};
  std::mt19937 random(7);
  for (int round = 0; round < 400; ++round) {
    std::string text;
    const auto length = static_cast<int>(random() % 600);
    for (int i = 0; i < length; ++i) {
      const bool is_mark = random() % 64 != 0;
      const std::u32string_view others = U"aeiou\u00e0\u1100\u1161\u4e2d\u0f73\u09c7\u09be\u0b47 ";
      data::append_utf8(text, is_mark
                                  ? static_cast<char32_t>(marks.charAt(static_cast<std::int32_t>(
                                        random() % static_cast<unsigned>(marks.size()))))
                                  : others[random() % others.size()]);
    }
    text += "\u00e9";
    for (std::size_t form = 0; form < 4; ++form) {
      const icu::FilteredNormalizer2 only_known(*forms[form], known);
      const icu::Normalizer2& filtered = only_known;
      std::string expected;
      filtered.normalize(icu::UnicodeString::fromUTF8(text), status).toUTF8String(expected);
      ASSERT_EQ(normal(static_cast<NormalForm>(form), text), expected) << "round " << round;
    }
  }
}

TEST(TokenizerBudget, NormalisersGrowTextToALimit) {
  const std::string grows =
      "the tokenizer's normaliser makes a text longer than 4224 bytes, 32 times its size.";
  EXPECT_EQ(error_of(with_normalizers(std::vector<Json>(60, replace("a", "aa")))), grows);
  EXPECT_EQ(error_of(with_normalizers(std::vector<Json>(60, replace("aa", "aaaa")))), grows);
  EXPECT_EQ(error_of(with_normalizers(std::vector<Json>(60, replace_regex("a", "aa")))), grows);
  EXPECT_EQ(error_of(with_normalizers({replace("a", std::string(1 << 20, 'b'))})), grows);
  EXPECT_EQ(error_of(with_normalizers({prepend(std::string(1 << 20, 'b'))})), grows);
  EXPECT_EQ(error_of(with_normalizers(std::vector<Json>(30, prepend("bb")))), "(no error)");
  EXPECT_EQ(error_of(with_normalizers(std::vector<Json>(60, replace("a", "b")))), "(no error)");
  EXPECT_EQ(error_of(with_normalizers(std::vector<Json>(100'000, replace("a", "b")))).substr(0, 22),
            "t.json.normalizer.norm");
  Json nested = replace("a", "b");
  for (int i = 0; i < 20; ++i) nested = {{"type", "Sequence"}, {"normalizers", {nested}}};
  EXPECT_NE(error_of(with_normalizers({nested})).find("nested too deeply"), std::string::npos);
}

TEST(TokenizerBudget, PreTokenizersGrowTextToALimit) {
  Json json = test::small_tokenizer();
  std::vector<Json> steps;
  for (int i = 0; i < 30; ++i) {
    steps.push_back({{"type", "Split"},
                     {"pattern", {{"Regex", "."}}},
                     {"behavior", "Isolated"},
                     {"invert", false}});
    steps.push_back({{"type", "Metaspace"},
                     {"replacement", std::string(1, static_cast<char>('A' + i % 26))},
                     {"prepend_scheme", "always"},
                     {"split", false}});
  }
  json["pre_tokenizer"] = {{"type", "Sequence"}, {"pretokenizers", steps}};
  EXPECT_EQ(error_of(json),
            "the tokenizer's pre-tokenizer makes a text more than 32 times as long.");
  json["pre_tokenizer"]["pretokenizers"] = std::vector<Json>(100'000, steps[0]);
  EXPECT_NE(error_of(json).find("more than 64 parts"), std::string::npos);
}

TEST(TokenizerBudget, DecodersGrowTextToALimit) {
  Json json = test::small_tokenizer();
  json["decoder"] = {{"type", "Sequence"}, {"decoders", std::vector<Json>(60, replace("a", "aa"))}};
  EXPECT_EQ(error_of(json), "the tokenizer's decoder makes tokens more than 32 times as long.");
  json["decoder"]["decoders"] = std::vector<Json>(1000, replace("a", "b"));
  EXPECT_NE(error_of(json).find("more than 64 parts"), std::string::npos);
}

TEST(TokenizerBudget, TokensBeforeADocumentHaveALimit) {
  Json json = test::small_tokenizer();
  const Json token = {{"SpecialToken", {{"id", "<|end|>"}, {"type_id", 0}}}};
  std::vector<Json> single(2000, token);
  single.push_back({{"Sequence", {{"id", "A"}, {"type_id", 0}}}});
  json["post_processor"] = {
      {"type", "TemplateProcessing"},
      {"single", single},
      {"pair", Json::array()},
      {"special_tokens",
       {{"<|end|>",
         {{"id", "<|end|>"}, {"ids", std::vector<int>(100, 258)}, {"tokens", {"<|end|>"}}}}}}};
  EXPECT_NE(error_of(json).find("more than 1000 tokens before a document"), std::string::npos);
}

TEST(TokenizerBudget, PatternsBacktrackToALimit) {
  // Two looks ahead: not a table.
  const ParsedPattern pattern = parse_pattern("(a|a|aa)+(?=bb)b", "p");
  const SplitPattern split(pattern, "p");
  ASSERT_FALSE(split.is_table());
  const auto scanned = [&](const std::string& text) {
    SplitPattern::Scratch scratch;
    SplitPattern::Scan scan(split, scratch, text);
    std::size_t begin = 0, end = 0;
    while (scan.next(begin, end)) {
    }
    return begin;
  };
  EXPECT_EQ(scanned("caaabb"), 1u);
  EXPECT_EQ(test::error_text<DataError>([&] { scanned(std::string(60, 'a') + "c"); }),
            "p: the pattern backtracks too much on a text of 61 bytes.");
  // No match is long, but there are as many as characters, and each looks to the end, in one go.
  for (const char* source : {"a(?=a*bb)|a", "a(?=a*+)", "a(?=a*$)"}) {
    const SplitPattern looks(parse_pattern(source, "p"), "p", SplitPattern::Matcher::kPcre2);
    EXPECT_EQ(test::error_text<DataError>([&] {
                const std::string text(1'000'000, 'a');
                SplitPattern::Scratch scratch;
                SplitPattern::Scan scan(looks, scratch, text);
                for (std::size_t begin = 0, end = 0; scan.next(begin, end);) {
                }
              }),
              "p: the pattern backtracks too much on a text of 1000000 bytes.")
        << source;
  }
}

// PCRE2 gets a text in pieces, which no match may show.
TEST(TokenizerBudget, PiecesOfATextHideNoMatch) {
  std::mt19937 random(11);
  for (const char* source : {R"('s| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)",
                             R"(a+b|\n+$)", R"(a++(?!b)|bc)"}) {
    const SplitPattern best(parse_pattern(source, "p"), "p");
    const SplitPattern pcre2(parse_pattern(source, "p"), "p", SplitPattern::Matcher::kPcre2);
    ASSERT_TRUE(best.is_table());
    for (int round = 0; round < 200; ++round) {
      std::string text;
      while (text.size() < random() % 3000) {
        text.append(1 + (random() % 8 == 0 ? random() % 400 : 0), "abc1 \n'."[random() % 8]);
      }
      SplitPattern::Scratch one, other;
      SplitPattern::Scan expected(best, one, text), found(pcre2, other, text);
      std::size_t a = 0, b = 0, c = 0, d = 0;
      bool more = true;
      while (more) {
        more = expected.next(a, b);
        ASSERT_EQ(found.next(c, d), more);
        ASSERT_EQ(a, c);
        ASSERT_EQ(b, d);
      }
    }
  }
}

TEST(TokenizerBudget, AddedTokensAreLookedForToALimit) {
  Json json = test::small_tokenizer();
  json["added_tokens"].push_back({{"id", 259},
                                  {"content", " "},
                                  {"lstrip", true},
                                  {"special", true},
                                  {"normalized", false},
                                  {"rstrip", true},
                                  {"single_word", false}});
  EXPECT_NE(error_of(json, std::string(1'000'000, ' ')).find("added tokens take more than"),
            std::string::npos);
  EXPECT_EQ(error_of(json, std::string(1'000, ' ')), "(no error)");
}

TEST(TokenizerBudget, JsonOfATokenizerHasBounds) {
  EXPECT_NE(test::error_text<DataError>([] {
              Tokenizer::parse(std::string(1'000'000, '['), "t");
            }).find("nested deeper than 100 levels"),
            std::string::npos);
  std::string many = "[0";
  for (int i = 0; i < 1 << 24; ++i) many += ",0";
  EXPECT_NE(test::error_text<DataError>([&] {
              Tokenizer::parse(many + "]", "t");
            }).find("more than 16777216 values"),
            std::string::npos);
}

TEST(TokenizerBudget, NamesOfSpecialTokensAreFew) {
  const test::TempFolder folder;
  const auto error = [&](const std::string& config) {
    folder.write("tokenizer_config.json", config);
    return test::error_text<DataError>([&] { named_tokens(folder.path()); });
  };
  const auto object = [](int size, const std::string& suffix, const std::string& value) {
    std::string keys;
    for (int i = 0; i < size; ++i) {
      keys += (i == 0 ? "\"" : ",\"") + std::to_string(i) + suffix + "\":" + value;
    }
    return "{" + keys + "}";
  };
  EXPECT_EQ(error(object(300'000, "", "0")), "(no error)") << "keys that nobody reads";
  EXPECT_EQ(error(R"({"added_tokens_decoder": )" + object(100'000, "", "{}") + "}"), "(no error)");
  EXPECT_EQ(error(object(1000, "_token", R"("a")")), "(no error)");
  EXPECT_NE(error(object(1001, "_token", R"("a")")).find("more than 1000 special tokens are named"),
            std::string::npos);
  EXPECT_NE(error(R"({"extra_special_tokens": )" + object(300'000, "", R"("a")") + "}")
                .find("more than 10000 keys name special tokens"),
            std::string::npos);
  EXPECT_NE(error(std::string(1000, '[')).find("nested deeper than 100 levels"), std::string::npos);
}

}  // namespace
}  // namespace sherd::tokenizer
