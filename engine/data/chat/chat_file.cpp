#include "engine/data/chat/chat_file.h"

#include <algorithm>

#include "core/error.h"
#include "engine/data/chat/message_fields.h"
#include "engine/data/files/document_batches.h"
#include "engine/data/tokenizer/encode_each.h"

namespace sherd::data {
namespace {

class ChatFile final : public TokenFile {
 public:
  explicit ChatFile(std::string path) : path_(std::move(path)) {}

  void add(const EncodedConversation& conversation) {
    ids_.insert(ids_.end(), conversation.ids.begin(), conversation.ids.end());
    trained_.insert(trained_.end(), conversation.trained.begin(), conversation.trained.end());
    ends_.push_back(std::ssize(ids_));
  }

  const std::string& path() const override { return path_; }
  std::int64_t num_tokens() const override { return std::ssize(ids_); }
  void read(std::int64_t first, std::int64_t count, std::int32_t* ids) const override {
    check_range(*this, first, count);
    std::copy_n(ids_.begin() + first, count, ids);
  }
  std::vector<std::int64_t> document_ends() const override { return ends_; }
  bool has_untrained() const override { return true; }
  void read_trained(std::int64_t first, std::int64_t count, std::uint8_t* trained) const override {
    check_range(*this, first, count);
    std::copy_n(trained_.begin() + first, count, trained);
  }

 private:
  std::string path_;
  std::vector<std::int32_t> ids_;
  std::vector<std::uint8_t> trained_;
  std::vector<std::int64_t> ends_;
};

// What became of a line: tokens, or why there are none.
struct Row {
  EncodedConversation encoded;
  std::vector<std::string> unread;
  std::string_view reason;  ///< empty: it fits
  std::string problem;
};

// A document's first token is no target.
bool has_target(const EncodedConversation& conversation) {
  const auto& trained = conversation.trained;
  return !trained.empty() && std::find(trained.begin() + 1, trained.end(), 1) != trained.end();
}

void explain_nothing_trained(const Conversation& conversation, Row& row) {
  const auto is_answer = [](const Message& message) { return message.is_answer; };
  if (conversation.is_plain || std::ranges::any_of(conversation.messages, is_answer)) {
    const bool weightless = std::ranges::none_of(conversation.messages, [](const Message& message) {
      return message.is_answer && message.is_trained;
    });
    row.reason = weightless && !conversation.is_plain ? unfit::kWeightless : unfit::kNoAnswer;
    row.problem = "nothing in the conversation is trained on";
    return;
  }
  row.reason = unfit::kNoAnswer;
  row.problem = "no message has the role \"assistant\"";
  std::string roles;
  for (const Message& message : conversation.messages) {
    const std::string role = fmt::format("\"{}\"", role_of(message));
    if (roles.size() > 60 || roles.find(role) != std::string::npos) continue;
    roles += (roles.empty() ? "" : ", ") + role;
  }
  row.problem += roles.empty() ? ", there are none" : "; there are " + roles;
}

class ChatReader {
 public:
  ChatReader(const std::string& path, const ChatFormat& format, Unfit unfit,
             std::int64_t seq_length, std::shared_ptr<const tokenizer::Tokenizer> tokenizer,
             ChatCounts& counts)
      : path_(path),
        format_(format),
        unfit_(unfit),
        most_(static_cast<std::size_t>(seq_length)),
        tokenizer_(std::move(tokenizer)),
        counts_(counts) {}

  void read(const std::vector<RawDocument>& lines, ChatFile& file) {
    std::vector<Row> rows = read_rows(lines);
    for (std::size_t i = 0; i < lines.size(); ++i) {
      ++counts_.conversations;
      if (rows[i].reason.empty()) fit(rows[i]);
      if (rows[i].reason.empty()) {
        count_notes(rows[i]);
        file.add(rows[i].encoded);
      } else {
        drop(rows[i], lines[i].line);
      }
    }
  }

 private:
  std::vector<Row> read_rows(const std::vector<RawDocument>& lines) const {
    std::vector<Row> rows(lines.size());
    tokenizer::encode_each(lines.size(), tokenizer_, [&](std::size_t i, auto& encoder) {
      try {
        const Conversation conversation = read_conversation(lines[i].text);
        rows[i].encoded = format_.encode(conversation, encoder);
        rows[i].unread = conversation.unread;
        if (!has_target(rows[i].encoded)) explain_nothing_trained(conversation, rows[i]);
      } catch (const UnfitRow& unfit) {
        rows[i].reason = unfit.reason();
        rows[i].problem = unfit.what();
      } catch (const DataError& error) {
        throw DataError("{}:{}: {}.", path_, lines[i].line, error.what());
      }
    });
    return rows;
  }

  // What is longer than a sequence is cut or unfit.
  void fit(Row& row) {
    EncodedConversation& conversation = row.encoded;
    if (conversation.ids.size() <= most_) return;
    if (unfit_ != Unfit::kCut) {
      row.reason = unfit::kLong;
      row.problem = fmt::format("the conversation has {} tokens, more than training.seq_length {}",
                                conversation.ids.size(), most_);
      return;
    }
    conversation.ids.resize(most_);
    conversation.trained.resize(most_);
    if (has_target(conversation)) {
      ++counts_.cut;
    } else {
      row.reason = unfit::kCutAway;
      row.problem = fmt::format("nothing in its first {} tokens is trained on", most_);
    }
  }

  void drop(const Row& row, std::int64_t line) {
    if (unfit_ == Unfit::kError) {
      throw DataError("{}:{}: {}; fix the row, or set data.unfit: drop to leave such rows out.",
                      path_, line, row.problem);
    }
    ChatCounts::Dropped& dropped = counts_.dropped[std::string(row.reason)];
    if (dropped.rows++ == 0) dropped.first = fmt::format("{}:{}: {}", path_, line, row.problem);
  }

  void count_notes(const Row& row) {
    counts_.rewritten += row.encoded.was_rewritten ? 1 : 0;
    for (const std::string& name : row.unread) ++counts_.unread[name];
    for (const std::string& name : row.encoded.unshown) ++counts_.unshown[name];
  }

  const std::string& path_;
  const ChatFormat& format_;
  Unfit unfit_;
  std::size_t most_;
  std::shared_ptr<const tokenizer::Tokenizer> tokenizer_;
  ChatCounts& counts_;
};

}  // namespace

std::unique_ptr<const TokenFile> open_chat_file(
    const std::string& path, const ChatFormat& format, Unfit unfit, std::int64_t seq_length,
    const std::shared_ptr<const tokenizer::Tokenizer>& tokenizer, ChatCounts& counts) {
  auto file = std::make_unique<ChatFile>(path);
  DocumentReader documents({.files = {path}});
  ChatReader reader(path, format, unfit, seq_length, tokenizer, counts);
  constexpr std::size_t kBatchBytes = std::size_t{16} << 20;
  for (;;) {
    const std::vector<RawDocument> lines = documents.next(kBatchBytes);
    if (lines.empty()) break;
    if (lines[0].line == 0) {
      throw DataError(
          "{}: data.format chat reads .jsonl files, also .gz or .zst, and .parquet and .arrow "
          "files.",
          path);
    }
    reader.read(lines, *file);
  }
  return file;
}

}  // namespace sherd::data
