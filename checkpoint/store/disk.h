/// The one seam between checkpoints and the file system.
///
/// `Disk` is a list of system calls, one virtual function each: what a checkpoint needs and nothing
/// else. The trainer uses `posix_disk()`; tests put a disk there that fails a call, records all of
/// them, or ends the process at the n-th. A call returns what the system call does, or -errno: it
/// may do less than it was asked to, and it may be interrupted.
///
/// `File` and the functions below it are what everyone else calls. They finish short reads and
/// writes, repeat what EINTR interrupted, count the errors of close(), and turn every other error
/// into a `DiskError`, which names operation, file and errno.
///
/// Threads  a Disk may be used by many threads, a File by one, reads and writes of it excepted.
#pragma once

#include <fcntl.h>
#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/error.h"

namespace sherd::checkpoint {

/// A system call failed. `what()`: "FILE: OPERATION: No space left on device (ENOSPC)".
class DiskError : public DataError {
 public:
  DiskError(std::string operation_, std::string file_, int error_number_);

  std::string operation;  ///< "write 4194304 bytes at 8192", "fsync", ...
  std::string file;
  int error_number = 0;
};

struct FileStatus {
  enum class Kind { kFile, kDirectory, kOther };  ///< a symbolic link is kOther
  Kind kind = Kind::kOther;
  std::int64_t bytes = 0;
  std::uint64_t device = 0, inode = 0;  ///< together: which file it is, whatever its name
  std::uint64_t num_names = 1;          ///< hard links

  bool same_file(const FileStatus& other) const {
    return device == other.device && inode == other.inode;
  }
};

class Disk {
 public:
  virtual ~Disk() = default;
  /// `flags` as in <fcntl.h>; O_CLOEXEC is always added. A relative path starts at `directory`, an
  /// open directory or AT_FDCWD.
  virtual int open(int directory, const std::string& path, int flags, mode_t mode) = 0;
  virtual int close(int fd) = 0;
  virtual ssize_t pread(int fd, void* to, std::size_t bytes, std::int64_t offset) = 0;
  virtual ssize_t pwrite(int fd, const void* from, std::size_t bytes, std::int64_t offset) = 0;
  virtual int truncate(int fd, std::int64_t bytes) = 0;
  virtual int fsync(int fd) = 0;
  virtual int flock(int fd) = 0;         ///< exclusive, without waiting
  virtual int flock_shared(int fd) = 0;  ///< the same, with others that share it
  virtual int fstat(int fd, FileStatus& status) = 0;
  virtual int lstat(const std::string& path, FileStatus& status) = 0;
  virtual int mkdir(const std::string& path) = 0;
  virtual int rename(const std::string& from, const std::string& to) = 0;      ///< replaces `to`
  virtual int rename_new(const std::string& from, const std::string& to) = 0;  ///< never replaces
  virtual int unlink(const std::string& path) = 0;
  virtual int rmdir(const std::string& path) = 0;
  /// Without "." and "..", in no order.
  virtual int list(const std::string& path, std::vector<std::string>& names) = 0;
};

Disk& posix_disk();

/// An open file or directory. `path` is what errors name.
class File {
 public:
  File() = default;
  File(Disk& disk, const std::string& path, int flags, mode_t mode = 0666);
  /// `name` in the open directory `parent`.
  File(Disk& disk, const File& parent, const std::string& name, int flags, mode_t mode = 0666);
  File(File&& other) noexcept { swap(other); }
  File& operator=(File&& other) noexcept;
  ~File();  ///< closes, and doesn't hear of errors: whoever wrote calls close()

  /// Exactly `bytes` bytes; a file that ends before them is a DataError.
  void read_at(void* to, std::int64_t bytes, std::int64_t offset) const;
  void write_at(const void* from, std::int64_t bytes, std::int64_t offset) const;
  /// One write, repeated only if interrupted: how much of it was done, or -EINVAL, which direct
  /// writes get where they don't work.
  ssize_t try_write_at(const void* from, std::int64_t bytes, std::int64_t offset) const;
  void truncate(std::int64_t bytes) const;
  void sync() const;
  bool lock() const;         ///< false: somebody else holds it
  bool lock_shared() const;  ///< false: somebody else holds it alone
  FileStatus status() const;
  void close();

  explicit operator bool() const { return fd_ >= 0; }
  const std::string& path() const { return path_; }

 private:
  void swap(File& other) noexcept;
  Disk* disk_ = nullptr;
  int fd_ = -1;
  std::string path_;
};

/// A plain file, whatever stands at that path: symbolic links aren't followed, and a pipe or device
/// doesn't hold the caller up. `flags` as for File; to be written, it must have this one name only.
/// Errors   DataError where it is no such file.
File open_plain(Disk& disk, const std::string& path, int flags);
File open_plain(Disk& disk, const File& parent, const std::string& name, int flags);

/// False if it exists already.
bool make_directory(Disk& disk, const std::string& path);
std::vector<std::string> list_directory(Disk& disk, const std::string& path);  ///< sorted
bool exists(Disk& disk, const std::string& path);  ///< a dangling symbolic link exists, too
/// Makes entries of a directory durable: files made in it, names given or taken away.
void sync_directory(Disk& disk, const std::string& path);
/// What stands at a path, links not followed; nothing if nothing does.
std::optional<FileStatus> status_of(Disk& disk, const std::string& path);
/// Writes a file that isn't there yet; durable on return, its directory entry excepted.
void write_new_file(Disk& disk, const std::string& path, std::string_view bytes, bool sync = true);
/// A whole file; one that is larger than `max_bytes`, or no plain file, is a DataError.
std::string read_file(Disk& disk, const std::string& path, std::int64_t max_bytes);
/// Puts a file with these bytes at `path`, in place of whatever has that name: at every moment, also
/// after a power cut, what was there before or the whole new file. Links aren't followed: it is the
/// name that changes hands. Written beside it, as `path`.tmp, where nothing is kept.
void replace_file(Disk& disk, const std::string& path, std::string_view bytes);
/// The folder that a path's last name is in.
std::string folder_of(const std::string& path);
/// False if `to` exists. Where the file system knows no rename without replacing: looks, then
/// renames, which still can't replace a directory that holds anything.
bool rename_new(Disk& disk, const std::string& from, const std::string& to);
void rename_over(Disk& disk, const std::string& from, const std::string& to);
/// Both false if there was nothing to remove.
bool remove_file(Disk& disk, const std::string& path);
bool remove_directory_if_empty(Disk& disk, const std::string& path);
/// A file, or a directory with everything in it; follows no links. What somebody else removes
/// meanwhile is gone as well; a directory that somebody else fills meanwhile stays.
void remove_tree(Disk& disk, const std::string& path);

}  // namespace sherd::checkpoint
