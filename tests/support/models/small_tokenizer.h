/// A byte-level tokenizer.json of less than 16 KiB with a bit of everything.
#pragma once

#include <nlohmann/json.hpp>

namespace sherd::test {

/// Ids: a byte is itself, "th" is 256, "the" 257, the special token "<|end|>" 258. Words are runs of
/// letters.
nlohmann::json small_tokenizer();

}  // namespace sherd::test
