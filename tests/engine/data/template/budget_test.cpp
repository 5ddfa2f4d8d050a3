// Templates that would take all time, memory or stack: each ends with a sentence that names the limit. Nothing here is
// timed: without its limit each of these would run for hours, or crash.
#include "engine/data/template/budget.h"

#include <gtest/gtest.h>

#include "core/error.h"
#include "engine/data/template/json_value.h"
#include "engine/data/template/template.h"
#include "tests/support/values/error_text.h"

namespace sherd::templates {
namespace {

// Less than usual, so that tests are quick.
constexpr Limits kSmall{.steps = 3'000'000, .bytes = 64 << 20};

constexpr const char* kSteps = "t:1: the template takes more than 3000000 steps";
constexpr const char* kBytes = "t:1: the template's values take more than 16777216 bytes";
constexpr const char* kLevels =
    "t:1: calls, blocks, expressions or values are nested too deep: more than 1000 levels";
constexpr const char* kNested =
    "t:1: lists or dictionaries are nested too deep: more than 400 levels";
constexpr const char* kText = "t:1: the text grows beyond 67108864 bytes";
constexpr const char* kOperators =
    "t:1: an expression has more than 400 operators within one another.";

std::string rendered(const std::string& source, const std::string& variables = "{}",
                     const Limits& limits = {}, Used* used = nullptr) {
  const Value values = value_of_json(variables, kFromData);
  return Template::parse(source, "t").render(*values.dict(), {}, limits, used).bytes;
}

std::string error_of(const std::string& source, const Limits& limits = kSmall) {
  std::string error;
  try {
    rendered(source, "{}", limits);
  } catch (const DataError& caught) {
    EXPECT_EQ(caught.exit_code(), 3);
    error = caught.what();
  }
  EXPECT_EQ(error.find('\n'), std::string::npos);
  return error;
}

std::string repeated(const std::string& part, int times) {
  std::string all;
  for (int i = 0; i < times; ++i) all += part;
  return all;
}

// `times` times, one statement after the other: a name keeps what it is set to.
std::string again(const std::string& statement, int times, const std::string& end = "") {
  return "{% set n = namespace(x=[], t='a') %}" + repeated(statement, times) + end;
}

// As in jinja2 a namespace is equal to itself alone.
TEST(TemplateBudget, ANamespaceThatHoldsItselfIsPrintedToALimit) {
  const std::string itself = "{% set n = namespace() %}{% set n.a = n %}";
  EXPECT_EQ(error_of(itself + "{{ n }}"), kLevels);
  EXPECT_EQ(error_of(itself + "{{ [n] }}"), kLevels);
  EXPECT_EQ(error_of(itself + "{{ n | tojson }}"), kLevels);
  EXPECT_EQ(rendered(itself + "{{ n == n.a }}{{ [n] == [n.a] }}{{ [n] < [n.a] }}{{ n in [n] }}"
                              "{% set m = namespace() %}{% set m.a = n %}{{ n == m }}"),
            "TrueTrueFalseTrueFalse");
}

TEST(TemplateBudget, ListsAndDictionariesAreNestedToALimit) {
  for (const std::string value :
       {"[n.x]", "(n.x,)", "{'a': n.x}", "namespace(a=n.x)", "n.x.count", "[n.x] | select"}) {
    const std::string set = "{% set n.x = " + value + " %}";
    EXPECT_EQ(error_of("{% set n = namespace(x=[]) %}{% for i in range(100000) %}" + set +
                       "{% endfor %}"),
              value == "n.x.count" ? "t:1: count of a function is undefined, so it has no count"
                                   : kNested)
        << value;
  }
  EXPECT_EQ(error_of(again("{% set n.x = {'f': [n.x].index} %}", 500)), kNested);
  EXPECT_EQ(error_of(again("{% set n.x = [n.x] %}", 300, "{{ n.x }}")), "");
}

// Each link was shallow when it was made.
TEST(TemplateBudget, AChainOfNamespacesIsDestroyedOneByOne) {
  const std::string links =
      "{% set all = namespace(l=[]) %}"
      "{% for i in range(2000) %}{% set all.l = all.l + [namespace()] %}{% endfor %}"
      "{% for i in range(1999) %}{% set one = all.l[i] %}{% set one.x = all.l[i + 1] %}{% endfor "
      "%}";
  EXPECT_EQ(rendered(links + "ok"), "ok");
  EXPECT_EQ(error_of(links + "{{ all.l[0] }}"), kLevels);
}

TEST(TemplateBudget, ChainsOfOperatorsAreRefusedAsNestsAre) {
  for (const std::string part : {".x", "|trim", "+1", " and 1", " or 1", "[0]", "()", "*1", "**1",
                                 " is none", " if 1", "-1", "|default(1)", "[0:]"}) {
    EXPECT_EQ(error_of("{{ a" + repeated(part, 40'000) + " }}"), kOperators) << part;
    EXPECT_EQ(error_of("{{ a" + repeated(part, 390) + " }}").find("operators"), std::string::npos)
        << part;
  }
  EXPECT_EQ(rendered("{{ 'a'" + repeated("~'a'", 40'000) + " }}").size(), 40'001u);
  EXPECT_EQ(rendered("{{ 1" + repeated(" == 1", 40'000) + " }}"), "True");
  const std::pair<const char*, const char*> nests[] = {{"(", ")"},    {"[", "]"},   {"f(", ")"},
                                                       {"{1: ", "}"}, {"not ", ""}, {"-", ""}};
  for (const auto& [open, close] : nests) {
    EXPECT_EQ(error_of("{{ " + repeated(open, 40'000) + "1" + repeated(close, 40'000) + " }}"),
              "t:1: expressions are nested too deep.")
        << open;
  }
  EXPECT_NE(error_of(repeated("{% if 1 %}", 10'000)).find("nested too deep"), std::string::npos);
}

TEST(TemplateBudget, LoopsAndCallsEnd) {
  EXPECT_EQ(
      error_of("{% for i in range(100000) %}{% for j in range(100000) %}{% endfor %}{% endfor %}"),
      kSteps);
  EXPECT_EQ(error_of("{% macro m(k) %}{% if k %}{{ m(k-1) }}{{ m(k-1) }}{% endif %}{% endmacro %}"
                     "{{ m(60) }}"),
            kSteps);
  EXPECT_EQ(error_of("{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}"), kLevels);
  EXPECT_EQ(error_of("{% set n = namespace() %}{% macro a() %}{{ n.b() }}{% endmacro %}"
                     "{% macro b() %}{{ a() }}{% endmacro %}{% set n.b = b %}{{ a() }}"),
            kLevels);
  EXPECT_NE(error_of("{% for i in range(1000000) %}{% endfor %}").find("range of more"),
            std::string::npos);
  EXPECT_EQ(error_of("{{ 'a' | map(" + repeated("'map',", 2000) + " 'trim') | list }}"), kLevels);
}

TEST(TemplateBudget, ComparisonsEnd) {
  EXPECT_EQ(error_of("{{ range(100000) | unique | list | length }}"), kSteps);
  const std::string shared = again("{% set n.x = [n.x, n.x] %}", 60) +
                             "{% set m = namespace(x=[]) %}" +
                             repeated("{% set m.x = [m.x, m.x] %}", 60);
  EXPECT_EQ(error_of(shared + "{{ n.x == m.x }}"), kSteps);
  EXPECT_EQ(error_of(shared + "{{ n.x < m.x }}"), kSteps);
  EXPECT_EQ(error_of(shared + "{{ m.x in [n.x] }}"), kSteps);
  EXPECT_EQ(error_of(shared + "{{ 'a'.startswith(n.x) }}"), kSteps);
  EXPECT_EQ(error_of(shared + "{{ n.x }}"), kSteps);
  EXPECT_EQ(error_of(shared + "{{ n.x | tojson }}"), kSteps);
  const std::string large = again("{% set n.t = n.t + n.t %}", 20);
  EXPECT_EQ(
      error_of(large + "{% for i in range(99999) %}{{ n.t.find(n.t[1:] + 'b') }}{% endfor %}"),
      kSteps);
  EXPECT_EQ(error_of(large + "{{ n.t.rfind('b' + n.t[:10000]) }}"), kSteps);
  EXPECT_EQ(error_of(large + "{{ n.t | upper }}{{ n.t | upper }}{{ n.t | title }}"), kSteps);
  EXPECT_EQ(error_of(large + "{% for i in range(99999) %}{{ n.t[9999] }}{% endfor %}"), kSteps);
  EXPECT_EQ(error_of(large + "{% for i in range(99999) %}{% set t = n.t.strip() %}{% endfor %}"),
            kSteps);
}

std::string error_with_little_memory(const std::string& source) {
  return error_of(source, {.bytes = 16 << 20});
}

TEST(TemplateBudget, TextsAndListsStopGrowing) {
  for (const std::string twice :
       {"n.t + n.t", "n.t ~ n.t", "[n.t, n.t] | join", "n.t.replace('a', 'aa')",
        "n.t | replace('a', 'aa')", "'{0}{0}'.format(n.t)", "'%s%s' % (n.t, n.t)", "n.t * 2",
        "n.t.join(['', n.t])", "n.t | indent(n.t, true)"}) {
    EXPECT_EQ(error_with_little_memory(again("{% set n.t = " + twice + " %}", 60)), kBytes)
        << twice;
  }
  EXPECT_EQ(error_with_little_memory(
                again("{% set t %}{{ n.t }}{{ n.t }}{% endset %}{% set n.t = t %}", 60)),
            kBytes);
  EXPECT_EQ(
      error_with_little_memory(again("{% set n.x = n.x + [1] %}{% set n.x = n.x + n.x %}", 60)),
      kBytes);
  const std::string large = again("{% set n.t = n.t + n.t %}", 20);
  EXPECT_EQ(error_with_little_memory(large + "{{ n.t | list | length }}"), kBytes);
  EXPECT_EQ(error_with_little_memory(large + "{{ n.t.split('a') | length }}"), kBytes);
  EXPECT_EQ(error_with_little_memory(large + "{{ n.t.replace('a', 'a ').split() | length }}"),
            kBytes);
  EXPECT_EQ(error_with_little_memory(
                large + "{% for i in range(99) %}{% set n.x = n.x + [n.t + 'b'] %}{% endfor %}"),
            kBytes);
  EXPECT_EQ(
      error_with_little_memory(large + "{% macro m() %}{{ n.t }}{{ m() }}{% endmacro %}{{ m() }}"),
      kBytes);
  EXPECT_NE(error_with_little_memory("{{ 'aaaaaaaa' * 100000000 }}").find("too long"),
            std::string::npos);
}

TEST(TemplateBudget, ATextHasALimitOfItsOwn) {
  EXPECT_EQ(error_of("{% for i in range(10000) %}{{ 'a' * 100000 }}{% endfor %}", Limits{}), kText);
  EXPECT_EQ(error_of("{{ " + repeated("[", 60) + "range(100000)|list" + repeated("]", 60) +
                         "|tojson(indent=64) }}",
                     Limits{}),
            kText);
}

TEST(TemplateBudget, AnErrorIsOneLineHoweverLongWhatItSays) {
  const std::string error = error_of("{{ raise_exception('ab\n' * 1000) }}");
  EXPECT_EQ(error.size(), std::string("t:1: ").size() + 400 + 3);
  EXPECT_EQ(error.substr(0, 11), "t:1: ab ab ");
}

TEST(TemplateBudget, NumbersStayWithin64Bits) {
  const std::string least = "(-9223372036854775807 - 1)";
  for (const std::string& source :
       std::vector<std::string>{"[9223372036854775807, 1] | sum", least + " | abs", "-" + least,
                                least + " // -1", "9223372036854775807 + 1"}) {
    EXPECT_EQ(error_of("{{ " + source + " }}"), "t:1: a number grows beyond 64 bits") << source;
  }
  EXPECT_EQ(rendered("{{ " + least + " % -1 }}{{ " + least + " is divisibleby(-1) }}"), "0True");
  EXPECT_EQ(rendered("{{ range(9223372036854775806, 9223372036854775807, 5) | list }}"),
            "[9223372036854775806]");
  EXPECT_EQ(rendered("{{ 'abc'[::" + least + "] }}{{ 'abc'[::9223372036854775807] }}"), "ca");
}

TEST(TemplateBudget, OnlyANamespaceCanBeChanged) {
  EXPECT_EQ(error_of("{% for i in [1] %}{% set loop.x = loop %}{% endfor %}"),
            "t:1: loop isn't a namespace, so its x can't be set");
}

TEST(TemplateBudget, ASourceHasALimit) {
  EXPECT_EQ(rendered(std::string(kMostSourceBytes, 'a')).size(), kMostSourceBytes);
  EXPECT_EQ(error_of(std::string(kMostSourceBytes + 1, 'a')),
            "t: a template of 2097153 bytes; templates may have 2097152.");
}

TEST(TemplateBudget, WhatIsUsedIsCountedAlike) {
  const std::string source =
      "{% for m in messages %}<{{ m.role }}>{{ m.content | trim }}{% endfor %}";
  const std::string variables =
      R"({"messages": [{"role": "user", "content": " Hi "}, {"role": "assistant", "content": "Yo"}]})";
  Used first, second;
  EXPECT_EQ(rendered(source, variables, {}, &first), "<user>Hi<assistant>Yo");
  rendered(source, variables, {}, &second);
  EXPECT_EQ(first.steps, second.steps);
  EXPECT_EQ(first.bytes, second.bytes);
  EXPECT_EQ(first.depth, second.depth);
  EXPECT_GT(first.steps, 20);
  EXPECT_LT(first.steps, 200);
  Limits limits{.steps = first.steps + 1, .bytes = first.bytes, .depth = first.depth};
  EXPECT_EQ(rendered(source, variables, limits), "<user>Hi<assistant>Yo");
  limits.depth = first.depth - 1;
  EXPECT_THROW(rendered(source, variables, limits), DataError);
  limits.depth = first.depth;
  limits.bytes = first.bytes - 1;
  EXPECT_THROW(rendered(source, variables, limits), DataError);
}

TEST(TemplateBudget, ObjectsWithManyKeysAreReadInOnePass) {
  std::string json = "{";
  for (int i = 0; i < 500'000; ++i) json += "\"key" + std::to_string(i) + "\": {},";
  json += "\"key1\": 7}";
  const Value value = value_of_json(json, 0);
  ASSERT_EQ(value.dict()->items.size(), 500'000u);
  EXPECT_EQ(value.dict()->items[1].second.integer(), 7);  // Python: the first place, the last value
  std::string list = "[{}";
  for (int i = 0; i < 500'000; ++i) list += ",{}";
  EXPECT_EQ(value_of_json(list + "]", 0).list()->items.size(), 500'001u);
}

}  // namespace
}  // namespace sherd::templates
