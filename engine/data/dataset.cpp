#include "engine/data/dataset.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <utility>

#include "core/error.h"
#include "engine/data/chat/chat_file.h"
#include "engine/data/files/encoded_file.h"
#include "engine/data/files/joined_file.h"
#include "engine/data/files/text_files.h"
#include "engine/data/fingerprint.h"
#include "engine/data/shuffle.h"
#include "engine/data/utf8.h"

namespace sherd::data {
namespace {

std::string with_commas(std::int64_t count) {
  std::string digits = std::to_string(count);
  for (auto place = std::ssize(digits) - 3; place > 0; place -= 3) {
    digits.insert(static_cast<std::size_t>(place), 1, ',');
  }
  return digits;
}

std::string files_text(std::size_t count) {
  return fmt::format("{} file{}", count, count == 1 ? "" : "s");
}

/// Git's rule: a zero byte near the beginning.
bool is_binary(const MappedFile& file) {
  const auto head = file.bytes().first(std::min<std::size_t>(file.bytes().size(), 8192));
  return std::find(head.begin(), head.end(), 0) != head.end();
}

/// Where the text stops being UTF-8, or -1; marks the characters it has up to there.
std::int64_t mark_characters(std::span<const std::uint8_t> bytes, std::vector<bool>& seen) {
  std::array<bool, 128> ascii{};
  std::int64_t bad = -1;
  for (std::size_t offset = 0; offset < bytes.size();) {
    if (bytes[offset] < 0x80) {
      ascii[bytes[offset++]] = true;
      continue;
    }
    const CodePoint point = decode_utf8(bytes, offset);
    if (point.length == 0) {
      bad = static_cast<std::int64_t>(offset);
      break;
    }
    seen[point.value] = true;
    offset += static_cast<std::size_t>(point.length);
  }
  for (std::size_t i = 0; i < ascii.size(); ++i) {
    if (ascii[i]) seen[i] = true;
  }
  return bad;
}

bool needs_tokenizer(const DataOptions& options) {
  return options.format == Format::kText || options.format == Format::kChat ||
         (options.format == Format::kBin && !options.tokenizer.empty());
}

/// `tokenizer` is null if none is needed.
std::unique_ptr<const TokenText> text_of(const DataOptions& options,
                                         std::shared_ptr<const tokenizer::Tokenizer> tokenizer) {
  switch (options.format) {
    case Format::kBytes:
      return make_byte_text(options.vocab_size);
    case Format::kChars:
      return make_character_text(options.vocabulary);
    case Format::kBin:
      if (!tokenizer) return make_id_text(options.vocab_size);
      return make_tokenizer_text(std::move(tokenizer), std::nullopt);
    case Format::kText:
    case Format::kChat:
      const auto end = tokenizer->end();
      return make_tokenizer_text(std::move(tokenizer), end);
  }
  CHECK(false, "unknown data format");
  __builtin_unreachable();
}

}  // namespace

std::string_view name_of(Format format) {
  switch (format) {
    case Format::kBytes:
      return "bytes";
    case Format::kChars:
      return "chars";
    case Format::kBin:
      return "bin";
    case Format::kText:
      return "text";
    case Format::kChat:
      return "chat";
  }
  return "?";
}

std::unique_ptr<const TokenText> make_token_text(const DataOptions& options) {
  std::shared_ptr<const tokenizer::Tokenizer> tokenizer;
  if (needs_tokenizer(options)) tokenizer = open_tokenizer(options.tokenizer, options.vocab_size);
  return text_of(options, std::move(tokenizer));
}

/// Opens a Dataset, in the order in which its members are called.
class DatasetBuilder {
 public:
  explicit DatasetBuilder(const DataOptions& options) : options_(options) {
    CHECK(options.vocab_size > 0 && options.seq_length > 0, "vocab_size {}, seq_length {}",
          options.vocab_size, options.seq_length);
    CHECK(options.format != Format::kChat || options.separate_documents,
          "conversations are separate documents");
    CHECK(options.validation_fraction >= 0 && options.validation_fraction < 1,
          "validation_fraction {}", options.validation_fraction);
  }

