/// Evaluates expressions.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "engine/data/template/syntax.h"
#include "engine/data/template/value.h"

namespace sherd::templates {

class Scope;
using ScopePtr = std::shared_ptr<Scope>;

/// Names of this scope and of the scopes that enclose it.
class Scope {
 public:
  static ScopePtr inside(ScopePtr outer) {
    auto scope = std::make_shared<Scope>();
    scope->outer_ = std::move(outer);
    return scope;
  }
  Value get(const std::string& name) const;
  void set(const std::string& name, Value value);

  /// The names of this scope alone, for `restore`.
  using Values = std::vector<std::pair<std::string, Value>>;
  const Values& values() const { return values_; }
  void restore(Values values) { values_ = std::move(values); }

 private:
  ScopePtr outer_;
  Values values_;
};

/// namespace, range, dict, raise_exception, and strftime_now if there is a date (seconds since
/// 1970).
ScopePtr global_scope(std::optional<std::int64_t> date);

/// Errors   Problem
Value evaluate(const Expression& expression, const ScopePtr& scope);
Arguments evaluate_arguments(const Expression& call, const ScopePtr& scope);
/// Applies a chain of filters to `value`, which takes the place of the innermost operand.
Value evaluate_filters(const Expression& chain, Value value, const ScopePtr& scope);
Value call(const Value& function, const Arguments& arguments);

}  // namespace sherd::templates
