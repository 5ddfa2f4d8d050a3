/// What is made of conversations.
#pragma once

#include <cstdint>

namespace sherd::data {

/// Which tokens have a loss.
enum class TrainOn : std::uint8_t {
  kAll,
  kAssistant,   ///< the assistant's answers
  kCompletion,  ///< what follows the last message of somebody else
  kLast,        ///< the last answer
};
/// What to do with a conversation longer than a sequence, or with nothing to train on. What can't be cut
/// is dropped.
enum class Unfit : std::uint8_t { kDrop, kCut, kError };
/// What to do with an answer that isn't in the whole conversation as it was given.
enum class RewrittenHistory : std::uint8_t { kTrainLast, kError };

struct ChatOptions {
  TrainOn train_on = TrainOn::kAssistant;
  Unfit unfit = Unfit::kDrop;
  RewrittenHistory rewritten = RewrittenHistory::kTrainLast;
};

/// What happened to conversations.
struct ChatCounts {
  std::int64_t conversations = 0;
  std::int64_t dropped_long = 0, cut = 0;
  std::int64_t dropped_empty = 0;  ///< nothing to train on
  std::int64_t rewritten = 0;      ///< only the last answer is trained on
};

}  // namespace sherd::data
