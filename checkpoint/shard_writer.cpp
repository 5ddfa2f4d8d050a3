#include "checkpoint/shard_writer.h"

#include <fmt/core.h>

#define XXH_INLINE_ALL  // for this processor's vectors, and a state on the stack
#include <xxhash.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <exception>
#include <mutex>
#include <thread>
#include <utility>

#include "checkpoint/format/finite.h"
#include "core/error.h"
#include "core/thread.h"

namespace sherd::checkpoint {
namespace {

using Clock = std::chrono::steady_clock;

// Checksum and scan read a part that is still in the core's cache.
constexpr std::int64_t kScanBytes = 16 << 10;

template <class Half>
void widen_to_f32(const char* halves, char* out, std::int64_t count) {
  for (std::int64_t i = 0; i < count; ++i) {
    Half half;
    std::memcpy(&half, halves + i * 2, sizeof half);
    const auto value = static_cast<float>(half);
    std::memcpy(out + i * 4, &value, sizeof value);
  }
}

/// The first error of several threads.
class FirstError {
 public:
  template <class Work>
  void guard(const Work& work, ShardWriter& writer) {
    try {
      work();
    } catch (...) {
      {
        const std::lock_guard lock(mutex_);
        if (!error_) error_ = std::current_exception();
      }
      writer.stop();
    }
  }
  void rethrow() const {
    if (error_) std::rethrow_exception(error_);
  }

