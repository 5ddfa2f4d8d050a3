/// `sherd tokenize`: texts become one file of tokens, or several, ready to train on.
///
///   reader --batches of documents--> workers, a core each --ids--> writer, in the texts' order
///
/// The output is a pure function of the texts, the tokenizer and the options: any number of workers
/// writes the same bytes, and so does a run that was killed and started again.
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
  /// Files, folders, globs (files/text_files.h), of which what this run writes is left out; "-" is
  /// standard input.
  std::vector<std::string> texts{};
  std::string to{};            ///< see token_shards.h
  std::string field = "text";  ///< of lines of .jsonl
  bool stdin_is_jsonl = false;
  bool bos = false;  ///< the token of tokenizer_config.json in front of every document
  bool eos = false;  ///< behind every document
  tokenizer::SpecialTokens special_tokens = tokenizer::SpecialTokens::kAsText;
  bool skip_bad = false;  ///< bad documents are named and left out; else the first is an error
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
  std::int64_t bad_documents = 0;     ///< passed over in this run
  std::int64_t empty_documents = 0;   ///< lines whose text is empty, passed over in this run
  std::int64_t binary_files = 0;      ///< of folders and globs, passed over in this run
  std::int64_t files_of_runs = 0;     ///< of folders and globs: training runs' own, left out
  std::int64_t documents_before = 0;  ///< found in place: an earlier run had done them
  std::int64_t vocab_size = 0;
  std::vector<std::string> notes{};  ///< of the tokenizer
};

/// Errors   UsageError: no texts, TO exists, a token that the tokenizer doesn't name. DataError: texts
///          or tokenizer; "FILE:LINE: why" for a bad document, unless `skip_bad`.
TokenizeResult tokenize(const TokenizeOptions& options);

}  // namespace sherd::data