  void map_files() {
    if (!options_.only_validate || options_.validation_path.empty()) {
      map(options_.path, "data.path");
      num_train_files_ = mapped_.size();
    }
    if (options_.validation_path.empty()) return;
    map(options_.validation_path, "data.validation_path");
    for (std::size_t v = num_train_files_; v < mapped_.size(); ++v) {
      for (std::size_t t = 0; t < num_train_files_; ++t) {
        if (!mapped_[v]->same_file(*mapped_[t])) continue;
        throw DataError(
            "{}: is in data.validation_path and in data.path; validate with files that "
            "aren't trained on, or set data.validation_fraction instead.",
            mapped_[v]->path());
      }
    }
  }

  void number_tokens() {
    dataset_.vocab_size_ = options_.vocab_size;
    dataset_.seq_length_ = options_.seq_length;
    dataset_.separate_documents_ = options_.separate_documents;
    DataOptions text_options = options_;
    if (options_.format == Format::kChars) text_options.vocabulary = vocabulary();
    if (needs_tokenizer(options_)) {
      tokenizer_ = open_tokenizer(options_.tokenizer, options_.vocab_size);
    }
    if (options_.format == Format::kText) add_encoded_files();
    if (options_.format == Format::kChat) add_chat_files();
    for (const auto& file : mapped_) {
      switch (options_.format) {
        case Format::kBytes:
          add(make_byte_file(file, options_.vocab_size));
          break;
        case Format::kChars:
          add(make_character_file(file, text_options.vocabulary));
          break;
        case Format::kBin:
          add(make_token_file(file, options_.vocab_size, options_.token_bytes, tokenizer_.get()));
          break;
        case Format::kText:
        case Format::kChat:
          break;
      }
    }
    dataset_.text_ = text_of(text_options, tokenizer_);
  }

  void split() {
    if (options_.separate_documents) return split_documents();
    const bool by_fraction = options_.validation_path.empty();
    const double train_share = 1.0 - options_.validation_fraction;
    for (int file = 0; file < dataset_.num_files(); ++file) {
      const std::int64_t count = dataset_.file(file).num_tokens();
      const bool for_training = static_cast<std::size_t>(file) < num_train_files_;
      const std::int64_t first_validation =
          !for_training ? 0
          : by_fraction ? static_cast<std::int64_t>(static_cast<double>(count) * train_share)
                        : count;
      if (first_validation > 0) dataset_.train_.push_back({file, 0, first_validation});
      if (first_validation < count) {
        dataset_.validation_.push_back({file, first_validation, count - first_validation});
      }
    }
    fingerprint_parts();
    join_short(dataset_.train_, dataset_.train_counts_);
    join_short(dataset_.validation_, dataset_.validation_counts_);
    if (num_train_files_ > 0) require_a_window(Split::kTrain, options_.path, "training");
    if (!by_fraction) {
      require_a_window(Split::kValidation, options_.validation_path, "validation");
    } else if (options_.validation_fraction > 0) {
      require_a_window(Split::kValidation, options_.path, "validation");
    }
  }

  std::vector<std::int64_t> ends_of(const TokenFile& file) const {
    std::vector<std::int64_t> ends = file.document_ends();
    if (!ends.empty() || file.num_tokens() == 0) return ends;
    const auto end_token = tokenizer_ ? tokenizer_->end() : std::nullopt;
    if (!end_token) {
      throw DataError(
          "{}: doesn't say where its documents end, which data.documents: separate needs. Set "
          "data.tokenizer to a folder that names its end token, make the file with sherd tokenize, "
          "or set data.documents: joined.",
          file.path());
    }
    constexpr std::int64_t kPiece = std::int64_t{1} << 16;
    std::vector<std::int32_t> ids;
    for (std::int64_t first = 0; first < file.num_tokens(); first += kPiece) {
      const std::int64_t count = std::min(kPiece, file.num_tokens() - first);
      ids.resize(static_cast<std::size_t>(count));
      file.read(first, count, ids.data());
      for (std::int64_t i = 0; i < count; ++i) {
        if (ids[static_cast<std::size_t>(i)] == *end_token) ends.push_back(first + i + 1);
      }
    }
    if (ends.empty() || ends.back() < file.num_tokens()) ends.push_back(file.num_tokens());
    return ends;
  }