 private:
  std::mutex mutex_;
  std::exception_ptr error_;
};

}  // namespace

ShardWriter::ShardWriter(Disk& disk, std::string path, ShardLabel label,
                         const sharding::State& state, Tensor ring, int writes_in_flight,
                         sharding::CopyState copy)
    : disk_(disk),
      path_(std::move(path)),
      label_(std::move(label)),
      tensors_(state.tensors),
      layout_(lay_out_shard(state)),
      ring_(ring),
      writes_in_flight_(writes_in_flight),
      copy_state_(std::move(copy)) {
  for (ShardDataset& dataset : layout_.info.datasets) {
    dataset.checksums.resize(
        static_cast<std::size_t>((dataset.bytes() + kBlockBytes - 1) / kBlockBytes));
  }
}

std::int64_t ShardWriter::bytes() const {
  std::int64_t bytes = 0;
  for (const ShardDataset& dataset : layout_.info.datasets) bytes += dataset.bytes();
  return bytes;
}

void ShardWriter::stop() {
  stopped_ = true;
  ring_.stop();
}

// Sources come in the order of datasets.
void ShardWriter::copy(const std::function<bool(const void* address)>& stays,
                       const std::function<void()>& copied_others) {
  struct Dataset {
    int number = 0;
    std::size_t first = 0;  // of its sources
  };
  std::vector<Dataset> changing, staying;
  std::size_t source = 0;
  for (std::size_t i = 0; i < layout_.info.datasets.size(); ++i) {
    const Dataset dataset{static_cast<int>(i), source};
    bool changes = false;
    const ShardDataset& saved = layout_.info.datasets[i];
    for (std::int64_t bytes = 0; bytes < saved.bytes(); ++source) {
      bytes += layout_.sources[source].numel * static_cast<std::int64_t>(size_of(saved.dtype));
      changes = changes || !stays || !stays(layout_.sources[source].data);
    }
    (changes ? changing : staying).push_back(dataset);
  }
  for (const Dataset& dataset : changing) copy_dataset(dataset.number, dataset.first);
  if (copied_others) copied_others();
  for (const Dataset& dataset : staying) copy_dataset(dataset.number, dataset.first);
  ring_.finish();
}

// Bytes [used, used + bytes) of what is saved of a piece. Values of 16 bits are copied into the
// second half of their place and widened from there, the first one first.
void ShardWriter::copy_part(const ConstTensor& source, DType saved, std::int64_t used, char* to,
                            std::int64_t bytes) const {
  const auto copy = [&](const char* from, char* out, std::int64_t count) {
    if (copy_state_) return copy_state_(from, out, count);
    std::memcpy(out, from, static_cast<std::size_t>(count));
  };
  const auto* data = static_cast<const char*>(source.data);
  if (source.dtype == saved) return copy(data + used, to, bytes);
  char* const halves = to + bytes / 2;
  copy(data + used / 2, halves, bytes / 2);
  source.dtype == DType::kBF16 ? widen_to_f32<BFloat16>(halves, to, bytes / 4)
                               : widen_to_f32<Float16>(halves, to, bytes / 4);
}

// `piece`: the dataset's first.
void ShardWriter::copy_dataset(int dataset, std::size_t piece) {
  const ShardDataset& saved = layout_.info.datasets[static_cast<std::size_t>(dataset)];
  const std::int64_t total = saved.bytes();
  std::int64_t used = 0;  // of the piece
  for (std::int64_t begin = 0; begin < total; begin += kBlockBytes) {
    const std::int64_t bytes = std::min(kBlockBytes, total - begin);
    char* block = ring_.reserve(bytes);
    if (!block) throw SaveStopped();
    for (std::int64_t filled = 0; filled < bytes;) {
      const ConstTensor& source = layout_.sources[piece];
      const std::int64_t in_file = source.numel * static_cast<std::int64_t>(size_of(saved.dtype));
      const std::int64_t part = std::min(bytes - filled, in_file - used);
      copy_part(source, saved.dtype, used, block + filled, part);
      filled += part;
      used += part;
      if (used == in_file) {
        ++piece;
        used = 0;
      }
    }
    ring_.publish({block, bytes, dataset, begin / kBlockBytes});
  }
}

ShardInfo ShardWriter::write() {
  open();
  write_metadata();
  FirstError error;
  {
    std::vector<std::jthread> others;
    const auto work = [&] { error.guard([&] { write_blocks(); }, *this); };
    try {
      for (int i = 1; i < writes_in_flight_; ++i) others.emplace_back(work);
    } catch (const std::system_error& refused) {
      stop();  // or those that have started would wait for blocks
      throw_thread_refused("that writes a checkpoint", refused);
    } catch (...) {
      stop();
      throw;
    }
    work();
  }
  error.rethrow();
  if (stopped_) throw SaveStopped();
  // The manifest repeats the sizes that ranks report, so these mustn't be wrong.
  const std::int64_t found = file_.status().bytes;
  if (found != skeleton_.file_bytes) {
    throw DataError("{}: has {} bytes after {} were written", path_, found, skeleton_.file_bytes);
  }
  const auto begin = Clock::now();
  file_.sync();  // of the file, not the descriptor: direct writes are in it
  syncing_ = Clock::now() - begin;
  if (direct_) direct_.close();
  file_.close();
  return layout_.info;
}

void ShardWriter::open() {
  skeleton_ = build_hdf5_skeleton(label_, layout_.info, tensors_);
  layout_.info.bytes = skeleton_.file_bytes;
  for (std::size_t i = 0; i < skeleton_.offsets.size(); ++i) {
    layout_.info.datasets[i].offset = skeleton_.offsets[i];
  }
  file_ = File(disk_, path_, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW);
  try {
    direct_ = File(disk_, path_, O_WRONLY | O_DIRECT | O_NOFOLLOW);
    direct_works_ = true;
  } catch (const DiskError& refused) {
    if (refused.error_number != EINVAL && refused.error_number != EOPNOTSUPP) throw;
  }
}

void ShardWriter::write_metadata() {
  XXH3_state_t sum;
  XXH3_64bits_reset(&sum);
  for (const FileRange& range : skeleton_.metadata) {
    XXH3_64bits_update(&sum, range.bytes.data(), range.bytes.size());
    file_.write_at(range.bytes.data(), static_cast<std::int64_t>(range.bytes.size()), range.offset);
  }
  layout_.info.metadata_checksum = XXH3_64bits_digest(&sum);
}

void ShardWriter::write_blocks() {
  StagingRing::Block block;
  while (ring_.take(block)) {
    write_block(block);
    ring_.release(block);
  }
}

void ShardWriter::write_block(const StagingRing::Block& block) {
  ShardDataset& dataset = layout_.info.datasets[static_cast<std::size_t>(block.dataset)];
  const auto begin = Clock::now();
  dataset.checksums[static_cast<std::size_t>(block.index)] = checked_sum(block);
  checking_ += std::chrono::nanoseconds(Clock::now() - begin).count();
  write_data(block.data, block.bytes, dataset.offset + block.index * kBlockBytes);
}

// Whole pages are written directly. The last bytes of a dataset share a page with what follows
// them, so they go through the page cache. So does everything if direct writes don't work.
void ShardWriter::write_data(const char* data, std::int64_t bytes, std::int64_t offset) {
  std::int64_t done = 0;
  const std::int64_t whole = bytes / kFileAlignment * kFileAlignment;
  while (direct_works_ && done < whole) {
    const ssize_t result = direct_.try_write_at(data + done, whole - done, offset + done);
    if (result == -EINVAL) {
      direct_works_ = false;  // this file system found a reason only now
    } else {
      done += result;
      if (done % kFileAlignment != 0) break;  // cut short in a page: not to be continued directly
    }
  }
  file_.write_at(data + done, bytes - done, offset + done);
}

std::uint64_t ShardWriter::checked_sum(const StagingRing::Block& block) const {
  const ShardDataset& dataset = layout_.info.datasets[static_cast<std::size_t>(block.dataset)];
  XXH3_state_t sum;
  XXH3_64bits_reset(&sum);
  for (std::int64_t begin = 0; begin < block.bytes; begin += kScanBytes) {
    const std::int64_t bytes = std::min(kScanBytes, block.bytes - begin);
    XXH3_64bits_update(&sum, block.data + begin, static_cast<std::size_t>(bytes));
    const std::int64_t at =
        first_not_finite({block.data + begin, static_cast<std::size_t>(bytes)}, dataset.dtype);
    if (at < 0) continue;
    const auto size = static_cast<std::int64_t>(size_of(dataset.dtype));
    const std::int64_t element = (block.index * kBlockBytes + begin) / size + at;
    throw TrainingError("{} isn't finite; it isn't saved",
                        place_name(layout_.info, tensors_, dataset.kind, element));
  }
  return XXH3_64bits_digest(&sum);
}

}  // namespace sherd::checkpoint
