#include "engine/data/tokenizer/pattern/pattern_tree.h"

#include <string_view>
#include <utility>

namespace sherd::tokenizer {
namespace {

/// Reads what pattern_parser.cpp wrote, so it meets no errors.
class TreeReader {
 public:
  explicit TreeReader(const ParsedPattern& pattern) {
    for (const PatternPart& part : pattern.parts) {
      for (const char c : part.syntax) items_.push_back(c);
      if (part.set >= 0) items_.push_back(kFirstSet + part.set);
    }
  }

  std::optional<PatternNode> read() {
    PatternNode tree = alternatives();
    if (!supported_ || next_ != items_.size()) return std::nullopt;
    return tree;
  }

 private:
  static constexpr int kFirstSet = 256;  ///< items below are characters of the syntax

  bool at(std::string_view text) const {
    if (items_.size() - next_ < text.size()) return false;
    for (std::size_t i = 0; i < text.size(); ++i) {
      if (items_[next_ + i] != text[i]) return false;
    }
    return true;
  }
  bool accept(std::string_view text) {
    if (!at(text)) return false;
    next_ += text.size();
    return true;
  }

  PatternNode alternatives() {
    PatternNode choice{.kind = PatternNode::Kind::kAlternative};
    do {
      PatternNode sequence{.kind = PatternNode::Kind::kSequence};
      while (next_ < items_.size() && !at("|") && !at(")")) sequence.children.push_back(element());
      choice.children.push_back(std::move(sequence));
    } while (accept("|"));
    return choice.children.size() == 1 ? std::move(choice.children[0]) : choice;
  }

  PatternNode element() {
    if (accept("\\z")) return {.kind = PatternNode::Kind::kEnd};
    if (accept("(?=")) return assertion(PatternNode::Kind::kNext);
    if (accept("(?!")) return assertion(PatternNode::Kind::kNotNext);
    PatternNode node;
    if (accept("(?:")) {
      node = alternatives();
      accept(")");
    } else {
      node = {.kind = PatternNode::Kind::kSet, .set = items_[next_++] - kFirstSet};
      supported_ &= node.set >= 0;
    }
    return repetition(std::move(node));
  }

  PatternNode assertion(PatternNode::Kind kind) {
    const PatternNode body = alternatives();
    accept(")");
    const bool is_one_set =
        body.children.size() == 1 && body.children[0].kind == PatternNode::Kind::kSet;
    supported_ &= is_one_set;
    return {.kind = kind, .set = is_one_set ? body.children[0].set : 0};
  }

  PatternNode repetition(PatternNode child) {
    PatternNode node{.kind = PatternNode::Kind::kRepeat};
    if (accept("+")) {
      node.least = 1;
    } else if (accept("?")) {
      node.most = 1;
    } else if (accept("{")) {
      node.least = node.most = number();
      if (accept(",")) node.most = at("}") ? PatternNode::kUnbounded : number();
      accept("}");
      node.children.push_back(std::move(child));
      return node;
    } else if (!accept("*")) {
      return child;
    }
    if (accept("?")) {
      node.greed = PatternNode::Greed::kLeast;
    } else if (accept("+")) {
      node.greed = PatternNode::Greed::kPossessive;
    }
    node.children.push_back(std::move(child));
    return node;
  }

  int number() {
    int value = 0;
    while (next_ < items_.size() && items_[next_] >= '0' && items_[next_] <= '9') {
      value = value * 10 + (items_[next_++] - '0');
    }
    return value;
  }

  std::vector<int> items_;
  std::size_t next_ = 0;
  bool supported_ = true;
};

}  // namespace

std::optional<PatternNode> tree_of(const ParsedPattern& pattern) {
  return TreeReader(pattern).read();
}

}  // namespace sherd::tokenizer
