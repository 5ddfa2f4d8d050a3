/// What is made of conversations.
#pragma once

#include <cstdint>
#include <map>
#include <string>

namespace sherd::data {

/// Which tokens have a loss.
enum class TrainOn : std::uint8_t {
  kAll,
  kAssistant,   ///< the assistant's answers
  kCompletion,  ///< what follows the last message of somebody else
  kLast,        ///< the last answer
};
/// What to do with a row that can't be trained on (unfit_row.h). Only one that is longer than a sequence
/// can be cut; others are dropped then.
enum class Unfit : std::uint8_t { kDrop, kCut, kError };
/// What to do with an answer that isn't in the whole conversation as it was given.
enum class RewrittenHistory : std::uint8_t { kTrainLast, kError };

/// How the beginnings of a conversation are rendered (answer_places.h). All give the same spans.
enum class Renderings : std::uint8_t {
  kFewest,       ///< all at once, where that is less work
  kOneByOne,     ///< each by itself
  kAllTogether,  ///< all at once if the template allows it, however few answers there are
};

struct ChatOptions {
  TrainOn train_on = TrainOn::kAssistant;
  Unfit unfit = Unfit::kDrop;
  RewrittenHistory rewritten = RewrittenHistory::kTrainLast;
  Renderings renderings = Renderings::kFewest;
};

/// What happened to conversations.
struct ChatCounts {
  struct Dropped {
    std::int64_t rows = 0;
    std::string first;  ///< "file:line: what is wrong with it"
  };
  std::int64_t conversations = 0;
  std::int64_t cut = 0;
  std::int64_t rewritten = 0;              ///< only the last answer is trained on
  std::map<std::string, Dropped> dropped;  ///< by the reason (unfit_row.h)
  /// Rows by the name of a field that isn't read, or that the template doesn't show.
  std::map<std::string, std::int64_t> unread, unshown;

  std::int64_t num_dropped() const {
    std::int64_t rows = 0;
    for (const auto& [reason, of] : dropped) rows += of.rows;
    return rows;
  }
};

}  // namespace sherd::data
