/// Messages between ranks of one process: the receiver copies straight from the sender's buffer.
///
/// A tag names the group, the sender and the receiver, as it does in MPI. For one tag, the first
/// message matches the first receive, the second matches the second.
/// Wait   both sides check repeatedly whether a message has been copied. A side waits only when it
///        gives a message up while its copy is in progress.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>

namespace sherd::sharding {

class ThreadMessages {
 public:
  enum class State { kWaiting, kBeingCopied, kCopied, kGivenUp };
  struct Message {
    const void* data = nullptr;
    std::int64_t bytes = 0;
    std::atomic<State> state = State::kWaiting;
    bool copied() const { return state == State::kCopied; }
  };
  struct Receive {
    int tag = 0;
    std::uint64_t number = 0;  ///< counts the messages with this tag
    void* data = nullptr;
    std::int64_t bytes = 0;
  };

  /// `data` must stay unchanged until the message is copied or given up.
  std::shared_ptr<Message> send(int tag, const void* data, std::int64_t bytes);
  Receive expect(int tag, void* data, std::int64_t bytes);
  /// Copies the message if it is there, and returns whether it did. Once it has, don't ask again.
  bool take(const Receive& receive);
  /// When it returns, the buffer is no longer read.
  static void give_up(Message& message);

 private:
  struct OfTag {
    std::uint64_t num_sent = 0, num_expected = 0;
    std::map<std::uint64_t, std::shared_ptr<Message>> waiting;  // by number
  };
  std::mutex mutex_;
  std::map<int, OfTag> of_tags_;
};

}  // namespace sherd::sharding
