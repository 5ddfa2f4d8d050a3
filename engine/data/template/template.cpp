// Reads and renders: how statements run. Expressions are in evaluator.cpp.
#include "engine/data/template/template.h"

#include <algorithm>

#include "core/error.h"
#include "engine/data/template/evaluator.h"
#include "engine/data/template/functions.h"
#include "engine/data/template/journal.h"
#include "engine/data/template/loop_object.h"
#include "engine/data/template/names.h"
#include "engine/data/template/syntax.h"

namespace sherd::templates {

struct TemplateTree {
  std::string where;
  Block body;
  bool uses_loops_plainly = false;
};

namespace {

using Kind = Statement::Kind;

/// Text that is being made.
struct Output {
  MarkedText text{};
  Held held{};
};

class Renderer {
 public:
  explicit Renderer(std::string where) : where_(std::move(where)) {}

  enum class Flow { kNext, kBreak, kContinue, kDone };

  /// The statements from `first` on.
  Flow run(const Block& block, const ScopePtr& scope, Output& out, std::size_t first = 0) {
    if (growing_) frames_.push_back({&block, first, scope, &out});
    Flow flow = Flow::kNext;
    for (std::size_t i = first; i < block.size() && flow == Flow::kNext; ++i) {
      if (growing_) frames_.back().at = i;
      const Statement& statement = block[i];
      try {
        const Deeper deeper;
        count_steps();
        flow = run(statement, scope, out);
        out.held.set(2 * out.text.size());
      } catch (const Problem& problem) {
        throw DataError("{}:{}: {}", where_, statement.line, for_message(problem.text));
      }
    }
    if (growing_) frames_.pop_back();
    return flow;
  }

