/// Contents of namespaces before they were changed, so that a part of a rendering can be undone.
#pragma once

#include <utility>
#include <vector>

#include "engine/data/template/syntax.h"
#include "engine/data/template/value.h"

namespace sherd::templates {

class Journal {
 public:
  /// Call before a namespace changes.
  void remember(const Value& name_space);
  /// Whether any remembered namespace now differs.
  bool has_changed() const;
  /// Whether any remembered namespace holds text with the mark kSpoken.
  bool holds_spoken() const;
  /// Adds the namespaces that `later` remembers and this journal doesn't.
  void add(const Journal& later);
  void undo();

 private:
  struct Before {
    Value name_space;
    std::vector<std::pair<Value, Value>> items;
    int depth = 1;
    Held held{};
  };
  void keep(const Value& name_space, const std::vector<std::pair<Value, Value>>& items, int depth);
  bool knows(const Dict* dict) const;
  std::vector<Before> befores_;
};

/// `uses_loop`: whether the block uses `loop`. `uses_loops_plainly`: whether it uses none of the
/// fields of `loop` that reveal how many elements follow the next one.
bool uses_loop(const Block& block);
bool uses_loops_plainly(const Block& block);

}  // namespace sherd::templates
