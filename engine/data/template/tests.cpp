// The tests that may follow `is`, by Jinja's names.
#include <map>

#include "engine/data/template/functions.h"

namespace sherd::templates {
namespace {

using V = const Value&;
using A = const Arguments&;

bool is_in_case(V value, Letters letters) {
  const MarkedText text = to_text(value);
  return with_letters(text, letters).bytes == text.bytes &&
         with_letters(text, letters == Letters::kUpper ? Letters::kLower : Letters::kUpper).bytes !=
             text.bytes;
}

std::int64_t whole_number(V value) {
  if (!value.is_integer()) throw_problem("a {} isn't a whole number", type_name(value));
  return value.integer();
}

using Test = bool (*)(V, A);
const Value& other(A arguments) {
  return Given("a test", arguments).require(0, "other");
}
const std::map<std::string_view, Test> kTests = {
    {"defined", [](V v, A) { return !v.is_undefined(); }},
    {"undefined", [](V v, A) { return v.is_undefined(); }},
    {"none", [](V v, A) { return v.is_none(); }},
    {"string", [](V v, A) { return v.text() != nullptr; }},
    {"number", [](V v, A) { return v.is_number(); }},
    {"integer", [](V v, A) { return v.get<std::int64_t>() != nullptr; }},
    {"float", [](V v, A) { return v.get<double>() != nullptr; }},
    {"boolean", [](V v, A) { return v.get<bool>() != nullptr; }},
    {"true", [](V v, A) { return v.get<bool>() && *v.get<bool>(); }},
    {"false", [](V v, A) { return v.get<bool>() && !*v.get<bool>(); }},
    {"mapping", [](V v, A) { return v.dict() && !v.dict()->is_namespace; }},
    {"iterable",
     [](V v, A) {
       return v.text() || v.unwatched_list() || (v.dict() && !v.dict()->is_namespace) ||
              v.is_undefined();
     }},
    {"sequence",
     [](V v, A) {
       return v.text() || (v.unwatched_list() && !v.unwatched_list()->is_generator) ||
              (v.dict() && !v.dict()->is_namespace) || v.is_undefined();
     }},
    {"callable", [](V v, A) { return v.callable() != nullptr; }},
    {"odd", [](V v, A) { return whole_number(v) % 2 != 0; }},
    {"even", [](V v, A) { return whole_number(v) % 2 == 0; }},
    {"divisibleby",
     [](V v, A a) {
       const std::int64_t by = whole_number(other(a));
       if (by == 0) throw_problem("division by zero");
       return by == -1 || whole_number(v) % by == 0;
     }},
    {"in", [](V v, A a) { return contains(other(a), v); }},
    {"eq", [](V v, A a) { return equal(v, other(a)); }},
    {"equalto", [](V v, A a) { return equal(v, other(a)); }},
    {"==", [](V v, A a) { return equal(v, other(a)); }},
    {"ne", [](V v, A a) { return !equal(v, other(a)); }},
    {"!=", [](V v, A a) { return !equal(v, other(a)); }},
    {"lt", [](V v, A a) { return less(v, other(a)); }},
    {"gt", [](V v, A a) { return less(other(a), v); }},
    {"le", [](V v, A a) { return !less(other(a), v); }},
    {"ge", [](V v, A a) { return !less(v, other(a)); }},
    {"sameas", [](V v, A a) { return type_name(v) == type_name(other(a)) && equal(v, other(a)); }},
    {"upper", [](V v, A) { return is_in_case(v, Letters::kUpper); }},
    {"lower", [](V v, A) { return is_in_case(v, Letters::kLower); }},
};

}  // namespace

bool is_test(std::string_view name) {
  return kTests.contains(name);
}

bool apply_test(std::string_view name, const Value& value, const Arguments& arguments) {
  if (!is_test(name)) throw_problem("the test \"{}\" isn't supported", name.substr(0, 64));
  count_steps();
  return kTests.at(name)(value, arguments);
}

}  // namespace sherd::templates
