#include "engine/data/chat/chat_file.h"

#include <algorithm>

#include "core/error.h"
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

std::vector<EncodedConversation> encode_all(
    const std::vector<RawDocument>& lines, const std::string& path, const ChatFormat& format,
    const std::shared_ptr<const tokenizer::Tokenizer>& tokenizer) {
  std::vector<EncodedConversation> encoded(lines.size());
  tokenizer::encode_each(lines.size(), tokenizer, [&](std::size_t i, tokenizer::Encoder& encoder) {
    try {
      encoded[i] = format.encode(read_conversation(lines[i].text), encoder);
    } catch (const DataError& error) {
      throw DataError("{}:{}: {}.", path, lines[i].line, error.what());
    }
  });
  return encoded;
}

// A document's first token is no target.
bool has_target(const EncodedConversation& conversation) {
  const auto& trained = conversation.trained;
  return !trained.empty() && std::find(trained.begin() + 1, trained.end(), 1) != trained.end();
}

}  // namespace

std::unique_ptr<const TokenFile> open_chat_file(
    const std::string& path, const ChatFormat& format, Unfit unfit, std::int64_t seq_length,
    const std::shared_ptr<const tokenizer::Tokenizer>& tokenizer, ChatCounts& counts) {
  auto file = std::make_unique<ChatFile>(path);
  DocumentReader reader({.files = {path}});
  const auto most = static_cast<std::size_t>(seq_length);
  constexpr std::size_t kBatchBytes = std::size_t{16} << 20;
  for (;;) {
    const std::vector<RawDocument> lines = reader.next(kBatchBytes);
    if (lines.empty()) break;
    if (lines[0].line == 0) {
      throw DataError("{}: data.format chat reads .jsonl files, also .gz or .zst.", path);
    }
    std::vector<EncodedConversation> encoded = encode_all(lines, path, format, tokenizer);
    for (std::size_t i = 0; i < lines.size(); ++i) {
      EncodedConversation& conversation = encoded[i];
      ++counts.conversations;
      counts.rewritten += conversation.was_rewritten ? 1 : 0;
      const bool is_long = conversation.ids.size() > most;
      if (is_long && unfit == Unfit::kError) {
        throw DataError(
            "{}:{}: the conversation has {} tokens, more than training.seq_length {}; cut it, or "
            "set "
            "data.unfit to drop or cut.",
            path, lines[i].line, conversation.ids.size(), most);
      }
      if (is_long && unfit == Unfit::kDrop) {
        ++counts.dropped_long;
        continue;
      }
      if (is_long) {
        ++counts.cut;
        conversation.ids.resize(most);
        conversation.trained.resize(most);
      }
      if (has_target(conversation)) {
        file->add(conversation);
      } else if (unfit == Unfit::kError) {
        throw DataError(
            "{}:{}: nothing in the conversation is trained on; leave it out, or set data.unfit to "
            "drop.",
            path, lines[i].line);
      } else {
        ++counts.dropped_empty;
      }
    }
  }
  return file;
}

}  // namespace sherd::data
