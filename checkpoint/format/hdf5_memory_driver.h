/// A virtual file driver for libhdf5 that keeps what the library writes in memory: only the pages
/// that it touches, so a file of terabytes with unwritten datasets costs some KiB.
///
/// The trainer's libhdf5 never sees the real disk: after a failed write it hangs on to objects that
/// crash the process at exit, it calls no fsync, and a file cut short by a full disk looks good to
/// it. So files are made here, and their bytes are written by us.
///
/// Threads  libhdf5 has one lock for everything at best. Whoever calls it holds `hdf5_lock()`.
/// Memory   libhdf5 crashes where it gets none, so it is called only where some MiB are left.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>

namespace sherd::checkpoint {

/// The pages of a file that were written. What wasn't reads as zeros.
class MemoryFile {
 public:
  void write(std::int64_t offset, const void* from, std::int64_t bytes);
  void read(std::int64_t offset, void* to, std::int64_t bytes) const;
  std::string range(std::int64_t begin, std::int64_t end) const;

  std::int64_t bytes() const { return bytes_; }
  void resize(std::int64_t bytes) { bytes_ = bytes; }
  std::int64_t resident_bytes() const;

 private:
  std::map<std::int64_t, std::unique_ptr<char[]>> pages_;
  std::int64_t bytes_ = 0;
};

[[nodiscard]] std::unique_lock<std::mutex> hdf5_lock();

/// Lets libhdf5 allocate what it holds for as long as the process lives. A program that will need it
/// calls this when it starts, so that too little memory for it ends the program before its work.
/// Errors   std::bad_alloc. Takes hdf5_lock().
void start_hdf5();

/// A file access property list (an hid_t, to be closed) of the newest format that libhdf5 1.10
/// writes; files opened with it are `file`, whatever their name. `file` outlives them.
/// Errors   std::bad_alloc where libhdf5 might not get the memory that it needs; DataError.
std::int64_t memory_access_list(MemoryFile& file);

/// Throws DataError with libhdf5's own words if `result`, of libhdf5's function `call`, is
/// negative.
std::int64_t hdf5_checked(std::int64_t result, const char* call);

}  // namespace sherd::checkpoint
