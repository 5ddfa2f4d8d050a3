/// A template's syntax tree.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "engine/data/template/value.h"

namespace sherd::templates {

struct Expression;
using ExpressionPtr = std::unique_ptr<Expression>;

struct CallArguments {
  std::vector<ExpressionPtr> positional;
  std::vector<std::pair<std::string, ExpressionPtr>> named;
};

struct Expression {
  enum class Kind {
    kConstant,
    kName,       ///< name
    kAttribute,  ///< parts[0].name
    kItem,       ///< parts[0][parts[1]]
    kSlice,      ///< parts[0][parts[1]:parts[2]:parts[3]], null where omitted
    kCall,       ///< parts[0](arguments)
    kFilter,     ///< parts[0] | name(arguments); a filter block has no parts
    kTest,       ///< parts[0] is name(arguments)
    kUnary,      ///< name parts[0]: - + not
    kBinary,     ///< parts[0] name parts[1]: + - * / // % ** and or
    kConcat,     ///< at least two parts, joined by ~
    kCompare,    ///< parts[0] names[0] parts[1] names[1] ...
    kChoice,     ///< parts[0] if parts[1] else parts[2], null without else
    kList,
    kTuple,
    kDict,  ///< key, value, key, value, ...
  };
  Kind kind = Kind::kConstant;
  int line = 0;
  std::string name{};
  std::vector<std::string> names{};
  Value constant{};
  std::vector<ExpressionPtr> parts{};
  CallArguments arguments{};
  int height = 1;  ///< one more than the greatest height of its parts and arguments
};

struct Statement;
using Block = std::vector<Statement>;

struct Parameter {
  std::string name;
  ExpressionPtr missing;  ///< null: none
};

struct Statement {
  enum class Kind {
    kText,        ///< text
    kOutput,      ///< value
    kIf,          ///< value: body, else others
    kFor,         ///< names in value, if condition: body; others if there was no element
    kSet,         ///< names, or names[0].attribute, = value
    kSetBlock,    ///< names[0] = body, through the filters `value`
    kMacro,       ///< name(parameters): body
    kCall,        ///< value, a call, with body as `caller`
    kFilter,      ///< body through the filters `value`
    kGeneration,  ///< body
    kBreak,
    kContinue,
  };
  Kind kind = Kind::kText;
  int line = 0;
  std::string text{};
  std::vector<std::string> names{};
  std::string attribute{};
  ExpressionPtr value{}, condition{};
  Block body{}, others{};
  std::vector<Parameter> parameters{};
};

/// Parses the whole source. `where` names it in messages.
/// Errors   DataError "where:line: ...": invalid Jinja, or unsupported parts of it: include,
///          extends, import, block, do, trans, autoescape, recursive loops; a source above
///          kMostSourceBytes; expressions (also chains of operators) higher than kMostNested.
Block parse(std::string_view source, std::string_view where);

}  // namespace sherd::templates
