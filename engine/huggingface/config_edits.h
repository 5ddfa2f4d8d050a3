/// Edits the files that a run has kept of a folder, where the run's settings differ.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace sherd::huggingface {

/// config.json of the same model with another vocabulary.
std::string with_vocab_size(std::string_view config, const std::string& path,
                            std::int64_t vocab_size);

/// config.json of exported weights. They aren't quantised and have no prediction layers, so the file
/// no longer says so. A type that transformers has under another name gets that name, and no longer
/// names files of code.
std::string for_exported_weights(std::string_view config, const std::string& path);

/// config.json of exported weights with this many layers of multi-token prediction.
std::string with_prediction_layers(std::string_view config, const std::string& path,
                                   std::int64_t layers);

/// config.json of the same model with a longer context. Original lengths that the file doesn't give
/// are written explicitly, so that rotary positions don't change. A file with longrope stays
/// unchanged, since its factor depends on both lengths; so does a file whose context is already
/// long enough.
std::string with_positions(std::string_view config, const std::string& path,
                           std::int64_t positions);

/// tokenizer_config.json for texts of that length. It stays unchanged unless its limit is the
/// model's old context.
std::string tokenizer_with_positions(std::string_view tokenizer_config, std::string_view config,
                                     std::int64_t positions);

/// Tokens that mark the end and the beginning of a text for other programs.
struct EndTokens {
  std::vector<std::int32_t> ids;        ///< end tokens, the likeliest first
  std::vector<std::int32_t> beginning;  ///< one or none
};
/// config.json with these tokens in place of its own.
std::string with_end_tokens(std::string_view config, const std::string& path,
                            const EndTokens& tokens);
/// generation_config.json with these tokens. `generation`: the existing file, or empty. `config`:
/// the model's config.json; a new file repeats its token ids, as in transformers.
std::string generation_config(std::string_view generation, std::string_view config,
                              const EndTokens& tokens);
/// tokenizer_config.json without the code that it names, which isn't exported.
std::string without_code(std::string_view tokenizer_config);
/// tokenizer_config.json, or special_tokens_map.json, whose eos_token is `token`.
std::string with_eos_token(std::string_view tokenizer_config, const std::string& token);

}  // namespace sherd::huggingface
