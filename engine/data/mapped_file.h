/// A file's bytes, mapped read-only into memory. Or a text read from a file, either unpacked or one
/// of many in it.
///
/// If a file is truncated after it is mapped, the kernel kills a process that touches a page past
/// the new end. `check_size` before reading turns that into an error. It can't help if the file is
/// truncated during a read. Text must not change during training.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

namespace sherd::data {

class MappedFile {
 public:
  /// Errors   DataError if `path` isn't a readable regular file, or is a pointer of Git LFS.
  explicit MappedFile(std::string path);
  /// `bytes` in `memory`, which were read from a file. Errors name them `name`.
  MappedFile(std::string name, std::shared_ptr<const std::string> memory, std::string_view bytes);
  ~MappedFile();
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  const std::string& path() const { return path_; }
  std::span<const std::uint8_t> bytes() const { return {data_, size_}; }
  bool same_file(const MappedFile& other) const {
    return device_ == other.device_ && inode_ == other.inode_;
  }

  /// Errors   DataError if the file at `path` is still the same file but shorter than when opened.
  void check_size() const;

 private:
  std::string path_;
  std::shared_ptr<const std::string> memory_;  ///< null: mapped
  const std::uint8_t* data_ = nullptr;
  std::size_t size_ = 0;
  std::uint64_t device_ = 0;
  std::uint64_t inode_ = 0;
};

}  // namespace sherd::data