  /// All beginnings of the messages that `growing` has in `scope`. False: not this template.
  bool run_all(const Block& block, const ScopePtr& scope, GrowingMessages& growing,
               Beginnings& all) {
    growing_ = &growing;
    all_ = &all;
    Output shared;
    const bool done = run(block, scope, shared) == Flow::kDone;
    all.shared = std::move(shared.text);
    return done && !growing.was_looked_at();
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
        return loop(statement, scope, out);
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

  void set(const Statement& statement, const ScopePtr& scope) {
    Value value = evaluate(*statement.value, scope);
    if (!statement.attribute.empty()) {
      const Value name_space = scope->get(statement.names[0]);
      Dict* dict = name_space.dict();
      if (!dict || !dict->can_change) {
        throw_problem("{} isn't a namespace, so its {} can't be set", statement.names[0],
                      statement.attribute);
      }
      if (journal_) journal_->remember(name_space);
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

  Flow loop(const Statement& statement, const ScopePtr& scope, Output& out) {
    const Value over = evaluate(*statement.value, scope);
    if (const List* list = watched(over)) {
      const bool goes_through_all = !statement.condition && statement.names.size() == 1;
      if (goes_through_all && is_at_the_top()) return grow(statement, *list, scope, out);
    }
    std::vector<Value> elements = elements_of(over);
    const Held held(elements.size() * sizeof(Value));
    if (statement.condition) {
      std::erase_if(elements, [&](const Value& element) {
        const ScopePtr inner = Scope::inside(scope);
        assign(statement.names, element, inner);
        return !truth(evaluate(*statement.condition, inner));
      });
    }
    if (elements.empty()) return run(statement.others, scope, out);
    for (std::size_t i = 0; i < elements.size(); ++i) {
      if (run_round(statement, elements, i, scope, out) == Flow::kBreak) break;
    }
    return Flow::kNext;
  }

  Flow run_round(const Statement& statement, const std::vector<Value>& elements, std::size_t i,
                 const ScopePtr& scope, Output& out) {
    count_steps(5);  // its loop object
    const ScopePtr inner = Scope::inside(scope);
    inner->set("loop", loop_object(elements, i));
    assign(statement.names, elements[i], inner);
    return run(statement.body, inner, out);
  }

  // Only conditions are around the loop, so that what follows it is known.
  bool is_at_the_top() const {
    return std::ranges::all_of(frames_, [&](const Frame& frame) {
      return frame.scope == frames_[0].scope && frame.out == frames_[0].out;
    });
  }

  // Goes through the messages, and forks where a beginning ends (growing.h).
  Flow grow(const Statement& statement, const List& list, const ScopePtr& scope, Output& out) {
    if (changes_nothing(statement, list, scope, out)) return Flow::kNext;
    if (!growing_->begin_loop(list)) growing_->look();
    for (std::size_t i = 0; !growing_->was_looked_at(); ++i) {
      if (growing_->wants_count()) fork(statement, list.items, i, scope, out);
      if (growing_->is_complete()) break;
      growing_->grow();
      if (run_ahead(statement, list, i, scope, out) == Flow::kBreak) growing_->look();
    }
    return Flow::kDone;
  }

  // A round that another one follows. What it shows or keeps of the next message would have other
  // marks where that one is the last.
  Flow run_ahead(const Statement& statement, const List& list, std::size_t i, const ScopePtr& scope,
                 Output& out) {
    const std::size_t size = out.text.size();
    Journal journal;
    journal_ = &journal;
    growing_->mark_newest();
    const Flow flow = run_round(statement, list.items, i, scope, out);
    growing_->unmark_newest();
    journal_ = nullptr;
    const std::string_view added = std::string_view(out.text.marks).substr(size);
    if (std::ranges::any_of(added, is_spoken) || journal.holds_spoken()) growing_->look();
    return flow;
  }

  // As if no message followed, to the end of the template; then everything is put back.
  void fork(const Statement& statement, const std::vector<Value>& elements, std::size_t i,
            const ScopePtr& scope, const Output& out) {
    Beginnings::One& one = all_->of_count[growing_->count()];
    one.shared_bytes = out.text.size();
    count_steps(scope->values().size() + frames_.size());
    const Scope::Values values = scope->values();
    const std::vector<Frame> frames = frames_;
    Output tail;
    Journal journal;
    journal_ = &journal;
    growing_->begin_fork();
    try {
      run_round(statement, elements, i, scope, tail);
      for (std::size_t f = frames.size(); f-- > 0;) {
        const Frame& frame = frames[f];
        if (run(*frame.block, frame.scope, tail, frame.at + 1) != Flow::kNext) break;
      }
      tails_.add(2 * tail.text.size());  // each is held to the end
      one.tail = std::move(tail.text);
      one.is_known = true;
    } catch (const DataError&) {  // by itself this beginning says why
    } catch (const Problem&) {
    }
    growing_->end_fork();
    journal_ = nullptr;
    journal.undo();
    scope->restore(values);
    frames_ = frames;
  }

  // Whether the loop is none: it writes nothing, and changes nothing after its first rounds, such
  // as a search for the system's message. Else everything is put back.
  bool changes_nothing(const Statement& statement, const List& list, const ScopePtr& scope,
                       Output& out) {
    constexpr std::size_t kMostRounds = 4;  // that change something
    if (uses_loop(statement.body) || !growing_->begin_loop(list)) return false;
    const std::size_t size = out.text.size();
    Journal all, round;
    std::size_t changing = 0;
    for (std::size_t i = 0; changing <= kMostRounds && out.text.size() == size; ++i) {
      round = {};
      journal_ = &round;
      const Flow flow = run_round(statement, list.items, i, scope, out);
      if (round.has_changed()) changing = i + 1;
      all.add(round);
      if (flow == Flow::kBreak) changing = i + 1;
      if (flow == Flow::kBreak || growing_->is_complete() || growing_->was_looked_at()) break;
      growing_->grow();
    }
    journal_ = nullptr;
    growing_->end_loop();
    if (changing <= kMostRounds && out.text.size() == size) {
      growing_->need(list.first + changing + 1);
      return true;
    }
    all.undo();
    out.text = out.text.part(0, size);
    return false;
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

  struct Frame {
    const Block* block = nullptr;
    std::size_t at = 0;
    ScopePtr scope;
    Output* out = nullptr;
  };

  std::string where_;
  GrowingMessages* growing_ = nullptr;  // null: one rendering
  Beginnings* all_ = nullptr;
  Held tails_{};                 // of its beginnings
  std::vector<Frame> frames_{};  // of blocks that are being run, while messages grow
  Journal* journal_ = nullptr;   // while what is done may be put back
};

}  // namespace

Template Template::parse(std::string_view source, std::string_view where) {
  auto tree = std::make_shared<TemplateTree>();
  tree->where = where;
  tree->body = templates::parse(source, where);
  Template result;
  result.has_generation_ = check_names(tree->body, tree->where);
  tree->uses_loops_plainly = uses_loops_plainly(tree->body);
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
  } catch (const Problem& problem) {  // of the variables
    report();
    throw DataError("{}: {}", tree_->where, for_message(problem.text));
  } catch (...) {
    report();
    throw;
  }
}

std::optional<Beginnings> Template::render_beginnings(const Dict& variables,
                                                      const BeginningsRequest& request,
                                                      const Limits& limits) const {
  if (!tree_->uses_loops_plainly || request.messages.empty()) return std::nullopt;
  Budget budget(limits);
  try {
    GrowingMessages growing(request);
    const ScopePtr scope = Scope::inside(global_scope({}));
    for (const auto& [name, value] : variables.items) scope->set(name.text()->bytes, value);
    scope->set("messages", growing.list());
    Beginnings all;
    all.of_count.resize(request.wanted.size());
    if (!Renderer(tree_->where).run_all(tree_->body, scope, growing, all)) return std::nullopt;
    for (std::size_t count = 0; count < std::min(growing.fewest(), all.of_count.size()); ++count) {
      all.of_count[count].is_known = false;
    }
    return all;
  } catch (const DataError&) {
    return std::nullopt;
  } catch (const Problem&) {
    return std::nullopt;
  }
}

}  // namespace sherd::templates
