/// Splits a template's source into tokens: the text between tags, and the contents of tags.
///
/// As Jinja with trim_blocks and lstrip_blocks: a line break after a block tag and white space
/// before one are removed. "-" removes all white space on its side; "+" keeps it. One line break at
/// the end of the source is removed, and so are comments. {% raw %} is text.
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
    kString,  ///< `text` is its value
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
