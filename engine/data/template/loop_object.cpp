#include "engine/data/template/loop_object.h"

#include "engine/data/template/evaluator.h"

namespace sherd::templates {
namespace {

/// Names of a loop object, which every turn has a new one of; no rendering's budget holds them.
const struct LoopNames {
  Value index0 = Value::text("index0"), index = Value::text("index");
  Value revindex0 = Value::text("revindex0"), revindex = Value::text("revindex");
  Value first = Value::text("first"), last = Value::text("last"), length = Value::text("length");
  Value previtem = Value::text("previtem"), nextitem = Value::text("nextitem");
  Value cycle = Value::text("cycle");
} kLoop;

}  // namespace

Value loop_object(const std::vector<Value>& elements, std::size_t i) {
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

}  // namespace sherd::templates
