#include "engine/main/commands.h"

#include <fmt/format.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>

#include "core/human_text.h"
#include "engine/data/tokenize/tokenize.h"

namespace sherd::main {
namespace {

constexpr std::int64_t kNamedBadDocuments = 20;

/// At most once a second; rewritten in place on a terminal.
class TokenizeMeter {
 public:
  void show(const data::TokenizeProgress& progress) {
    const auto now = std::chrono::steady_clock::now();
    const bool on_terminal = ::isatty(STDERR_FILENO) != 0;
    if (now - shown_ < (on_terminal ? std::chrono::seconds(1) : std::chrono::seconds(30))) return;
    shown_ = now;
    const double seconds = std::chrono::duration<double>(now - begin_).count();
    fmt::print(stderr, "{}{} documents, {} tokens, {}B/s{}", on_terminal ? "\r\x1b[K" : "",
               progress.documents, progress.tokens,
               human_rate(static_cast<double>(progress.text_bytes) / seconds),
               on_terminal ? "" : "\n");
    is_standing_ = on_terminal;
  }
  void end_line() {
    if (is_standing_) fmt::print(stderr, "\n");
    is_standing_ = false;
  }

 private:
  std::chrono::steady_clock::time_point begin_ = std::chrono::steady_clock::now();
  std::chrono::steady_clock::time_point shown_ = begin_;
  bool is_standing_ = false;
};

// `sherd tokenize`: texts become token files.
class TokenizeCommand {
 public:
  explicit TokenizeCommand(CLI::App& command);
  void run() const;

 private:
  data::TokenizeOptions options_;
  bool special_tokens_ = false;
};

TokenizeCommand::TokenizeCommand(CLI::App& command) {
  command
      .add_option("texts", options_.texts,
                  "Files, folders or globs. .jsonl has one document per line, .parquet and .arrow "
                  "one per row; other files are one document each; .gz and .zst are unpacked; - is "
                  "standard input")
      ->required();
  command
      .add_option("--tokenizer", options_.tokenizer, "A folder with a Hugging Face tokenizer.json")
      ->required();
  command.add_option("--to", options_.to, "The file to write; must not exist")->required();
  command.add_option("--field", options_.field,
                     "Key of the text in a line of .jsonl, or its column (default text)");
  command.add_flag("--jsonl", options_.stdin_is_jsonl, "Standard input is .jsonl");
  command.add_flag("--bos", options_.bos, "Put the beginning-of-text token before every document");
  command.add_flag("--eos", options_.eos, "Put the end-of-text token after every document");
  command.add_flag("--special-tokens", special_tokens_,
                   "Encode text that spells a special token as that token");
  command.add_flag("--skip-bad", options_.skip_bad,
                   "Skip documents that aren't UTF-8 or JSON, and name them");
  command
      .add_option(
          "--shard-tokens", options_.shard_tokens,
          "Start a new file (TO-00000, ...) after the document that reaches this many tokens")
      ->check(CLI::Range(std::int64_t{1}, std::int64_t{1} << 50));
  command.add_option("--threads", options_.num_threads, "Default: one per core")
      ->check(CLI::Range(1, 4096));
}

void TokenizeCommand::run() const {
  data::TokenizeOptions options = options_;
  if (special_tokens_) options.special_tokens = tokenizer::SpecialTokens::kAsTokens;
  TokenizeMeter meter;
  std::int64_t num_named = 0;
  options.on_progress = [&](const data::TokenizeProgress& progress) { meter.show(progress); };
  options.on_bad_document = [&](const std::string& bad) {
    if (++num_named > kNamedBadDocuments) return;
    meter.end_line();
    fmt::print(stderr, "left out: {}\n", bad);
  };
  const data::TokenizeResult result = data::tokenize(options);
  meter.end_line();
  for (const std::string& note : result.notes) fmt::print(stderr, "note: {}\n", note);
  fmt::print("{}: {} documents, {} tokens of {} bytes in {} file{}", options.to, result.documents,
             result.tokens, result.vocab_size <= 65536 ? 2 : 4, result.files,
             result.files == 1 ? "" : "s");
  if (result.documents_before > 0) fmt::print("; {} were done before", result.documents_before);
  if (result.bad_documents > 0) fmt::print("; {} bad ones left out", result.bad_documents);
  if (result.empty_documents > 0) {
    fmt::print("; {} without text passed over", result.empty_documents);
  }
  if (result.binary_files > 0) {
    fmt::print("; {} binary file{} passed over", result.binary_files,
               result.binary_files == 1 ? "" : "s");
  }
  if (result.files_of_runs > 0) {
    fmt::print("; {} of training runs left out", result.files_of_runs);
  }
  fmt::print("\nmodel.vocab_size is at least {}\n", result.vocab_size);
}

}  // namespace

Command tokenize_command(CLI::App& program) {
  return make_command<TokenizeCommand>(program, "tokenize",
                                       "Turn texts into token files to train on");
}

}  // namespace sherd::main
