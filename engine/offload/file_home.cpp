#include "engine/offload/file_home.h"

#include <sys/vfs.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <map>
#include <mutex>
#include <thread>
#include <vector>

#include "core/thread.h"
#include "engine/offload/block_table.h"
#include "engine/offload/state_file.h"

namespace sherd::engine {
namespace {

constexpr int kNothing = -1;  // place of a block that was never written: zeros

class FileHome final : public OffloadHome {
 public:
  FileHome(const MemoryPlan& plan, const FileHomeOptions& options)
      : plan_(plan),
        addresses_(plan.arena_bytes()),
        table_(plan, options.snapshots),
        file_(*options.disk, options.folder, table_.sizes()),
        blocks_(table_.sizes().size()),
        keeps_snapshots_(options.snapshots) {
    for (const PlannedBuffer& buffer : plan_.buffers()) offsets_[buffer.spec.name] = buffer.offset;
    try {
      for (int i = 0; i < options.num_threads; ++i) {
        threads_.push_back(start_thread("that reads and writes state on disk", [this] { work(); }));
      }
    } catch (...) {
      end_threads();
      throw;
    }
  }
  ~FileHome() override {
    end_threads();
    latest_.memory = {};
    snapshot_.memory = {};
  }

  void attach(Allocator& memory) override {
    for (const BufferSpec& spec : copy_buffers(specs(), keeps_snapshots_, false)) {
      (latest_.memory ? snapshot_ : latest_).memory = memory.acquire(spec);
    }
  }
  bool has(const void* address) const override { return addresses_.has(address); }

  Ticket read(const void* address, void* to) override {
    return ask({.block = block_at(address), .memory = static_cast<char*>(to), .writes = false});
  }
  Ticket write(const void* address, const void* from) override {
    // Only read, since the request writes to the file.
    return ask({.block = block_at(address),
                .memory = static_cast<char*>(const_cast<void*>(from)),
                .writes = true});
  }
  void wait(Ticket ticket) override {
    std::unique_lock lock(mutex_);
    const auto done = [&] { return error_ || !is_pending(ticket); };
    if (!done()) {
      const auto begin = std::chrono::steady_clock::now();
      changed_.wait(lock, done);
      waited_ += std::chrono::steady_clock::now() - begin;
    }
    if (error_) std::rethrow_exception(error_);
  }
  void drain() noexcept override {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] {
      return std::ranges::none_of(
          requests_, [&](const Request& request) { return request.running || !error_; });
    });
  }
  std::chrono::nanoseconds waited() const override {
    const std::lock_guard lock(mutex_);
    return waited_;
  }
  DiskTraffic traffic() const override {
    const std::lock_guard lock(mutex_);
    return traffic_;
  }

  void copy(const void* from, void* to, std::int64_t bytes) override {
    const bool writes = has(to);
    bring_parts(writes ? to : from, bytes, writes,
                [&](void* memory, std::int64_t begin, std::int64_t count) {
                  if (writes) {
                    std::memcpy(memory, static_cast<const char*>(from) + begin,
                                static_cast<std::size_t>(count));
                  } else {
                    std::memcpy(static_cast<char*>(to) + begin, memory,
                                static_cast<std::size_t>(count));
                  }
                });
  }
  bool keeps_snapshots() const override { return keeps_snapshots_; }
  void each_part(Stream&, const void* address, std::int64_t bytes, bool writes,
                 const Use& use) override {
    bring_parts(address, bytes, writes, use);
  }
  void copy_of_snapshot(const void* from, void* to, std::int64_t bytes) override {
    const std::lock_guard lock(snapshot_.mutex);
    SHERD_CHECK(in_snapshot_, "a copy of a snapshot that nobody began");
    each_range(from, bytes,
               [&](const BlockTable::Position& at, std::int64_t begin, std::int64_t count) {
                 bring(snapshot_, at.block, true);
                 std::memcpy(static_cast<char*>(to) + begin, bytes_of(snapshot_) + at.byte,
                             static_cast<std::size_t>(count));
               });
  }
  void begin_snapshot() override {
    SHERD_CHECK(keeps_snapshots_, "a disk home without room for snapshots");
    write_changes();
    const std::lock_guard cache(snapshot_.mutex);
    const std::lock_guard lock(mutex_);
    SHERD_CHECK(!in_snapshot_, "two snapshots of state on disk");
    for (Block& block : blocks_) block.kept = block.latest;
    snapshot_.block = kNoBlock;
    in_snapshot_ = true;
  }
  void end_snapshot() override {
    const std::lock_guard cache(snapshot_.mutex);
    const std::lock_guard lock(mutex_);
    in_snapshot_ = false;
  }

