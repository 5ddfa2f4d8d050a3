#include "engine/generate/text_stream.h"

#include <gtest/gtest.h>

namespace sherd::engine {
namespace {

// Bytes are tokens here.
TextStream stream_of(std::vector<std::string> stops, const std::string& prompt = "") {
  const std::shared_ptr<const data::TokenText> text = data::make_byte_text(256);
  return {[text](std::span<const std::int32_t> ids) { return text->text(ids); }, text->ids(prompt),
          std::move(stops)};
}

// What take() gives after each byte, joined with bars; the last piece is the end's.
std::string pieces(TextStream stream, std::string_view bytes) {
  std::string all;
  for (const char byte : bytes) {
    const bool goes_on = stream.add(static_cast<unsigned char>(byte));
    all += stream.take(false) + "|";
    if (!goes_on) break;
  }
  return all + stream.take(true);
}

TEST(TextStream, GivesEveryByteOfPlainTextAtOnce) {
  EXPECT_EQ(pieces(stream_of({}), "abc"), "a|b|c|");
}

TEST(TextStream, KeepsTheFirstBytesOfACharacterBackUntilItIsWhole) {
  EXPECT_EQ(pieces(stream_of({}), "a\xe2\x82\xac!"), "a|||€|!|");
}

TEST(TextStream, ShowsWhatNeverBecameACharacterAtTheEnd) {
  EXPECT_EQ(pieces(stream_of({}), "a\xe2\x82"), "a|||\\xe2\\x82");
}

TEST(TextStream, EndsInFrontOfAStopStringOfWhichNothingWasShown) {
  EXPECT_EQ(pieces(stream_of({"END"}), "xEEND!"), "x||E|||");
  EXPECT_EQ(pieces(stream_of({"\n\n", "b"}), "a\nb"), "a||\n|");
}

TEST(TextStream, ShowsWhatOnlyLookedLikeTheBeginningOfAStopString) {
  EXPECT_EQ(pieces(stream_of({"END"}), "ENX"), "||ENX|");
  EXPECT_EQ(pieces(stream_of({"END"}), "EN"), "||EN");
}

TEST(TextStream, LooksForStopStringsAfterThePromptOnly) {
  EXPECT_EQ(pieces(stream_of({"ab"}, "xab"), "cab"), "c|||");
}

TEST(TextStream, TakesAnEmptyStopStringForNone) {
  EXPECT_EQ(pieces(stream_of({""}), "ab"), "a|b|");
}

}  // namespace
}  // namespace sherd::engine
