/// Unicode's normal forms as of Unicode 9.0, like Hugging Face's tokenizers: newer code points stay
/// unchanged.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace sherd::tokenizer {

enum class NormalForm : std::uint8_t { kNfc, kNfd, kNfkc, kNfkd };

/// Writes the normal form of `text` (UTF-8) to `result`, which must be empty. For ASCII text it
/// writes nothing and returns false.
/// Cost     linear, but n log n for runs of combining marks.
/// Errors   DataError: above 1 GiB
bool to_normal_form(NormalForm form, std::string_view text, std::string& result);

}  // namespace sherd::tokenizer
