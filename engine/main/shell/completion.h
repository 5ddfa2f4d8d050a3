/// Completion scripts for shells: commands, options, files, recipe keys and their values.
///
/// A script calls nothing, so completing a word starts no process. It belongs to the program that
/// wrote it, since keys and options are in it.
#pragma once

#include <string>

#include "engine/main/shell/command_table.h"

namespace sherd::main {

using CommandTable = std::vector<CommandRow>;
using KeyTable = std::vector<KeyRow>;

/// To source, or to install as bash-completion/completions/sherd.
std::string bash_completion(const CommandTable& commands, const KeyTable& keys);
/// To install as _sherd in a folder of $fpath.
std::string zsh_completion(const CommandTable& commands, const KeyTable& keys);
/// To source, or to install as fish/vendor_completions.d/sherd.fish.
std::string fish_completion(const CommandTable& commands, const KeyTable& keys);

/// The values of `words` with `separator` between them.
std::string words_of(const std::vector<std::string>& words, std::string_view separator = " ");
/// Inside of single quotes, for bash and zsh: ' becomes '\''.
std::string single_quoted(std::string_view text);

}  // namespace sherd::main
