#include "tests/support/models/small_tokenizer.h"

#include <string>

#include "engine/data/tokenizer/byte_alphabet.h"
#include "engine/data/utf8.h"

namespace sherd::test {

nlohmann::json small_tokenizer() {
  nlohmann::json vocabulary;
  for (int byte = 0; byte < 256; ++byte) {
    std::string spelled;
    data::append_utf8(spelled, tokenizer::character_of_byte(static_cast<std::uint8_t>(byte)));
    vocabulary[spelled] = byte;
  }
  vocabulary["th"] = 256;
  vocabulary["the"] = 257;
  return {{"version", "1.0"},
          {"truncation", nullptr},
          {"padding", nullptr},
          {"added_tokens",
           {{{"id", 258}, {"content", "<|end|>"}, {"special", true}, {"normalized", false}}}},
          {"normalizer", {{"type", "NFC"}}},
          {"pre_tokenizer",
           {{"type", "Sequence"},
            {"pretokenizers",
             {{{"type", "Split"},
               {"pattern", {{"Regex", "\\p{L}+|\\s+(?!\\S)|[^\\s\\p{L}]{1,3}"}}},
               {"behavior", "Isolated"},
               {"invert", false}},
              {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", false}}}}}},
          {"post_processor", nullptr},
          {"decoder", {{"type", "ByteLevel"}}},
          {"model",
           {{"type", "BPE"},
            {"dropout", nullptr},
            {"vocab", vocabulary},
            {"merges", {"t h", "th e"}}}}};
}

}  // namespace sherd::test
