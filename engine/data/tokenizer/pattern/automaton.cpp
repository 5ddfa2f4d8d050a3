#include "engine/data/tokenizer/pattern/automaton.h"

#include <algorithm>
#include <bitset>
#include <map>
#include <utility>

#include "engine/data/tokenizer/pattern/pattern_tree.h"

namespace sherd::tokenizer {
namespace {

using KindSet = std::bitset<256>;
using Kind = PatternNode::Kind;

constexpr std::size_t kMaxPlaces = 512;
constexpr std::size_t kMaxStates = 512;

/// A place in the pattern.
struct Place {
  enum class Type : std::uint8_t {
    kTake,   ///< a code point of `kinds`, then `next`
    kLook,   ///< `next` if a code point of `kinds` follows, which isn't taken
    kFork,   ///< `next`, else `other`
    kMatch,  ///< the pattern ends
  };
  Type type = Type::kMatch;
  std::uint16_t next = 0;
  std::uint16_t other = 0;
  KindSet kinds{};
};

bool may_be_empty(const PatternNode& node) {
  const auto child_may = [](const PatternNode& child) { return may_be_empty(child); };
  switch (node.kind) {
    case Kind::kSet:
      return false;
    case Kind::kSequence:
      return std::all_of(node.children.begin(), node.children.end(), child_may);
    case Kind::kAlternative:
      return std::any_of(node.children.begin(), node.children.end(), child_may);
    case Kind::kRepeat:
      return node.least == 0 || may_be_empty(node.children[0]);
    case Kind::kNext:
    case Kind::kNotNext:
    case Kind::kEnd:
      return true;
  }
  return true;
}

/// Lays the tree out as places, from its end to its beginning.
class Places {
 public:
  Places(std::size_t num_sets, std::span<const std::uint64_t> sets_of_kind)
      : kinds_of_set_(num_sets) {
    for (std::size_t kind = 0; kind < sets_of_kind.size(); ++kind) {
      for (std::size_t set = 0; set < num_sets; ++set) {
        kinds_of_set_[set][kind + 1] = (sets_of_kind[kind] >> set & 1) != 0;
      }
    }
  }

  /// The first place of `tree`, if there is such a machine.
  std::optional<std::uint16_t> lay_all(const PatternNode& tree) {
    const std::uint16_t first = lay(tree, add({.type = Place::Type::kMatch}));
    return possible_ ? std::optional(first) : std::nullopt;
  }
  const Place& operator[](std::size_t place) const { return places_[place]; }
  std::size_t size() const { return places_.size(); }

 private:
  std::uint16_t add(Place place) {
    if (places_.size() == kMaxPlaces) possible_ = false;
    if (!possible_) return 0;
    places_.push_back(place);
    return static_cast<std::uint16_t>(places_.size() - 1);
  }
  std::uint16_t look(const KindSet& kinds, std::uint16_t next) {
    return add({.type = Place::Type::kLook, .next = next, .kinds = kinds});
  }
  std::uint16_t fork(std::uint16_t first, std::uint16_t second, bool first_is_preferred) {
    if (!first_is_preferred) std::swap(first, second);
    return add({.type = Place::Type::kFork, .next = first, .other = second});
  }

  /// `node`, and then the place `next`.
  std::uint16_t lay(const PatternNode& node, std::uint16_t next) {
    switch (node.kind) {
      case Kind::kSet:
        return add({.type = Place::Type::kTake, .next = next, .kinds = kinds_of(node)});
      case Kind::kNext:
        return look(kinds_of(node), next);
      case Kind::kNotNext:
        return look(~kinds_of(node), next);
      case Kind::kEnd:
        return look(KindSet{}.set(Automaton::kEndOfText), next);
      case Kind::kSequence:
        for (auto child = node.children.rbegin(); child != node.children.rend(); ++child) {
          next = lay(*child, next);
        }
        return next;
      case Kind::kAlternative: {
        std::uint16_t rest = lay(node.children.back(), next);
        for (std::size_t i = node.children.size() - 1; i-- > 0;) {
          rest = fork(lay(node.children[i], next), rest, true);
        }
        return rest;
      }
      case Kind::kRepeat:
        return lay_repeat(node, next);
    }
    return next;
  }

