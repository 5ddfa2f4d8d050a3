// State on disk: blocks come back as they were written, snapshots stay, and what a drive does wrong
// is an error.

#include "engine/offload/file_home.h"

#include <gtest/gtest.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <filesystem>
#include <functional>
#include <numeric>
#include <thread>

#include "engine/offload/disk_rate.h"
#include "tests/checkpoint/support/hooked_disk.h"
#include "tests/support/values/temp_folder.h"

namespace sherd::testing {
namespace {

using test::DiskCall;
using Answer = std::optional<std::int64_t>;

constexpr std::int64_t kBlock = 3000;  // elements: 12,000 bytes, no multiple of a page

BufferSpec on_disk(const std::string& name, std::int64_t numel) {
  return {name, Category::kOptimizer, DType::kF32, numel, kAlways, Home::kDisk, kBlock};
}

// A home with two buffers: three whole blocks, and one that is short.
class Fixture {
 public:
  explicit Fixture(checkpoint::Disk& disk = checkpoint::posix_disk(), bool snapshots = true)
      : home_(engine::make_file_home(
            MemoryPlan({on_disk("first", 3 * kBlock), on_disk("second", 700)}),
            {.folder = folder_.path(), .snapshots = snapshots, .disk = &disk})),
        first_(home_->acquire(on_disk("first", 3 * kBlock))),
        second_(home_->acquire(on_disk("second", 700))),
        memory_(memory_source_.acquire(
            {"memory", Category::kCheckpoint, DType::kU8, 4 * disk_room(4 * kBlock)})) {
    home_->attach(memory_source_);
  }
  ~Fixture() { home_->drain(); }

  OffloadHome& home() { return *home_; }
  const std::string& folder() const { return folder_.path(); }
  float* at(std::int64_t block) const {
    return static_cast<float*>(block < 3 ? first_.tensor().data : second_.tensor().data) +
           (block < 3 ? block * kBlock : 0);
  }
  std::int64_t numel(std::int64_t block) const { return block < 3 ? kBlock : 700; }
  float* slot(std::int64_t i) const {
    return reinterpret_cast<float*>(static_cast<char*>(memory_.tensor().data) +
                                    i * disk_room(4 * kBlock));
  }

  OffloadHome::Ticket write(std::int64_t block, float value, std::int64_t in_slot = 0) {
    home_->wait(last_);  // the memory is its request's until then
    std::iota(slot(in_slot), slot(in_slot) + numel(block), value);
    return last_ = home_->write(at(block), slot(in_slot));
  }
  void expect(std::int64_t block, float value, std::int64_t in_slot = 1) {
    home_->wait(home_->read(at(block), slot(in_slot)));
    for (std::int64_t i = 0; i < numel(block); ++i) {
      ASSERT_EQ(slot(in_slot)[i], value == 0.0f ? 0.0f : value + static_cast<float>(i)) << i;
    }
  }
  void expect_in_snapshot(std::int64_t block, float value) {
    std::vector<float> values(static_cast<std::size_t>(numel(block)));
    home_->copy_of_snapshot(at(block), values.data(), 4 * numel(block));
    for (std::int64_t i = 0; i < numel(block); ++i) {
      ASSERT_EQ(values[static_cast<std::size_t>(i)],
                value == 0.0f ? 0.0f : value + static_cast<float>(i))
          << i;
    }
  }

