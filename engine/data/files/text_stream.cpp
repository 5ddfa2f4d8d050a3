#include "engine/data/files/text_stream.h"

#include <fcntl.h>
#include <unistd.h>
#include <zlib.h>
#include <zstd.h>
#include <zstd_errors.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>
#include <vector>

#include "core/error.h"

namespace sherd::data {
namespace {

constexpr std::size_t kPackedBytes = std::size_t{1} << 17;

class PlainStream final : public TextStream {
 public:
  explicit PlainStream(std::string path) : path_(std::move(path)) {
    if (path_ == "-") {
      file_ = STDIN_FILENO;
      path_ = "standard input";
      return;
    }
    file_ = ::open(path_.c_str(), O_RDONLY | O_CLOEXEC);
    if (file_ < 0) {
      throw DataError("{}: can't be opened ({}); give a file that this user may read.", path_,
                      std::strerror(errno));
    }
  }
  ~PlainStream() override {
    if (file_ != STDIN_FILENO) ::close(file_);
  }
  std::size_t read(char* to, std::size_t size) override {
    while (true) {
      const ssize_t count = ::read(file_, to, size);
      if (count >= 0) return static_cast<std::size_t>(count);
      if (errno != EINTR) throw DataError("{}: can't be read ({}).", path_, std::strerror(errno));
    }
  }

 private:
  std::string path_;
  int file_ = -1;
};

/// Reads packed bytes piece by piece.
class PackedStream : public TextStream {
 protected:
  explicit PackedStream(const std::string& path)
      : path_(path), packed_(path), bytes_(kPackedBytes) {}
  /// False at the end of the file.
  bool refill() {
    begin_ = 0;
    end_ = packed_.read(bytes_.data(), bytes_.size());
    return end_ > 0;
  }
  [[noreturn]] void throw_damaged(std::string_view problem) const {
    throw DataError("{}: {}; the file is damaged or cut short.", path_, problem);
  }
  [[noreturn]] void throw_too_wide() const {
    throw DataError("{}: was packed with a window above 128 MiB (zstd --long); unpack it first.",
                    path_);
  }

  std::string path_;
  PlainStream packed_;
  std::vector<char> bytes_;
  std::size_t begin_ = 0;  ///< of the packed bytes not used yet
  std::size_t end_ = 0;
};

class GzipStream final : public PackedStream {
 public:
  explicit GzipStream(const std::string& path) : PackedStream(path) {
    constexpr int kGzipOnly = 16 + MAX_WBITS;
    SHERD_CHECK(inflateInit2(&state_, kGzipOnly) == Z_OK, "zlib");
  }
  ~GzipStream() override { inflateEnd(&state_); }

  std::size_t read(char* to, std::size_t size) override {
    state_.next_out = reinterpret_cast<Bytef*>(to);
    state_.avail_out = static_cast<uInt>(std::min(size, kPackedBytes));
    const uInt wanted = state_.avail_out;
    while (state_.avail_out == wanted) {
      if (begin_ == end_ && !refill()) {
        if (in_member_ || is_new_) throw_damaged("its gzip data has no end");
        break;
      }
      if (!in_member_ && !is_new_)
        inflateReset(&state_);  // files may be several, one after another
      in_member_ = true;
      is_new_ = false;
      state_.next_in = reinterpret_cast<Bytef*>(bytes_.data() + begin_);
      state_.avail_in = static_cast<uInt>(end_ - begin_);
      const int result = inflate(&state_, Z_NO_FLUSH);
      begin_ = end_ - state_.avail_in;
      if (result == Z_STREAM_END) {
        in_member_ = false;
      } else if (result != Z_OK && result != Z_BUF_ERROR) {
        throw_damaged(state_.msg ? state_.msg : "not gzip data");
      }
    }
    return wanted - state_.avail_out;
  }

 private:
  z_stream state_{};
  bool is_new_ = true;
  bool in_member_ = false;
};

class ZstdStream final : public PackedStream {
 public:
  explicit ZstdStream(const std::string& path) : PackedStream(path), state_(ZSTD_createDStream()) {
    SHERD_CHECK(state_ != nullptr, "zstd");
  }
  ~ZstdStream() override { ZSTD_freeDStream(state_); }

  std::size_t read(char* to, std::size_t size) override {
    ZSTD_outBuffer out{to, size, 0};
    while (out.pos == 0) {
      if (begin_ == end_ && !refill()) {
        if (wants_more_) throw_damaged("its Zstandard data has no end");
        break;
      }
      ZSTD_inBuffer in{bytes_.data(), end_, begin_};
      // The library's own limit on a frame's window, 128 MiB, stays in force.
      const std::size_t result = ZSTD_decompressStream(state_, &out, &in);
      if (ZSTD_getErrorCode(result) == ZSTD_error_frameParameter_windowTooLarge) {
        throw_too_wide();
      }
      if (ZSTD_isError(result)) throw_damaged(ZSTD_getErrorName(result));
      begin_ = in.pos;
      wants_more_ = result != 0;
    }
    return out.pos;
  }

 private:
  ZSTD_DStream* state_;
  bool wants_more_ = true;
};

}  // namespace

std::unique_ptr<TextStream> open_text_stream(const std::string& path) {
  if (path.ends_with(".gz")) return std::make_unique<GzipStream>(path);
  if (path.ends_with(".zst")) return std::make_unique<ZstdStream>(path);
  return std::make_unique<PlainStream>(path);
}

std::string unpacked_name(const std::string& path) {
  for (const std::string_view end : {".gz", ".zst"}) {
    if (path.ends_with(end)) return path.substr(0, path.size() - end.size());
  }
  return path;
}

}  // namespace sherd::data
