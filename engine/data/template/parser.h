/// Parses the expressions of a template: Jinja's grammar, from lowest to highest precedence.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "engine/data/template/lexer.h"
#include "engine/data/template/syntax.h"

namespace sherd::templates {

class ExpressionParser {
 public:
  ExpressionParser(std::vector<Token> tokens, std::string_view where)
      : tokens_(std::move(tokens)), where_(where) {}

 protected:
  ExpressionPtr expression();  ///< with "a if b else c"
  /// Expressions separated by commas; with a comma, a tuple.
  ExpressionPtr tuple_or_expression();
  ExpressionPtr disjunction();  ///< without "if"
  ExpressionPtr filters(ExpressionPtr value);

  const Token& now() const { return tokens_[at_]; }
  Token take() { return tokens_[at_++]; }
  bool is_operator(std::string_view text) const {
    return now().kind == Token::Kind::kOperator && now().text == text;
  }
  bool is_name(std::string_view text) const {
    return now().kind == Token::Kind::kName && now().text == text;
  }
  bool take_operator(std::string_view text);
  bool take_name(std::string_view text);
  void expect_operator(std::string_view text);
  std::string expect_name();
  [[noreturn]] void refuse(const std::string& problem) const;
  ExpressionPtr make(Expression::Kind kind, std::string name = {}) const;
  /// Appends `part`, which may be null, to the parts of `outer`.
  void give(Expression& outer, ExpressionPtr part) const;
  void give_arguments(Expression& outer, CallArguments arguments) const;

 private:
  void grow(Expression& outer, const ExpressionPtr& part) const;
  ExpressionPtr conjunction();
  ExpressionPtr negation();
  ExpressionPtr comparison();
  ExpressionPtr sum();
  ExpressionPtr concatenation();
  ExpressionPtr product();
  ExpressionPtr power();
  ExpressionPtr unary(bool with_filters);
  ExpressionPtr primary();
  ExpressionPtr postfix(ExpressionPtr value);
  ExpressionPtr one_filter(ExpressionPtr value);
  ExpressionPtr test(ExpressionPtr value);
  ExpressionPtr call(ExpressionPtr function);
  ExpressionPtr subscript(ExpressionPtr value);
  ExpressionPtr binary(std::string name, ExpressionPtr left, ExpressionPtr right) const;
  CallArguments call_arguments();
  ExpressionPtr list_or_dict();
  ExpressionPtr parenthesised();

  struct Nested;
  std::vector<Token> tokens_;
  std::size_t at_ = 0;
  int depth_ = 0;

 protected:
  std::string where_;
};

}  // namespace sherd::templates
