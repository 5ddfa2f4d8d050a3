/// Changes to the files that a run has kept of a folder, where the run says something else.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace sherd::huggingface {

/// config.json of the same model with another vocabulary.
std::string with_vocab_size(std::string_view config, const std::string& path,
                            std::int64_t vocab_size);

/// config.json of the same model that reads longer texts. Lengths that follow from the old one where the file says
/// nothing are written down, so that rotary positions stay as they are. longrope's factor follows from both lengths,
/// so such a file stays as it is; so does one that is longer already.
std::string with_positions(std::string_view config, const std::string& path,
                           std::int64_t positions);

/// tokenizer_config.json for texts as long; one that cuts them sooner, or not at all, stays as it is.
std::string tokenizer_with_positions(std::string_view tokenizer_config, std::string_view config,
                                     std::int64_t positions);

/// What tells others where a text ends.
struct EndTokens {
  std::vector<std::int32_t> ids;        ///< of a text, the likeliest first
  std::vector<std::int32_t> beginning;  ///< one or none
};
/// config.json with them: where it names others, or none.
std::string with_end_tokens(std::string_view config, const std::string& path,
                            const EndTokens& tokens);
/// generation_config.json with them. `generation`: the file that there was, empty if there was none; `config`: the
/// model's config.json, whose numbers of tokens a new file repeats, as transformers would have it.
std::string generation_config(std::string_view generation, std::string_view config,
                              const EndTokens& tokens);
/// tokenizer_config.json whose eos_token is `token`.
std::string with_eos_token(std::string_view tokenizer_config, const std::string& token);

}  // namespace sherd::huggingface
