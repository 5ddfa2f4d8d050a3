// Statements: the contents of {% and %}.
#include "engine/data/template/parser.h"

#include <algorithm>
#include <initializer_list>

#include "core/error.h"

namespace sherd::templates {
namespace {

using Kind = Statement::Kind;
using TokenKind = Token::Kind;

class Parser : private ExpressionParser {
 public:
  using ExpressionParser::ExpressionParser;

  Block whole() {
    Block body = block({});
    if (now().kind != TokenKind::kEnd) refuse(fmt::format("unexpected '{}'", now().text));
    return body;
  }

 private:
  /// Parses up to a block tag with one of these names, and consumes the name.
  Block block(std::initializer_list<std::string_view> ends) {
    if (++nested_ > 100) refuse("blocks are nested too deep");
    const int line = now().line;
    Block body;
    for (;;) {
      if (now().kind == TokenKind::kEnd) {
        if (ends.size() == 0) break;
        throw DataError("{}:{}: this block has no {}.", where_, line, *(ends.end() - 1));
      }
      Statement statement;
      statement.line = now().line;
      if (now().kind == TokenKind::kText) {
        statement.text = take().text;
        body.push_back(std::move(statement));
        continue;
      }
      if (now().kind == TokenKind::kOutputBegin) {
        take();
        statement.kind = Kind::kOutput;
        statement.value = tuple_or_expression();
        expect(TokenKind::kOutputEnd);
        body.push_back(std::move(statement));
        continue;
      }
      take();  // {%
      const std::string name = expect_name();
      ended_by_ = name;
      if (std::find(ends.begin(), ends.end(), name) != ends.end()) break;
      tag(name, statement);
      body.push_back(std::move(statement));
    }
    --nested_;
    return body;
  }

  void expect(TokenKind kind) {
    if (now().kind != kind) {
      refuse(now().text.empty() ? "a tag isn't complete"
                                : fmt::format("unexpected '{}' in a tag", now().text));
    }
    take();
  }
  void end_of_tag() { expect(TokenKind::kBlockEnd); }

  void tag(const std::string& name, Statement& statement) {
    if (name == "if") return if_tag(statement);
    if (name == "for") return for_tag(statement);
    if (name == "set") return set_tag(statement);
    if (name == "macro") return macro_tag(statement);
    if (name == "call") return call_tag(statement);
    if (name == "filter") {
      statement.kind = Kind::kFilter;
      statement.value = leading_filters();
      return body_until(statement, "endfilter");
    }
    if (name == "generation") {
      statement.kind = Kind::kGeneration;
      return body_until(statement, "endgeneration");
    }
    if (name == "break" || name == "continue") {
      if (loops_ == 0) refuse(fmt::format("{{% {} %}} is outside of a loop", name));
      statement.kind = name == "break" ? Kind::kBreak : Kind::kContinue;
      return end_of_tag();
    }
    refuse(fmt::format("{{% {} %}} isn't supported", name));
  }

  void body_until(Statement& statement, std::string_view end) {
    end_of_tag();
    statement.body = block({end});
    end_of_tag();
  }

  void if_tag(Statement& statement) {
    statement.kind = Kind::kIf;
    statement.value = tuple_or_expression();
    end_of_tag();
    statement.body = block({"elif", "else", "endif"});
    if (ended_by_ == "elif") {
      Statement nested;
      nested.line = now().line;
      if (++nested_ > 100) refuse("blocks are nested too deep");
      if_tag(nested);
      --nested_;
      statement.others.push_back(std::move(nested));
      return;
    }
    if (ended_by_ == "else") {
      end_of_tag();
      statement.others = block({"endif"});
    }
    end_of_tag();
  }

