/// A template's source becomes tokens: text between tags, and what stands inside of them.
///
/// As Jinja does with trim_blocks and lstrip_blocks: a line break behind a block tag and white space
/// before one go; "-" takes all white space on its side, "+" leaves it. One line break at the end of
/// the source goes, comments go, {% raw %} is text.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace sherd::templates {

struct Token {
  enum class Kind {
    kText,
    kOutputBegin,  ///< {{
    kOutputEnd,
    kBlockBegin,  ///< {%
    kBlockEnd,
    kName,
    kString,  ///< `text` is what it means
    kInteger,
    kFloat,
    kOperator,
    kEnd,
  };
  Kind kind = Kind::kEnd;
  std::string text;
  int line = 1;
};

/// Errors   DataError "where:line: ..."
std::vector<Token> tokenize(std::string_view source, std::string_view where);

}  // namespace sherd::templates
