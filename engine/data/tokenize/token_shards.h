/// Writes documents of tokens into one file, or several of a given size, so that a run that was
/// killed goes on where it was and a file with its final name is always whole.
///
///   X.partial        tokens (behind room for the header), while they come
///   X.ends.partial   document ends
///   TO.progress      how much of the two counts: written after both are on disk
///   X                both with the header, renamed when it is complete
///
/// X is TO, or with `shard_tokens` TO with a number before its extension: tokens-00000.bin, ...
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
  std::string settings;           ///< what the tokens depend on; a run goes on only with the same
  std::int64_t shard_tokens = 0;  ///< a shard ends behind the document that reaches it; 0: one file
  std::int64_t journal_tokens = std::int64_t{1} << 24;  ///< at most so many are lost by a kill
  bool can_resume = true;
  std::int64_t token_bytes = 2;
  std::int64_t vocab_size = 0;
  std::array<std::uint8_t, 16> tokenizer_digest{};
};

/// What is in the files, all shards together.
struct ShardTotals {
  std::int64_t documents_read = 0;  ///< written and passed over
  std::int64_t documents = 0;
  std::int64_t tokens = 0;
  std::int64_t shards = 0;  ///< complete ones
};

/// Whether a run that writes `to` has written `file`, or will.
bool is_written_by(const std::string& to, const std::string& file);

class TokenShards {
 public:
  /// Goes on from TO.progress if it is there.
  /// Errors   UsageError: TO exists, or TO.progress is of other settings. DataError: the folder can't
  ///          be written; files shorter than TO.progress says.
  explicit TokenShards(ShardOptions options);
  ~TokenShards();  ///< leaves what a later run goes on from; nothing if it can't

  const ShardTotals& totals() const { return totals_; }

  /// One document. `read`: documents of the texts that this one and those passed over before it are.
  /// Errors   DataError if the disk refuses.
  void append(std::span<const std::int32_t> ids, std::int64_t read);
  /// Documents that were passed over at the end.
  void skip(std::int64_t read) { totals_.documents_read += read; }
  /// Completes the last file and removes TO.progress.
  void finish();

 private:
  struct Open;
  std::string shard_path(std::int64_t shard) const;
  void open_shard(std::int64_t num_tokens, std::int64_t num_documents);
  void complete_shard();
  void write_journal();
  void remove_journal();
  void read_journal();

  ShardOptions options_;
  ShardTotals totals_;
  std::unique_ptr<Open> open_;
  std::int64_t journaled_tokens_ = 0;
  bool has_journal_ = false;
};

}  // namespace sherd::data
