#include "engine/offload/state_file.h"

#include <fmt/core.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <cerrno>
#include <random>

#include "core/human_text.h"
#include "core/offload_home.h"

namespace sherd::engine {
namespace {

std::string random_name() {
  std::random_device device;
  return fmt::format("sherd-state-{:08x}{:08x}", device(), device());
}

std::uint64_t checksum_of(const void* data, std::int64_t bytes) {
  return XXH3_64bits(data, static_cast<std::size_t>(bytes));
}

}  // namespace

StateFile::StateFile(checkpoint::Disk& disk, const std::string& folder,
                     const std::vector<BlockSize>& block_sizes)
    : folder_(folder) {
  blocks_.reserve(block_sizes.size());
  for (const BlockSize& size : block_sizes) {
    Block& block = blocks_.emplace_back();
    block.bytes = size.bytes;
    block.offsets[0] = file_bytes_;
    file_bytes_ += disk_room(size.bytes);
    if (!size.is_kept) continue;
    block.offsets[1] = file_bytes_;
    file_bytes_ += disk_room(size.bytes);
  }
  const std::string path = folder + "/" + random_name();
  try {
    file_ = checkpoint::File(disk, path, O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW, 0600);
  } catch (const checkpoint::DiskError& error) {
    throw DataError("{}: state can't be kept in this folder: {}", folder, error.what());
  }
  try {
    direct_ = checkpoint::File(disk, path, O_RDWR | O_DIRECT | O_NOFOLLOW);
    direct_works_ = true;
  } catch (const checkpoint::DiskError& refused) {
    if (refused.error_number != EINVAL && refused.error_number != EOPNOTSUPP) {
      checkpoint::remove_file(disk, path);
      throw;
    }
  }
  checkpoint::remove_file(disk, path);
  try {
    reserved_ = file_bytes_ == 0 || file_.allocate(file_bytes_);
  } catch (const checkpoint::DiskError& error) {
    if (error.error_number != ENOSPC && error.error_number != EFBIG &&
        error.error_number != EDQUOT) {
      throw;
    }
    throw DataError("{}: has no room for {} of state that is kept on disk: {}", folder,
                    human_bytes(file_bytes_), error.what());
  }
}

void StateFile::read(std::size_t index, int place, void* to) const {
  const Block& block = blocks_[index];
  const std::int64_t offset = block.offsets[place], room = disk_room(block.bytes);
  std::int64_t done = 0;
  while (direct_works_ && done < block.bytes) {
    const ssize_t result =
        direct_.try_read_at(static_cast<char*>(to) + done, room - done, offset + done);
    if (result == -EINVAL) {
      direct_works_ = false;
    } else {
      done += result;
      if (result == 0 || done % kDiskAlignment != 0) break;  // the rest can't be read directly
    }
  }
  if (done < block.bytes) {
    file_.read_at(static_cast<char*>(to) + done, block.bytes - done, offset + done);
  }
  if (checksum_of(to, block.bytes) != block.checksums[place]) {
    throw DataError(
        "{}: {} bytes of state at byte {} aren't what was written there. The drive or its memory "
        "is "
        "faulty; train on from the newest checkpoint, with another zero_optimization.offload_path.",
        folder_, block.bytes, offset);
  }
}

void StateFile::write(std::size_t index, int place, const void* from) {
  Block& block = blocks_[index];
  const std::int64_t offset = block.offsets[place], room = disk_room(block.bytes);
  block.checksums[place] = checksum_of(from, block.bytes);
  std::int64_t done = 0;
  while (direct_works_ && done < room) {
    const ssize_t result =
        direct_.try_write_at(static_cast<const char*>(from) + done, room - done, offset + done);
    if (result == -EINVAL) {
      direct_works_ = false;
    } else {
      done += result;
      if (done % kDiskAlignment != 0) break;
    }
  }
  if (done < block.bytes) {
    file_.write_at(static_cast<const char*>(from) + done, block.bytes - done, offset + done);
  }
}

}  // namespace sherd::engine