  void split_documents() {
    const bool by_fraction = options_.validation_path.empty();
    const double train_share = 1.0 - options_.validation_fraction;
    for (int index = 0; index < dataset_.num_files(); ++index) {
      const TokenFile& file = dataset_.file(index);
      const std::vector<std::int64_t> ends = ends_of(file);
      std::int64_t cut = file.num_tokens();
      if (static_cast<std::size_t>(index) >= num_train_files_) {
        cut = 0;
      } else if (by_fraction && options_.validation_fraction > 0) {
        cut = static_cast<std::int64_t>(static_cast<double>(cut) * train_share);
        const auto behind = std::upper_bound(ends.begin(), ends.end(), cut);
        if (behind != ends.begin() && *std::prev(behind) > 0) cut = *std::prev(behind);
      }
      dataset_.train_counts_.tokens += cut;
      dataset_.validation_counts_.tokens += file.num_tokens() - cut;
      std::int64_t begin = 0;
      for (const std::int64_t end : ends) {
        if (begin < cut) add_document(Split::kTrain, {index, begin, std::min(end, cut) - begin});
        begin = std::max(begin, std::min(end, cut));
        if (begin < end) add_document(Split::kValidation, {index, begin, end - begin});
        begin = end;
      }
    }
    fingerprint_parts();
    if (num_train_files_ > 0) require_a_document(Split::kTrain, options_.path, "training");
    if (!by_fraction) {
      require_a_document(Split::kValidation, options_.validation_path, "validation");
    }
  }

  // What has one token has no target.
  void add_document(Split split, const FilePart& document) {
    if (document.count < 2) return;
    (split == Split::kTrain ? dataset_.train_ : dataset_.validation_).push_back(document);
  }

  void require_a_document(Split split, const std::string& path, std::string_view label) const {
    if (!dataset_.parts(split).empty()) return;
    throw DataError("{}: no {} document has two tokens, which is the least to learn from.", path,
                    label);
  }

  std::shared_ptr<const Dataset> finish() {
    dataset_.summary_ =
        fmt::format("{}{}, {} tokens train, {} tokens validation{}", files_text(mapped_.size()),
                    passed_over(), with_commas(dataset_.num_tokens(Split::kTrain)),
                    with_commas(dataset_.num_tokens(Split::kValidation)), in_whole_sequences());
    for (const Split split : {Split::kTrain, Split::kValidation}) add_joined_and_skipped(split);
    if (options_.format == Format::kChat) add_chat_counts();
    return std::make_shared<const Dataset>(std::move(dataset_));
  }

 private:
  // Of the parts before any is joined: joining changes nothing where all are long, and what it
  // changes in training enters by itself.
  void fingerprint_parts() {
    std::uint64_t fingerprint = hash_of(options_.format, mapped_.size());
    if (options_.format == Format::kText || options_.format == Format::kChat) {
      fingerprint = hash_of(fingerprint, fingerprint_of(tokenizer_->digest()));
    }
    for (const auto& file : mapped_) {
      fingerprint = hash_of(fingerprint, fingerprint_of(file->bytes()));
    }
    if (options_.format == Format::kChat) fingerprint = hash_of(fingerprint, chat_digest_);
    for (const Split split : {Split::kTrain, Split::kValidation}) {
      for (const FilePart& part : dataset_.parts(split)) {
        fingerprint = hash_of(fingerprint, split, part.file, part.first, part.count);
      }
    }
    dataset_.fingerprint_ = fingerprint;
  }

  bool is_short(const FilePart& part) const { return part.count <= options_.seq_length; }

