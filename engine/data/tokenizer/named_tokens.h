/// The special tokens that a tokenizer's folder names: beginning, end, padding, ...
///
/// As transformers 5.23 reads them: tokenizer_config.json first. If it has no
/// "added_tokens_decoder", special_tokens_map.json overrides it key by key. Names are bos, eos,
/// unk, sep, pad, cls and mask_token, other text keys that end in _token, and the keys of a
/// dictionary "extra_special_tokens". Missing keys get the defaults of the tokenizer's class: from
/// "tokenizer_class", else from the model's type.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "engine/data/tokenizer/added_tokens.h"

namespace sherd::tokenizer {

struct NamedToken {
  std::string name;         ///< "bos_token"
  AddedToken token;         ///< without its id
  std::string where;        ///< the file that names it
  bool is_default = false;  ///< a default of the class; counts only if the tokenizer has it
};

/// In the order in which they were first named.
/// Errors   DataError: a file that isn't a JSON object, a value that isn't a token
std::vector<NamedToken> named_tokens(const std::string& folder);

const NamedToken* find_named(const std::vector<NamedToken>& tokens, std::string_view name);

}  // namespace sherd::tokenizer
