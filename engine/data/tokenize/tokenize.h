/// `sherd tokenize`: encodes texts into one or several token files, ready for training.
///
///   reader --batches of documents--> workers, one per core --ids--> writer, in the texts' order
///
/// The output is a pure function of the texts, the tokenizer and the options. Any number of workers
/// writes the same bytes, and so does a run that was killed and resumed.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "engine/data/tokenizer/added_tokens.h"

namespace sherd::data {

struct TokenizeProgress {
  std::int64_t documents = 0;
  std::int64_t tokens = 0;
  std::int64_t text_bytes = 0;  ///< unpacked, in this run
};

struct TokenizeOptions {
  std::string tokenizer{};  ///< a folder with tokenizer.json
  /// Files, folders, globs (files/text_files.h), without this run's own outputs; "-" is standard
  /// input.
  std::vector<std::string> texts{};
  std::string to{};            ///< see token_shards.h
  std::string field = "text";  ///< key of the text in .jsonl lines, column of tables
  bool stdin_is_jsonl = false;
  bool bos = false;  ///< add the token of tokenizer_config.json before every document
  bool eos = false;  ///< add it after every document
  tokenizer::SpecialTokens special_tokens = tokenizer::SpecialTokens::kAsText;
  bool skip_bad = false;  ///< report and skip bad documents; else the first is an error
  std::int64_t shard_tokens = 0;
  int num_threads = 0;  ///< 0: one per core

  std::size_t batch_bytes = std::size_t{1} << 20;
  std::int64_t journal_tokens = std::int64_t{1} << 24;
  std::function<void(const TokenizeProgress&)> on_progress{};     ///< after every batch
  std::function<void(const std::string& bad)> on_bad_document{};  ///< with skip_bad; place and why
};

struct TokenizeResult {
  std::int64_t documents = 0;
  std::int64_t tokens = 0;
  std::int64_t files = 0;             ///< written
  std::int64_t bad_documents = 0;     ///< skipped in this run
  std::int64_t empty_documents = 0;   ///< lines or rows without text, skipped in this run
  std::int64_t binary_files = 0;      ///< in folders and globs, skipped in this run
  std::int64_t files_of_runs = 0;     ///< training runs' own files in folders and globs, left out
  std::int64_t documents_before = 0;  ///< written by an earlier run
  std::int64_t vocab_size = 0;
  std::vector<std::string> notes{};  ///< from the tokenizer
};

/// Errors   UsageError: no texts, TO exists, a token that the tokenizer doesn't name. DataError:
///          bad texts or tokenizer; "FILE:LINE: why" for a bad document, unless `skip_bad`.
TokenizeResult tokenize(const TokenizeOptions& options);

}  // namespace sherd::data
