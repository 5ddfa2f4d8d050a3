/// Unicode's normal forms, as Unicode 9.0 defines them (as Hugging Face's tokenizers do): code points that are
/// younger stay as they are.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace sherd::tokenizer {

enum class NormalForm : std::uint8_t { kNfc, kNfd, kNfkc, kNfkd };

/// Writes `text`, UTF-8, to `result`, which is empty; false, and nothing is written, if it is ASCII.
/// Cost     linear, but for runs of combining marks, n log n.
/// Errors   DataError: above 1 GiB
bool to_normal_form(NormalForm form, std::string_view text, std::string& result);

}  // namespace sherd::tokenizer
