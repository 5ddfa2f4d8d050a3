/// Writes tokenized documents into one file, or several of a given size. A killed run can be
/// resumed, and a file with its final name is always complete.
///
///   X.partial        tokens so far, after space for the header
///   X.ends.partial   document ends
///   TO.progress      the valid length of both files; written after both are on disk
///   TO.lock          locked while a run writes
///   X                both with the header, renamed when complete
///
/// X is TO. With `shard_tokens`, it is TO with a number before its extension: tokens-00000.bin, ...
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "engine/data/files/token_layout.h"

namespace sherd::data {

struct ShardOptions {
  std::string to;
  std::string settings;           ///< what the tokens depend on; must be the same on resume
  std::int64_t shard_tokens = 0;  ///< a shard ends after the document that reaches it; 0: one file
  std::int64_t journal_tokens = std::int64_t{1} << 24;  ///< maximum lost if the run is killed
  bool can_resume = true;
  std::int64_t token_bytes = 2;
  std::int64_t vocab_size = 0;
  std::array<std::uint8_t, 16> tokenizer_digest{};
};

/// Totals over all shards.
struct ShardTotals {
  std::int64_t documents_read = 0;  ///< written and skipped
  std::int64_t documents = 0;
  std::int64_t tokens = 0;
  std::int64_t shards = 0;  ///< complete ones
};

/// Whether `file` is an output of a run that writes `to`.
bool is_written_by(const std::string& to, const std::string& file);

class TokenShards {
 public:
  /// Resumes from TO.progress if it exists.
  /// Errors   UsageError: TO exists, another process writes it, or TO.progress has other settings.
  ///          DataError: the folder can't be written; files are shorter than TO.progress says.
  explicit TokenShards(ShardOptions options);
  ~TokenShards();  ///< leaves the files that a later run resumes from, if it can resume

  const ShardTotals& totals() const { return totals_; }

  /// Appends one document. `read`: number of documents read: this one and those skipped before it.
  /// Errors   DataError if writing fails.
  void append(std::span<const std::int32_t> ids, std::int64_t read);
  /// Counts documents skipped at the end.
  void skip(std::int64_t read) { totals_.documents_read += read; }
  /// Completes the last file and removes TO.progress.
  void finish();

 private:
  struct Open;
  class Lock;
  std::string shard_path(std::int64_t shard) const;
  void open_shard(std::int64_t num_tokens, std::int64_t num_documents);
  void complete_shard();
  void write_journal();
  void remove_journal();
  void read_journal();

  ShardOptions options_;
  std::unique_ptr<Lock> lock_;  // released last
  ShardTotals totals_;
  std::unique_ptr<Open> open_;
  std::int64_t journaled_tokens_ = 0;
  bool has_journal_ = false;
};

}  // namespace sherd::data
