/// What namespaces held before they were changed, so that a part of a rendering can be taken back.
#pragma once

#include <utility>
#include <vector>

#include "engine/data/template/syntax.h"
#include "engine/data/template/value.h"

namespace sherd::templates {

class Journal {
 public:
  /// Before a namespace changes.
  void remember(const Value& name_space);
  /// Whether one of them is other than it was.
  bool has_changed() const;
  /// What `later` remembers of namespaces that this one doesn't.
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

/// Whether `loop` is used, and whether nothing of it that tells how many elements follow the next one.
bool uses_loop(const Block& block);
bool uses_loops_plainly(const Block& block);

}  // namespace sherd::templates
