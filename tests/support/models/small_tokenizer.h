/// A byte-level tokenizer.json of less than 16 KiB that uses a bit of everything.
#pragma once

#include <nlohmann/json.hpp>

namespace sherd::test {

/// Ids: a byte is its own id, "th" is 256, "the" 257, the special token "<|end|>" 258. Words are
/// runs of letters.
nlohmann::json small_tokenizer();

}  // namespace sherd::test
