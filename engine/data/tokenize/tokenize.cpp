#include "engine/data/tokenize/tokenize.h"

#include <sys/stat.h>

#include <algorithm>
#include <filesystem>
#include <memory>
#include <optional>
#include <thread>
#include <utility>

#include "core/error.h"
#include "engine/data/files/text_files.h"
#include "engine/data/files/token_layout.h"
#include "engine/data/mapped_file.h"
#include "engine/data/tokenize/encode_pipeline.h"
#include "engine/data/tokenize/token_shards.h"
#include "engine/data/tokenizer/tokenizer.h"

namespace sherd::data {
namespace {

using tokenizer::Encoder;
using tokenizer::Tokenizer;

struct Files {
  std::vector<std::string> paths;
  std::vector<bool> pass_over_binary;
  std::int64_t num_of_runs = 0;

  void add(const std::string& path, bool named) {
    paths.push_back(path);
    pass_over_binary.push_back(!named);
  }
};

void require_text(const std::string& path) {
  std::error_code error;  // a pipe is read like standard input
  if (!std::filesystem::is_regular_file(path, error) || !has_token_header(MappedFile(path))) return;
  throw DataError("{}: is a file of tokens already; data.format: bin reads it.", path);
}

Files files_of(const TokenizeOptions& options) {
  const std::vector<std::string>& texts = options.texts;
  if (texts.empty()) throw UsageError("sherd tokenize: expected texts, or - for standard input.");
  if (texts.size() > 1 && std::ranges::count(texts, "-") > 0) {
    throw UsageError("sherd tokenize: - (standard input) can't be combined with other texts.");
  }
  Files files;
  for (const std::string& text : texts) {
    if (text == "-") {
      files.add(text, true);
      continue;
    }
    const TextFiles found = find_text_files(text, "", "a text");
    if (found.named) require_text(text);
    files.num_of_runs += found.num_of_runs;
    for (const std::string& path : found.paths) {
      if (!found.named) {
        if (is_written_by(options.to, path)) continue;
        [[maybe_unused]] const MappedFile refuses_pointers_of_git_lfs(path);
      }
      files.add(path, found.named);
    }
  }
  return files;
}

/// What the output depends on, in a line.
std::string settings_of(const TokenizeOptions& options, const Tokenizer& tokenizer,
                        const std::vector<std::string>& files) {
  std::string digest;
  for (const std::uint8_t byte : tokenizer.digest()) digest += fmt::format("{:02x}", byte);
  std::string settings =
      fmt::format("tokenizer {}, field {}, bos {}, eos {}, special tokens as {}, shards of {}",
                  digest, options.field, options.bos, options.eos,
                  options.special_tokens == tokenizer::SpecialTokens::kAsText ? "text" : "tokens",
                  options.shard_tokens);
  // Which tokens these are, other files than tokenizer.json may say.
  settings +=
      fmt::format("; ends {} {}", tokenizer.beginning().value_or(-1), tokenizer.end().value_or(-1));
  for (const std::string& token : tokenizer.special_tokens()) settings += " " + token;
  for (const std::string& file : files) {
    struct stat status {};
    if (::stat(file.c_str(), &status) != 0) continue;
    settings += fmt::format("; {} {} {}.{:09}", file, status.st_size, status.st_mtim.tv_sec,
                            status.st_mtim.tv_nsec);
  }
  return settings;
}

std::optional<std::int32_t> end_token(bool wanted, std::optional<std::int32_t> id, const char* flag,
                                      const std::string& folder) {
  if (!wanted) return std::nullopt;
  if (id) return id;
  throw UsageError("--{0}: {1}/tokenizer_config.json names no {0}_token; leave --{0} out.", flag,
                   folder);
}

/// Encodes the documents of batches, on one thread.
class BatchEncoder {
 public:
  BatchEncoder(const TokenizeOptions& options, const std::shared_ptr<const Tokenizer>& tokenizer)
      : options_(options),
        bos_(end_token(options.bos, tokenizer->beginning(), "bos", options.tokenizer)),
        eos_(end_token(options.eos, tokenizer->end(), "eos", options.tokenizer)),
        encoder_(tokenizer) {}

  void encode(EncodedBatch& batch) {
    for (RawDocument& raw : batch.raw) {
      batch.text_bytes += std::ssize(raw.text);
      EncodedDocument document;
      const std::size_t size_before = batch.ids.size();
      try {
        const std::string text = take_text(raw, options_.field).value_or("");
        document.is_empty = text.empty();
        if (!document.is_empty) encode(text, batch.ids);
      } catch (const DataError& error) {
        batch.ids.resize(size_before);
        document.why_bad = error.what();
      }
      document.end = std::ssize(batch.ids);
      batch.documents.push_back(std::move(document));
      raw.text = {};
    }
  }

 private:
  void encode(const std::string& text, std::vector<std::int32_t>& ids) {
    if (bos_) ids.push_back(*bos_);
    encoder_.encode(text, options_.special_tokens, ids);
    if (eos_) ids.push_back(*eos_);
  }

