/// Bounded memory between one thread that fills blocks and several that empty them.
///
///   filler   reserve(bytes) -> fill -> publish ... finish()
///   emptier  take() -> use -> release
///
/// Blocks are taken in the order in which they were published, and may be released in any order;
/// memory is freed from the oldest block on. A block is contiguous and starts at a multiple of
/// kFileAlignment. A ring that holds all blocks never makes the filler wait.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <mutex>

#include "core/tensor.h"

namespace sherd::checkpoint {

class StagingRing {
 public:
  struct Block {
    char* data = nullptr;
    std::int64_t bytes = 0;
    int dataset = 0;         ///< index of the shard's dataset
    std::int64_t index = 0;  ///< index of the block in the dataset
  };

  explicit StagingRing(Tensor memory);

  /// Bytes that a block takes in the ring.
  static std::int64_t room_of(std::int64_t bytes);

  /// Waits until there is room. Null once stopped.
  char* reserve(std::int64_t bytes);
  void publish(const Block& block);  ///< the block reserved last
  void finish();                     ///< nothing comes after this
  /// False when everything has been taken, or once stopped.
  bool take(Block& block);
  void release(const Block& block);
  void stop();  ///< ends all waits; any thread may call it

 private:
  struct Reservation {
    std::int64_t offset = 0;
    std::int64_t room = 0;
    bool released = false;
  };
  bool find_room(std::int64_t room, std::int64_t& offset) const;

  char* memory_;
  std::int64_t capacity_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Reservation> reserved_;  ///< oldest first
  std::deque<Block> published_;
  bool finished_ = false;
  bool stopped_ = false;
};

}  // namespace sherd::checkpoint
