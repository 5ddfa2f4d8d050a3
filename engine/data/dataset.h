/// Turns text on disk into token ids, in a training split and a validation split.
///
///   path     one file, a folder or a glob (files/text_files.h says which files are used)
///   format   bytes  a token is a byte; only ids below vocab_size may occur
///            chars  a token is a character: the sorted distinct Unicode code points of all the
///                   UTF-8 text, training and validation; there must be vocab_size of them
///            bin    token files of any kind in token_layout.h
///            text   texts, encoded by `tokenizer` when they are opened
///            chat   a line of a .jsonl file or a row of a table is a conversation, and a separate
///                   document (chat/)
///   text     of bytes, chars and text: a file, a line of a .jsonl file, or a row of a table
///            (texts.h)
///   split    `validation_path` names separate files. Without it, the last `validation_fraction` of
///            every text or token file is for validation. The first floor(n * (1 - fraction)) of n
///            tokens are for training. For one file and 0.1 that is nanoGPT's split.
///   parts    of each split: a text that fills one sequence (seq_length + 1 tokens) is a part.
///            Shorter texts are joined, in order, into one more part (joined_file.h). They are
///            separated by a line break, or by nothing if the format has no token for it. If the
///            joined text is shorter than a sequence, it is skipped, and summary() says so.
///   separate documents   each document is a part, however short. A document is a text, or what a
///            token file defines as a document. If the token file defines none, a document ends
///            after each end token of the `tokenizer`. With a fraction, ceil(n * fraction) = held
///            of all n documents are for validation: the documents i with
///            floor((i + 1) * held / n) > floor(i * held / n). For 0.1 that is every tenth, counted
///            over all files. At least one document is for training.
///
/// A Dataset never changes after `open_dataset`. The ranks of a process share one, and any thread
/// may read. Files are mapped, not loaded (characters beyond ASCII are decoded once, 4 bytes each).
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "engine/data/chat/chat_options.h"
#include "engine/data/files/token_file.h"
#include "engine/data/token_text.h"

namespace sherd::data {

enum class Format : std::uint8_t { kBytes, kChars, kBin, kText, kChat };
std::string_view name_of(Format format);

enum class Split : std::uint8_t { kTrain, kValidation };

struct DataOptions {
  std::string path{};
  Format format = Format::kBytes;
  std::string validation_path{};     ///< empty: split by fraction
  double validation_fraction = 0.1;  ///< in [0, 1); read only without a validation_path
  std::int64_t vocab_size = 256;
  std::int64_t seq_length = 1;  ///< texts shorter than a sequence are joined
  std::string tokenizer{};      ///< a folder; for text, and for bin to show ids as text
  std::vector<std::string> special_tokens{};  ///< added to the tokenizer's
  std::string field = "text";                 ///< key of the text in .jsonl lines, column of tables
  std::int64_t token_bytes = 0;               ///< for bin; 0: as the file says
  bool separate_documents = false;
  ChatOptions chat{};

  /// For a trained model: opens only `validation_path`, if given. The characters of `chars` are
  /// then `vocabulary`; the text may have fewer characters but no others.
  bool only_validate = false;
  std::vector<char32_t> vocabulary{};  ///< empty: the text's own

  /// What the recipe calls the two paths, for messages.
  std::string path_key = "data.path", validation_key = "data.validation_path";
};

/// The tokens [first, first + count) of a file, all in one split: at least seq_length + 1 tokens,
/// or one document. No window crosses its ends.
struct FilePart {
  int file = 0;
  std::int64_t first = 0;
  std::int64_t count = 0;
  bool is_wanted = false;  ///< of ExampleKind::kLabelled
};

/// Converts ids and text for a format; `vocabulary` has the characters of kChars.
std::unique_ptr<const TokenText> make_token_text(const DataOptions& options);

class Dataset {
 public:
  /// What happened to the text of one split.
  struct Counts {
    std::int64_t tokens = 0;
    std::int64_t joined_files = 0;
    std::int64_t joined_tokens = 0;
    std::int64_t skipped_files = 0;
    std::int64_t skipped_tokens = 0;
  };
  const Counts& counts(Split split) const {
    return split == Split::kTrain ? train_counts_ : validation_counts_;
  }
  const std::vector<FilePart>& parts(Split split) const {
    return split == Split::kTrain ? train_ : validation_;
  }
  const TokenFile& file(int index) const { return *files_[static_cast<std::size_t>(index)]; }
  /// The texts or token files, then one file for each split that has joined text.
  int num_files() const { return static_cast<int>(files_.size()); }
  /// Tokens of the text, in parts or skipped; separators don't count.
  std::int64_t num_tokens(Split split) const { return counts(split).tokens; }
  std::int64_t seq_length() const { return seq_length_; }
  bool separate_documents() const { return separate_documents_; }
  /// What the documents form. An example's documents are neighbours, all in one split.
  ExampleKind examples() const { return examples_; }

  /// For chat: what happened to the conversations.
  const ChatCounts& chat_counts() const { return chat_counts_; }

  /// A file on disk that `other` has, too; "" if there is none.
  std::string file_shared_with(const Dataset& other) const;

  const TokenText& text() const { return *text_; }
  std::int64_t vocab_size() const { return vocab_size_; }

  /// Detects changed data on resume. Covers the format, splits, sizes in tokens (and so their
  /// width), text joined for training, the tokenizer that encodes text, and up to 2.25 MiB of
  /// samples of every file (its first and last MiB, 64 pieces between). Doesn't cover names, or a
  /// tokenizer that only shows token files as text.
  std::uint64_t fingerprint() const { return fingerprint_; }

  /// Text for users: files, tokens of each split, and validation tokens in whole sequences (an
  /// evaluation of the whole split covers these). Further lines list what is joined and skipped.
  const std::string& summary() const { return summary_; }

 private:
  friend class DatasetBuilder;

  std::vector<std::unique_ptr<const TokenFile>> files_;
  std::vector<std::shared_ptr<const MappedFile>> on_disk_;
  std::vector<FilePart> train_;
  std::vector<FilePart> validation_;
  Counts train_counts_;
  Counts validation_counts_;
  ChatCounts chat_counts_;
  std::int64_t seq_length_ = 1;
  bool separate_documents_ = false;
  ExampleKind examples_ = ExampleKind::kDocument;
  std::unique_ptr<const TokenText> text_;
  std::int64_t vocab_size_ = 0;
  std::uint64_t fingerprint_ = 0;
  std::string summary_;
};

/// Errors   DataError, one line with the path: missing, empty or unreadable files; a folder or glob
///          with no text; invalid UTF-8; a token id outside the vocabulary; a vocabulary of another
///          size; a file in both splits; training text, or requested validation text, with fewer
///          than seq_length + 1 tokens in total.
/// Cost     one pass over the text if its ids must be checked (chars; bytes below 256 ids; bin
///          below 65,536 ids, up to the first GiB of each file: the rest is checked when read).
std::shared_ptr<const Dataset> open_dataset(const DataOptions& options);

/// The characters of several texts of format chars together, ascending.
/// Errors   DataError, as open_dataset: there must be vocab_size of them
std::vector<char32_t> vocabulary_of_all(const std::vector<DataOptions>& texts);

/// One more than the largest id of the tokenizer in a folder, without tokens that a run adds.
/// Errors   DataError as Tokenizer::open
std::int64_t size_of_tokenizer(const std::string& folder);

/// The vocab_size that `chars` needs for the text of `path`. Errors   DataError, as open_dataset.
std::int64_t num_distinct_characters(const std::string& path);

}  // namespace sherd::data
