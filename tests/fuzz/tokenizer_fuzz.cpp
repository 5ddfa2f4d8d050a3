// A tokenizer.json that lies, and a text for it: encoded and shown again, or refused in one sentence. What comes out is
// bounded by what goes in; what isn't counted shows as an input that takes 20 s, or a process above its limit of
// memory (run.sh).
#include <vector>

#include "engine/data/tokenizer/normalizer.h"
#include "engine/data/tokenizer/tokenizer.h"
#include "tests/fuzz/json_edits.h"
#include "tests/support/models/small_tokenizer.h"

namespace sherd::fuzz {
namespace {

constexpr std::size_t kDocument = 4096;

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
    const std::string part(bytes.rest());
    // Long runs, where what is more than linear shows.
    std::string document = part;
    while (!part.empty() && document.size() < kDocument) document += part;
    tokenizer::Encoder(tokenizer).encode(document, policy, ids);
    // A byte is a token at most, of what the normaliser and the pre-tokenizer make; bytes may be spelled, twice as many.
    const std::size_t most = tokenizer::kMostGrowth * document.size() + tokenizer::kMostAdded;
    demand(ids.size() <= 4 * tokenizer::kMostGrowth * most, "ids are within the budget");
    for (const std::int32_t id : ids) {
      demand(id >= 0 && id < tokenizer->vocab_size(), "ids are the tokenizer's");
    }
    std::size_t spelled = 0;
    for (const std::int32_t id : ids) spelled += tokenizer->token_of(id).size() + 1;
    demand(
        tokenizer->decode(ids, false).size() <=
            tokenizer::kMostGrowth * tokenizer::kMostGrowth * spelled + 4 * tokenizer::kMostAdded,
        "the text is within the budget");
  }
}

}  // namespace
}  // namespace sherd::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  sherd::fuzz::expect_answer([&] { sherd::fuzz::use({data, size}); });
  return 0;
}
