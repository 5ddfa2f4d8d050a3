#include "engine/generate/text_stream.h"

#include <gtest/gtest.h>

#include "engine/data/utf8.h"

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

bool is_utf8(std::string_view text) {
  const std::span bytes(reinterpret_cast<const std::uint8_t*>(text.data()), text.size());
  for (std::size_t at = 0; at < bytes.size();) {
    const int length = data::decode_utf8(bytes, at).length;
    if (length == 0) return false;
    at += static_cast<std::size_t>(length);
  }
  return true;
}

// As decoders of byte-fallback tokenizers: all bytes of a run are U+FFFD until it is UTF-8.
std::string by_runs(std::span<const std::int32_t> ids) {
  std::string text, run;
  const auto end_run = [&] {
    const bool is_whole = is_utf8(run);
    for (std::size_t i = 0; !is_whole && i < run.size(); ++i) text += "\xef\xbf\xbd";
    text += is_whole ? run : "";
    run.clear();
  };
  for (const std::int32_t id : ids) {
    if (id >= 0x80) {
      run += static_cast<char>(id);
      continue;
    }
    end_run();
    text += static_cast<char>(id);
  }
  end_run();
  return text;
}

TextStream stream_by_runs(std::string_view prompt) {
  std::vector<std::int32_t> ids;
  for (const char byte : prompt) ids.push_back(static_cast<unsigned char>(byte));
  return {by_runs, std::move(ids), {}};
}

TEST(TextStream, LosesNothingOfCharactersWhoseBytesAreTokens) {
  EXPECT_EQ(pieces(stream_by_runs(""), "\xf0\x9f\x98\x80\xf0\x9f\x98\x80 k"),
            "|||\xf0\x9f\x98\x80||||\xf0\x9f\x98\x80| |k|");
  EXPECT_EQ(pieces(stream_by_runs("\xf0\x9f\x98\x80"), "\xc3\xa9!"), "|\xc3\xa9|!|");
  // What never becomes whole is shown in whole characters.
  EXPECT_TRUE(is_utf8(pieces(stream_by_runs("\xc3\xa9"), "\xc3\xa9\xf0\x9f !")));
}

// The text for files holds the bytes themselves.
TEST(TextStream, LosesNothingOfExactTextWhoseTokensAreBytes) {
  const std::shared_ptr<const data::TokenText> text = data::make_byte_text(256);
  const auto exact = [text](const std::string& prompt) {
    return TextStream([text](std::span<const std::int32_t> ids) { return text->exact_text(ids); },
                      text->ids(prompt), {});
  };
  EXPECT_EQ(pieces(exact(""), "a\xc3\xa9!"), "a||\xc3\xa9|!|");
  EXPECT_EQ(pieces(exact("\xe2\x82"), "\xac!"), "\xe2\x82\xac|!|");
  EXPECT_EQ(pieces(exact(""), "a\xa9\xc3x\xe2"), "a|\xa9||\xc3x||\xe2");
}

TEST(TextStream, BeginsWithTheCharacterThatThePromptHasBegun) {
  EXPECT_EQ(pieces(stream_by_runs("a\xc3"), "\xa9!"), "\xc3\xa9|!|");
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
