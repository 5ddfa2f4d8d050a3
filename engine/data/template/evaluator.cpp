#include "engine/data/template/evaluator.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <ctime>

#include "engine/data/template/functions.h"
#include "engine/data/template/growing.h"

namespace sherd::templates {
namespace {

using Kind = Expression::Kind;

[[noreturn]] void refuse_operands(const std::string& name, const Value& a, const Value& b) {
  const auto* undefined = a.is_undefined() ? a.get<Undefined>() : b.get<Undefined>();
  if (undefined) throw_problem("{} is undefined", undefined->name);
  throw_problem("{} of a {} and a {}", name, type_name(a), type_name(b));
}

Value repeated(const Value& value, std::int64_t times) {
  times = std::max<std::int64_t>(times, 0);
  const auto size =
      value.text() ? std::ssize(value.text()->bytes) : std::ssize(value.list()->items);
  if (size > 0 && times > (std::int64_t{1} << 24) / size) throw_problem("a repetition is too long");
  count_steps(static_cast<std::size_t>(times));
  if (value.text()) {
    MarkedText text;
    for (std::int64_t i = 0; i < times; ++i) text.append(*value.text());
    return text;
  }
  expect_bytes(static_cast<std::size_t>(times * size) * sizeof(Value));
  count_steps(static_cast<std::size_t>(times * size));
  std::vector<Value> items;
  for (std::int64_t i = 0; i < times; ++i) {
    items.insert(items.end(), value.list()->items.begin(), value.list()->items.end());
  }
  return Value::list(std::move(items), value.list()->is_tuple);
}

// "%s and %d" % (a, b)
Value percent_formatted(const MarkedText& form, const Value& value) {
  const bool is_tuple = value.list() && value.list()->is_tuple;
  const std::vector<Value> values = is_tuple ? elements_of(value) : std::vector<Value>{value};
  MarkedText out;
  std::size_t next = 0;
  for (std::size_t i = 0; i < form.size(); ++i) {
    if (form.bytes[i] != '%') {
      out.append(form.part(i, 1));
      continue;
    }
    const char kind = ++i < form.size() ? form.bytes[i] : ' ';
    if (kind == '%') {
      out.append("%", 0);
      continue;
    }
    if (kind != 's' && kind != 'd' && kind != 'r') throw_problem("%{} isn't supported", kind);
    if (next >= values.size()) throw_problem("not enough values for a format");
    const Value& one = values[next++];
    if (kind == 'd' && !one.is_integer()) throw_problem("%d of a {}", type_name(one));
    out.append(kind == 'r' ? to_repr(one) : to_text(one));
  }
  if (next != values.size()) throw_problem("too many values for a format");
  return out;
}

Value power(const Value& a, const Value& b) {
  const double result = std::pow(a.number(), b.number());
  const bool whole = a.is_integer() && b.is_integer() && b.integer() >= 0;
  if (whole && std::abs(result) < 9e15) return static_cast<std::int64_t>(result);
  return result;
}

Value arithmetic(const std::string& name, const Value& a, const Value& b);

// Python rounds down, and its remainder has the divisor's sign.
Value divided(const std::string& name, const Value& a, const Value& b) {
  if (b.number() == 0.0) throw_problem("division by zero");
  if (name == "/") return a.number() / b.number();
  if (a.is_integer() && b.is_integer()) {
    const std::int64_t x = a.integer(), y = b.integer();
    if (y == -1) return name == "//" ? arithmetic("-", std::int64_t{0}, a) : std::int64_t{0};
    const std::int64_t quotient = x / y - ((x % y != 0 && (x < 0) != (y < 0)) ? 1 : 0);
    return name == "//" ? quotient : x - quotient * y;
  }
  const double quotient = std::floor(a.number() / b.number());
  return name == "//" ? quotient : a.number() - quotient * b.number();
}

void refuse_safe(const std::string& name, const Value& a, const Value& b) {
  for (const Value* value : {&a, &b}) {
    if (!value->text() || !value->text()->is_safe) continue;
    throw_problem("{} of a text from the filter \"safe\", which escapes the other, isn't supported",
                  name);
  }
}

Value arithmetic(const std::string& name, const Value& a, const Value& b) {
  refuse_safe(name, a, b);
  if (name == "+") {
    if (a.text() && b.text()) {
      MarkedText text = to_text(a);
      text.append(*b.text());
      return text;
    }
    if (a.list() && b.list() && a.list()->is_tuple == b.list()->is_tuple) {
      expect_bytes((a.list()->items.size() + b.list()->items.size()) * sizeof(Value));
      count_steps(b.list()->items.size());
      std::vector<Value> items = elements_of(a);
      items.insert(items.end(), b.list()->items.begin(), b.list()->items.end());
      return Value::list(std::move(items), a.list()->is_tuple);
    }
  }
  if (name == "%" && a.text()) return percent_formatted(*a.text(), b);
  if (name == "*" && (a.text() || a.list()) && b.is_integer()) return repeated(a, b.integer());
  if (name == "*" && (b.text() || b.list()) && a.is_integer()) return repeated(b, a.integer());
  if (!a.is_number() || !b.is_number()) refuse_operands(name, a, b);
  if (name == "**") return power(a, b);
  if (name == "/" || name == "//" || name == "%") return divided(name, a, b);
  if (a.is_integer() && b.is_integer()) {
    std::int64_t result = 0;
    const std::int64_t x = a.integer(), y = b.integer();
    const bool overflows = name == "+"   ? __builtin_add_overflow(x, y, &result)
                           : name == "-" ? __builtin_sub_overflow(x, y, &result)
                                         : __builtin_mul_overflow(x, y, &result);
    if (overflows) throw_problem("a number grows beyond 64 bits");
    return result;
  }
  const double x = a.number(), y = b.number();
  return name == "+" ? x + y : name == "-" ? x - y : x * y;
}

bool holds(const std::string& name, const Value& a, const Value& b) {
  if (name == "==") return equal(a, b);
  if (name == "!=") return !equal(a, b);
  if (name == "in") return contains(b, a);
  if (name == "not in") return !contains(b, a);
  if (name == "<") return less(a, b);
  if (name == ">") return less(b, a);
  if (name == "<=") return !less(b, a);
  return !less(a, b);
}

bool compare(const Expression& expression, const ScopePtr& scope) {
  Value left = evaluate(*expression.parts[0], scope);
  for (std::size_t i = 0; i < expression.names.size(); ++i) {
    Value right = evaluate(*expression.parts[i + 1], scope);
    if (!holds(expression.names[i], left, right)) return false;
    left = std::move(right);
  }
  return true;
}

Value slice(const Expression& expression, const ScopePtr& scope) {
  const Value value = evaluate(*expression.parts[0], scope);
  if (const Undefined* undefined = value.get<Undefined>()) {
    throw_problem("{} is undefined", undefined->name);
  }
  SliceBounds bounds;
  for (std::size_t i = 0; i < 3; ++i) {
    if (!expression.parts[i + 1]) continue;
    const Value bound = evaluate(*expression.parts[i + 1], scope);
    if (bound.is_none()) continue;
    if (!bound.is_integer()) throw_problem("a slice bound is a {}", type_name(bound));
    bounds[i] = bound.integer();
  }
  if (const List* list = watched(value); list && bounds[0] && !bounds[1] && !bounds[2]) {
    if (std::optional<Value> rest = list->watched_by->slice(*list, *bounds[0])) return *rest;
  }
  return slice_of(value, bounds);
}

Value binary(const Expression& expression, const ScopePtr& scope) {
  const std::string& name = expression.name;
  Value left = evaluate(*expression.parts[0], scope);
  if (name == "and") return truth(left) ? evaluate(*expression.parts[1], scope) : left;
  if (name == "or") return truth(left) ? left : evaluate(*expression.parts[1], scope);
  return arithmetic(name, left, evaluate(*expression.parts[1], scope));
}

Value concat(const Expression& expression, const ScopePtr& scope) {
  std::vector<Value> parts;
  for (const ExpressionPtr& part : expression.parts) parts.push_back(evaluate(*part, scope));
  MarkedText text;
  for (const Value& part : parts) {
    refuse_safe("~", part, part);
    text.append(to_text(part));
  }
  return text;
}

Value unary(const Expression& expression, const ScopePtr& scope) {
  const Value value = evaluate(*expression.parts[0], scope);
  if (expression.name == "not") return !truth(value);
  if (!value.is_number()) throw_problem("{} of a {}", expression.name, type_name(value));
  return expression.name == "+" ? value : arithmetic("-", std::int64_t{0}, value);
}

Value members(const Expression& expression, const ScopePtr& scope) {
  const Held held(expression.parts.size() * sizeof(Value));
  std::vector<Value> items;
  for (const ExpressionPtr& part : expression.parts) items.push_back(evaluate(*part, scope));
  if (expression.kind != Kind::kDict) {
    return Value::list(std::move(items), expression.kind == Kind::kTuple);
  }
  auto dict = std::make_shared<Dict>();
  for (std::size_t i = 0; i + 1 < items.size(); i += 2) dict->set(items[i], items[i + 1]);
  return dict;
}

Value function(const char* name, std::function<Value(const Arguments&)> call) {
  return std::make_shared<const Callable>(Callable{name, std::move(call)});
}

Value range_of(const Arguments& arguments) {
  const Given given("range", arguments);
  const bool two = arguments.positional.size() > 1;
  const std::int64_t first = two ? given.integer(0, "start", 0) : 0;
  const std::int64_t end = given.integer(two ? 1 : 0, "stop", 0);
  const std::int64_t step = given.integer(2, "step", 1);
  if (step == 0) throw_problem("range's step is 0");
  constexpr std::size_t kMost = 100'000;  // as in jinja2's sandbox
  std::vector<Value> numbers;
  for (std::int64_t i = first; step > 0 ? i < end : i > end;) {
    numbers.emplace_back(i);
    if (numbers.size() > kMost) throw_problem("a range of more than {} numbers", kMost);
    if (__builtin_add_overflow(i, step, &i)) break;
  }
  count_steps(numbers.size());
  return Value::list(std::move(numbers));
}

Value dict_of(const Arguments& arguments, bool is_namespace) {
  auto dict = std::make_shared<Dict>();
  dict->is_namespace = dict->can_change = is_namespace;
  if (is_namespace && Budget::current()) Budget::current()->keep(dict);
  for (const Value& given : arguments.positional) {
    if (!given.dict()) throw_problem("a dictionary of a {}", type_name(given));
    for (const auto& [key, value] : given.dict()->items) dict->set(key, value);
  }
  for (const auto& [name, value] : arguments.named) dict->set(Value::text(name), value);
  return dict;
}

Value date_text(std::int64_t date, const Arguments& arguments) {
  const std::string format = Given("strftime_now", arguments).text(0, "format").bytes;
  const std::time_t seconds = date;
  std::tm parts{};
  gmtime_r(&seconds, &parts);
  std::array<char, 256> text{};
  const std::size_t size = std::strftime(text.data(), text.size(), format.c_str(), &parts);
  return Value::text(std::string(text.data(), size));
}

}  // namespace

Value Scope::get(const std::string& name) const {
  for (const Scope* scope = this; scope; scope = scope->outer_.get()) {
    count_steps(scope->values_.size() / 16);
    for (const auto& [known, value] : scope->values_) {
      if (known == name) return value;
    }
  }
  return Undefined{name};
}

void Scope::set(const std::string& name, Value value) {
  count_steps(values_.size() / 16);
  for (auto& [known, old] : values_) {
    if (known != name) continue;
    old = std::move(value);
    return;
  }
  values_.emplace_back(name, std::move(value));
}

ScopePtr global_scope(std::optional<std::int64_t> date) {
  auto scope = std::make_shared<Scope>();
  scope->set("range", function("range", range_of));
  scope->set("dict", function("dict", [](const Arguments& a) { return dict_of(a, false); }));
  scope->set("namespace",
             function("namespace", [](const Arguments& a) { return dict_of(a, true); }));
  scope->set("raise_exception", function("raise_exception", [](const Arguments& a) -> Value {
               throw Problem{to_text(Given("raise_exception", a).require(0, "message")).bytes};
             }));
  if (date) {
    scope->set("strftime_now",
               function("strftime_now", [=](const Arguments& a) { return date_text(*date, a); }));
  }
  return scope;
}

Value call(const Value& function, const Arguments& arguments) {
  if (const Undefined* undefined = function.get<Undefined>()) {
    throw_problem("{} is undefined, so it can't be called", undefined->name);
  }
  if (!function.callable()) throw_problem("a {} can't be called", type_name(function));
  return function.callable()->call(arguments);
}

Arguments evaluate_arguments(const Expression& of, const ScopePtr& scope) {
  const Held held((of.arguments.positional.size() + of.arguments.named.size()) * sizeof(Value));
  Arguments arguments;
  arguments.line = of.line;
  for (const ExpressionPtr& argument : of.arguments.positional) {
    arguments.positional.push_back(evaluate(*argument, scope));
  }
  for (const auto& [name, argument] : of.arguments.named) {
    arguments.named.emplace_back(name, evaluate(*argument, scope));
  }
  return arguments;
}

Value evaluate_filters(const Expression& chain, Value value, const ScopePtr& scope) {
  const Deeper deeper;
  if (chain.parts[0]->kind == Kind::kFilter) {
    value = evaluate_filters(*chain.parts[0], std::move(value), scope);
  }
  return apply_filter(chain.name, value, evaluate_arguments(chain, scope));
}

Value evaluate(const Expression& expression, const ScopePtr& scope) {
  const Deeper deeper;
  count_steps();
  const auto part = [&](std::size_t i) { return evaluate(*expression.parts[i], scope); };
  switch (expression.kind) {
    case Kind::kConstant:
      return expression.constant;
    case Kind::kName:
      return scope->get(expression.name);
    case Kind::kAttribute:
      return attribute_of(part(0), expression.name);
    case Kind::kItem:
      return item_of(part(0), part(1));
    case Kind::kSlice:
      return slice(expression, scope);
    case Kind::kCall:
      return call(part(0), evaluate_arguments(expression, scope));
    case Kind::kFilter:
      return apply_filter(expression.name, part(0), evaluate_arguments(expression, scope));
    case Kind::kTest:
      return apply_test(expression.name, part(0), evaluate_arguments(expression, scope));
    case Kind::kUnary:
      return unary(expression, scope);
    case Kind::kBinary:
      return binary(expression, scope);
    case Kind::kConcat:
      return concat(expression, scope);
    case Kind::kCompare:
      return compare(expression, scope);
    case Kind::kChoice:
      if (truth(part(1))) return part(0);
      return expression.parts[2] ? part(2) : Value(Undefined{"the other choice"});
    case Kind::kList:
    case Kind::kTuple:
    case Kind::kDict:
      return members(expression, scope);
  }
  return {};
}

}  // namespace sherd::templates
