/// The only interface between checkpoints and the file system.
///
/// `Disk` is a list of the system calls that a checkpoint needs, one virtual function each. The
/// trainer uses `posix_disk()`. Tests use a disk that fails a call, records all calls, or ends the
/// process at the n-th. A call returns what the system call does, or -errno: it may do less than
/// requested, and it may be interrupted.
///
/// All other code uses `File` and the functions below it. They complete short reads and writes,
/// repeat calls that EINTR interrupted, and report errors of close(). Every other error becomes a
/// `DiskError`, which names operation, file and errno.
///
/// Threads  many threads may use a Disk. One thread may use a File, but any thread may read and
///          write it.
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
  std::uint64_t device = 0, inode = 0;  ///< together they identify the file, whatever its name
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
  virtual int allocate(int fd, std::int64_t bytes) = 0;  ///< reserves space for bytes [0, bytes)
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
  /// Without "." and "..", in any order.
  virtual int list(const std::string& path, std::vector<std::string>& names) = 0;
};

Disk& posix_disk();

/// An open file or directory. Errors name `path`.
class File {
 public:
  File() = default;
  File(Disk& disk, const std::string& path, int flags, mode_t mode = 0666);
  /// Opens `name` in the open directory `parent`.
  File(Disk& disk, const File& parent, const std::string& name, int flags, mode_t mode = 0666);
  File(File&& other) noexcept { swap(other); }
  File& operator=(File&& other) noexcept;
  ~File();  ///< closes and ignores errors: code that wrote calls close()

  /// Reads or writes exactly `bytes` bytes; a file that ends before them is a DataError.
  void read_at(void* to, std::int64_t bytes, std::int64_t offset) const;
  void write_at(const void* from, std::int64_t bytes, std::int64_t offset) const;
  /// One write, repeated only if interrupted. Returns how much was written, or -EINVAL, which
  /// direct writes return if they don't work.
  ssize_t try_write_at(const void* from, std::int64_t bytes, std::int64_t offset) const;
  void truncate(std::int64_t bytes) const;
  /// Makes the file that long and reserves its space. False if the file system can't reserve.
  bool allocate(std::int64_t bytes) const;
  /// One read, repeated only if interrupted. Returns how much was read, or -EINVAL, which direct
  /// reads return if they don't work.
  ssize_t try_read_at(void* to, std::int64_t bytes, std::int64_t offset) const;
  void sync() const;
  bool lock() const;         ///< false: another process holds it
  bool lock_shared() const;  ///< false: another process holds it exclusively
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

/// Opens the plain file at that path. Symbolic links aren't followed, and a pipe or device doesn't
/// block the caller. `flags` as for File; a file opened for writing must have only this name.
/// Errors   DataError if it is no such file.
File open_plain(Disk& disk, const std::string& path, int flags);
File open_plain(Disk& disk, const File& parent, const std::string& name, int flags);

/// False if it already exists.
bool make_directory(Disk& disk, const std::string& path);
std::vector<std::string> list_directory(Disk& disk, const std::string& path);  ///< sorted
bool exists(Disk& disk, const std::string& path);  ///< true for a dangling symbolic link
/// Makes a directory's entries durable: new files, new names and removed names.
void sync_directory(Disk& disk, const std::string& path);
/// The status of the entry at a path, links not followed; empty if there is none.
std::optional<FileStatus> status_of(Disk& disk, const std::string& path);
/// Writes a file that doesn't exist yet; durable on return, except for its directory entry.
void write_new_file(Disk& disk, const std::string& path, std::string_view bytes, bool sync = true);
/// A whole file. A file that is larger than `max_bytes`, or isn't plain, is a DataError.
std::string read_file(Disk& disk, const std::string& path, std::int64_t max_bytes);
/// Puts a file with these bytes at `path`, replacing what has that name. At every moment, also
/// after a power cut, the path has either the previous content or the whole new file. Links aren't
/// followed: the name itself is replaced. The file is first written as `path`.tmp, which is
/// overwritten.
void replace_file(Disk& disk, const std::string& path, std::string_view bytes);
/// The folder that contains a path's last name.
std::string folder_of(const std::string& path);
/// False if `to` exists. If the file system can't rename without replacing, it checks first and
/// then renames, which still can't replace a directory that isn't empty.
bool rename_new(Disk& disk, const std::string& from, const std::string& to);
void rename_over(Disk& disk, const std::string& from, const std::string& to);
/// Both false if there was nothing to remove.
bool remove_file(Disk& disk, const std::string& path);
bool remove_directory_if_empty(Disk& disk, const std::string& path);
/// Removes a file, or a directory with everything in it; follows no links. Entries that others
/// remove meanwhile count as removed. A directory that others fill meanwhile stays.
void remove_tree(Disk& disk, const std::string& path);

}  // namespace sherd::checkpoint
