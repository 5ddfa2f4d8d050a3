#include "checkpoint/store/disk.h"

#include <dirent.h>
#include <fmt/core.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <utility>

namespace sherd::checkpoint {
namespace {

std::string describe(const std::string& operation, const std::string& file, int error_number) {
  const char* meaning = ::strerrordesc_np(error_number);
  const char* name = ::strerrorname_np(error_number);
  return fmt::format("{}: {}: {} ({})", file, operation, meaning ? meaning : "unknown error",
                     name ? name : std::to_string(error_number));
}

template <class T>
T or_errno(T result) {
  return result < 0 ? static_cast<T>(-errno) : result;
}

FileStatus status_from(const struct stat& buffer) {
  FileStatus status;
  if (S_ISREG(buffer.st_mode)) status.kind = FileStatus::Kind::kFile;
  if (S_ISDIR(buffer.st_mode)) status.kind = FileStatus::Kind::kDirectory;
  status.bytes = buffer.st_size;
  status.device = buffer.st_dev;
  status.inode = buffer.st_ino;
  status.num_names = buffer.st_nlink;
  return status;
}

class PosixDisk final : public Disk {
 public:
  int open(int directory, const std::string& path, int flags, mode_t mode) override {
    return or_errno(::openat(directory, path.c_str(), flags | O_CLOEXEC, mode));
  }
  int close(int fd) override { return or_errno(::close(fd)); }
  ssize_t pread(int fd, void* to, std::size_t bytes, std::int64_t offset) override {
    return or_errno(::pread(fd, to, bytes, offset));
  }
  ssize_t pwrite(int fd, const void* from, std::size_t bytes, std::int64_t offset) override {
    return or_errno(::pwrite(fd, from, bytes, offset));
  }
  int truncate(int fd, std::int64_t bytes) override { return or_errno(::ftruncate(fd, bytes)); }
  int allocate(int fd, std::int64_t bytes) override {
    return or_errno(::fallocate(fd, 0, 0, bytes));
  }
  int fsync(int fd) override { return or_errno(::fsync(fd)); }
  int flock(int fd) override { return or_errno(::flock(fd, LOCK_EX | LOCK_NB)); }
  int flock_shared(int fd) override { return or_errno(::flock(fd, LOCK_SH | LOCK_NB)); }
  int fstat(int fd, FileStatus& status) override {
    struct stat buffer {};
    const int result = or_errno(::fstat(fd, &buffer));
    if (result == 0) status = status_from(buffer);
    return result;
  }
  int lstat(const std::string& path, FileStatus& status) override {
    struct stat buffer {};
    const int result = or_errno(::lstat(path.c_str(), &buffer));
    if (result == 0) status = status_from(buffer);
    return result;
  }
  int mkdir(const std::string& path) override { return or_errno(::mkdir(path.c_str(), 0777)); }
  int rename(const std::string& from, const std::string& to) override {
    return or_errno(::rename(from.c_str(), to.c_str()));
  }
  int rename_new(const std::string& from, const std::string& to) override {
    return or_errno(::renameat2(AT_FDCWD, from.c_str(), AT_FDCWD, to.c_str(), RENAME_NOREPLACE));
  }
  int unlink(const std::string& path) override { return or_errno(::unlink(path.c_str())); }
  int rmdir(const std::string& path) override { return or_errno(::rmdir(path.c_str())); }
  int list(const std::string& path, std::vector<std::string>& names) override {
    DIR* directory = ::opendir(path.c_str());
    if (!directory) return -errno;
    errno = 0;
    while (const dirent* entry = ::readdir(directory)) {
      const std::string name = entry->d_name;
      if (name != "." && name != "..") names.push_back(name);
    }
    const int error_number = errno;
    ::closedir(directory);
    return -error_number;
  }
};

template <class Call>
auto uninterrupted(Call call) {
  auto result = call();
  while (result == -EINTR) result = call();
  return result;
}

/// The result of a call that may fail with one errno that isn't an error: whether it succeeded.
bool unless(int exception, int result, const char* operation, const std::string& path) {
  if (result == -exception) return false;
  if (result < 0) throw DiskError(operation, path, -result);
  return true;
}

}  // namespace

DiskError::DiskError(std::string operation_, std::string file_, int error_number_)
    : DataError("{}", describe(operation_, file_, error_number_)),
      operation(std::move(operation_)),
      file(std::move(file_)),
      error_number(error_number_) {}

Disk& posix_disk() {
  static PosixDisk disk;
  return disk;
}

File::File(Disk& disk, const std::string& path, int flags, mode_t mode)
    : disk_(&disk), path_(path) {
  fd_ = uninterrupted([&] { return disk.open(AT_FDCWD, path, flags, mode); });
  if (fd_ < 0) throw DiskError(flags & O_CREAT ? "create" : "open", path, -fd_);
}

File::File(Disk& disk, const File& parent, const std::string& name, int flags, mode_t mode)
    : disk_(&disk), path_(parent.path_ + "/" + name) {
  fd_ = uninterrupted([&] { return disk.open(parent.fd_, name, flags, mode); });
  if (fd_ < 0) throw DiskError(flags & O_CREAT ? "create" : "open", path_, -fd_);
}

File& File::operator=(File&& other) noexcept {
  File(std::move(other)).swap(*this);
  return *this;
}

File::~File() {
  if (fd_ >= 0) disk_->close(fd_);
}

void File::swap(File& other) noexcept {
  std::swap(disk_, other.disk_);
  std::swap(fd_, other.fd_);
  std::swap(path_, other.path_);
}

void File::read_at(void* to, std::int64_t bytes, std::int64_t offset) const {
  auto* position = static_cast<char*>(to);
  while (bytes > 0) {
    const ssize_t done = disk_->pread(fd_, position, static_cast<std::size_t>(bytes), offset);
    if (done == -EINTR) continue;
    if (done < 0) {
      throw DiskError(fmt::format("read {} bytes at {}", bytes, offset), path_,
                      static_cast<int>(-done));
    }
    if (done == 0) {
      throw DataError("{}: ends at or before byte {}; {} more were expected", path_, offset, bytes);
    }
    position += done;
    bytes -= done;
    offset += done;
  }
}

ssize_t File::try_read_at(void* to, std::int64_t bytes, std::int64_t offset) const {
  const ssize_t done =
      uninterrupted([&] { return disk_->pread(fd_, to, static_cast<std::size_t>(bytes), offset); });
  if (done >= 0 || done == -EINVAL) return done;
  throw DiskError(fmt::format("read {} bytes at {}", bytes, offset), path_,
                  static_cast<int>(-done));
}

ssize_t File::try_write_at(const void* from, std::int64_t bytes, std::int64_t offset) const {
  const ssize_t done = uninterrupted(
      [&] { return disk_->pwrite(fd_, from, static_cast<std::size_t>(bytes), offset); });
  if (done > 0 || done == -EINVAL) return done;
  // A write that takes nothing and gives no reason would be tried for ever.
  throw DiskError(fmt::format("write {} bytes at {}", bytes, offset), path_,
                  done == 0 ? EIO : static_cast<int>(-done));
}

void File::write_at(const void* from, std::int64_t bytes, std::int64_t offset) const {
  const auto* position = static_cast<const char*>(from);
  while (bytes > 0) {
    const ssize_t done = try_write_at(position, bytes, offset);
    if (done < 0) {
      throw DiskError(fmt::format("write {} bytes at {}", bytes, offset), path_,
                      static_cast<int>(-done));
    }
    position += done;
    bytes -= done;
    offset += done;
  }
}

void File::truncate(std::int64_t bytes) const {
  const int result = uninterrupted([&] { return disk_->truncate(fd_, bytes); });
  if (result < 0) throw DiskError(fmt::format("truncate to {} bytes", bytes), path_, -result);
}

bool File::allocate(std::int64_t bytes) const {
  const int result = uninterrupted([&] { return disk_->allocate(fd_, bytes); });
  if (result == 0) return true;
  if (result != -EOPNOTSUPP && result != -ENOSYS) {
    throw DiskError(fmt::format("reserve {} bytes", bytes), path_, -result);
  }
  truncate(bytes);
  return false;
}

void File::sync() const {
  const int result = uninterrupted([&] { return disk_->fsync(fd_); });
  if (result < 0) throw DiskError("fsync", path_, -result);
}

bool File::lock() const {
  return unless(EWOULDBLOCK, uninterrupted([&] { return disk_->flock(fd_); }), "flock", path_);
}

bool File::lock_shared() const {
  return unless(EWOULDBLOCK, uninterrupted([&] { return disk_->flock_shared(fd_); }), "flock",
                path_);
}

FileStatus File::status() const {
  FileStatus status;
  const int result = uninterrupted([&] { return disk_->fstat(fd_, status); });
  if (result < 0) throw DiskError("fstat", path_, -result);
  return status;
}

void File::close() {
  const int result = disk_->close(std::exchange(fd_, -1));
  // Linux releases the descriptor before it can be interrupted; a second close would close another
  // file.
  if (result < 0 && result != -EINTR) throw DiskError("close", path_, -result);
}

namespace {

// O_NONBLOCK: a pipe at this path must not block us before we see that it is a pipe.
constexpr int kOpenPlain = O_NOFOLLOW | O_NONBLOCK;

template <class Open>
File plain(const std::string& path, int flags, const Open& open) {
  try {
    File file = open();
    const FileStatus status = file.status();
    if (status.kind == FileStatus::Kind::kFile) {
      if ((flags & O_ACCMODE) == O_RDONLY || status.num_names <= 1) return file;
      throw DataError("{}: has another name too (a hard link), so it isn't written to", path);
    }
  } catch (const DiskError& error) {
    // Errors from opening a link, a pipe without a reader, or a directory for writing.
    if (error.error_number == ELOOP) {
      throw DataError("{}: is a symbolic link, where only a plain file is used", path);
    }
    if (error.error_number != ENXIO && error.error_number != EISDIR) throw;
  }
  throw DataError("{}: isn't a plain file", path);
}

}  // namespace

File open_plain(Disk& disk, const std::string& path, int flags) {
  return plain(path, flags, [&] { return File(disk, path, flags | kOpenPlain); });
}

File open_plain(Disk& disk, const File& parent, const std::string& name, int flags) {
  return plain(parent.path() + "/" + name, flags,
               [&] { return File(disk, parent, name, flags | kOpenPlain); });
}

bool make_directory(Disk& disk, const std::string& path) {
  return unless(EEXIST, uninterrupted([&] { return disk.mkdir(path); }), "mkdir", path);
}

std::vector<std::string> list_directory(Disk& disk, const std::string& path) {
  std::vector<std::string> names;
  const int result = uninterrupted([&] {
    names.clear();
    return disk.list(path, names);
  });
  if (result < 0) throw DiskError("list", path, -result);
  std::sort(names.begin(), names.end());
  return names;
}

std::optional<FileStatus> status_of(Disk& disk, const std::string& path) {
  FileStatus status;
  const int result = uninterrupted([&] { return disk.lstat(path, status); });
  if (!unless(ENOENT, result, "lstat", path)) return {};
  return status;
}

bool exists(Disk& disk, const std::string& path) {
  return status_of(disk, path).has_value();
}

void sync_directory(Disk& disk, const std::string& path) {
  File directory(disk, path, O_RDONLY | O_DIRECTORY);
  directory.sync();
  directory.close();
}

void write_new_file(Disk& disk, const std::string& path, std::string_view bytes, bool sync) {
  File file(disk, path, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW);
  file.write_at(bytes.data(), static_cast<std::int64_t>(bytes.size()), 0);
  if (sync) file.sync();
  file.close();
}

std::string read_file(Disk& disk, const std::string& path, std::int64_t max_bytes) {
  File file = open_plain(disk, path, O_RDONLY);
  const FileStatus status = file.status();
  if (status.bytes > max_bytes) {
    throw DataError("{}: has {} bytes; at most {} are expected", path, status.bytes, max_bytes);
  }
  std::string bytes(static_cast<std::size_t>(status.bytes), '\0');
  file.read_at(bytes.data(), status.bytes, 0);
  file.close();
  return bytes;
}

std::string folder_of(const std::string& path) {
  const std::size_t slash = path.rfind('/');
  if (slash == std::string::npos) return ".";
  return slash == 0 ? "/" : path.substr(0, slash);
}

void replace_file(Disk& disk, const std::string& path, std::string_view bytes) {
  const std::string beside = path + ".tmp";
  remove_file(disk, beside);  // a run that was cut off, or somebody's link
  try {
    write_new_file(disk, beside, bytes);
    rename_over(disk, beside, path);
  } catch (...) {
    disk.unlink(beside);
    throw;
  }
  sync_directory(disk, folder_of(path));
}

bool rename_new(Disk& disk, const std::string& from, const std::string& to) {
  const int result = uninterrupted([&] { return disk.rename_new(from, to); });
  if (result != -EINVAL && result != -ENOSYS && result != -ENOTSUP) {
    return unless(EEXIST, result, "rename without replacing", to);
  }
  if (exists(disk, to)) return false;
  return unless(ENOTEMPTY, uninterrupted([&] { return disk.rename(from, to); }), "rename", to);
}

void rename_over(Disk& disk, const std::string& from, const std::string& to) {
  const int result = uninterrupted([&] { return disk.rename(from, to); });
  if (result < 0) throw DiskError("rename", to, -result);
}

bool remove_file(Disk& disk, const std::string& path) {
  return unless(ENOENT, uninterrupted([&] { return disk.unlink(path); }), "unlink", path);
}

bool remove_directory_if_empty(Disk& disk, const std::string& path) {
  const int result = uninterrupted([&] { return disk.rmdir(path); });
  return result != -ENOTEMPTY && result != -EEXIST && unless(ENOENT, result, "rmdir", path);
}

void remove_tree(Disk& disk, const std::string& path) {
  FileStatus status;
  const int result = uninterrupted([&] { return disk.lstat(path, status); });
  if (!unless(ENOENT, result, "lstat", path)) return;
  if (status.kind != FileStatus::Kind::kDirectory) {
    remove_file(disk, path);
    return;
  }
  std::vector<std::string> names;
  const int listed = uninterrupted([&] {
    names.clear();
    return disk.list(path, names);
  });
  if (!unless(ENOENT, listed, "list", path)) return;
  for (const std::string& name : names) remove_tree(disk, path + "/" + name);
  remove_directory_if_empty(disk, path);
}

}  // namespace sherd::checkpoint
