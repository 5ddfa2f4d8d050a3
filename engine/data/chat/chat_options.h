/// Options for training on conversations, and counts of what happened to them.
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "engine/data/template/budget.h"

namespace sherd::data {

/// Which tokens have a loss.
enum class TrainOn : std::uint8_t {
  kAll,
  kAssistant,   ///< the assistant's answers
  kCompletion,  ///< what follows the last message that isn't the assistant's
  kLast,        ///< the last answer
};
/// What to do with a row that can't be trained on (unfit_row.h). kCut cuts rows longer than a
/// sequence and drops other unfit rows.
enum class Unfit : std::uint8_t { kDrop, kCut, kError };
/// What to do if the rendered conversation doesn't contain an answer as it was given.
enum class RewrittenHistory : std::uint8_t { kTrainLast, kError };

/// How the prefixes of a conversation are rendered (answer_places.h). All give the same spans.
enum class Renderings : std::uint8_t {
  kFewest,       ///< all at once if that is less work
  kOneByOne,     ///< each separately
  kAllTogether,  ///< all at once if the template allows it, even for few answers
};

/// What a row of the data is.
enum class ExampleKind : std::uint8_t {
  kDocument,  ///< a document of its own
  kPair,      ///< a chosen and a rejected answer to one prompt, a document each
  /// An answer, wanted or not, and the previous row's answer to the same prompt: two documents.
  kLabelled,
};

struct ChatOptions {
  TrainOn train_on = TrainOn::kAssistant;
  Unfit unfit = Unfit::kDrop;
  RewrittenHistory rewritten = RewrittenHistory::kTrainLast;
  Renderings renderings = Renderings::kFewest;
  ExampleKind examples = ExampleKind::kDocument;
  templates::Limits limits{};  ///< of one rendering
};

/// What happened to conversations.
struct ChatCounts {
  struct Dropped {
    std::int64_t rows = 0;
    std::string first;  ///< "file:line: problem"
  };
  std::int64_t conversations = 0;
  std::int64_t cut = 0;
  std::int64_t rewritten = 0;              ///< only the last answer is trained on
  std::map<std::string, Dropped> dropped;  ///< by the reason (unfit_row.h)
  /// Number of rows by field name: fields that aren't read, and fields that the template doesn't
  /// show.
  std::map<std::string, std::int64_t> unread, unshown;

  std::int64_t num_dropped() const {
    std::int64_t rows = 0;
    for (const auto& [reason, of] : dropped) rows += of.rows;
    return rows;
  }
};

}  // namespace sherd::data
