// All beginnings of a conversation in one rendering: each as it is by itself, or none.
#include "engine/data/template/growing.h"

#include <gtest/gtest.h>

#include "core/error.h"
#include "engine/data/template/json_value.h"
#include "engine/data/template/template.h"

namespace sherd::templates {
namespace {

struct Case {
  const char* name;
  const char* source;
  bool together;           ///< whether it can be rendered for all beginnings at once
  std::size_t fewest = 1;  ///< the shortest beginning that is known
};

const Case kCases[] = {
    {"a loop and a prompt",
     "{% for m in messages %}[{{ m.role }}]{{ m.content }};{% endfor %}"
     "{% if add_generation_prompt %}[assistant]{% endif %}",
     true},
    {"a system text before the loop",
     "{% if messages[0].role == 'system' %}<{{ messages[0].content }}>{% set rest = messages[1:] %}"
     "{% else %}{% set rest = messages %}{% endif %}"
     "{% for m in rest %}[{{ m.role }}]{{ m.content }};{% endfor %}"
     "{{ '[assistant]' if add_generation_prompt }}",
     true, 2},
    {"messages that are reassigned",
     "{% if messages and messages[0]['role'] == 'system' %}{% set messages = messages[1:] %}"
     "{% endif %}{% for m in messages %}{{ loop.index0 }}{{ m.content }}{% endfor %}",
     true, 2},
    {"the prompt in the last round",
     "{% for m in messages %}{{ m.content }}{% if loop.last and add_generation_prompt %}[a]"
     "{% elif not loop.last %},{% endif %}{% endfor %}",
     true},
    {"the message after",
     "{% for m in messages %}{{ m.content }}{% if loop.nextitem is defined and "
     "loop.nextitem.role == 'user' %}|{% endif %}{{ loop.previtem.role if loop.previtem is defined "
     "}}{% endfor %}",
     true},
    {"the text of the message after",
     "{% for m in messages %}{{ loop.nextitem.content if loop.nextitem is defined }}{% endfor %}a",
     false},
    {"the text of the message after, by its place",
     "{% for m in messages %}{{ messages[loop.index].content if messages[loop.index] is defined }}"
     "{% endfor %}",
     false},
    {"the message after, kept",
     "{% set ns = namespace(next=none) %}{% for m in messages %}{{ m.content }}"
     "{% set ns.next = loop.nextitem %}{% endfor %}",
     false},
    {"the length of the message after",
     "{% for m in messages %}{{ m.content }}{{ (loop.nextitem.content | length) if loop.nextitem "
     "is "
     "defined }}{% endfor %}",
     true},
    {"elements by their place",
     "{% for m in messages %}{{ m.content }}{% if messages[loop.index0 + 1] is defined %}>"
     "{% endif %}{% if loop.index0 > 0 %}{{ messages[loop.index0 - 1].role }}{% endif %}"
     "{% endfor %}",
     true},
    {"a namespace that counts",
     "{% set ns = namespace(n=0, said='') %}{% for m in messages %}"
     "{% if m.role == 'assistant' %}{% set ns.n = ns.n + 1 %}{% set ns.said = m.content %}"
     "{% endif %}{{ m.content }}{{ ns.n }}{% endfor %}"
     "{% set ns.n = 100 %}{{ ns.n }}{{ ns.said }}{% if add_generation_prompt %}[a]{% endif %}",
     true},
    {"the end writes what the loop reads",
     "{% set ns = namespace(x='-') %}{% set y = 1 %}{% for m in messages %}{{ ns.x }}{{ y }}"
     "{{ m.content }}{% endfor %}{% set ns.x = '+' %}{% set y = 2 %}{{ ns.x }}{{ y }}",
     true},
    {"roles that alternate",
     "{% for m in messages %}{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}"
     "{{ raise_exception('no') }}{% endif %}{{ m.content }}{% endfor %}",
     true},
    {"a search for the system text before",
     "{% set ns = namespace(system='') %}{% for m in messages %}{% if m.role == 'system' %}"
     "{% set ns.system = m.content %}{% endif %}{% endfor %}<{{ ns.system }}>"
     "{% for m in messages %}{% if m.role != 'system' %}{{ m.content }};{% endif %}{% endfor %}"
     "{% if add_generation_prompt %}[a]{% endif %}",
     true},
    {"a loop in front that counts",
     "{% set ns = namespace(n=0) %}{% for m in messages %}{% set ns.n = ns.n + 1 %}{% endfor %}"
     "{{ ns.n }}{% for m in messages %}{{ m.content }}{% endfor %}",
     true},
    {"a macro over each message",
     "{% macro show(m) %}[{{ m.role }}]{{ m.content }}{% endmacro %}"
     "{% for m in messages %}{{ show(m) }}{% endfor %}{{ show(messages[-1]) }}",
     true},
    {"the last message at the end",
     "{% for m in messages %}{{ m.content }}{% endfor %}"
     "{% if messages[-1].role == 'user' and messages | length > 1 %}[a]{% endif %}",
     true},
    {"a break",
     "{% for m in messages %}{% if loop.index > 3 %}{% break %}{% endif %}"
     "{{ m.content }}{% endfor %}",
     false},
    {"the length before",
     "{{ messages | length }}{% for m in messages %}{{ m.content }}{% endfor %}", false},
    {"the last message before",
     "{{ messages[-1].role }}{% for m in messages %}{{ m.content }}{% endfor %}", false},
    {"backwards", "{% for m in messages[::-1] %}{{ m.content }}{% endfor %}", false},
    {"a choice of them",
     "{% for m in messages | rejectattr('role', 'eq', 'system') %}{{ m.content }}{% endfor %}",
     false},
    {"a condition in the loop",
     "{% for m in messages if m.role != 'system' %}{{ m.content }}{% endfor %}", false},
    {"a loop's length", "{% for m in messages %}{{ m.content }}{{ loop.revindex }}{% endfor %}",
     false},
    {"a loop in a block",
     "{% set text %}{% for m in messages %}{{ m.content }}{% endfor %}{% endset %}{{ text }}",
     false},
    {"a loop in a loop",
     "{% for i in range(2) %}{% for m in messages %}{{ m.content }}{% endfor %}{% endfor %}",
     false},
    {"no loop", "{{ messages[0].content }}", false},
    {"all of them as JSON", "{{ messages | tojson }}{% for m in messages %}x{% endfor %}", false},
};

std::vector<Value> messages(bool with_system, std::size_t turns) {
  std::vector<Value> list;
  const auto add = [&](const char* role) {
    auto dict = std::make_shared<Dict>();
    dict->set(Value::text("role"), Value::text(role));
    dict->set(Value::text("content"),
              Value::text(std::string(1, role[0]) + std::to_string(list.size())));
    list.emplace_back(dict);
  };
  if (with_system) add("system");
  for (std::size_t i = 0; i < turns; ++i) add("user"), add("assistant");
  return list;
}

Dict variables(bool prompt) {
  Dict dict;
  dict.set(Value::text("add_generation_prompt"), prompt);
  return dict;
}

// The beginning by itself; empty where it fails.
std::optional<MarkedText> alone(const Template& of, const BeginningsRequest& request,
                                std::size_t count, bool prompt) {
  std::vector<Value> list(request.messages.begin(),
                          request.messages.begin() + static_cast<std::ptrdiff_t>(count));
  if (request.as_last && count > 0) list.back() = request.as_last(count - 1);
  Dict all = variables(prompt);
  all.set(Value::text("messages"), Value::list(std::move(list)));
  try {
    return of.render(all);
  } catch (const DataError&) {
    return std::nullopt;
  }
}

BeginningsRequest request_for(std::vector<Value> messages) {
  BeginningsRequest request{.messages = std::move(messages), .wanted = {}, .as_last = {}};
  request.wanted.assign(request.messages.size() + 1, true);
  request.as_last = [all = request.messages](std::size_t i) { return with_mark(all[i], kSpoken); };
  return request;
}

void expect_same_as_alone(const Template& of, const BeginningsRequest& request,
                          const Beginnings& all, bool prompt, const std::string& name) {
  for (std::size_t count = 1; count <= request.messages.size(); ++count) {
    const Beginnings::One& known = all.of_count[count];
    if (!known.is_known) continue;
    MarkedText text = all.shared.part(0, known.shared_bytes);
    text.append(known.tail);
    const auto expected = alone(of, request, count, prompt);
    ASSERT_TRUE(expected.has_value()) << name << " " << count;
    EXPECT_EQ(text.bytes, expected->bytes) << name << " " << count;
    EXPECT_EQ(text.marks, expected->marks) << name << " " << count;
  }
}

TEST(Growing, BeginningsAreWhatTheyAreByThemselvesOrNotKnown) {
  for (const Case& one : kCases) {
    const Template source = Template::parse(one.source, one.name);
    for (const bool with_system : {false, true}) {
      for (const bool prompt : {false, true}) {
        const BeginningsRequest request = request_for(messages(with_system, 5));
        const auto all = source.render_beginnings(variables(prompt), request);
        const bool roles_fail = with_system && std::string(one.name) == "roles that alternate";
        EXPECT_EQ(all.has_value(), one.together && !roles_fail) << one.name << with_system;
        if (!all) continue;
        for (std::size_t count = one.fewest + 1; count <= request.messages.size(); ++count) {
          EXPECT_TRUE(all->of_count[count].is_known) << one.name << " " << count;
        }
        expect_same_as_alone(source, request, *all, prompt, one.name);
      }
    }
  }
}

// A first loop may set a name to another value that looks like the one before.
TEST(Growing, ALoopThatRepeatsAnEqualValueChangesSomething) {
  const std::string source =
      "{% set ns = namespace(x='') %}{% for m in messages %}{% set ns.x = m.content %}{% endfor %}"
      "{{ ns.x }}{% for m in messages %}{{ m.content }}{% endfor %}";
  const Template parsed = Template::parse(source, "t");
  const auto with_contents = [](const char* json) {
    return value_of_json(json, kFromData).list()->items;
  };
  for (const char* json : {
           R"([{"content": "a"}, {"content": "a"}, {"content": "a"}, {"content": "a"}])",
           R"([{"content": 1}, {"content": true}, {"content": 1.0}, {"content": 1}])",
           R"([{"content": 0.0}, {"content": -0.0}, {"content": 0.0}, {"content": -0.0}])",
       }) {
    const BeginningsRequest request = request_for(with_contents(json));
    const auto all = parsed.render_beginnings(variables(false), request);
    if (all) expect_same_as_alone(parsed, request, *all, false, json);
  }
}

TEST(Growing, OnlyWhatIsWantedIsRendered) {
  const Template source = Template::parse(kCases[0].source, "t");
  BeginningsRequest request{.messages = messages(false, 3), .wanted = {}, .as_last = {}};
  request.wanted.assign(7, false);
  request.wanted[4] = true;
  const auto all = source.render_beginnings(variables(false), request);
  ASSERT_TRUE(all.has_value());
  for (std::size_t count = 0; count < 7; ++count) {
    EXPECT_EQ(all->of_count[count].is_known, count == 4);
  }
}

// A rendering by itself has a budget of its own, so nothing is lost where one isn't enough for all.
TEST(Growing, OneBudgetIsForTheLoopAndAllForks) {
  BeginningsRequest request{.messages = messages(false, 20), .wanted = {}, .as_last = {}};
  request.wanted.assign(request.messages.size() + 1, true);
  const auto known = [&](const char* source, const Limits& limits) {
    return Template::parse(source, "t").render_beginnings(variables(false), request, limits);
  };
  const char* loop = "{% for m in messages %}{{ m.content }}{% endfor %}";
  EXPECT_TRUE(known(loop, {.steps = 2000}));
  EXPECT_FALSE(known(loop, {.steps = 200}));
  const char* tails = "{% for m in messages %}{{ m.content }}{% endfor %}{{ '-' * 1000 }}";
  EXPECT_TRUE(known(tails, {.bytes = 200'000}));
  const auto some = known(tails, {.bytes = 40'000});
  ASSERT_TRUE(some);
  EXPECT_TRUE(some->of_count[2].is_known);
  EXPECT_FALSE(some->of_count[40].is_known);
}

// What a fork set is neither held nor nested deeper afterwards.
TEST(Growing, NamespacesThatAreTakenBackHoldWhatTheyHeld) {
  auto dict = std::make_shared<Dict>();
  Budget budget({});
  dict->set(Value::text("a"), true);
  const std::int64_t held = budget.used().bytes;
  for (int i = 0; i < 1000; ++i) {
    const auto before = dict->items;
    const int depth = dict->depth;
    dict->set(Value::text("b"), Value::list({Value::list({})}));
    EXPECT_EQ(dict->depth, 3);
    dict->put_back(before, depth);
    EXPECT_EQ(dict->depth, 1);
  }
  EXPECT_LT(budget.used().bytes, held + 2000);
}

}  // namespace
}  // namespace sherd::templates
