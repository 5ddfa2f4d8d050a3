#include "engine/data/template/growing.h"

#include <algorithm>

namespace sherd::templates {

void Value::look_at(const List& list) {
  list.watched_by->look();
}

const List* watched(const Value& value) {
  const List* list = value.unwatched_list();
  return list && list->watched_by && list->watched_by->is_watching() ? list : nullptr;
}

GrowingMessages::GrowingMessages(const BeginningsRequest& request) : request_(request) {
  auto messages = std::make_shared<List>();
  held_.add(sizeof(List) + request.messages.size() * sizeof(Value));
  count_steps(request.messages.size() / 4);
  messages->items = request.messages;
  for (const Value& message : messages->items) {
    messages->depth = std::max(messages->depth, depth_around(message));
  }
  messages->watched_by = this;
  lists_.push_back(std::move(messages));
}

const Value* GrowingMessages::item(const List& list, std::int64_t index) {
  if (index < 0 || index >= std::ssize(list.items)) return nullptr;
  // One more, since the last message of a beginning may be shown in another way.
  if (!is_in_loop_) need(list.first + static_cast<std::size_t>(index) + 2);
  return &list.items[static_cast<std::size_t>(index)];
}

std::optional<Value> GrowingMessages::slice(const List& list, std::int64_t first) {
  if (is_in_loop_ || first < 0 || first > std::ssize(list.items)) return std::nullopt;
  const std::size_t size = list.items.size() - static_cast<std::size_t>(first);
  held_.add(sizeof(List) + size * sizeof(Value));
  count_steps(1 + size);
  auto slice = std::make_shared<List>();
  slice->first = list.first + static_cast<std::size_t>(first);
  slice->items.assign(list.items.begin() + first, list.items.end());
  slice->depth = list.depth;
  slice->watched_by = this;
  lists_.push_back(slice);
  return Value::of(slice);
}

std::optional<bool> GrowingMessages::truth(const List& list) {
  if (list.items.empty()) {
    if (is_in_loop_ && list.first < request_.messages.size()) return std::nullopt;
    return false;
  }
  if (!is_in_loop_) need(list.first + 1);
  return true;
}

bool GrowingMessages::begin_loop(const List& list) {
  if (list.items.empty()) return false;
  need(list.first + 1);
  is_in_loop_ = true;
  resize(list.first + 1);
  return true;
}

void GrowingMessages::grow() {
  resize(count() + 1);
}

void GrowingMessages::end_loop() {
  is_in_loop_ = false;
  resize(request_.messages.size());
}

void GrowingMessages::mark_newest() {
  if (request_.as_last) put(count() - 1, request_.as_last(count() - 1));
}

void GrowingMessages::unmark_newest() {
  put(count() - 1, request_.messages[count() - 1]);
}

void GrowingMessages::begin_fork() {
  is_watching_ = false;
  mark_newest();
}

void GrowingMessages::end_fork() {
  is_watching_ = true;
  unmark_newest();
}

void GrowingMessages::resize(std::size_t count) {
  count_steps(lists_.size());
  for (const auto& list : lists_) {
    const std::size_t size = count > list->first ? count - list->first : 0;
    while (list->items.size() > size) list->items.pop_back();
    while (list->items.size() < size) {
      list->items.push_back(request_.messages[list->first + list->items.size()]);
    }
  }
}

void GrowingMessages::put(std::size_t index, const Value& message) {
  count_steps(lists_.size());
  for (const auto& list : lists_) {
    if (index >= list->first) list->items[index - list->first] = message;
  }
}

}  // namespace sherd::templates
