/// One directory's files in memory, to read only. Tests change a bit or a length in them and ask
/// again, hundreds of thousands of times, without the file system's cost.
#pragma once

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "checkpoint/store/disk.h"
#include "tests/checkpoint/support/checkpoint_builder.h"

namespace sherd::test {

class FrozenDisk : public checkpoint::Disk {
 public:
  explicit FrozenDisk(const std::string& directory) : directory_(directory) {
    for (const auto& entry : std::filesystem::directory_iterator(directory)) {
      files[entry.path().filename().string()] = read_text(entry.path().string());
    }
  }

  std::map<std::string, std::string> files;

  int open(int, const std::string& path, int, mode_t) override {
    if (path == directory_) return kDirectory;
    const auto found = files.find(path);
    if (found == files.end()) return -ENOENT;
    return static_cast<int>(std::distance(files.begin(), found));
  }
  int close(int) override { return 0; }
  ssize_t pread(int fd, void* to, std::size_t bytes, std::int64_t offset) override {
    const std::string& content = file(fd);
    if (offset >= std::ssize(content)) return 0;
    const std::size_t count = std::min(bytes, content.size() - static_cast<std::size_t>(offset));
    std::memcpy(to, content.data() + offset, count);
    return static_cast<ssize_t>(count);
  }
  int fstat(int fd, checkpoint::FileStatus& status) override {
    if (fd == kDirectory) {
      status.kind = checkpoint::FileStatus::Kind::kDirectory;
    } else {
      status = {checkpoint::FileStatus::Kind::kFile, std::ssize(file(fd))};
    }
    return 0;
  }
  int list(const std::string&, std::vector<std::string>& names) override {
    for (const auto& [name, content] : files) names.push_back(name);
    return 0;
  }
  ssize_t pwrite(int, const void*, std::size_t, std::int64_t) override { return -EROFS; }
  int truncate(int, std::int64_t) override { return -EROFS; }
  int allocate(int, std::int64_t) override { return -EROFS; }
  int fsync(int) override { return -EROFS; }
  int flock(int) override { return -EROFS; }
  int flock_shared(int) override { return -EROFS; }
  int lstat(const std::string&, checkpoint::FileStatus&) override { return -EROFS; }
  int mkdir(const std::string&) override { return -EROFS; }
  int rename(const std::string&, const std::string&) override { return -EROFS; }
  int rename_new(const std::string&, const std::string&) override { return -EROFS; }
  int unlink(const std::string&) override { return -EROFS; }
  int rmdir(const std::string&) override { return -EROFS; }

 private:
  static constexpr int kDirectory = 1 << 20;
  const std::string& file(int fd) const { return std::next(files.begin(), fd)->second; }

  std::string directory_;
};

}  // namespace sherd::test