 private:
  void bring_parts(const void* address, std::int64_t bytes, bool writes, const Use& use) {
    const std::lock_guard lock(latest_.mutex);
    SHERD_CHECK(!writes || !has_requests_, "state on disk is written after the first request");
    each_range(address, bytes,
               [&](const BlockTable::Position& at, std::int64_t begin, std::int64_t count) {
                 bring(latest_, at.block, false);
                 if (writes) latest_.dirty = true;
                 use(bytes_of(latest_) + at.byte, begin, count);
               });
  }

  static constexpr std::size_t kNoBlock = static_cast<std::size_t>(-1);
  static constexpr Ticket kCopy = -1;  // of the block that a copy reads

  struct Block {
    int latest = kNothing;  ///< place of the newest content, once its requests are done
    int kept = kNothing;    ///< place of the snapshot's
  };
  struct Request {
    Ticket ticket = 0;
    std::size_t block = 0;
    int place = 0;
    char* memory = nullptr;
    bool writes = false;
    bool running = false;
  };
  /// A block in memory, for copies of parts of it.
  struct Cache {
    std::mutex mutex;
    Buffer memory;
    std::size_t block = kNoBlock;
    std::atomic<bool> dirty = false;
  };

  void* place(const BufferSpec& spec) override {
    const auto found = offsets_.find(spec.name);
    SHERD_CHECK(found != offsets_.end(), "{} isn't planned on disk", spec.name);
    return addresses_.begin() + found->second;
  }
  void remove(const BufferSpec&, void*) noexcept override {}
  void came_alive(const BufferSpec&, void*) noexcept override {}
  void went_away(const BufferSpec&, void*) noexcept override {}

  std::vector<BufferSpec> specs() const {
    std::vector<BufferSpec> specs;
    for (const PlannedBuffer& buffer : plan_.buffers()) specs.push_back(buffer.spec);
    return specs;
  }
  static char* bytes_of(const Cache& cache) {
    return static_cast<char*>(cache.memory.tensor().data);
  }
  BlockTable::Position position_of(const void* address) const {
    SHERD_CHECK(has(address), "an address of memory where one on disk was expected");
    return table_.find(static_cast<const char*>(address) - addresses_.begin());
  }
  std::size_t block_at(const void* address) const {
    const BlockTable::Position at = position_of(address);
    SHERD_CHECK(at.byte == 0, "an address inside of a block");
    return at.block;
  }
  // use(position of a part's first byte, its index, count): parts lie in one block each.
  template <class Visit>
  void each_range(const void* here, std::int64_t bytes, const Visit& use) const {
    for (std::int64_t done = 0; done < bytes;) {
      const BlockTable::Position at = position_of(static_cast<const char*>(here) + done);
      const std::int64_t count = std::min(bytes - done, file_.block_bytes(at.block) - at.byte);
      use(at, done, count);
      done += count;
    }
  }

  Ticket ask(Request request) {
    if (latest_.dirty) write_changes();
    const std::lock_guard lock(mutex_);
    if (error_) std::rethrow_exception(error_);
    Block& block = blocks_[request.block];
    const std::int64_t bytes = file_.block_bytes(request.block);
    if (request.writes) {
      // The snapshot's content stays where it is.
      if (block.latest == kNothing ||
          (in_snapshot_ && block.kept == block.latest && file_.is_kept(request.block))) {
        block.latest = block.latest == 0 ? 1 : 0;
      }
      traffic_.written += bytes;
    } else {
      traffic_.read += block.latest == kNothing ? 0 : bytes;
    }
    request.place = block.latest;
    request.ticket = ++last_ticket_;
    has_requests_ = true;
    requests_.push_back(request);
    changed_.notify_all();
    return request.ticket;
  }

