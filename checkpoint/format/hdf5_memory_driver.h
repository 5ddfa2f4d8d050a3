/// A virtual file driver for libhdf5 that keeps what the library writes in memory. It stores only
/// the pages that are written, so a file of terabytes with unwritten datasets costs some KiB.
///
/// Our libhdf5 never accesses the real disk, for three reasons. After a failed write it keeps
/// objects that crash the process at exit; it calls no fsync; and it accepts a file that a full
/// disk cut short. So files are made here, and we write their bytes.
///
/// Threads  libhdf5 has at best one global lock. Callers hold `hdf5_lock()`.
/// Memory   libhdf5 crashes if an allocation fails, so it is called only while some MiB are left.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>

namespace sherd::checkpoint {

/// The pages of a file that were written. All others read as zeros.
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

/// Lets libhdf5 allocate what it keeps until the process ends. A program that will need libhdf5
/// calls this when it starts. So it ends before its work if there is too little memory.
/// Errors   std::bad_alloc. Takes hdf5_lock().
void start_hdf5();

/// A file access property list (an hid_t, to be closed) of the newest format that libhdf5 1.10
/// writes. Files opened with it are `file`, whatever their name. `file` outlives them.
/// Errors   std::bad_alloc if libhdf5 might not get the memory that it needs; DataError.
std::int64_t memory_access_list(MemoryFile& file);

/// Throws DataError with libhdf5's own message if `result` of libhdf5's function `call` is
/// negative.
std::int64_t hdf5_checked(std::int64_t result, const char* call);

}  // namespace sherd::checkpoint
