#include "engine/data/chat/chat_file.h"

#include <algorithm>
#include <span>

#include "core/error.h"
#include "engine/data/chat/message_fields.h"
#include "engine/data/chat/preference_row.h"
#include "engine/data/files/document_batches.h"
#include "engine/data/tokenizer/encode_each.h"

namespace sherd::data {
namespace {

class ChatFile final : public TokenFile {
 public:
  explicit ChatFile(std::string path) : path_(std::move(path)) {}

  /// `is_judged`: the documents have labels.
  void add(const EncodedConversation& conversation, bool is_judged, bool is_wanted) {
    if (is_judged) labels_.push_back(is_wanted ? 1 : 0);
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
  std::vector<std::uint8_t> document_labels() const override { return labels_; }
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
  std::vector<std::uint8_t> labels_;
};

// What became of a line: tokens, or why there are none.
struct Row {
  std::vector<EncodedConversation> documents;  // of one example
  bool is_wanted = false;
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
  ChatReader(const std::string& path, const ChatFormat& format, Unfit unfit, ExampleKind kind,
             std::int64_t seq_length, std::shared_ptr<const tokenizer::Tokenizer> tokenizer,
             ChatCounts& counts)
      : path_(path),
        format_(format),
        unfit_(unfit),
        kind_(kind),
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
        for (const EncodedConversation& document : rows[i].documents) {
          file.add(document, kind_ == ExampleKind::kLabelled, rows[i].is_wanted);
        }
      } else {
        drop(rows[i], lines[i].line);
      }
    }
  }

 private:
  std::vector<Row> read_rows(const std::vector<RawDocument>& lines) const {
    std::vector<Row> rows(lines.size());
    std::vector<PreferenceRow> examples(lines.size());
    encode_each(lines, rows, [&](std::size_t i, auto& encoder) {
      if (kind_ == ExampleKind::kDocument) return encode(lines[i].text, encoder, rows[i]);
      examples[i] = read_preference(lines[i].text, kind_);
      rows[i].is_wanted = examples[i].is_wanted;
      for (const std::string& answer : examples[i].answers) encode(answer, encoder, rows[i]);
      if (kind_ == ExampleKind::kPair) require_one_prompt(rows[i]);
    });
    if (kind_ != ExampleKind::kLabelled) return rows;
    std::vector<bool> fits;
    for (const Row& row : rows) fits.push_back(row.reason.empty());
    encode_each(lines, rows, [&](std::size_t i, auto& encoder) {
      add_crossed(examples, fits, i, encoder, rows[i]);
    });
    return rows;
  }

  template <class Work>
  void encode_each(const std::vector<RawDocument>& lines, std::vector<Row>& rows,
                   const Work& work) const {
    tokenizer::encode_each(lines.size(), tokenizer_, [&](std::size_t i, auto& encoder) {
      if (!rows[i].reason.empty()) return;
      try {
        work(i, encoder);
      } catch (const UnfitRow& unfit) {
        rows[i].reason = unfit.reason();
        rows[i].problem = unfit.what();
      } catch (const DataError& error) {
        throw DataError("{}:{}: {}.", path_, lines[i].line, error.what());
      }
    });
  }

  void encode(std::string_view json, tokenizer::Encoder& encoder, Row& row) const {
    const Conversation conversation = read_conversation(json);
    row.documents.push_back(format_.encode(conversation, encoder));
    row.unread = conversation.unread;
    if (row.reason.empty() && !has_target(row.documents.back())) {
      explain_nothing_trained(conversation, row);
    }
  }

  // A judged answer's second document: its prompt with the answer of the nearest earlier row that
  // fits a sequence, as in TRL; before the first of the lines is the last one. A row that has no
  // other keeps its own.
  void add_crossed(const std::vector<PreferenceRow>& examples, const std::vector<bool>& fits,
                   std::size_t i, tokenizer::Encoder& encoder, Row& row) const {
    constexpr std::size_t kMostTries = 16;
    const std::size_t count = examples.size();
    const std::string& own = examples[i].answers[0];
    const auto size = [&] { return row.documents[0].ids.size() + row.documents[1].ids.size(); };
    for (std::size_t back = 1, tries = 0; back <= count && tries < kMostTries; ++back) {
      const std::size_t other = (i + count - back % count) % count;
      if (!fits[other]) continue;
      const std::string crossed = with_completion_of(own, examples[other].answers[0]);
      if (crossed.empty()) continue;
      ++tries;
      Row both;
      both.documents = {row.documents[0]};
      try {
        encode(crossed, encoder, both);
      } catch (const UnfitRow&) {  // the other row's answer, not this one's
        continue;
      }
      if (!both.reason.empty()) continue;
      row.documents = std::move(both.documents);
      if (size() <= most_) return;
    }
    if (row.documents.size() == 1) row.documents.push_back(row.documents[0]);
  }

  // What precedes the answers has to be the same tokens: only the answers are compared.
  static void require_one_prompt(const Row& row) {
    if (!row.reason.empty()) return;
    const auto prompt = [](const EncodedConversation& document) {
      const auto first = std::ranges::find(document.trained, 1) - document.trained.begin();
      return std::span(document.ids).first(static_cast<std::size_t>(first));
    };
    if (std::ranges::equal(prompt(row.documents[0]), prompt(row.documents[1]))) return;
    throw UnfitRow(unfit::kPromptsDiffer,
                   "the template shows the prompt differently before the two answers");
  }

  // What is longer than a sequence is cut or unfit.
  void fit(Row& row) {
    std::size_t tokens = 0;
    for (const EncodedConversation& document : row.documents) tokens += document.ids.size();
    if (tokens <= most_) return;
    if (unfit_ != Unfit::kCut) {
      row.reason = unfit::kLong;
      row.problem = fmt::format("the {} {} tokens, more than training.seq_length {}",
                                kind_ == ExampleKind::kDocument ? "conversation has"
                                : kind_ == ExampleKind::kPair
                                    ? "two conversations have"
                                    : "conversation and the one with another row's answer have",
                                tokens, most_);
      return;
    }
    EncodedConversation& conversation = row.documents[0];
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
    const EncodedConversation& first = row.documents[0];
    counts_.rewritten += first.was_rewritten ? 1 : 0;
    for (const std::string& name : row.unread) ++counts_.unread[name];
    for (const std::string& name : first.unshown) ++counts_.unshown[name];
  }

  const std::string& path_;
  const ChatFormat& format_;
  Unfit unfit_;
  ExampleKind kind_;
  std::size_t most_;
  std::shared_ptr<const tokenizer::Tokenizer> tokenizer_;
  ChatCounts& counts_;
};

}  // namespace

std::unique_ptr<const TokenFile> open_chat_file(
    const std::string& path, const ChatFormat& format, Unfit unfit, ExampleKind kind,
    std::int64_t seq_length, const std::shared_ptr<const tokenizer::Tokenizer>& tokenizer,
    ChatCounts& counts) {
  auto file = std::make_unique<ChatFile>(path);
  DocumentReader documents({.files = {path}});
  ChatReader reader(path, format, unfit, kind, seq_length, tokenizer, counts);
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
