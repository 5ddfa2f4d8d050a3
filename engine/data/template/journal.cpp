#include "engine/data/template/journal.h"

#include <algorithm>
#include <array>
#include <string_view>

namespace sherd::templates {
namespace {

bool is_from_data(const MarkedText& text) {
  return std::ranges::any_of(text.marks, [](char mark) { return (mark & kFromData) != 0; });
}

// Whether nothing shows that a value was set again: the same text, or an equal one of the
// template's own; the same number; None. An equal text of another message isn't the same, since
// that message may be the one that is searched for.
bool is_same(const Value& a, const Value& b) {
  if (const MarkedText* x = a.text(), *y = b.text(); x && y) {
    return x == y ||
           (equal(a, b) && x->is_safe == y->is_safe && !is_from_data(*x) && !is_from_data(*y));
  }
  const bool is_plain = (a.is_none() && b.is_none()) || (a.is_number() && b.is_number());
  return is_plain && to_text(a).bytes == to_text(b).bytes;
}

// Lists of messages that are being watched hold none; other namespaces are asked by themselves.
bool is_spoken_in(const Value& value) {
  if (const MarkedText* text = value.text()) return std::ranges::any_of(text->marks, is_spoken);
  if (const List* list = value.unwatched_list()) {
    return !list->watched_by && std::ranges::any_of(list->items, is_spoken_in);
  }
  const Dict* dict = value.dict();
  return dict && !dict->is_namespace && std::ranges::any_of(dict->items, [](const auto& item) {
           return is_spoken_in(item.second);
         });
}

// How a template uses `loop`.
class LoopUses {
 public:
  explicit LoopUses(const Block& block) { visit(block); }
  bool any() const { return any_; }
  bool all_plain() const { return all_plain_; }

 private:
  void visit(const Block& block) {
    for (const Statement& statement : block) {
      visit(statement.value);
      visit(statement.condition);
      for (const Parameter& parameter : statement.parameters) visit(parameter.missing);
      visit(statement.body);
      visit(statement.others);
    }
  }
  void visit(const ExpressionPtr& expression) {
    constexpr std::array<std::string_view, 7> kPlain = {"index",    "index0",   "first", "last",
                                                        "previtem", "nextitem", "cycle"};
    if (!expression) return;
    const bool is_attribute = expression->kind == Expression::Kind::kAttribute;
    if (is_attribute && is_loop(expression->parts[0])) {
      any_ = true;
      all_plain_ &= std::ranges::find(kPlain, expression->name) != kPlain.end();
      return;
    }
    if (is_loop(expression)) {
      any_ = true;
      all_plain_ = false;
    }
    for (const ExpressionPtr& part : expression->parts) visit(part);
    for (const ExpressionPtr& argument : expression->arguments.positional) visit(argument);
    for (const auto& [name, argument] : expression->arguments.named) visit(argument);
  }
  static bool is_loop(const ExpressionPtr& expression) {
    return expression && expression->kind == Expression::Kind::kName && expression->name == "loop";
  }

  bool any_ = false, all_plain_ = true;
};

}  // namespace

void Journal::remember(const Value& name_space) {
  const Dict* dict = name_space.dict();
  if (!knows(dict)) keep(name_space, dict->items, dict->depth);
}

void Journal::keep(const Value& name_space, const std::vector<std::pair<Value, Value>>& items,
                   int depth) {
  count_steps(1 + items.size() / 4);
  Held held(sizeof(Before) + 2 * sizeof(Value) * items.size());
  befores_.push_back({name_space, items, depth, std::move(held)});
}

bool Journal::knows(const Dict* dict) const {
  count_steps(befores_.size() / 8);
  return std::ranges::any_of(
      befores_, [&](const Before& before) { return before.name_space.dict() == dict; });
}

bool Journal::has_changed() const {
  for (const Before& before : befores_) {
    const auto& now = before.name_space.dict()->items;
    if (now.size() != before.items.size()) return true;
    for (std::size_t i = 0; i < now.size(); ++i) {
      if (!is_same(now[i].second, before.items[i].second)) return true;
    }
  }
  return false;
}

bool Journal::holds_spoken() const {
  return std::ranges::any_of(befores_, [](const Before& before) {
    return std::ranges::any_of(before.name_space.dict()->items,
                               [](const auto& item) { return is_spoken_in(item.second); });
  });
}

void Journal::add(const Journal& later) {
  for (const Before& before : later.befores_) {
    if (!knows(before.name_space.dict())) keep(before.name_space, before.items, before.depth);
  }
}

void Journal::undo() {
  for (Before& before : befores_) {
    before.name_space.dict()->put_back(std::move(before.items), before.depth);
  }
  befores_.clear();
}

bool uses_loop(const Block& block) {
  return LoopUses(block).any();
}

bool uses_loops_plainly(const Block& block) {
  return LoopUses(block).all_plain();
}

}  // namespace sherd::templates
