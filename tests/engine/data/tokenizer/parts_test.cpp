// Parts of a text have the tokens of the whole, if it is cut before a word or a special token.
#include <gtest/gtest.h>

#include "engine/data/tokenizer/tokenizer.h"
#include "tests/support/models/small_tokenizer.h"

namespace sherd::tokenizer {
namespace {

using Ids = std::vector<std::int32_t>;
using Json = nlohmann::json;

constexpr const char* kMark = "\xe2\x96\x81";  // what spaces become

// As of Llama 2: letters, spaces as a mark, and the mark before a word in one token.
Json marks_spaces(const Json& normalizer, const Json& pre_tokenizer) {
  Json json = test::small_tokenizer();
  const std::string mark = kMark;
  json["normalizer"] = normalizer;
  json["pre_tokenizer"] = pre_tokenizer;
  json["decoder"] = {{"type", "Fuse"}};
  json["model"]["vocab"] = {{mark, 0}, {"a", 1}, {"b", 2}, {mark + "a", 3}, {mark + "b", 4}};
  json["model"]["merges"] = {mark + " a", mark + " b"};
  json["added_tokens"][0]["id"] = 5;
  return json;
}

Ids whole(const std::shared_ptr<const Tokenizer>& tokenizer, const std::string& text) {
  Ids ids;
  Encoder(tokenizer).encode(text, SpecialTokens::kAsTokens, ids);
  return ids;
}

Ids in_parts(const std::shared_ptr<const Tokenizer>& tokenizer,
             const std::vector<std::string>& parts) {
  Encoder encoder(tokenizer);
  Ids ids;
  bool continues = false;
  for (const std::string& part : parts) {
    encoder.encode_part(part, std::string(part.size(), '\1'), continues, ids);
    continues = true;
  }
  return ids;
}

TEST(PartsOfText, HaveNothingBeforeAWordThatTheWholeHasNot) {
  const Json prepend = {{"type", "Prepend"}, {"prepend", kMark}};
  const Json replace = {{"type", "Replace"}, {"pattern", {{"String", " "}}}, {"content", kMark}};
  const Json normalizer = {{"type", "Sequence"}, {"normalizers", {prepend, replace}}};
  const auto metaspace = [](const char* scheme) {
    return Json{
        {"type", "Metaspace"}, {"replacement", kMark}, {"prepend_scheme", scheme}, {"split", true}};
  };
  Json bytes = test::small_tokenizer();
  bytes["pre_tokenizer"] = {
      {"type", "ByteLevel"}, {"add_prefix_space", true}, {"use_regex", false}};
  for (const Json& json :
       {marks_spaces(normalizer, nullptr), marks_spaces(nullptr, metaspace("always")),
        marks_spaces(nullptr, metaspace("first")), bytes}) {
    SCOPED_TRACE(json.at("normalizer").dump() + json.at("pre_tokenizer").dump());
    const auto tokenizer = Tokenizer::parse(json.dump(), "t.json");
    for (const std::vector<std::string>& parts : {std::vector<std::string>{"a b", " a"},
                                                  {"ab", "ba"},
                                                  {"a", " b<|end|>", "a b"},
                                                  {"<|end|>", "a", " b", "<|end|>", " a"}}) {
      std::string text;
      for (const std::string& part : parts) text += part;
      EXPECT_EQ(in_parts(tokenizer, parts), whole(tokenizer, text)) << text;
    }
  }
}

}  // namespace
}  // namespace sherd::tokenizer
