// Lets a script ask Sherd's tokenizer (compare.py):
//
//   tokenizer_probe FOLDER encode text|tokens <texts >ids    special tokens in texts are text or tokens
//   tokenizer_probe FOLDER decode <ids >texts                special tokens are shown
//   tokenizer_probe FOLDER before >ids                       the tokens before a document
//   tokenizer_probe FOLDER time <texts                       processor seconds for all texts, best of 3
//
// texts: u32 bytes, UTF-8 each; ids: u32 count, i32 each; what can't be encoded is the count 2^32 - 1.
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <ctime>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "core/error.h"
#include "engine/data/tokenizer/tokenizer.h"

namespace {

using sherd::tokenizer::Encoder;
using sherd::tokenizer::SpecialTokens;
using sherd::tokenizer::Tokenizer;

bool read_count(std::uint32_t& count) {
  return std::fread(&count, sizeof(count), 1, stdin) == 1;
}
void write_count(std::uint32_t count) {
  std::fwrite(&count, sizeof(count), 1, stdout);
}
bool read_text(std::string& text) {
  std::uint32_t count = 0;
  if (!read_count(count)) return false;
  text.resize(count);
  return std::fread(text.data(), 1, count, stdin) == count;
}

void write_ids(std::span<const std::int32_t> ids) {
  write_count(static_cast<std::uint32_t>(ids.size()));
  std::fwrite(ids.data(), sizeof(ids[0]), ids.size(), stdout);
}

void encode(Encoder& encoder, SpecialTokens policy) {
  std::vector<std::int32_t> ids;
  for (std::string text; read_text(text);) {
    ids.clear();
    try {
      encoder.encode(text, policy, ids);
      write_ids(ids);
    } catch (const sherd::Error& error) {
      std::fprintf(stderr, "%s\n", error.what());
      write_count(0xffffffff);
    }
  }
}

void decode(const Tokenizer& tokenizer) {
  std::vector<std::int32_t> ids;
  for (std::uint32_t count = 0; read_count(count);) {
    ids.resize(count);
    if (std::fread(ids.data(), sizeof(ids[0]), count, stdin) != count) break;
    const std::string text = tokenizer.decode(ids, false);
    write_count(static_cast<std::uint32_t>(text.size()));
    std::fwrite(text.data(), 1, text.size(), stdout);
  }
}

void time_all(const std::shared_ptr<const Tokenizer>& tokenizer) {
  std::vector<std::string> texts;
  for (std::string text; read_text(text);) texts.push_back(text);
  double best = 1e9;
  std::vector<std::int32_t> ids;
  for (int run = 0; run < 3; ++run) {
    Encoder encoder(tokenizer);  // with an empty cache
    const std::clock_t begin = std::clock();
    for (const std::string& text : texts) {
      ids.clear();
      encoder.encode(text, SpecialTokens::kAsText, ids);
    }
    best = std::min(best, static_cast<double>(std::clock() - begin) / CLOCKS_PER_SEC);
  }
  std::printf("%.6f\n", best);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 3) return 2;
  const std::string label = argv[2];
  try {
    const auto tokenizer = Tokenizer::open(argv[1]);
    Encoder encoder(tokenizer);
    if (label == "encode") {
      const bool as_tokens = argc > 3 && std::string(argv[3]) == "tokens";
      encode(encoder, as_tokens ? SpecialTokens::kAsTokens : SpecialTokens::kAsText);
    }
    if (label == "decode") decode(*tokenizer);
    if (label == "before") write_ids(tokenizer->before_document());
    if (label == "time") time_all(tokenizer);
  } catch (const sherd::Error& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return error.exit_code();
  }
  return 0;
}
