// The order of operators is that of jinja2's own parser.
#include <charconv>
#include <utility>

#include "core/error.h"
#include "engine/data/template/parser.h"

namespace sherd::templates {

using Kind = Expression::Kind;
using TokenKind = Token::Kind;

/// Sources are hostile: no deeper than a stack holds.
struct ExpressionParser::Nested {
  explicit Nested(ExpressionParser& parser) : depth(parser.depth_) {
    if (++depth > 200) parser.refuse("expressions are nested too deep");
  }
  ~Nested() { --depth; }
  int& depth;
};

void ExpressionParser::refuse(const std::string& problem) const {
  throw DataError("{}:{}: {}.", where_, now().line, problem);
}

ExpressionPtr ExpressionParser::make(Kind kind, std::string name) const {
  auto expression = std::make_unique<Expression>();
  expression->kind = kind;
  expression->line = now().line;
  expression->name = std::move(name);
  return expression;
}

bool ExpressionParser::take_operator(std::string_view text) {
  if (!is_operator(text)) return false;
  ++at_;
  return true;
}

bool ExpressionParser::take_name(std::string_view text) {
  if (!is_name(text)) return false;
  ++at_;
  return true;
}

void ExpressionParser::expect_operator(std::string_view text) {
  if (!take_operator(text)) {
    refuse(fmt::format("expected '{}', found '{}'", text, now().text));
  }
}

std::string ExpressionParser::expect_name() {
  if (now().kind != TokenKind::kName)
    refuse(fmt::format("expected a name, found '{}'", now().text));
  return take().text;
}

ExpressionPtr ExpressionParser::expression() {
  const Nested nested(*this);
  ExpressionPtr value = disjunction();
  while (is_name("if")) {
    ExpressionPtr choice = make(Kind::kChoice);
    ++at_;
    ExpressionPtr condition = disjunction();
    ExpressionPtr other = take_name("else") ? expression() : nullptr;
    give(*choice, std::move(value));
    give(*choice, std::move(condition));
    give(*choice, std::move(other));
    value = std::move(choice);
  }
  return value;
}

ExpressionPtr ExpressionParser::tuple_or_expression() {
  ExpressionPtr first = expression();
  if (!is_operator(",")) return first;
  ExpressionPtr tuple = make(Kind::kTuple);
  give(*tuple, std::move(first));
  while (take_operator(",")) {
    const bool ends = now().kind == TokenKind::kOutputEnd || now().kind == TokenKind::kBlockEnd ||
                      is_operator(")") || is_operator("=");
    if (ends) break;
    give(*tuple, expression());
  }
  return tuple;
}

ExpressionPtr ExpressionParser::binary(std::string name, ExpressionPtr left,
                                       ExpressionPtr right) const {
  ExpressionPtr value = make(Kind::kBinary, std::move(name));
  give(*value, std::move(left));
  give(*value, std::move(right));
  return value;
}

ExpressionPtr ExpressionParser::disjunction() {
  ExpressionPtr left = conjunction();
  while (take_name("or")) left = binary("or", std::move(left), conjunction());
  return left;
}

ExpressionPtr ExpressionParser::conjunction() {
  ExpressionPtr left = negation();
  while (take_name("and")) left = binary("and", std::move(left), negation());
  return left;
}

ExpressionPtr ExpressionParser::negation() {
  if (!is_name("not")) return comparison();
  const Nested nested(*this);
  ExpressionPtr value = make(Kind::kUnary, "not");
  ++at_;
  give(*value, negation());
  return value;
}

ExpressionPtr ExpressionParser::comparison() {
  ExpressionPtr value = make(Kind::kCompare);
  give(*value, sum());
  for (;;) {
    std::string name;
    for (const std::string_view op : {"==", "!=", "<", "<=", ">", ">="}) {
      if (is_operator(op)) name = op;
    }
    if (is_name("in")) name = "in";
    const bool is_not_in = is_name("not") && tokens_[at_ + 1].kind == TokenKind::kName &&
                           tokens_[at_ + 1].text == "in";
    if (is_not_in) {
      ++at_;
      name = "not in";
    }
    if (name.empty()) break;
    ++at_;
    value->names.push_back(name);
    give(*value, sum());
  }
  return value->names.empty() ? std::move(value->parts[0]) : std::move(value);
}

ExpressionPtr ExpressionParser::sum() {
  ExpressionPtr left = concatenation();
  while (is_operator("+") || is_operator("-")) {
    const std::string name = take().text;
    left = binary(name, std::move(left), concatenation());
  }
  return left;
}

ExpressionPtr ExpressionParser::concatenation() {
  ExpressionPtr first = product();
  if (!is_operator("~")) return first;
  ExpressionPtr all = make(Kind::kConcat);
  give(*all, std::move(first));
  while (take_operator("~")) give(*all, product());
  return all;
}

ExpressionPtr ExpressionParser::product() {
  ExpressionPtr left = power();
  while (is_operator("*") || is_operator("/") || is_operator("//") || is_operator("%")) {
    const std::string name = take().text;
    left = binary(name, std::move(left), power());
  }
  return left;
}

ExpressionPtr ExpressionParser::power() {
  ExpressionPtr left = unary(true);
  while (take_operator("**")) left = binary("**", std::move(left), unary(true));
  return left;
}

ExpressionPtr ExpressionParser::unary(bool with_filters) {
  const Nested nested(*this);
  ExpressionPtr value;
  if (is_operator("-") || is_operator("+")) {
    value = make(Kind::kUnary, take().text);
    give(*value, unary(false));
  } else {
    value = primary();
  }
  value = postfix(std::move(value));
  return with_filters ? filters(std::move(value)) : std::move(value);
}

ExpressionPtr ExpressionParser::primary() {
  ExpressionPtr value = make(Kind::kConstant);
  switch (now().kind) {
    case TokenKind::kName: {
      const std::string name = take().text;
      if (name == "true" || name == "True") {
        value->constant = true;
      } else if (name == "false" || name == "False") {
        value->constant = false;
      } else if (name == "none" || name == "None") {
        value->constant = None{};
      } else {
        value->kind = Kind::kName;
        value->name = name;
      }
      return value;
    }
    case TokenKind::kString: {
      std::string text = take().text;
      while (now().kind == TokenKind::kString) text += take().text;
      value->constant = Value::text(std::move(text));
      return value;
    }
    case TokenKind::kInteger: {
      std::int64_t number = 0;
      const std::string& digits = now().text;
      const auto result = std::from_chars(digits.data(), digits.data() + digits.size(), number);
      if (result.ec != std::errc{}) refuse(fmt::format("the number {} is too large", digits));
      ++at_;
      value->constant = number;
      return value;
    }
    case TokenKind::kFloat: {
      double number = 0.0;
      const std::string& digits = now().text;
      std::from_chars(digits.data(), digits.data() + digits.size(), number);
      ++at_;
      value->constant = number;
      return value;
    }
    case TokenKind::kOperator:
      if (is_operator("(")) return parenthesised();
      if (is_operator("[") || is_operator("{")) return list_or_dict();
      break;
    default:
      break;
  }
  refuse(now().text.empty() ? "an expression is missing"
                            : fmt::format("unexpected '{}'", now().text));
}

ExpressionPtr ExpressionParser::parenthesised() {
  ++at_;
  ExpressionPtr value;
  if (is_operator(")")) {
    value = make(Kind::kTuple);
  } else {
    value = tuple_or_expression();
  }
  expect_operator(")");
  return value;
}

ExpressionPtr ExpressionParser::list_or_dict() {
  const bool is_list = is_operator("[");
  ExpressionPtr value = make(is_list ? Kind::kList : Kind::kDict);
  const std::string_view end = is_list ? "]" : "}";
  ++at_;
  while (!is_operator(end)) {
    give(*value, expression());
    if (!is_list) {
      expect_operator(":");
      give(*value, expression());
    }
    if (!take_operator(",")) break;
  }
  expect_operator(end);
  return value;
}

ExpressionPtr ExpressionParser::postfix(ExpressionPtr value) {
  for (;;) {
    if (is_operator(".")) {
      ++at_;
      ExpressionPtr outer;
      if (now().kind == TokenKind::kInteger) {
        outer = make(Kind::kItem);
        ExpressionPtr index = primary();
        give(*outer, std::move(value));
        give(*outer, std::move(index));
      } else {
        outer = make(Kind::kAttribute, expect_name());
        give(*outer, std::move(value));
      }
      value = std::move(outer);
    } else if (is_operator("[")) {
      value = subscript(std::move(value));
    } else if (is_operator("(")) {
      value = call(std::move(value));
    } else {
      return value;
    }
  }
}

ExpressionPtr ExpressionParser::subscript(ExpressionPtr value) {
  ExpressionPtr outer = make(Kind::kItem);
  ++at_;
  std::vector<ExpressionPtr> parts(1);
  const auto ends = [&] { return is_operator(":") || is_operator("]"); };
  if (!ends()) parts[0] = expression();
  while (take_operator(":")) {
    outer->kind = Kind::kSlice;
    parts.push_back(ends() ? nullptr : expression());
  }
  expect_operator("]");
  if (parts.size() > 3) refuse("a slice has three parts at most");
  if (outer->kind == Kind::kSlice) {
    parts.resize(3);
  } else if (!parts[0]) {
    refuse("a subscript is missing");
  }
  give(*outer, std::move(value));
  for (ExpressionPtr& part : parts) give(*outer, std::move(part));
  return outer;
}

ExpressionPtr ExpressionParser::call(ExpressionPtr function) {
  ExpressionPtr outer = make(Kind::kCall);
  give(*outer, std::move(function));
  give_arguments(*outer, call_arguments());
  return outer;
}

CallArguments ExpressionParser::call_arguments() {
  CallArguments arguments;
  expect_operator("(");
  while (!is_operator(")")) {
    if (is_operator("*") || is_operator("**")) refuse("calls with * or ** aren't supported");
    const bool is_named = now().kind == TokenKind::kName &&
                          tokens_[at_ + 1].kind == TokenKind::kOperator &&
                          tokens_[at_ + 1].text == "=";
    if (is_named) {
      std::string name = take().text;
      ++at_;
      arguments.named.emplace_back(std::move(name), expression());
    } else {
      arguments.positional.push_back(expression());
    }
    if (!take_operator(",")) break;
  }
  expect_operator(")");
  return arguments;
}

ExpressionPtr ExpressionParser::one_filter(ExpressionPtr value) {
  ExpressionPtr outer = make(Kind::kFilter, expect_name());
  give(*outer, std::move(value));
  if (is_operator("(")) give_arguments(*outer, call_arguments());
  return outer;
}

ExpressionPtr ExpressionParser::filters(ExpressionPtr value) {
  for (;;) {
    if (take_operator("|")) {
      value = one_filter(std::move(value));
    } else if (take_name("is")) {
      value = test(std::move(value));
    } else if (is_operator("(")) {
      value = call(std::move(value));
    } else {
      return value;
    }
  }
}

ExpressionPtr ExpressionParser::test(ExpressionPtr value) {
  const bool is_not = take_name("not");
  ExpressionPtr outer = make(Kind::kTest, expect_name());
  give(*outer, std::move(value));
  if (is_operator("(")) {
    give_arguments(*outer, call_arguments());
  } else {
    const TokenKind kind = now().kind;
    const bool is_word = kind == TokenKind::kName && !is_name("else") && !is_name("or") &&
                         !is_name("and") && !is_name("is") && !is_name("if") && !is_name("not") &&
                         !is_name("in");
    if (is_word || kind == TokenKind::kString || kind == TokenKind::kInteger ||
        kind == TokenKind::kFloat || is_operator("[") || is_operator("{")) {
      CallArguments arguments;
      arguments.positional.push_back(postfix(primary()));
      give_arguments(*outer, std::move(arguments));
    }
  }
  if (!is_not) return outer;
  ExpressionPtr negated = make(Kind::kUnary, "not");
  give(*negated, std::move(outer));
  return negated;
}

}  // namespace sherd::templates
