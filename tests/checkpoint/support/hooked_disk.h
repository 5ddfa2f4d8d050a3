/// A disk that shows every call to a hook before and after it is made. The hook may answer in the
/// file system's place: that is how tests fail, count, record and stop.
#pragma once

#include <cerrno>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "checkpoint/store/disk.h"

namespace sherd::test {

struct DiskCall {
  std::string name;  ///< "open", "pwrite", ...
  std::string path;  ///< of descriptors, too
  std::string to;    ///< renames
  int flags = 0;
  std::int64_t offset = 0;
  std::string bytes;  ///< the bytes to write

  std::string what() const { return name + " " + path + " " + to; }
  bool writes() const { return name == "pwrite"; }
};

/// Calls come from several threads; hooks are called one at a time.
class HookedDisk : public checkpoint::Disk {
 public:
  /// Before the call: an answer, instead of making it; or nothing.
  using Before = std::function<std::optional<std::int64_t>(const DiskCall&)>;
  /// After a call that was made: what the file system answered.
  using After = std::function<void(const DiskCall&, std::int64_t)>;

  explicit HookedDisk(Before before, After after = {})
      : before_(std::move(before)), after_(std::move(after)) {}

  int open(int directory, const std::string& path, int flags, mode_t mode) override {
    const int fd = pass({"open", path, "", flags, 0, ""},
                        [&] { return real_.open(directory, path, flags, mode); });
    const std::lock_guard lock(mutex_);
    if (fd >= 0) paths_[fd] = path;
    return fd;
  }
  int close(int fd) override {
    // A failed close closes, too.
    return pass(
        {"close", path_of(fd), "", 0, 0, ""}, [&] { return real_.close(fd); },
        [&] { real_.close(fd); });
  }
  ssize_t pread(int fd, void* to, std::size_t bytes, std::int64_t offset) override {
    return pass({"pread", path_of(fd), "", 0, offset, ""},
                [&] { return real_.pread(fd, to, bytes, offset); });
  }
  /// The hook's answer n > 0 means: only the first n bytes.
  ssize_t pwrite(int fd, const void* from, std::size_t bytes, std::int64_t offset) override {
    const std::lock_guard order(order_);
    const DiskCall call{"pwrite", path_of(fd), "",
                        0,        offset,      std::string(static_cast<const char*>(from), bytes)};
    const std::optional<std::int64_t> answer = ask(call);
    if (answer && *answer <= 0) return *answer;
    const ssize_t done =
        real_.pwrite(fd, from, answer ? static_cast<std::size_t>(*answer) : bytes, offset);
    if (after_) after_(call, done);
    return done;
  }
  int truncate(int fd, std::int64_t bytes) override {
    return pass({"truncate", path_of(fd), "", 0, bytes, ""},
                [&] { return real_.truncate(fd, bytes); });
  }
  int allocate(int fd, std::int64_t bytes) override {
    return pass({"allocate", path_of(fd), "", 0, bytes, ""},
                [&] { return real_.allocate(fd, bytes); });
  }
  int fsync(int fd) override {
    // Not made: no test cuts the power of this machine, and hundreds of saves would wait for it.
    return pass({"fsync", path_of(fd), "", 0, 0, ""}, [] { return 0; });
  }
  int flock(int fd) override {
    return pass({"flock", path_of(fd), "", 0, 0, ""}, [&] { return real_.flock(fd); });
  }
  int flock_shared(int fd) override {
    return pass({"flock_shared", path_of(fd), "", 0, 0, ""},
                [&] { return real_.flock_shared(fd); });
  }
  int fstat(int fd, checkpoint::FileStatus& status) override {
    return pass({"fstat", path_of(fd), "", 0, 0, ""}, [&] { return real_.fstat(fd, status); });
  }
  int lstat(const std::string& path, checkpoint::FileStatus& status) override {
    return pass({"lstat", path, "", 0, 0, ""}, [&] { return real_.lstat(path, status); });
  }
  int mkdir(const std::string& path) override {
    return pass({"mkdir", path, "", 0, 0, ""}, [&] { return real_.mkdir(path); });
  }
  int rename(const std::string& from, const std::string& to) override {
    return pass({"rename", from, to, 0, 0, ""}, [&] { return real_.rename(from, to); });
  }
  int rename_new(const std::string& from, const std::string& to) override {
    return pass({"rename_new", from, to, 0, 0, ""}, [&] { return real_.rename_new(from, to); });
  }
  int unlink(const std::string& path) override {
    return pass({"unlink", path, "", 0, 0, ""}, [&] { return real_.unlink(path); });
  }
  int rmdir(const std::string& path) override {
    return pass({"rmdir", path, "", 0, 0, ""}, [&] { return real_.rmdir(path); });
  }
  int list(const std::string& path, std::vector<std::string>& names) override {
    return pass({"list", path, "", 0, 0, ""}, [&] { return real_.list(path, names); });
  }

 private:
  std::string path_of(int fd) {
    const std::lock_guard lock(mutex_);
    return paths_[fd];
  }
  std::optional<std::int64_t> ask(const DiskCall& call) {
    return before_ ? before_(call) : std::nullopt;
  }
  template <class Make>
  auto pass(const DiskCall& call, const Make& make, const std::function<void()>& instead = {})
      -> decltype(make()) {
    const std::lock_guard order(order_);
    if (const std::optional<std::int64_t> answer = ask(call)) {
      if (instead) instead();
      return static_cast<decltype(make())>(*answer);
    }
    const auto result = make();
    if (after_) after_(call, result);
    return result;
  }

  checkpoint::Disk& real_ = checkpoint::posix_disk();
  Before before_;
  After after_;
  std::mutex order_;
  std::mutex mutex_;
  std::map<int, std::string> paths_;
};

}  // namespace sherd::test
