#include "sharding/processes/thread_messages.h"

#include <cstring>
#include <thread>

#include "core/error.h"

namespace sherd::sharding {

std::shared_ptr<ThreadMessages::Message> ThreadMessages::send(int tag, const void* data,
                                                              std::int64_t bytes) {
  auto message = std::make_shared<Message>();
  message->data = data;
  message->bytes = bytes;
  std::lock_guard lock(mutex_);
  OfTag& of_tag = of_tags_[tag];
  of_tag.waiting.emplace(of_tag.num_sent++, message);
  return message;
}

ThreadMessages::Receive ThreadMessages::expect(int tag, void* data, std::int64_t bytes) {
  std::lock_guard lock(mutex_);
  return {tag, of_tags_[tag].num_expected++, data, bytes};
}

bool ThreadMessages::take(const Receive& receive) {
  std::shared_ptr<Message> message;
  {
    std::lock_guard lock(mutex_);
    auto& waiting = of_tags_[receive.tag].waiting;
    const auto at = waiting.find(receive.number);
    if (at == waiting.end()) return false;
    message = std::move(at->second);
    waiting.erase(at);
  }
  SHERD_CHECK(message->bytes == receive.bytes, "a message of {} B where {} are expected",
              message->bytes, receive.bytes);
  State expected = State::kWaiting;
  if (!message->state.compare_exchange_strong(expected, State::kBeingCopied)) return false;
  if (receive.bytes > 0) {
    std::memcpy(receive.data, message->data, static_cast<std::size_t>(receive.bytes));
  }
  message->state = State::kCopied;
  return true;
}

void ThreadMessages::give_up(Message& message) {
  State expected = State::kWaiting;
  message.state.compare_exchange_strong(expected, State::kGivenUp);
  while (message.state == State::kBeingCopied) std::this_thread::yield();
}

}  // namespace sherd::sharding
