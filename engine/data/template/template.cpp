// Reads and renders: how statements run. Expressions are in evaluator.cpp.
#include "engine/data/template/template.h"

#include <algorithm>

#include "core/error.h"
#include "engine/data/template/evaluator.h"
#include "engine/data/template/functions.h"
#include "engine/data/template/syntax.h"

namespace sherd::templates {

struct TemplateTree {
  std::string where;
  Block body;
};

namespace {

using Kind = Statement::Kind;

// Names of filters and tests that aren't known are found before anything is rendered; like jinja2, not
// in what a condition may leave out.
class Checker {
 public:
  explicit Checker(const TemplateTree& tree) : where_(tree.where) { check(tree.body); }
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
    throw DataError("{}:{}: the {} \"{}\" isn't known here.", where_, expression.line, what,
                    expression.name);
  }

  const std::string& where_;
  bool has_generation_ = false;
  int maybe_ = 0;
};

/// Names of a loop object, which every turn has a new one of; no rendering's budget holds them.
const struct LoopNames {
  Value index0 = Value::text("index0"), index = Value::text("index");
  Value revindex0 = Value::text("revindex0"), revindex = Value::text("revindex");
  Value first = Value::text("first"), last = Value::text("last"), length = Value::text("length");
  Value previtem = Value::text("previtem"), nextitem = Value::text("nextitem");
  Value cycle = Value::text("cycle");
} kLoop;

/// Text that is being made.
struct Output {
  MarkedText text{};
  Held held{};
};

class Renderer {
 public:
  explicit Renderer(std::string where) : where_(std::move(where)) {}

  enum class Flow { kNext, kBreak, kContinue };

  Flow run(const Block& block, const ScopePtr& scope, Output& out) {
    for (const Statement& statement : block) {
      Flow flow = Flow::kNext;
      try {
        const Deeper deeper;
        count_steps();
        flow = run(statement, scope, out);
        out.held.set(2 * out.text.size());
      } catch (const Problem& problem) {
        throw DataError("{}:{}: {}", where_, statement.line, for_message(problem.text));
      }
      if (flow != Flow::kNext) return flow;
    }
    return Flow::kNext;
  }

 private:
  Flow run(const Statement& statement, const ScopePtr& scope, Output& out) {
    switch (statement.kind) {
      case Kind::kText:
        out.text.append(statement.text, 0);
        return Flow::kNext;
      case Kind::kOutput:
        out.text.append(to_text(evaluate(*statement.value, scope)));
        return Flow::kNext;
      case Kind::kIf:
        return run(truth(evaluate(*statement.value, scope)) ? statement.body : statement.others,
                   scope, out);
      case Kind::kFor:
        loop(statement, scope, out);
        return Flow::kNext;
      case Kind::kSet:
        set(statement, scope);
        return Flow::kNext;
      case Kind::kSetBlock:
        scope->set(statement.names[0], filtered(statement, text_of(statement.body, scope), scope));
        return Flow::kNext;
      case Kind::kMacro:
        scope->set(statement.names[0], function_of(statement, scope, statement.names[0]));
        return Flow::kNext;
      case Kind::kCall: {
        Arguments arguments = evaluate_arguments(*statement.value, scope);
        arguments.named.emplace_back("caller", function_of(statement, scope, "caller"));
        out.text.append(to_text(call(evaluate(*statement.value->parts[0], scope), arguments)));
        return Flow::kNext;
      }
      case Kind::kFilter:
        out.text.append(to_text(filtered(statement, text_of(statement.body, scope), scope)));
        return Flow::kNext;
      case Kind::kGeneration: {
        const std::size_t begin = out.text.size();
        const Flow flow = run(statement.body, Scope::inside(scope), out);
        count_text(out.text.size() - begin);
        for (std::size_t i = begin; i < out.text.size(); ++i) out.text.marks[i] |= kGenerated;
        return flow;
      }
      case Kind::kBreak:
        return Flow::kBreak;
      case Kind::kContinue:
        return Flow::kContinue;
    }
    return Flow::kNext;
  }

  MarkedText text_of(const Block& body, const ScopePtr& scope) {
    Output out;
    run(body, Scope::inside(scope), out);
    return std::move(out.text);
  }

  static Value filtered(const Statement& statement, MarkedText text, const ScopePtr& scope) {
    if (!statement.value) return text;
    return evaluate_filters(*statement.value, std::move(text), scope);
  }

  static void set(const Statement& statement, const ScopePtr& scope) {
    Value value = evaluate(*statement.value, scope);
    if (!statement.attribute.empty()) {
      Dict* dict = scope->get(statement.names[0]).dict();
      if (!dict || !dict->can_change) {
        throw_problem("{} isn't a namespace, so its {} can't be set", statement.names[0],
                      statement.attribute);
      }
      return dict->set(Value::text(statement.attribute), std::move(value));
    }
    assign(statement.names, value, scope);
  }