 private:
  test::TempFolder folder_;
  HeapAllocator memory_source_;
  std::shared_ptr<OffloadHome> home_;
  Buffer first_, second_, memory_;
  OffloadHome::Ticket last_ = 0;
};

// Flips a bit of what is read, once asked to.
class BitFlipDisk final : public test::HookedDisk {
 public:
  BitFlipDisk() : HookedDisk({}) {}
  ssize_t pread(int fd, void* to, std::size_t bytes, std::int64_t offset) override {
    const ssize_t done = HookedDisk::pread(fd, to, bytes, offset);
    if (flips && done > 0) static_cast<char*>(to)[done / 3] ^= 4;
    return done;
  }
  std::atomic<bool> flips = false;
};

std::string error_of(const std::function<void()>& work) {
  try {
    work();
  } catch (const DataError& error) {
    return error.what();
  }
  return "";
}

TEST(FileHome, BlocksComeBackAsTheyWereWritten) {
  Fixture files;
  for (std::int64_t block = 0; block < 4; ++block) {
    files.home().wait(files.write(block, 100.0f * static_cast<float>(block + 1)));
  }
  for (std::int64_t block = 0; block < 4; ++block) {
    files.expect(block, 100.0f * static_cast<float>(block + 1));
  }
}

TEST(FileHome, WhatWasNeverWrittenIsZero) {
  Fixture files;
  for (std::int64_t block = 0; block < 4; ++block) files.expect(block, 0.0f);
  EXPECT_EQ(files.home().traffic().read, 0);
}

TEST(FileHome, AReadAfterAWriteOfTheSameBlockHasWhatWasWritten) {
  Fixture files;
  for (int i = 0; i < 200; ++i) {
    files.write(i % 4, static_cast<float>(i + 1));
    files.expect(i % 4, static_cast<float>(i + 1));
  }
}

TEST(FileHome, AReadIntoMemoryThatIsBeingWrittenWaits) {
  Fixture files;
  for (int i = 0; i < 100; ++i) {
    files.write(0, static_cast<float>(i + 1), 0);
    files.home().wait(files.home().read(files.at(1), files.slot(0)));
    files.expect(0, static_cast<float>(i + 1));
  }
}

TEST(FileHome, CopiesTakeAnyBytesOfSeveralBlocks) {
  Fixture files;
  std::vector<float> values(2 * kBlock);
  std::iota(values.begin(), values.end(), 1.0f);
  files.home().copy(values.data(), files.at(0) + 1000, 8 * kBlock);  // of three blocks
  std::vector<float> back(3 * kBlock, -1.0f);
  files.home().copy(files.at(0), back.data(), 12 * kBlock);
  for (std::int64_t i = 0; i < 3 * kBlock; ++i) {
    const bool inside = i >= 1000 && i < 1000 + 2 * kBlock;
    ASSERT_EQ(back[static_cast<std::size_t>(i)], inside ? static_cast<float>(i - 999) : 0.0f);
  }
  files.expect(1, 2001.0f);  // requests see what copies have brought
}

// Calls `before` before each read. Calls of several threads overlap.
class HeldReads final : public test::HookedDisk {
 public:
  HeldReads() : HookedDisk({}) {}
  ssize_t pread(int fd, void* to, std::size_t bytes, std::int64_t offset) override {
    before();
    return checkpoint::posix_disk().pread(fd, to, bytes, offset);
  }
  ssize_t pwrite(int fd, const void* from, std::size_t bytes, std::int64_t offset) override {
    return checkpoint::posix_disk().pwrite(fd, from, bytes, offset);
  }
  std::function<void()> before;
};

// Its read begins before a write of the same block is asked for, and ends long after.
TEST(FileHome, AWriteWaitsForTheCopyThatReadsItsBlock) {
  std::atomic<bool> is_read = false, is_asked = false, holds = false;
  HeldReads disk;
  disk.before = [&] {
    if (!holds.exchange(false)) return;
    is_read = true;
    while (!is_asked) std::this_thread::yield();
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  };
  Fixture files(disk);
  files.home().wait(files.write(1, 5.0f));
  holds = true;
  std::vector<float> values(kBlock);
  std::thread copies([&] { files.home().copy(files.at(1), values.data(), 4 * kBlock); });
  while (!is_read) std::this_thread::yield();
  files.write(1, 900.0f);
  is_asked = true;
  copies.join();
  for (std::int64_t i = 0; i < kBlock; ++i) {
    ASSERT_EQ(values[static_cast<std::size_t>(i)], 5.0f + static_cast<float>(i));
  }
  files.expect(1, 900.0f);
}

TEST(FileHome, ASnapshotStaysWhileWritesGoOn) {
  Fixture files;
  for (std::int64_t block = 0; block < 3; ++block) files.write(block, 10.0f);
  files.home().begin_snapshot();  // with its writes under way
  for (int round = 0; round < 5; ++round) {
    for (std::int64_t block = 0; block < 4; ++block) {
      files.write(block, 1000.0f * static_cast<float>(round + 1));
      files.expect(block, 1000.0f * static_cast<float>(round + 1));
    }
    files.expect_in_snapshot(round % 3, 10.0f);
    files.expect_in_snapshot(3, 0.0f);
  }
  files.home().end_snapshot();
  files.home().begin_snapshot();
  for (std::int64_t block = 0; block < 4; ++block) files.write(block, 7.0f);
  for (std::int64_t block = 0; block < 4; ++block) files.expect_in_snapshot(block, 5000.0f);
  for (std::int64_t block = 0; block < 4; ++block) files.expect(block, 7.0f);
}

TEST(FileHome, NothingIsInItsFolder) {
  Fixture files;
  files.home().wait(files.write(0, 1.0f));
  EXPECT_TRUE(std::filesystem::is_empty(files.folder()));
}

// The disk keeps another bit than the one that was written.
TEST(FileHome, AFlippedBitIsFound) {
  for (const bool in_copy : {false, true}) {
    BitFlipDisk disk;
    Fixture files(disk);
    files.home().wait(files.write(2, 5.0f));
    disk.flips = true;
    const std::string error = error_of([&] {
      if (in_copy) return files.home().copy(files.at(2), files.slot(1), 4);
      files.home().wait(files.home().read(files.at(2), files.slot(1)));
    });
    EXPECT_NE(error.find("aren't what was written there"), std::string::npos) << error;
  }
}

// Every kind of short or failing call, in reads and in writes.
TEST(FileHome, ShortCallsAreCompletedAndErrorsAreNamed) {
  for (const char* call_name : {"pread", "pwrite"}) {
    int left = 3;
    test::HookedDisk interrupted([&](const DiskCall& call) -> Answer {
      if (call.name == call_name && left-- > 0) return -EINTR;
      return std::nullopt;
    });
    Fixture files(interrupted);
    files.home().wait(files.write(1, 3.0f));
    files.expect(1, 3.0f);
  }
  test::HookedDisk shorter([](const DiskCall& call) -> Answer {
    if (call.writes() && call.bytes.size() > 4096) return 4096;
    return std::nullopt;
  });
  Fixture cut(shorter);
  cut.home().wait(cut.write(1, 3.0f));
  cut.expect(1, 3.0f);
  for (const auto& [call_name, number, text] :
       {std::tuple("pread", EIO, "EIO"), std::tuple("pwrite", EIO, "EIO"),
        std::tuple("pwrite", ENOSPC, "ENOSPC")}) {
    bool fails = false;
    test::HookedDisk broken(
        [&, name = std::string(call_name), error = number](const DiskCall& call) -> Answer {
          if (fails && call.name == name) return -error;
          return std::nullopt;
        });
    Fixture files(broken);
    files.home().wait(files.write(1, 3.0f));
    fails = true;
    const std::string error = error_of([&] {
      files.home().wait(files.write(1, 4.0f));
      files.home().wait(files.home().read(files.at(1), files.slot(1)));
    });
    EXPECT_NE(error.find(text), std::string::npos) << error;
    // Everything after it fails as well, instead of hanging.
    EXPECT_NE(error_of([&] { files.home().wait(files.write(0, 1.0f)); }), "");
  }
}

TEST(FileHome, AFileSystemWithoutDirectAccessIsUsedThroughItsCache) {
  for (const char* when : {"at open", "at first use"}) {
    test::HookedDisk indirect([&](const DiskCall& call) -> Answer {
      if (std::string(when) == "at open" && call.name == "open" && (call.flags & O_DIRECT) != 0) {
        return -EINVAL;
      }
      return std::nullopt;
    });
    Fixture files(indirect);
    files.home().wait(files.write(3, 8.0f));
    files.expect(3, 8.0f);
  }
}

TEST(FileHome, AFullDiskIsFoundBeforeAnythingIsWritten) {
  int writes = 0;
  test::HookedDisk full([&](const DiskCall& call) -> Answer {
    if (call.name == "allocate") return -ENOSPC;
    writes += call.writes() ? 1 : 0;
    return std::nullopt;
  });
  const std::string error = error_of([&] { Fixture files(full); });
  EXPECT_NE(error.find("has no room for"), std::string::npos) << error;
  EXPECT_EQ(writes, 0);
}

TEST(FileHome, AFileSystemThatCannotReserveIsUsedNevertheless) {
  test::HookedDisk plain([](const DiskCall& call) -> Answer {
    if (call.name == "allocate") return -EOPNOTSUPP;
    return std::nullopt;
  });
  Fixture files(plain);
  files.home().wait(files.write(3, 8.0f));
  files.expect(3, 8.0f);
}

TEST(FileHome, AFolderThatIsNotThereOrReadOnlyIsNamed) {
  const auto home_in = [](const std::string& folder, checkpoint::Disk& disk) {
    return error_of([&] {
      engine::make_file_home(MemoryPlan({on_disk("first", 10)}), {.folder = folder, .disk = &disk});
    });
  };
  EXPECT_NE(home_in("/nowhere", checkpoint::posix_disk()).find("/nowhere"), std::string::npos);
  test::HookedDisk read_only([](const DiskCall& call) -> Answer {
    if (call.name == "open" && (call.flags & O_CREAT) != 0) return -EROFS;
    return std::nullopt;
  });
  const test::TempFolder folder;
  EXPECT_NE(home_in(folder.path(), read_only).find("EROFS"), std::string::npos);
}

TEST(FileHome, TwoHomesShareAFolder) {
  const test::TempFolder folder;
  const MemoryPlan plan({on_disk("first", kBlock)});
  HeapAllocator memory, more;
  const auto one = engine::make_file_home(plan, {.folder = folder.path()});
  const auto other = engine::make_file_home(plan, {.folder = folder.path()});
  const Buffer in_one = one->acquire(on_disk("first", kBlock));
  const Buffer in_other = other->acquire(on_disk("first", kBlock));
  one->attach(memory);
  other->attach(more);
  const float first = 1.0f, second = 2.0f;
  one->copy(&first, in_one.tensor().data, 4);
  other->copy(&second, in_other.tensor().data, 4);
  float back = 0.0f;
  one->copy(in_one.tensor().data, &back, 4);
  EXPECT_EQ(back, 1.0f);
}

TEST(FileHome, ADriveIsMeasured) {
  const test::TempFolder folder;
  const engine::MeasuredDisk disk =
      engine::measure_disk(checkpoint::posix_disk(), folder.path(), 16 << 20);
  EXPECT_GT(disk.read, 0.0);
  EXPECT_GT(disk.write, 0.0);
  EXPECT_TRUE(std::filesystem::is_empty(folder.path()));
}

}  // namespace
}  // namespace sherd::testing