  void for_tag(Statement& statement) {
    statement.kind = Kind::kFor;
    const bool in_parentheses = take_operator("(");
    do {
      statement.names.push_back(expect_name());
    } while (take_operator(","));
    if (in_parentheses) expect_operator(")");
    if (!take_name("in")) refuse(fmt::format("expected 'in', found '{}'", now().text));
    statement.value = disjunction();
    if (is_operator(",")) {
      auto tuple = make(Expression::Kind::kTuple);
      give(*tuple, std::move(statement.value));
      while (take_operator(",")) give(*tuple, disjunction());
      statement.value = std::move(tuple);
    }
    if (take_name("if")) statement.condition = expression();
    if (is_name("recursive")) refuse("recursive loops aren't supported");
    end_of_tag();
    ++loops_;
    statement.body = block({"else", "endfor"});
    --loops_;
    if (ended_by_ == "else") {
      end_of_tag();
      statement.others = block({"endfor"});
    }
    end_of_tag();
  }

  void set_tag(Statement& statement) {
    statement.kind = Kind::kSet;
    const bool in_parentheses = take_operator("(");
    statement.names.push_back(expect_name());
    if (take_operator(".")) {
      statement.attribute = expect_name();
    } else {
      while (take_operator(",")) statement.names.push_back(expect_name());
    }
    if (in_parentheses) expect_operator(")");
    if (take_operator("=")) {
      statement.value = tuple_or_expression();
      return end_of_tag();
    }
    statement.kind = Kind::kSetBlock;
    if (statement.names.size() > 1 || !statement.attribute.empty()) {
      refuse("a set block sets one name");
    }
    if (take_operator("|")) statement.value = leading_filters();
    body_until(statement, "endset");
  }

  /// "name(...) | name": of a value that isn't there yet.
  ExpressionPtr leading_filters() {
    auto first = make(Expression::Kind::kConstant);
    auto value = make(Expression::Kind::kFilter, expect_name());
    give(*value, std::move(first));
    if (is_operator("(")) refuse("a filter of a block takes no arguments here");
    return filters(std::move(value));
  }

  void macro_tag(Statement& statement) {
    statement.kind = Kind::kMacro;
    statement.names.push_back(expect_name());
    parameters(statement);
    const int loops = std::exchange(loops_, 0);
    body_until(statement, "endmacro");
    loops_ = loops;
  }

  void parameters(Statement& statement) {
    expect_operator("(");
    while (!is_operator(")")) {
      Parameter parameter{expect_name(), nullptr};
      if (take_operator("=")) parameter.missing = expression();
      statement.parameters.push_back(std::move(parameter));
      if (!take_operator(",")) break;
    }
    expect_operator(")");
  }

  void call_tag(Statement& statement) {
    statement.kind = Kind::kCall;
    if (is_operator("(")) parameters(statement);
    statement.value = expression();
    if (statement.value->kind != Expression::Kind::kCall) refuse("expected a call of a macro");
    const int loops = std::exchange(loops_, 0);
    body_until(statement, "endcall");
    loops_ = loops;
  }

  std::string ended_by_;
  int nested_ = 0;
  int loops_ = 0;
};

}  // namespace

// A chain of operators makes a tree as deep as nesting does, and evaluating or destroying it
// recurses.
void ExpressionParser::grow(Expression& outer, const ExpressionPtr& part) const {
  if (!part) return;
  outer.height = std::max(outer.height, part->height + 1);
  if (outer.height > kMostNested) {
    refuse(fmt::format("an expression has more than {} operators within one another", kMostNested));
  }
}

void ExpressionParser::give(Expression& outer, ExpressionPtr part) const {
  grow(outer, part);
  outer.parts.push_back(std::move(part));
}

void ExpressionParser::give_arguments(Expression& outer, CallArguments arguments) const {
  for (const ExpressionPtr& argument : arguments.positional) grow(outer, argument);
  for (const auto& [name, argument] : arguments.named) grow(outer, argument);
  outer.arguments = std::move(arguments);
}

Block parse(std::string_view source, std::string_view where) {
  if (source.size() > kMostSourceBytes) {
    throw DataError("{}: a template of {} bytes; templates may have {}.", where, source.size(),
                    kMostSourceBytes);
  }
  return Parser(tokenize(source, where), where).whole();
}

}  // namespace sherd::templates
