#include "engine/data/template/lexer.h"

#include <algorithm>
#include <cctype>

#include "core/error.h"
#include "engine/data/utf8.h"

namespace sherd::templates {
namespace {

using TokenKind = Token::Kind;

bool is_space(char c) {
  return c == ' ' || c == '\t' || c == '\n' || c == '\r' || c == '\f' || c == '\v';
}
bool is_name_begin(char c) {
  return std::isalpha(static_cast<unsigned char>(c)) != 0 || c == '_' ||
         static_cast<unsigned char>(c) >= 0x80;
}
bool is_digit(char c) {
  return c >= '0' && c <= '9';
}

std::string with_plain_line_breaks(std::string_view source) {
  std::string text;
  for (std::size_t i = 0; i < source.size(); ++i) {
    if (source[i] == '\r') {
      text.push_back('\n');
      if (i + 1 < source.size() && source[i + 1] == '\n') ++i;
    } else {
      text.push_back(source[i]);
    }
  }
  if (text.ends_with('\n')) text.pop_back();
  return text;
}

class Lexer {
 public:
  Lexer(std::string_view source, std::string_view where)
      : source_(with_plain_line_breaks(source)), where_(where) {}

  std::vector<Token> tokens() {
    while (at_ < source_.size()) {
      const std::size_t tag = next_tag();
      if (tag == std::string::npos) {
        add_text(source_.substr(at_));
        break;
      }
      const char kind = source_[tag + 1];
      const char sign = tag + 2 < source_.size() ? source_[tag + 2] : ' ';
      text_before(tag, kind, sign);
      at_ = tag + 2 + (sign == '-' || sign == '+' ? 1 : 0);
      if (kind == '#') {
        comment();
      } else {
        inside(kind == '%');
      }
    }
    add(TokenKind::kEnd, "");
    return std::move(tokens_);
  }

 private:
  std::size_t next_tag() const {
    for (std::size_t i = at_; i + 1 < source_.size(); ++i) {
      if (source_[i] != '{') continue;
      if (source_[i + 1] == '{' || source_[i + 1] == '%' || source_[i + 1] == '#') return i;
    }
    return std::string::npos;
  }

  void text_before(std::size_t tag, char kind, char sign) {
    std::string text = source_.substr(at_, tag - at_);
    const auto lines = std::count(text.begin(), text.end(), '\n');
    if (sign == '-') {
      while (!text.empty() && is_space(text.back())) text.pop_back();
    } else if (sign != '+' && kind != '{') {
      const std::size_t line_begin = text.rfind('\n') + 1;
      const bool begins_line = line_begin > 0 || line_starts_;
      if (begins_line && text.find_first_not_of(" \t", line_begin) == std::string::npos) {
        text.resize(line_begin);
      }
    }
    add_text(text);
    line_ += static_cast<int>(lines - std::count(text.begin(), text.end(), '\n'));
  }

  void add_text(const std::string& text) {
    if (!text.empty()) add(TokenKind::kText, text);
    line_ += static_cast<int>(std::count(text.begin(), text.end(), '\n'));
  }

  void comment() {
    const std::size_t end = source_.find("#}", at_);
    if (end == std::string::npos) refuse("a comment has no end");
    const char sign = end > at_ ? source_[end - 1] : ' ';
    skip_to(end + 2);
    close(sign, true);
  }

  // After a tag's end: what its sign takes, and the line break of a block's.
  void close(char sign, bool is_block) {
    line_starts_ = false;
    if (sign == '-') {
      const std::size_t begin = at_;
      std::size_t end = at_;
      while (end < source_.size() && is_space(source_[end])) ++end;
      skip_to(end);
      line_starts_ = end > begin && source_[end - 1] == '\n';
    } else if (is_block && sign != '+' && at_ < source_.size() && source_[at_] == '\n') {
      skip_to(at_ + 1);
      line_starts_ = true;
    }
  }

  void inside(bool is_block) {
    const std::string_view end = is_block ? "%}" : "}}";
    add(is_block ? TokenKind::kBlockBegin : TokenKind::kOutputBegin, "");
    const std::size_t first = tokens_.size();
    int depth = 0;
    for (;;) {
      while (at_ < source_.size() && is_space(source_[at_])) skip_to(at_ + 1);
      if (at_ >= source_.size()) refuse("a tag has no end");
      const std::string_view rest = std::string_view(source_).substr(at_);
      const char sign = rest[0];
      const bool has_sign = sign == '-' || (is_block && sign == '+');
      if (depth == 0 && rest.substr(has_sign ? 1 : 0).starts_with(end)) {
        skip_to(at_ + 2 + (has_sign ? 1 : 0));
        add(is_block ? TokenKind::kBlockEnd : TokenKind::kOutputEnd, "");
        close(has_sign ? sign : ' ', is_block);
        break;
      }
      token(depth);
    }
    const bool is_raw = is_block && tokens_.size() == first + 2 &&
                        tokens_[first].kind == TokenKind::kName && tokens_[first].text == "raw";
    if (is_raw) raw(first - 1);
  }