  void join_short(std::vector<FilePart>& parts, Dataset::Counts& counts) {
    std::vector<Piece> pieces;
    std::int64_t tokens = 0;
    for (const FilePart& part : parts) {
      counts.tokens += part.count;
      if (!is_short(part)) continue;
      pieces.push_back({&dataset_.file(part.file), part.first, part.count});
      tokens += part.count;
    }
    std::erase_if(parts, [this](const FilePart& part) { return is_short(part); });
    if (pieces.empty()) return;
    std::unique_ptr<const TokenFile> joined = join(pieces, dataset_.text_->separator());
    const FilePart part{dataset_.num_files(), 0, joined->num_tokens()};
    if (is_short(part)) {
      counts.skipped_files = std::ssize(pieces);
      counts.skipped_tokens = tokens;
      return;
    }
    counts.joined_files = std::ssize(pieces);
    counts.joined_tokens = tokens;
    if (&parts == &dataset_.train_) {
      dataset_.fingerprint_ = hash_of(dataset_.fingerprint_, options_.seq_length, part.count);
      // Which token ends a document isn't in the tokenizer's digest, but in a file beside it.
      const auto end = options_.format == Format::kText ? tokenizer_->end() : std::nullopt;
      if (end) dataset_.fingerprint_ = hash_of(dataset_.fingerprint_, *end);
    }
    parts.push_back(part);
    add(std::move(joined));
  }

  std::string in_whole_sequences() const {
    if (options_.separate_documents) return "";
    std::int64_t tokens = 0;
    for (const FilePart& part : dataset_.parts(Split::kValidation)) {
      tokens += (part.count - 1) / options_.seq_length * options_.seq_length;
    }
    return tokens == 0 ? "" : fmt::format(" ({} in whole sequences)", with_commas(tokens));
  }

  void add_joined_and_skipped(Split split) {
    const Dataset::Counts& counts = dataset_.counts(split);
    const char* label = split == Split::kTrain ? "training" : "validation";
    if (counts.joined_files > 0) {
      dataset_.summary_ +=
          fmt::format("\n{}: joined the text of {}, each shorter than a sequence, {} tokens", label,
                      files_text(static_cast<std::size_t>(counts.joined_files)),
                      with_commas(counts.joined_tokens));
    }
    if (counts.skipped_files > 0) {
      dataset_.summary_ +=
          fmt::format("\n{}: skipped the text of {}, together shorter than a sequence, {} token{}",
                      label, files_text(static_cast<std::size_t>(counts.skipped_files)),
                      with_commas(counts.skipped_tokens), counts.skipped_tokens == 1 ? "" : "s");
    }
  }

  void map(const std::string& path, std::string_view key) {
    const bool is_text = options_.format != Format::kBin && options_.format != Format::kChat;
    const char* ending = options_.format == Format::kBin ? ".bin" : "";
    const TextFiles found = find_text_files(path, ending, key);
    const std::size_t num_before = mapped_.size();
    int num_empty = 0;
    int num_binary = 0;
    for (const std::string& name : found.paths) {
      auto file = std::make_shared<const MappedFile>(name);
      if (file->bytes().empty()) {
        if (found.named) throw DataError("{}: is empty; set {} to text.", name, key);
        ++num_empty;
      } else if (!found.named && is_text && is_binary(*file)) {
        ++num_binary;
      } else {
        mapped_.push_back(std::move(file));
      }
    }
    num_empty_ += num_empty;
    num_binary_ += num_binary;
    if (mapped_.size() > num_before) return;
    throw DataError("{}: none of its {} has text ({} empty, {} binary); set {} to text.", path,
                    files_text(found.paths.size()), num_empty, num_binary, key);
  }

  std::string passed_over() const {
    if (num_empty_ + num_binary_ == 0) return "";
    return fmt::format(" ({} empty and {} binary ones passed over)", num_empty_, num_binary_);
  }

 public:
  /// Whether each code point is in the text.
  std::vector<bool> characters() const {
    std::vector<bool> seen(kNumCodePoints);
    for (const auto& file : mapped_) {
      const std::int64_t bad = mark_characters(file->bytes(), seen);
      if (bad < 0) continue;
      throw DataError(
          "{}: not UTF-8 at byte {} (0x{:02x}); convert the file to UTF-8, or set "
          "data.format to bytes.",
          file->path(), bad, file->bytes()[static_cast<std::size_t>(bad)]);
    }
    return seen;
  }

