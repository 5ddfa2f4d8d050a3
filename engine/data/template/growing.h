/// All beginnings of a list of messages in one rendering.
///
/// Where an answer begins in a rendered conversation is found by rendering the conversation up to it
/// (engine/data/chat/chat_format.h). One after another that takes time with the square of its length. But most
/// templates go through the messages once, and what they do until the k-th doesn't depend on those that
/// follow. So they are rendered once, and where the loop has come to the k-th message, the rendering is
/// forked: the fork does what is done where that message is the last, to the end of the template, and is
/// taken back; then the loop goes on. Beginnings share the text that comes before their fork.
///
/// Whether that is right is seen while it runs: the list is watched, and whoever looks at what differs between
/// beginnings, such as its length or its last element, ends it. Allowed are elements that all of them have,
/// a slice [n:], whether it is empty, and `loop` without length and revindex. A first loop over the messages that
/// changes nothing after its first rounds counts as none. Beginnings that are shorter than what was looked
/// at are left out.
///
/// One budget (budget.h) is for the loop and all forks together, and holds all tails. Where it isn't enough, each
/// beginning is rendered by itself, with a budget of its own.
#pragma once

#include <algorithm>
#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "engine/data/template/value.h"

namespace sherd::templates {

struct BeginningsRequest {
  std::vector<Value> messages;
  /// Of [0, messages.size()]: the numbers of messages to render.
  std::vector<bool> wanted;
  /// A message as it is shown where it is the last one; null: as it is.
  std::function<Value(std::size_t index)> as_last;
};

/// Texts of beginnings: the first `shared_bytes` of `shared`, then `tail`.
struct Beginnings {
  struct One {
    bool is_known = false;
    std::size_t shared_bytes = 0;
    MarkedText tail;
  };
  MarkedText shared;
  std::vector<One> of_count;  ///< by the number of messages
};

/// The messages while they are rendered, and what was looked at.
class GrowingMessages {
 public:
  explicit GrowingMessages(const BeginningsRequest& request);

  /// The list that templates see as `messages`.
  Value list() const { return Value::of(lists_[0]); }

  /// Someone looks at a list in a way that isn't known to be the same for all beginnings.
  void look() { was_looked_at_ = was_looked_at_ || is_watching_; }
  bool was_looked_at() const { return was_looked_at_; }
  bool is_watching() const { return is_watching_; }
  /// An element of it; null: look() is due.
  const Value* item(const List& list, std::int64_t index);
  /// list[first:]; none: look() is due.
  std::optional<Value> slice(const List& list, std::int64_t first);
  /// Whether it has elements; none: look() is due.
  std::optional<bool> truth(const List& list);

  /// A loop over `list` begins: messages up to its first are there. False: it has none.
  bool begin_loop(const List& list);
  void grow();
  /// All are there again.
  void end_loop();
  std::size_t count() const { return lists_[0]->items.size(); }
  bool is_complete() const { return count() == request_.messages.size(); }
  bool wants_count() const { return request_.wanted[count()]; }
  /// Of beginnings with fewer messages nothing is known.
  std::size_t fewest() const { return fewest_; }
  void need(std::size_t messages) { fewest_ = std::max(fewest_, messages); }

  /// The last message is as it is shown as the last one, and nobody watches.
  void begin_fork();
  void end_fork();

 private:
  void resize(std::size_t count);
  void put(std::size_t index, const Value& message);

  const BeginningsRequest& request_;
  std::vector<std::shared_ptr<List>> lists_;  ///< messages, and slices of them
  Held held_{};                               ///< of the lists
  bool is_watching_ = true, was_looked_at_ = false, is_in_loop_ = false;
  std::size_t fewest_ = 1;
};

/// The list that `value` is, if it is the messages or a slice of them and somebody watches.
const List* watched(const Value& value);

}  // namespace sherd::templates
