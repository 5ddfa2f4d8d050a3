#include "engine/data/template/names.h"

#include "core/error.h"
#include "engine/data/template/functions.h"

namespace sherd::templates {
namespace {

using Kind = Statement::Kind;

// Names of filters and tests that aren't known are found before anything is rendered; like jinja2,
// not in what a condition may leave out.
class Checker {
 public:
  Checker(const Block& body, std::string_view where) : where_(where) { check(body); }
  bool has_generation() const { return has_generation_; }

 private:
  void check(const Block& block) {
    for (const Statement& statement : block) {
      has_generation_ |= statement.kind == Kind::kGeneration;
      check(statement.value);
      check(statement.condition);
      for (const Parameter& parameter : statement.parameters) check(parameter.missing);
      const bool maybe = statement.kind == Kind::kIf;
      maybe_ += maybe ? 1 : 0;
      check(statement.body);
      check(statement.others);
      maybe_ -= maybe ? 1 : 0;
    }
  }
  void check(const ExpressionPtr& expression) {
    if (!expression) return;
    if (maybe_ > 0 || expression->kind == Expression::Kind::kChoice) return;
    const bool is_filter_node = expression->kind == Expression::Kind::kFilter;
    if (is_filter_node && !is_filter(expression->name)) refuse(*expression, "filter");
    if (expression->kind == Expression::Kind::kTest && !is_test(expression->name)) {
      refuse(*expression, "test");
    }
    for (const ExpressionPtr& part : expression->parts) check(part);
    for (const ExpressionPtr& argument : expression->arguments.positional) check(argument);
    for (const auto& [name, argument] : expression->arguments.named) check(argument);
  }
  [[noreturn]] void refuse(const Expression& expression, std::string_view what) const {
    throw DataError("{}:{}: the {} \"{}\" isn't supported.", where_, expression.line, what,
                    expression.name);
  }

  std::string_view where_;
  bool has_generation_ = false;
  int maybe_ = 0;
};

}  // namespace

bool check_names(const Block& body, std::string_view where) {
  return Checker(body, where).has_generation();
}

}  // namespace sherd::templates
