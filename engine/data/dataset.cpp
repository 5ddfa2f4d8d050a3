#include "engine/data/dataset.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <utility>

#include "core/error.h"
#include "engine/data/arrow/arrow_rows.h"
#include "engine/data/characters.h"
#include "engine/data/chat/chat_file.h"
#include "engine/data/dataset_summary.h"
#include "engine/data/document_ends.h"
#include "engine/data/document_rows.h"
#include "engine/data/files/encoded_file.h"
#include "engine/data/files/id_table.h"
#include "engine/data/files/joined_file.h"
#include "engine/data/files/text_files.h"
#include "engine/data/fingerprint.h"
#include "engine/data/held_out.h"
#include "engine/data/shuffle.h"
#include "engine/data/texts.h"

namespace sherd::data {
namespace {

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
  SHERD_CHECK(false, "unknown data format");
  __builtin_unreachable();
}

}  // namespace

std::string_view name_of(Format format) {
  constexpr std::array<std::string_view, 5> kNames = {"bytes", "chars", "bin", "text", "chat"};
  return kNames.at(static_cast<std::size_t>(format));
}

std::unique_ptr<const TokenText> make_token_text(const DataOptions& options) {
  std::shared_ptr<const tokenizer::Tokenizer> tokenizer;
  if (needs_tokenizer(options)) {
    tokenizer = open_tokenizer(options.tokenizer, options.special_tokens, options.vocab_size);
  }
  return text_of(options, std::move(tokenizer));
}

/// Opens a Dataset, in the order in which its members are called.
class DatasetBuilder {
 public:
  explicit DatasetBuilder(const DataOptions& options) : options_(options) {
    SHERD_CHECK(options.vocab_size > 0 && options.seq_length > 0, "vocab_size {}, seq_length {}",
                options.vocab_size, options.seq_length);
    SHERD_CHECK(options.format != Format::kChat || options.separate_documents,
                "conversations are separate documents");
    SHERD_CHECK(options.validation_fraction >= 0 && options.validation_fraction < 1,
                "validation_fraction {}", options.validation_fraction);
  }

  void map_files() {
    if (!options_.only_validate || options_.validation_path.empty()) {
      map(options_.path, options_.path_key);
      num_train_files_ = mapped_.size();
    }
    const std::size_t num_for_training = on_disk_.size();
    if (options_.validation_path.empty()) return;
    map(options_.validation_path, options_.validation_key);
    for (std::size_t v = num_for_training; v < on_disk_.size(); ++v) {
      for (std::size_t t = 0; t < num_for_training; ++t) {
        if (!on_disk_[v]->same_file(*on_disk_[t])) continue;
        throw DataError(
            "{}: is in data.validation_path and in data.path; validate with files that "
            "aren't trained on, or set data.validation_fraction instead.",
            on_disk_[v]->path());
      }
    }
  }

