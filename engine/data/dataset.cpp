#include "engine/data/dataset.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <utility>

#include "core/error.h"
#include "engine/data/fingerprint.h"
#include "engine/data/shuffle.h"
#include "engine/data/text_files.h"
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

}  // namespace

std::string_view name_of(Format format) {
  switch (format) {
    case Format::kBytes:
      return "bytes";
    case Format::kChars:
      return "chars";
    case Format::kBin:
      return "bin";
  }
  return "?";
}

std::unique_ptr<const TokenText> make_token_text(Format format, std::int64_t vocab_size,
                                                 std::vector<char32_t> characters) {
  switch (format) {
    case Format::kBytes:
      return make_byte_text(vocab_size);
    case Format::kChars:
      return make_character_text(std::move(characters));
    case Format::kBin:
      return make_id_text(vocab_size);
  }
  CHECK(false, "unknown data format");
  __builtin_unreachable();
}

std::int64_t Dataset::num_tokens(Split split) const {
  std::int64_t num_tokens = 0;
  for (const FilePart& part : parts(split)) num_tokens += part.count;
  return num_tokens;
}

/// Opens a Dataset, in the order in which its members are called.
class DatasetBuilder {
 public:
  explicit DatasetBuilder(const DataOptions& options) : options_(options) {
    CHECK(options.vocab_size > 0 && options.seq_length > 0, "vocab_size {}, seq_length {}",
          options.vocab_size, options.seq_length);
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
    std::vector<char32_t> characters;
    if (options_.format == Format::kChars) characters = vocabulary();
    for (const auto& file : mapped_) {
      switch (options_.format) {
        case Format::kBytes:
          add(make_byte_file(file, options_.vocab_size));
          break;
        case Format::kChars:
          add(make_character_file(file, characters));
          break;
        case Format::kBin:
          add(make_uint16_file(file, options_.vocab_size));
          break;
      }
    }
    dataset_.text_ = make_token_text(options_.format, options_.vocab_size, std::move(characters));
  }

  void split() {
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
    if (num_train_files_ > 0) require_a_window(Split::kTrain, options_.path, "training");
    if (!by_fraction) {
      require_a_window(Split::kValidation, options_.validation_path, "validation");
    } else if (options_.validation_fraction > 0) {
      require_a_window(Split::kValidation, options_.path, "validation");
    }
  }

  std::shared_ptr<const Dataset> finish() {
    std::uint64_t fingerprint = hash_of(options_.format, mapped_.size());
    for (const auto& file : mapped_) {
      fingerprint = hash_of(fingerprint, fingerprint_of(file->bytes()));
    }
    for (const Split split : {Split::kTrain, Split::kValidation}) {
      for (const FilePart& part : dataset_.parts(split)) {
        fingerprint = hash_of(fingerprint, split, part.file, part.first, part.count);
      }
    }
    dataset_.fingerprint_ = fingerprint;
    dataset_.summary_ =
        fmt::format("{}{}, {} tokens train, {} tokens validation", files_text(mapped_.size()),
                    passed_over(), with_commas(dataset_.num_tokens(Split::kTrain)),
                    with_commas(dataset_.num_tokens(Split::kValidation)));
    return std::make_shared<const Dataset>(std::move(dataset_));
  }

 private:
  void map(const std::string& path, std::string_view key) {
    const bool is_text = options_.format != Format::kBin;
    const TextFiles found = find_text_files(path, is_text ? "" : ".bin", key);
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

  std::vector<char32_t> vocabulary() const {
    std::vector<bool> seen(kNumCodePoints);
    for (const auto& file : mapped_) {
      const std::int64_t bad = mark_characters(file->bytes(), seen);
      if (bad < 0) continue;
      throw DataError(
          "{}: not UTF-8 at byte {} (0x{:02x}); convert the file to UTF-8, or set "
          "data.format to bytes.",
          file->path(), bad, file->bytes()[static_cast<std::size_t>(bad)]);
    }
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

  void add(std::unique_ptr<const TokenFile> file) { dataset_.files_.push_back(std::move(file)); }

  void require_a_window(Split split, const std::string& path, std::string_view what) const {
    std::int64_t longest = 0;
    for (const FilePart& part : dataset_.parts(split)) longest = std::max(longest, part.count);
    if (longest > options_.seq_length) return;
    throw DataError(
        "{}: {} text shorter than one sequence: training.seq_length {} needs {} tokens "
        "in one file, the longest of {} has {}; give longer text or a shorter "
        "training.seq_length.",
        path, what, options_.seq_length, options_.seq_length + 1, dataset_.parts(split).size(),
        longest);
  }

  const DataOptions& options_;
  Dataset dataset_;
  std::vector<std::shared_ptr<const MappedFile>> mapped_;  // training files first
  std::size_t num_train_files_ = 0;
  int num_empty_ = 0;
  int num_binary_ = 0;
};

std::shared_ptr<const Dataset> open_dataset(const DataOptions& options) {
  DatasetBuilder builder(options);
  builder.map_files();
  builder.number_tokens();
  builder.split();
  return builder.finish();
}

}  // namespace sherd::data
