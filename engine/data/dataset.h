/// Text on disk becomes numbered tokens in two splits, one to train on and one to validate with.
///
///   path     one file, a folder (see text_files.h for what is taken from it), or a glob
///   format   bytes  a token is a byte; only ids below vocab_size may occur
///            chars  a token is a character: the sorted distinct Unicode code points of all the
///                   UTF-8 text, training and validation, of which there must be vocab_size
///            bin    a token is a little-endian uint16, with no header (nanoGPT's train.bin)
///   split    `validation_path` names separate files; without it, the last `validation_fraction` of
///            every file validates: of n tokens the first floor(n * (1 - fraction)) train. For one
///            file and 0.1 that is nanoGPT's split.
///
/// A Dataset never changes after `open_dataset`: the ranks of a process share one, and any thread
/// may read. Files are mapped, not loaded (characters beyond ASCII are decoded once, 4 bytes each).
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "engine/data/token_file.h"
#include "engine/data/token_text.h"

namespace sherd::data {

enum class Format : std::uint8_t { kBytes, kChars, kBin };
std::string_view name_of(Format format);

enum class Split : std::uint8_t { kTrain, kValidation };

struct DataOptions {
  std::string path{};
  Format format = Format::kBytes;
  std::string validation_path{};     ///< empty: split by fraction
  double validation_fraction = 0.1;  ///< in [0, 1); read only without a validation_path
  std::int64_t vocab_size = 256;
  std::int64_t seq_length = 1;  ///< only to refuse text without a single window of it

  /// For a model that is trained already: only `validation_path`, if it is given, is opened; and
  /// `chars` are these characters, of which text may have fewer but no others.
  bool only_validate = false;
  std::vector<char32_t> vocabulary{};  ///< empty: the text's own
};

/// The tokens [first, first + count) of a file, all in one split. No window crosses its ends.
struct FilePart {
  int file = 0;
  std::int64_t first = 0;
  std::int64_t count = 0;
};

/// What ids mean in a format; `characters` for kChars only.
std::unique_ptr<const TokenText> make_token_text(Format format, std::int64_t vocab_size,
                                                 std::vector<char32_t> characters);

class Dataset {
 public:
  const std::vector<FilePart>& parts(Split split) const {
    return split == Split::kTrain ? train_ : validation_;
  }
  const TokenFile& file(int index) const { return *files_[static_cast<std::size_t>(index)]; }
  int num_files() const { return static_cast<int>(files_.size()); }
  std::int64_t num_tokens(Split split) const;

  const TokenText& text() const { return *text_; }
  std::int64_t vocab_size() const { return vocab_size_; }

  /// Tells other data from this, for resume: format, splits, sizes, and up to 2.25 MiB of samples
  /// of every file (its first and last MiB, 64 pieces between). Names don't enter.
  std::uint64_t fingerprint() const { return fingerprint_; }

  /// One line for a person: "12 files (3 skipped: ...), 1,003,854 tokens train, ...".
  const std::string& summary() const { return summary_; }

 private:
  friend class DatasetBuilder;
  std::vector<std::unique_ptr<const TokenFile>> files_;
  std::vector<FilePart> train_;
  std::vector<FilePart> validation_;
  std::unique_ptr<const TokenText> text_;
  std::int64_t vocab_size_ = 0;
  std::uint64_t fingerprint_ = 0;
  std::string summary_;
};

/// Errors   DataError, one line with the path: missing, empty or unreadable files; a folder or glob
///          with no text; invalid UTF-8; a token id outside the vocabulary; a vocabulary of another
///          size; a file in both splits; training text, or validation text if any is asked for,
///          without one window of seq_length + 1 tokens.
/// Cost     one pass over the text where its ids must be checked (chars; bytes below 256 ids; bin
///          below 65,536 ids, up to the first GiB of each file: the rest is checked as it is read).
std::shared_ptr<const Dataset> open_dataset(const DataOptions& options);

}  // namespace sherd::data
