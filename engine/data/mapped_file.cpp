#include "engine/data/mapped_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "core/error.h"
#include "core/lfs_pointer.h"

namespace sherd::data {

MappedFile::MappedFile(std::string path) : path_(std::move(path)) {
  // Without O_NONBLOCK, opening a pipe would wait for a writer.
  const int file = ::open(path_.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (file < 0) {
    throw DataError("{}: can't be opened ({}); give a file that this user may read.", path_,
                    std::strerror(errno));
  }
  struct stat status {};
  const bool known = ::fstat(file, &status) == 0;
  if (!known || !S_ISREG(status.st_mode)) {
    ::close(file);
    throw DataError("{}: isn't a regular file; text is read from files on disk.", path_);
  }
  device_ = status.st_dev;
  inode_ = status.st_ino;
  size_ = static_cast<std::size_t>(status.st_size);
  void* data = size_ ? ::mmap(nullptr, size_, PROT_READ, MAP_SHARED, file, 0) : nullptr;
  const int reason = errno;
  ::close(file);  // the mapping stays; thousands of files don't use up descriptors
  if (data == MAP_FAILED) {
    throw DataError(
        "{}: its {} bytes can't be mapped into memory ({}); a folder of very many "
        "files may need to be joined into fewer.",
        path_, size_, std::strerror(reason));
  }
  data_ = static_cast<const std::uint8_t*>(data);
  const std::string_view text(reinterpret_cast<const char*>(data_), size_);
  try {
    refuse_lfs_pointer(path_, text, status.st_size);
  } catch (...) {
    if (data) ::munmap(data, size_);
    throw;
  }
}

MappedFile::MappedFile(std::string name, std::shared_ptr<const std::string> memory,
                       std::string_view bytes)
    : path_(std::move(name)),
      memory_(std::move(memory)),
      data_(reinterpret_cast<const std::uint8_t*>(bytes.data())),
      size_(bytes.size()) {}

MappedFile::~MappedFile() {
  if (data_ && !memory_) ::munmap(const_cast<std::uint8_t*>(data_), size_);
}

void MappedFile::check_size() const {
  if (memory_) return;
  struct stat status {};
  if (::stat(path_.c_str(), &status) != 0) return;  // removed: the mapping keeps the bytes
  if (status.st_dev != device_ || status.st_ino != inode_) return;  // replaced: same
  if (static_cast<std::size_t>(status.st_size) >= size_) return;
  throw DataError(
      "{}: had {} bytes when it was opened and has {} now; text must not change while "
      "it is trained on.",
      path_, size_, status.st_size);
}

}  // namespace sherd::data
