/// Renders all prefixes ("beginnings") of a list of messages in one rendering.
///
/// Rendering a conversation up to an answer finds where the answer begins
/// (engine/data/chat/chat_format.h). Rendering the prefixes one after another takes quadratic time.
/// But most templates loop over the messages once, and their work up to the k-th message doesn't
/// depend on later messages. So the template is rendered once, and forked at each wanted message k.
/// The fork treats that message as the last one, renders to the end of the template, and is undone;
/// then the loop continues. Prefixes share the text that comes before their fork.
///
/// The list is watched during rendering to check that this is correct. Any access to what differs
/// between prefixes, such as the length or the last element, ends the attempt. Allowed are elements
/// that all prefixes have, a slice [n:], the test for emptiness, and `loop` without length and
/// revindex, unless the round before a message shows or keeps its text. A first loop over the messages that changes nothing after its first rounds is ignored.
/// Prefixes shorter than what was accessed are left out.
///
/// One budget (budget.h) covers the loop and all forks, and holds all tails. If it isn't enough,
/// each prefix is rendered separately, with its own budget.
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
  /// wanted[n]: whether to render the first n messages; n in [0, messages.size()].
  std::vector<bool> wanted;
  /// The form of a message when it is the last one; null: unchanged.
  std::function<Value(std::size_t index)> as_last;
};

/// The text of each prefix: the first `shared_bytes` of `shared`, then `tail`.
struct Beginnings {
  struct One {
    bool is_known = false;
    std::size_t shared_bytes = 0;
    MarkedText tail;
  };
  MarkedText shared;
  std::vector<One> of_count;  ///< by the number of messages
};

/// The messages during rendering, and a record of what was accessed.
class GrowingMessages {
 public:
  explicit GrowingMessages(const BeginningsRequest& request);

  /// The list that templates see as `messages`.
  Value list() const { return Value::of(lists_[0]); }

  /// Records an access whose result may differ between prefixes.
  void look() { was_looked_at_ = was_looked_at_ || is_watching_; }
  bool was_looked_at() const { return was_looked_at_; }
  bool is_watching() const { return is_watching_; }
  /// An element of `list`; null: the caller must call look().
  const Value* item(const List& list, std::int64_t index);
  /// list[first:]; none: the caller must call look().
  std::optional<Value> slice(const List& list, std::int64_t first);
  /// Whether `list` has elements; none: the caller must call look().
  std::optional<bool> truth(const List& list);

  /// Begins a loop over `list`: only messages up to its first are present. False if it has none.
  bool begin_loop(const List& list);
  void grow();
  /// Makes all messages present again.
  void end_loop();
  std::size_t count() const { return lists_[0]->items.size(); }
  bool is_complete() const { return count() == request_.messages.size(); }
  bool wants_count() const { return request_.wanted[count()]; }
  /// Prefixes with fewer messages aren't known.
  std::size_t fewest() const { return fewest_; }
  void need(std::size_t messages) { fewest_ = std::max(fewest_, messages); }

  /// Puts the newest message into its form as the last one, and back.
  void mark_newest();
  void unmark_newest();
  /// The same for a fork, in which nothing is watched.
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

/// `value` as a list if it is the messages, or a slice of them, and is being watched; else null.
const List* watched(const Value& value);

}  // namespace sherd::templates