  // Brings changes of `copy` to the file.
  void write_changes() {
    const std::lock_guard lock(latest_.mutex);
    flush(latest_);
  }
  void flush(Cache& cache) {
    if (!cache.dirty) return;
    Block& block = blocks_[cache.block];
    {
      const std::lock_guard lock(mutex_);
      SHERD_CHECK(!in_snapshot_, "a copy to state on disk within a snapshot");
      if (block.latest == kNothing) block.latest = 0;
      traffic_.written += file_.block_bytes(cache.block);
    }
    file_.write(cache.block, block.latest, bytes_of(cache));
    cache.dirty = false;
  }
  void bring(Cache& cache, std::size_t block, bool of_snapshot) {
    int place = kNothing;
    {
      std::unique_lock lock(mutex_);
      place = of_snapshot ? blocks_[block].kept : blocks_[block].latest;
      const auto still_written = [&] {
        return std::ranges::any_of(requests_, [&](const Request& request) {
          return request.block == block && request.writes && request.place == place;
        });
      };
      if (cache.block == block && (of_snapshot || cache.dirty)) return;
      changed_.wait(lock, [&] { return error_ || !still_written(); });
      if (error_) std::rethrow_exception(error_);
      if (!of_snapshot && place != kNothing) traffic_.read += file_.block_bytes(block);
      // Writes that are asked for meanwhile wait for this one. A snapshot's place isn't written.
      if (!of_snapshot) requests_.push_back({.ticket = kCopy, .block = block, .running = true});
    }
    std::exception_ptr error;
    try {
      flush(cache);
      cache.block = kNoBlock;
      read_place(block, place, bytes_of(cache));
      cache.block = block;
    } catch (...) {
      error = std::current_exception();
    }
    if (!of_snapshot) forget(kCopy);
    if (error) std::rethrow_exception(error);
  }
  void read_place(std::size_t block, int place, char* to) const {
    if (place == kNothing) {
      std::memset(to, 0, static_cast<std::size_t>(file_.block_bytes(block)));
    } else {
      file_.read(block, place, to);
    }
  }
  void forget(Ticket ticket) {
    const std::lock_guard lock(mutex_);
    std::erase_if(requests_, [&](const Request& done) { return done.ticket == ticket; });
    changed_.notify_all();
  }

  bool is_pending(Ticket ticket) const {
    return std::ranges::any_of(requests_,
                               [&](const Request& request) { return request.ticket == ticket; });
  }
  // The first request that waits for no earlier one; the end if there is none.
  std::deque<Request>::iterator next() {
    for (auto request = requests_.begin(); request != requests_.end(); ++request) {
      if (request->running) continue;
      const bool waits = std::any_of(requests_.begin(), request, [&](const Request& earlier) {
        return earlier.block == request->block || earlier.memory == request->memory;
      });
      if (!waits) return request;
    }
    return requests_.end();
  }

  void work() {
    std::unique_lock lock(mutex_);
    while (true) {
      auto request = requests_.end();
      changed_.wait(lock, [&] {
        request = error_ ? requests_.end() : next();
        return leaving_ || request != requests_.end();
      });
      if (request == requests_.end()) return;  // leaving
      request->running = true;
      const Request own = *request;
      lock.unlock();
      std::exception_ptr error;
      try {
        run(own);
      } catch (...) {
        error = std::current_exception();
      }
      lock.lock();
      if (error && !error_) error_ = error;
      std::erase_if(requests_, [&](const Request& done) { return done.ticket == own.ticket; });
      changed_.notify_all();
    }
  }
  void run(const Request& request) {
    if (request.writes) {
      file_.write(request.block, request.place, request.memory);
    } else {
      read_place(request.block, request.place, request.memory);
    }
  }
  // What was asked for is still done: its memory must not be used any more afterwards.
  void end_threads() {
    {
      const std::lock_guard lock(mutex_);
      leaving_ = true;
      changed_.notify_all();
    }
    for (std::thread& thread : threads_) thread.join();
    threads_.clear();
  }

  const MemoryPlan plan_;
  const Addresses addresses_;
  const BlockTable table_;
  StateFile file_;
  std::map<std::string, std::int64_t> offsets_;

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Request> requests_;  // in order, those that run included
  std::vector<Block> blocks_;
  Ticket last_ticket_ = 0;
  std::atomic<bool> has_requests_ = false;
  std::exception_ptr error_;
  bool leaving_ = false;
  const bool keeps_snapshots_;
  bool in_snapshot_ = false;
  std::chrono::nanoseconds waited_{0};
  DiskTraffic traffic_;
  // Locked before mutex_.
  Cache latest_, snapshot_;
  std::vector<std::thread> threads_;
};

}  // namespace

std::shared_ptr<OffloadHome> make_file_home(const MemoryPlan& plan,
                                            const FileHomeOptions& options) {
  return std::make_shared<FileHome>(plan, options);
}

std::string remark_on_folder(const std::string& folder) {
  struct statfs status {};
  if (statfs(folder.c_str(), &status) != 0) return "";
  constexpr long kTmpfs = 0x01021994, kRamfs = 0x858458f6;
  constexpr long kNfs = 0x6969, kSmb = 0x517b, kCifs = 0xff534d42, kSmb2 = 0xfe534d42;
  const auto type = static_cast<long>(status.f_type);
  if (type == kTmpfs || type == kRamfs) {
    return fmt::format("{} is memory (tmpfs): state that is kept there saves none", folder);
  }
  if (type == kNfs || type == kSmb || type == kCifs || type == kSmb2) {
    return fmt::format("{} is on another machine: each step moves its state over the network",
                       folder);
  }
  return "";
}

}  // namespace sherd::engine