  void number_tokens() {
    dataset_.vocab_size_ = options_.vocab_size;
    dataset_.seq_length_ = options_.seq_length;
    dataset_.separate_documents_ = options_.separate_documents;
    dataset_.examples_ = options_.chat.examples;
    DataOptions text_options = options_;
    if (options_.format == Format::kChars) {
      text_options.vocabulary =
          vocabulary_of(mapped_, options_.path, options_.vocab_size, options_.vocabulary);
    }
    if (needs_tokenizer(options_)) {
      tokenizer_ = open_tokenizer(options_.tokenizer, options_.special_tokens, options_.vocab_size);
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
          add(token_file(file));
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

  void split_documents() {
    std::vector<FilePart> for_training;
    for (int index = 0; index < dataset_.num_files(); ++index) {
      const bool trains = static_cast<std::size_t>(index) < num_train_files_;
      const std::vector<std::uint8_t> labels = dataset_.file(index).document_labels();
      std::int64_t begin = 0;
      std::size_t number = 0;
      for (const std::int64_t end : document_ends_of(dataset_.file(index), tokenizer_.get())) {
        const bool is_wanted = !labels.empty() && labels[number++] != 0;
        const FilePart document{index, begin, end - begin, is_wanted};
        begin = end;
        if (document.count == 0) continue;
        if (trains) {
          for_training.push_back(document);
        } else {
          add_document(Split::kValidation, document);
        }
      }
    }
    hold_out(for_training);
    fingerprint_parts();
    if (num_train_files_ > 0) require_a_document(Split::kTrain, options_.path, "training");
    if (!options_.validation_path.empty()) {
      require_a_document(Split::kValidation, options_.validation_path, "validation");
    } else if (options_.validation_fraction > 0) {
      require_a_document(Split::kValidation, options_.path, "validation");
    }
  }

  // Evenly among all documents, whatever files they are in.
  void hold_out(const std::vector<FilePart>& documents) {
    const std::int64_t num_documents = std::ssize(documents);
    if (num_documents > std::numeric_limits<std::int32_t>::max()) {
      throw DataError(
          "{}: has {} documents; separate documents can be at most 2147483647. Use "
          "data.documents: joined, or fewer texts.",
          options_.path, num_documents);
    }
    const bool by_fraction = options_.validation_path.empty();
    // Whole examples.
    const std::int64_t together = documents_of_example(options_.chat.examples);
    const std::int64_t num_examples = num_documents / together;
    const std::int64_t held_out =
        by_fraction ? num_held_out(num_examples, options_.validation_fraction) : 0;
    if (held_out > 0 && held_out == num_examples) {
      throw DataError(
          "{}: has one document, so none can be held out for validation; set "
          "data.validation_fraction: 0, or data.validation_path.",
          options_.path);
    }
    for (std::int64_t i = 0; i < num_documents; ++i) {
      add_document(
          is_held_out(i / together, held_out, num_examples) ? Split::kValidation : Split::kTrain,
          documents[static_cast<std::size_t>(i)]);
    }
  }

  // What has one token has no target.
  void add_document(Split split, const FilePart& document) {
    const bool trains = split == Split::kTrain;
    (trains ? dataset_.train_counts_ : dataset_.validation_counts_).tokens += document.count;
    if (document.count < 2) return;
    (trains ? dataset_.train_ : dataset_.validation_).push_back(document);
  }

  void require_a_document(Split split, const std::string& path, std::string_view label) const {
    if (!dataset_.parts(split).empty()) return;
    if (options_.format == Format::kChat && dataset_.chat_counts_.num_dropped() > 0) {
      throw DataError("{}: no {} conversation is left: {}.", path, label,
                      left_out_text(dataset_.chat_counts_));
    }
    throw DataError("{}: no {} document has two tokens, the minimum for training.", path, label);
  }

  std::shared_ptr<const Dataset> finish() {
    dataset_.on_disk_ = on_disk_;
    dataset_.summary_ = summary_of(dataset_, {on_disk_.size(), mapped_.size(), passed_over_});
    return std::make_shared<const Dataset>(std::move(dataset_));
  }

 private:
  // Of the parts before any is joined: joining changes nothing where all are long, and what it
  // changes in training enters by itself.
  void fingerprint_parts() {
    std::uint64_t fingerprint = hash_of(options_.format, mapped_.size());
    if (options_.chat.examples != ExampleKind::kDocument) {
      fingerprint = hash_of(fingerprint, options_.chat.examples);
    }
    if (options_.format == Format::kText || options_.format == Format::kChat) {
      fingerprint = hash_of(fingerprint, fingerprint_of(tokenizer_->digest()));
    }
    for (const auto& file : mapped_) {
      fingerprint = hash_of(fingerprint, fingerprint_of(file->bytes()));
    }
    if (rows_digest_ != 0) fingerprint = hash_of(fingerprint, rows_digest_);
    for (const Split split : {Split::kTrain, Split::kValidation}) {
      for (const FilePart& part : dataset_.parts(split)) {
        fingerprint = hash_of(fingerprint, split, part.file, part.first, part.count);
        if (part.is_wanted) fingerprint = hash_of(fingerprint, part.is_wanted);
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
      // The tokenizer's digest doesn't cover which token ends a document; that is in another file.
      const auto end = options_.format == Format::kText ? tokenizer_->end() : std::nullopt;
      if (end) dataset_.fingerprint_ = hash_of(dataset_.fingerprint_, *end);
    }
    parts.push_back(part);
    add(std::move(joined));
  }

  void map(const std::string& path, std::string_view key) {
    if (options_.format == Format::kBin || options_.format == Format::kChat) {
      return map_whole(path, key);
    }
    Texts found = open_texts(path, key, options_.field);
    std::ranges::move(found.texts, std::back_inserter(mapped_));
    std::ranges::move(found.files, std::back_inserter(on_disk_));
    passed_over_.num_empty += found.num_empty;
    passed_over_.num_binary += found.num_binary;
    passed_over_.num_of_runs += found.num_of_runs;
    passed_over_.num_null += found.num_null;
  }

  void map_whole(const std::string& path, std::string_view key) {
    const bool is_bin = options_.format == Format::kBin;
    const TextFiles found = is_bin ? find_token_files(path, key) : find_text_files(path, "", key);
    passed_over_.num_of_runs += found.num_of_runs;
    const std::size_t num_before = mapped_.size();
    for (const std::string& name : found.paths) {
      if (is_bin) require_tokens(name);
      auto file = std::make_shared<const MappedFile>(name);
      if (!file->bytes().empty()) {
        mapped_.push_back(file);
        on_disk_.push_back(std::move(file));
        continue;
      }
      if (found.named) throw DataError("{}: is empty; set {} to text.", name, key);
      ++passed_over_.num_empty;
    }
    if (mapped_.size() > num_before) return;
    throw DataError("{}: none of its {} has text ({} empty, 0 binary); set {} to text.", path,
                    files_text(found.paths.size()), passed_over_.num_empty, key);
  }

  void add_chat_files() {
    const ChatFormat format(options_.tokenizer, tokenizer_, options_.chat);
    for (const auto& file : mapped_) {
      auto chat = open_chat_file(file->path(), format, options_.chat.unfit, options_.chat.examples,
                                 options_.seq_length, tokenizer_, dataset_.chat_counts_);
      const std::int64_t tokens = chat->num_tokens();
      // What the template makes of them isn't in the files' bytes.
      std::vector<std::int32_t> ids(static_cast<std::size_t>(tokens));
      std::vector<std::uint8_t> trained(ids.size());
      chat->read(0, tokens, ids.data());
      chat->read_trained(0, tokens, trained.data());
      rows_digest_ = hash_of(rows_digest_, tokens);
      for (std::size_t i = 0; i < ids.size(); ++i) {
        rows_digest_ = hash_of(rows_digest_, ids[i], trained[i]);
      }
      add(std::move(chat));
    }
  }

  // Which column a table's ids are of isn't in the file's bytes.
  std::unique_ptr<const TokenFile> token_file(const std::shared_ptr<const MappedFile>& file) {
    if (!is_table(file->path())) {
      return make_token_file(file, options_.vocab_size, options_.token_bytes, tokenizer_.get());
    }
    auto table = make_id_table(file->path(), options_.field, options_.vocab_size);
    rows_digest_ = hash_of(rows_digest_, fingerprint_of_ids(*table));
    return table;
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
  MappedFiles mapped_;                                     // training files first
  std::shared_ptr<const tokenizer::Tokenizer> tokenizer_;  ///< null: the format needs none
  std::uint64_t rows_digest_ = 0;  ///< of conversations, and of tables of ids
  std::size_t num_train_files_ = 0;
  MappedFiles on_disk_;  ///< the files that mapped_ is of, in the same order
  PassedOver passed_over_;
};

std::string Dataset::file_shared_with(const Dataset& other) const {
  for (const auto& own : on_disk_) {
    for (const auto& file : other.on_disk_) {
      if (own->same_file(*file)) return own->path();
    }
  }
  return "";
}

std::shared_ptr<const Dataset> open_dataset(const DataOptions& options) {
  DatasetBuilder builder(options);
  builder.map_files();
  builder.number_tokens();
  builder.split();
  return builder.finish();
}

}  // namespace sherd::data