 private:
  std::vector<char32_t> vocabulary() const {
    std::vector<bool> seen = characters();
    if (!options_.vocabulary.empty()) {
      require_known(seen);
      return options_.vocabulary;
    }
    std::vector<char32_t> characters;
    for (std::size_t point = 0; point < seen.size(); ++point) {
      if (seen[point]) characters.push_back(static_cast<char32_t>(point));
    }
    if (std::ssize(characters) != options_.vocab_size) {
      throw DataError(
          "{}: the text has {} distinct characters, but model.vocab_size is {}; set "
          "model.vocab_size to {}.",
          options_.path, characters.size(), options_.vocab_size, characters.size());
    }
    return characters;
  }

  void require_known(std::vector<bool>& seen) const {
    for (const char32_t known : options_.vocabulary) seen[known] = false;
    const auto unknown = std::find(seen.begin(), seen.end(), true);
    if (unknown == seen.end()) return;
    throw DataError(
        "{}: has the character U+{:04X}, which isn't among the {} that the model knows.",
        mapped_.back()->path(), unknown - seen.begin(), options_.vocabulary.size());
  }

  void add_chat_files() {
    const ChatFormat format(options_.tokenizer, tokenizer_, options_.chat);
    for (const auto& file : mapped_) {
      auto chat = open_chat_file(file->path(), format, options_.chat.unfit, options_.seq_length,
                                 tokenizer_, dataset_.chat_counts_);
      const std::int64_t tokens = chat->num_tokens();
      // What the template makes of them isn't in the files' bytes.
      std::vector<std::int32_t> ids(static_cast<std::size_t>(tokens));
      std::vector<std::uint8_t> trained(ids.size());
      chat->read(0, tokens, ids.data());
      chat->read_trained(0, tokens, trained.data());
      chat_digest_ = hash_of(chat_digest_, tokens);
      for (std::size_t i = 0; i < ids.size(); ++i) {
        chat_digest_ = hash_of(chat_digest_, ids[i], trained[i]);
      }
      add(std::move(chat));
    }
  }

  void add_chat_counts() {
    const auto say = [&](std::int64_t count, std::string_view what) {
      if (count > 0) dataset_.summary_ += fmt::format("\n{} {}", with_commas(count), what);
    };
    const std::int64_t conversations = dataset_.chat_counts_.conversations;
    say(conversations, conversations == 1 ? "conversation" : "conversations");
    say(dataset_.chat_counts_.dropped_long, "dropped: longer than a sequence");
    say(dataset_.chat_counts_.cut, "cut: longer than a sequence");
    say(dataset_.chat_counts_.dropped_empty, "dropped: nothing in them is trained on");
    say(dataset_.chat_counts_.rewritten,
        "trained on their last answer alone: the template rewrites what came before");
  }

  void add_encoded_files() {
    for (auto& file : encode_files(mapped_, tokenizer_)) add(std::move(file));
  }

  void add(std::unique_ptr<const TokenFile> file) { dataset_.files_.push_back(std::move(file)); }

  void require_a_window(Split split, const std::string& path, std::string_view label) const {
    if (!dataset_.parts(split).empty()) return;
    throw DataError(
        "{}: {} text shorter than one sequence: training.seq_length {} needs {} tokens, and there "
        "are {}; give longer text or a shorter training.seq_length.",
        path, label, options_.seq_length, options_.seq_length + 1, dataset_.num_tokens(split));
  }

  const DataOptions& options_;
  Dataset dataset_;
  std::vector<std::shared_ptr<const MappedFile>> mapped_;  // training files first
  std::shared_ptr<const tokenizer::Tokenizer> tokenizer_;  ///< null: the format needs none
  std::uint64_t chat_digest_ = 0;
  std::size_t num_train_files_ = 0;
  int num_empty_ = 0;
  int num_binary_ = 0;
};

std::int64_t num_distinct_characters(const std::string& path) {
  const DataOptions options{.path = path, .format = Format::kChars};
  DatasetBuilder builder(options);
  builder.map_files();
  const std::vector<bool> characters = builder.characters();
  return std::count(characters.begin(), characters.end(), true);
}

std::shared_ptr<const Dataset> open_dataset(const DataOptions& options) {
  DatasetBuilder builder(options);
  builder.map_files();
  builder.number_tokens();
  builder.split();
  return builder.finish();
}

}  // namespace sherd::data