  const TokenizeOptions& options_;
  std::optional<std::int32_t> bos_;
  std::optional<std::int32_t> eos_;
  Encoder encoder_;
};

std::string place_of(const RawDocument& document, const std::vector<std::string>& files) {
  const std::string& file = files[static_cast<std::size_t>(document.file)];
  const std::string name = file == "-" ? "standard input" : file;
  return document.line > 0 ? fmt::format("{}:{}", name, document.line) : name;
}

class Run {
 public:
  explicit Run(const TokenizeOptions& options)
      : options_(options),
        files_(files_of(options)),
        tokenizer_(Tokenizer::open(options.tokenizer)),
        shards_({.to = options.to,
                 .settings = settings_of(options, *tokenizer_, files_.paths),
                 .shard_tokens = options.shard_tokens,
                 .journal_tokens = options.journal_tokens,
                 .can_resume = files_.paths.empty() || files_.paths.front() != "-",
                 .token_bytes = tokenizer_->vocab_size() <= 65536 ? 2 : 4,
                 .vocab_size = tokenizer_->vocab_size(),
                 .tokenizer_digest = tokenizer_->digest()}) {}

  TokenizeResult run() {
    result_.documents_before = shards_.totals().documents;
    const auto reader = std::make_shared<DocumentReader>(DocumentSources{
        files_.paths, options_.stdin_is_jsonl, files_.pass_over_binary, options_.field});
    const int num_workers =
        options_.num_threads > 0
            ? options_.num_threads
            : std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
    std::int64_t to_pass = shards_.totals().documents_read;
    {
      EncodePipeline pipeline(
          [this, reader, to_pass]() mutable { return next_batch(*reader, to_pass); },
          [this] {
            auto encoder = std::make_shared<BatchEncoder>(options_, tokenizer_);
            return [encoder](EncodedBatch& batch) { encoder->encode(batch); };
          },
          num_workers);
      while (const auto batch = pipeline.next()) write(*batch);
    }
    if (shards_.totals().documents == 0) {
      throw DataError("{}: no documents in {} file{}.", options_.texts.front(), files_.paths.size(),
                      files_.paths.size() == 1 ? "" : "s");
    }
    shards_.skip(unwritten_);
    shards_.finish();
    result_.documents = shards_.totals().documents;
    result_.tokens = shards_.totals().tokens;
    result_.files = shards_.totals().shards;
    result_.binary_files = reader->num_binary();
    result_.files_of_runs = files_.num_of_runs;
    result_.vocab_size = tokenizer_->vocab_size();
    result_.notes = tokenizer_->notes();
    return result_;
  }

 private:
  /// Without the documents that an earlier run has done.
  std::vector<RawDocument> next_batch(DocumentReader& reader, std::int64_t& to_pass) const {
    std::vector<RawDocument> batch = reader.next(options_.batch_bytes);
    while (to_pass > 0 && !batch.empty()) {
      const std::int64_t count = std::min(to_pass, std::ssize(batch));
      batch.erase(batch.begin(), batch.begin() + count);
      to_pass -= count;
      if (batch.empty()) batch = reader.next(options_.batch_bytes);
    }
    return batch;
  }

  void write(const EncodedBatch& batch) {
    std::int64_t begin = 0;
    for (std::size_t i = 0; i < batch.documents.size(); ++i) {
      const EncodedDocument& document = batch.documents[i];
      ++unwritten_;
      if (!document.why_bad.empty()) {
        report(fmt::format("{}: {}", place_of(batch.raw[i], files_.paths), document.why_bad));
        continue;
      }
      if (document.is_empty) {
        ++result_.empty_documents;
        continue;
      }
      shards_.append(std::span(batch.ids).subspan(static_cast<std::size_t>(begin),
                                                  static_cast<std::size_t>(document.end - begin)),
                     std::exchange(unwritten_, 0));
      begin = document.end;
    }
    text_bytes_ += batch.text_bytes;
    if (options_.on_progress) {
      options_.on_progress({shards_.totals().documents, shards_.totals().tokens, text_bytes_});
    }
  }

  void report(const std::string& bad) {
    if (!options_.skip_bad) {
      throw DataError("{}; fix it, or leave bad documents out with --skip-bad.", bad);
    }
    ++result_.bad_documents;
    if (options_.on_bad_document) options_.on_bad_document(bad);
  }

  const TokenizeOptions& options_;
  Files files_;
  std::shared_ptr<const Tokenizer> tokenizer_;
  TokenShards shards_;
  std::int64_t unwritten_ = 0;  ///< documents since the last that was written, it included
  std::int64_t text_bytes_ = 0;
  TokenizeResult result_;
};

}  // namespace

TokenizeResult tokenize(const TokenizeOptions& options) {
  if (options.to.empty()) throw UsageError("sherd tokenize: --to is missing.");
  return Run(options).run();
}

}  // namespace sherd::data
