// A tokenizer.json that lies, and a text for it: encoded and shown again, or refused in one sentence.
// Rooms: core engine/data/tokenizer engine/data/tokenizer/pattern engine/data/utf8 engine/data/mapped_file tests/support/small_tokenizer
#include <vector>

#include "engine/data/tokenizer/tokenizer.h"
#include "tests/fuzz/json_edits.h"
#include "tests/support/small_tokenizer.h"

namespace sherd::fuzz {
namespace {

// The first byte says how often the small tokenizer is edited; what the edits leave is the text.
void use(Bytes bytes) {
  static const std::string kOriginal = test::small_tokenizer().dump();
  Json json = Json::parse(kOriginal);
  const int edits = bytes.byte() % 5;
  JsonEdits(json, bytes).apply(edits);
  const std::string text =
      json.dump(-1, ' ', false, Json::error_handler_t::replace);  // edits may break a character
  const auto tokenizer = tokenizer::Tokenizer::parse(text, "fuzz/tokenizer.json");
  for (const auto policy :
       {tokenizer::SpecialTokens::kAsText, tokenizer::SpecialTokens::kAsTokens}) {
    std::vector<std::int32_t> ids;
    tokenizer::Encoder(tokenizer).encode(bytes.rest(), policy, ids);
    for (const std::int32_t id : ids) {
      demand(id >= 0 && id < tokenizer->vocab_size(), "ids are the tokenizer's");
    }
    tokenizer->decode(ids, false);
  }
}

}  // namespace
}  // namespace sherd::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  sherd::fuzz::expect_answer([&] { sherd::fuzz::use({data, size}); });
  return 0;
}