  std::uint16_t lay_repeat(const PatternNode& node, std::uint16_t next) {
    const PatternNode& child = node.children[0];
    const bool most_first = node.greed != PatternNode::Greed::kLeast;
    const bool is_bounded = node.most != PatternNode::kUnbounded;
    if (node.greed == PatternNode::Greed::kPossessive) {
      if (child.kind != Kind::kSet) {
        possible_ = false;
        return 0;
      }
      // A possessive repetition takes all it can, so no code point of the class follows it, except
      // after a `?` that took one.
      if (!is_bounded) {
        next = look(~kinds_of(child), next);
      } else {
        return fork(lay(child, next), look(~kinds_of(child), next), true);
      }
    }
    // Matchers differ in when they leave a loop that takes nothing.
    if (may_be_empty(child) && node.most != 1) possible_ = false;
    if (!is_bounded) {
      const std::uint16_t loop = fork(0, next, true);
      const std::uint16_t body = lay(child, loop);
      if (!possible_) return 0;
      (most_first ? places_[loop].next : places_[loop].other) = body;
      (most_first ? places_[loop].other : places_[loop].next) = next;
      next = loop;
    } else {
      const std::uint16_t end = next;
      for (int i = node.least; i < node.most && possible_; ++i) {
        next = fork(lay(child, next), end, most_first);
      }
    }
    for (int i = 0; i < node.least && possible_; ++i) next = lay(child, next);
    return next;
  }

  KindSet kinds_of(const PatternNode& node) const {
    return kinds_of_set_[static_cast<std::size_t>(node.set)];
  }

  std::vector<KindSet> kinds_of_set_;
  std::vector<Place> places_;
  bool possible_ = true;
};

/// One step: from a list of places, over a kind, to the next list.
class Step {
 public:
  Step(const Places& places, std::uint8_t kind) : places_(places), kind_(kind) {}

  /// Whether a match ends in front of the code point; `next` is where its matchers go.
  bool from(const std::vector<std::uint16_t>& state, std::vector<std::uint16_t>& next) {
    for (const std::uint16_t first : state) {
      waiting_.assign(1, first);
      while (!waiting_.empty()) {
        const std::uint16_t at = waiting_.back();
        waiting_.pop_back();
        if (seen_[at]) continue;
        seen_[at] = true;
        const Place& place = places_[at];
        switch (place.type) {
          case Place::Type::kMatch:
            return true;
          case Place::Type::kTake:
            if (place.kinds[kind_] && !in_next_[place.next]) {
              in_next_[place.next] = true;
              next.push_back(place.next);
            }
            break;
          case Place::Type::kLook:
            if (place.kinds[kind_]) waiting_.push_back(place.next);
            break;
          case Place::Type::kFork:
            waiting_.push_back(place.other);
            waiting_.push_back(place.next);
            break;
        }
      }
    }
    return false;
  }

 private:
  const Places& places_;
  std::uint8_t kind_;
  std::bitset<kMaxPlaces> seen_;
  std::bitset<kMaxPlaces> in_next_;
  std::vector<std::uint16_t> waiting_;  ///< the next one last
};

}  // namespace

std::optional<Automaton> Automaton::make(const ParsedPattern& pattern,
                                         std::span<const std::uint64_t> sets_of_kind) {
  const std::optional<PatternNode> tree = tree_of(pattern);
  if (!tree) return std::nullopt;
  Places places(pattern.sets.size(), sets_of_kind);
  const std::optional<std::uint16_t> first = places.lay_all(*tree);
  if (!first) return std::nullopt;

  const std::size_t num_kinds = sets_of_kind.size() + 1;
  Automaton made;
  made.table_.resize(num_kinds);  // kDead
  made.start_ = static_cast<std::uint32_t>(num_kinds);
  std::map<std::vector<std::uint16_t>, std::uint32_t> row_of = {{{}, kDead},
                                                                {{*first}, made.start_}};
  std::vector<std::vector<std::uint16_t>> states = {{}, {*first}};
  for (std::size_t state = 1; state < states.size(); ++state) {
    if (states.size() > kMaxStates) return std::nullopt;
    for (std::size_t kind = 0; kind < num_kinds; ++kind) {
      std::vector<std::uint16_t> next;
      const bool matched = Step(places, static_cast<std::uint8_t>(kind)).from(states[state], next);
      const auto [row, is_new] =
          row_of.try_emplace(next, static_cast<std::uint32_t>(states.size() * num_kinds));
      if (is_new) states.push_back(std::move(next));
      made.table_.push_back(row->second | (matched ? kMatched : 0));
    }
  }
  return made;
}

}  // namespace sherd::tokenizer