  static void assign(const std::vector<std::string>& names, const Value& value,
                     const ScopePtr& scope) {
    if (names.size() == 1) return scope->set(names[0], value);
    const std::vector<Value> values = elements_of(value);
    if (values.size() != names.size()) {
      throw_problem("{} values for {} names", values.size(), names.size());
    }
    for (std::size_t i = 0; i < names.size(); ++i) scope->set(names[i], values[i]);
  }

  void loop(const Statement& statement, const ScopePtr& scope, Output& out) {
    std::vector<Value> elements = elements_of(evaluate(*statement.value, scope));
    const Held held(elements.size() * sizeof(Value));
    if (statement.condition) {
      std::erase_if(elements, [&](const Value& element) {
        const ScopePtr inner = Scope::inside(scope);
        assign(statement.names, element, inner);
        return !truth(evaluate(*statement.condition, inner));
      });
    }
    if (elements.empty()) {
      run(statement.others, scope, out);
      return;
    }
    for (std::size_t i = 0; i < elements.size(); ++i) {
      count_steps(5);  // its loop object
      const ScopePtr inner = Scope::inside(scope);
      inner->set("loop", loop_object(elements, i));
      assign(statement.names, elements[i], inner);
      if (run(statement.body, inner, out) == Flow::kBreak) break;
    }
  }

  static Value loop_object(const std::vector<Value>& elements, std::size_t i) {
    auto loop = std::make_shared<Dict>();
    loop->is_namespace = true;
    loop->items.reserve(10);
    loop->held.add(8 * 2 * sizeof(Value));
    const auto put = [&](const Value& name, Value value) {
      loop->items.emplace_back(name, std::move(value));
    };
    const auto n = std::ssize(elements), at = static_cast<std::int64_t>(i);
    put(kLoop.index0, at);
    put(kLoop.index, at + 1);
    put(kLoop.revindex0, n - at - 1);
    put(kLoop.revindex, n - at);
    put(kLoop.first, at == 0);
    put(kLoop.last, at + 1 == n);
    put(kLoop.length, static_cast<std::int64_t>(n));
    put(kLoop.cycle,
        std::make_shared<const Callable>(Callable{"cycle", [i](const Arguments& a) {
                                                    if (a.positional.empty())
                                                      throw_problem("cycle of nothing");
                                                    return a.positional[i % a.positional.size()];
                                                  }}));
    if (i > 0) loop->add(kLoop.previtem, elements[i - 1]);
    if (i + 1 < elements.size()) loop->add(kLoop.nextitem, elements[i + 1]);
    return loop;
  }

  // A macro sees the names around it as they are when it is called.
  Value function_of(const Statement& statement, const ScopePtr& scope, const std::string& name) {
    const std::weak_ptr<Scope> around = scope;  // which holds the function
    return std::make_shared<const Callable>(
        Callable{name, [this, &statement, around, name](const Arguments& arguments) -> Value {
                   const ScopePtr outer = around.lock();
                   if (!outer) throw_problem("{} is called after its block has ended", name);
                   const ScopePtr inner = Scope::inside(outer);
                   bind(statement, arguments, inner, name);
                   Output out;
                   run(statement.body, inner, out);
                   return std::move(out.text);
                 }});
  }

  static void bind(const Statement& statement, const Arguments& arguments, const ScopePtr& inner,
                   const std::string& name) {
    const Given given(name, arguments);
    const auto& parameters = statement.parameters;
    if (arguments.positional.size() > parameters.size()) {
      throw_problem("{} takes {} arguments, not {}", name, parameters.size(),
                    arguments.positional.size());
    }
    for (const auto& [of, value] : arguments.named) {
      const bool known =
          std::any_of(parameters.begin(), parameters.end(),
                      [&, &named = of](const Parameter& p) { return p.name == named; });
      if (of == "caller" && !known) {
        inner->set("caller", value);
      } else if (!known) {
        throw_problem("{} takes no argument \"{}\"", name, of);
      }
    }
    for (std::size_t i = 0; i < parameters.size(); ++i) {
      const Parameter& parameter = parameters[i];
      if (const Value* value = given.find(i, parameter.name)) {
        inner->set(parameter.name, *value);
      } else {
        inner->set(parameter.name, parameter.missing ? evaluate(*parameter.missing, inner)
                                                     : Value(Undefined{parameter.name}));
      }
    }
  }

  std::string where_;
};

}  // namespace

Template Template::parse(std::string_view source, std::string_view where) {
  auto tree = std::make_shared<TemplateTree>();
  tree->where = where;
  tree->body = templates::parse(source, where);
  Template result;
  result.has_generation_ = Checker(*tree).has_generation();
  result.tree_ = std::move(tree);
  return result;
}

MarkedText Template::render(const Dict& variables, std::optional<std::int64_t> date,
                            const Limits& limits, Used* used) const {
  Budget budget(limits);
  const auto report = [&] {
    if (used) *used = budget.used();
  };
  try {
    const ScopePtr scope = Scope::inside(global_scope(date));
    for (const auto& [name, value] : variables.items) scope->set(name.text()->bytes, value);
    Output out;
    Renderer(tree_->where).run(tree_->body, scope, out);
    report();
    return std::move(out.text);
  } catch (...) {
    report();
    throw;
  }
}

}  // namespace sherd::templates