  void raw(std::size_t first_token) {
    tokens_.resize(first_token);
    std::size_t tag = at_;
    for (;; ++tag) {
      tag = source_.find("{%", tag);
      if (tag == std::string::npos) refuse("{% raw %} has no end");
      std::size_t name = tag + 2;
      while (name < source_.size() && (is_space(source_[name]) || source_[name] == '-')) ++name;
      if (std::string_view(source_).substr(name).starts_with("endraw")) break;
    }
    text_before(tag, '%', source_[tag + 2]);
    const std::size_t end = source_.find("%}", tag);
    if (end == std::string::npos) refuse("a tag has no end");
    at_ = end + 2;
    close(source_[end - 1], true);
  }

  void token(int& depth) {
    const char c = source_[at_];
    const std::string_view rest = std::string_view(source_).substr(at_);
    std::size_t size = 1;
    if (is_name_begin(c)) {
      while (size < rest.size() && (is_name_begin(rest[size]) || is_digit(rest[size]))) ++size;
      add(TokenKind::kName, rest.substr(0, size));
    } else if (is_digit(c)) {
      size = number(rest);
    } else if (c == '"' || c == '\'') {
      size = string(rest);
    } else {
      for (const std::string_view op : {"//", "**", "==", "!=", ">=", "<="}) {
        if (rest.starts_with(op)) size = 2;
      }
      if (std::string_view("+-*/%~<>=!.:|,;()[]{}").find(c) == std::string_view::npos) {
        refuse(fmt::format("unexpected character '{}'", c));
      }
      if (c == '(' || c == '[' || c == '{') ++depth;
      if (c == ')' || c == ']' || c == '}') --depth;
      if (depth < 0) refuse(fmt::format("unexpected '{}'", c));
      add(TokenKind::kOperator, rest.substr(0, size));
    }
    skip_to(at_ + size);
  }

  std::size_t number(std::string_view rest) {
    std::size_t size = 0;
    const auto digits = [&] {
      while (size < rest.size() && (is_digit(rest[size]) || rest[size] == '_')) ++size;
    };
    digits();
    bool is_float = false;
    if (size + 1 < rest.size() && rest[size] == '.' && is_digit(rest[size + 1])) {
      is_float = true;
      ++size;
      digits();
    }
    if (size < rest.size() && (rest[size] == 'e' || rest[size] == 'E')) {
      is_float = true;
      ++size;
      if (size < rest.size() && (rest[size] == '+' || rest[size] == '-')) ++size;
      digits();
    }
    std::string text(rest.substr(0, size));
    std::erase(text, '_');
    add(is_float ? TokenKind::kFloat : TokenKind::kInteger, text);
    return size;
  }

  std::size_t string(std::string_view rest) {
    const char quote = rest[0];
    std::string text;
    std::size_t i = 1;
    for (; i < rest.size() && rest[i] != quote; ++i) {
      if (rest[i] != '\\') {
        text.push_back(rest[i]);
        continue;
      }
      if (++i >= rest.size()) break;
      constexpr std::string_view kNames = "abfnrtv\\'\"", kMeant = "\a\b\f\n\r\t\v\\'\"";
      const char c = rest[i];
      if (const auto at = kNames.find(c); at != std::string_view::npos) {
        text.push_back(kMeant[at]);
      } else if (c == 'x' || c == 'u' || c == 'U') {
        const std::size_t digits = c == 'x' ? 2 : c == 'u' ? 4 : 8;
        unsigned point = 0;
        for (std::size_t d = 1; d <= digits; ++d) {
          const char digit = i + d < rest.size() ? rest[i + d] : ' ';
          if (std::isxdigit(static_cast<unsigned char>(digit)) == 0) refuse("a broken \\ escape");
          point = point * 16 +
                  static_cast<unsigned>(is_digit(digit) ? digit - '0' : (digit | 0x20) - 'a' + 10);
        }
        if (point > 0x10ffff) refuse("a broken \\ escape");
        data::append_utf8(text, static_cast<char32_t>(point));
        i += digits;
      } else if (c == '\n') {
        continue;
      } else {
        text.push_back('\\');
        text.push_back(c);
      }
    }
    if (i >= rest.size()) refuse("a string has no end");
    add(TokenKind::kString, text);
    return i + 1;
  }

  void skip_to(std::size_t end) {
    line_ += static_cast<int>(std::count(source_.begin() + static_cast<std::ptrdiff_t>(at_),
                                         source_.begin() + static_cast<std::ptrdiff_t>(end), '\n'));
    at_ = end;
  }
  void add(TokenKind kind, std::string_view text) {
    tokens_.push_back({kind, std::string(text), line_});
  }
  [[noreturn]] void refuse(const std::string& problem) const {
    throw DataError("{}:{}: {}.", where_, line_, problem);
  }

  const std::string source_;
  const std::string where_;
  std::vector<Token> tokens_;
  std::size_t at_ = 0;
  int line_ = 1;
  bool line_starts_ = true;
};

}  // namespace

std::vector<Token> tokenize(std::string_view source, std::string_view where) {
  return Lexer(source, where).tokens();
}

}  // namespace sherd::templates
