#include "checkpoint/store/verify.h"

#include <fmt/core.h>
#include <xxhash.h>

#include <algorithm>
#include <memory>

#include "checkpoint/store/block_reader.h"
#include "core/error.h"

namespace sherd::checkpoint {
namespace {

constexpr std::size_t kMostProblems = 100;
constexpr std::int64_t kPartBytes = 64 << 10;  // of metadata, read at once

class DeepVerifier {
 public:
  DeepVerifier(const Checkpoint& checkpoint, VerifyReport& report)
      : checkpoint_(checkpoint),
        report_(report),
        buffer_(std::make_unique_for_overwrite<char[]>(kBlockBytes)),
        part_(std::make_unique_for_overwrite<char[]>(kPartBytes)),
        blocks_(checkpoint, {buffer_.get(), DType::kU8, kBlockBytes}) {}

  void shard(int number) {
    const ShardInfo& shard = checkpoint_.manifest().shards[static_cast<std::size_t>(number)];
    attempt([&] { metadata(checkpoint_.open_shard(number), shard); });
    for (std::size_t d = 0; d < shard.datasets.size(); ++d) {
      const auto num_blocks = std::ssize(shard.datasets[d].checksums);
      for (std::int64_t block = 0; block < num_blocks; ++block) {
        attempt([&] {
          report_.bytes_checked += std::ssize(blocks_.block(number, static_cast<int>(d), block));
        });
      }
    }
  }

  void index() {
    attempt([&] {
      const File file = checkpoint_.open_index();
      Checksum checksum;
      add(checksum, file, 0, checkpoint_.manifest().index_bytes);
      compare(checksum, checkpoint_.manifest().index_checksum, file, "its bytes");
    });
  }

  void finish() {
    if (unlisted_ > 0) report_.problems.push_back(fmt::format("... and {} more", unlisted_));
  }

 private:
  struct Checksum {
    std::unique_ptr<XXH3_state_t, XXH_errorcode (*)(XXH3_state_t*)> state{XXH3_createState(),
                                                                          XXH3_freeState};
    Checksum() { XXH3_64bits_reset(state.get()); }
  };

  template <class Check>
  void attempt(Check check) {
    try {
      check();
    } catch (const DataError& error) {
      if (report_.problems.size() < kMostProblems) {
        report_.problems.push_back(error.what());
      } else {
        ++unlisted_;
      }
    }
  }

  // Whatever lies between and around the datasets: HDF5's own structures, the save's uuid, gaps.
  void metadata(const File& file, const ShardInfo& shard) {
    Checksum checksum;
    std::int64_t at = 0;
    for (const ShardDataset& dataset : shard.datasets) {
      add(checksum, file, at, dataset.offset);
      at = dataset.offset + dataset.bytes();
    }
    add(checksum, file, at, shard.bytes);
    compare(checksum, shard.metadata_checksum, file, "the bytes outside the datasets");
  }

  void add(Checksum& checksum, const File& file, std::int64_t begin, std::int64_t end) {
    while (begin < end) {
      const std::int64_t bytes = std::min(end - begin, kPartBytes);
      file.read_at(part_.get(), bytes, begin);
      XXH3_64bits_update(checksum.state.get(), part_.get(), static_cast<std::size_t>(bytes));
      report_.bytes_checked += bytes;
      begin += bytes;
    }
  }

  static void compare(const Checksum& checksum, std::uint64_t stated, const File& file,
                      const char* label) {
    const std::uint64_t found = XXH3_64bits_digest(checksum.state.get());
    if (found == stated) return;
    throw DataError("{}: {} has checksum {:016x}, the manifest states {:016x}", file.path(), label,
                    found, stated);
  }

  const Checkpoint& checkpoint_;
  VerifyReport& report_;
  std::unique_ptr<char[]> buffer_;
  std::unique_ptr<char[]> part_;
  BlockReader blocks_;
  std::int64_t unlisted_ = 0;
};

}  // namespace

VerifyReport verify(const Checkpoint& checkpoint, VerifyDepth depth) {
  VerifyReport report;
  report.num_files = checkpoint.num_shards() + 2;
  for (const std::string& name : checkpoint.foreign_entries()) {
    report.notes.push_back(
        fmt::format("{}/{} isn't part of the checkpoint", checkpoint.path(), name));
  }
  if (depth == VerifyDepth::kShallow) return report;
  DeepVerifier verifier(checkpoint, report);
  for (int shard = 0; shard < checkpoint.num_shards(); ++shard) verifier.shard(shard);
  verifier.index();
  verifier.finish();
  return report;
}

VerifyReport verify(Disk& disk, const std::string& path, VerifyDepth depth) {
  try {
    return verify(Checkpoint(disk, path), depth);
  } catch (const DataError& error) {
    VerifyReport report;
    report.problems.push_back(error.what());
    return report;
  }
}

}  // namespace sherd::checkpoint
