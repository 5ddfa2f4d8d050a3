#include "engine/data/tokenize/token_shards.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <utility>

#include "core/error.h"
#include "core/json_bounds.h"
#include "core/small_file.h"

namespace sherd::data {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kBuffered = std::size_t{1} << 20;
constexpr std::int64_t kMostJournalBytes = 16 << 20;

/// A file that grows at its end.
class GrowingFile {
 public:
  /// Keeps its first `size` bytes and drops the rest.
  GrowingFile(std::string path, std::int64_t size) : path_(std::move(path)) {
    file_ = ::open(path_.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644);
    if (file_ < 0) fail("opened");
    struct stat status {};
    if (::fstat(file_, &status) != 0) fail("read");
    if (status.st_size < size) {
      throw DataError(
          "{}: has {} bytes, but {} were written; delete it and its .progress to start again.",
          path_, status.st_size, size);
    }
    if (::ftruncate(file_, size) != 0) fail("cut");
    if (::lseek(file_, 0, SEEK_END) < 0) fail("written");
  }
  ~GrowingFile() { ::close(file_); }
  GrowingFile(const GrowingFile&) = delete;
  GrowingFile& operator=(const GrowingFile&) = delete;

  const std::string& path() const { return path_; }

  void append(const void* bytes, std::size_t size) {
    const auto* const from = static_cast<const char*>(bytes);
    waiting_.insert(waiting_.end(), from, from + size);
    if (waiting_.size() >= kBuffered) flush();
  }
  void flush() {
    for (std::size_t done = 0; done < waiting_.size();) {
      const ssize_t count = ::write(file_, waiting_.data() + done, waiting_.size() - done);
      if (count < 0 && errno != EINTR) fail("written");
      if (count > 0) done += static_cast<std::size_t>(count);
    }
    waiting_.clear();
  }
  void write_at_start(std::span<const std::uint8_t> bytes) {
    if (::pwrite(file_, bytes.data(), bytes.size(), 0) != std::ssize(bytes)) fail("written");
  }
  void append_all_of(GrowingFile& other) {
    other.flush();
    std::vector<char> buffer(kBuffered);
    for (off_t offset = 0;;) {
      const ssize_t count = ::pread(other.file_, buffer.data(), buffer.size(), offset);
      if (count < 0) other.fail("read");
      if (count == 0) return;
      append(buffer.data(), static_cast<std::size_t>(count));
      offset += count;
    }
  }
  void sync() {
    flush();
    if (::fsync(file_) != 0) fail("written");
  }

 private:
  [[noreturn]] void fail(const char* action) const {
    throw DataError("{}: can't be {} ({}).", path_, action, std::strerror(errno));
  }
  std::string path_;
  int file_ = -1;
  std::vector<char> waiting_;
};

void sync_folder(const std::string& path) {
  const fs::path folder = fs::path(path).parent_path();
  const int file =
      ::open(folder.empty() ? "." : folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (file < 0) return;
  ::fsync(file);
  ::close(file);
}

void rename_over(const std::string& from, const std::string& to) {
  if (::rename(from.c_str(), to.c_str()) != 0) {
    throw DataError("{}: can't be renamed to {} ({}).", from, to, std::strerror(errno));
  }
  sync_folder(to);
}

std::string progress_path(const std::string& to) {
  return to + ".progress";
}

std::string lock_path(const std::string& to) {
  return to + ".lock";
}

// A journal is UTF-8, and names of files may be other bytes, which are written as %XX.
std::string as_utf8(const std::string& text) {
  using Handler = nlohmann::json::error_handler_t;
  const nlohmann::json json = text;
  if (json.dump(-1, ' ', false, Handler::ignore) == json.dump(-1, ' ', false, Handler::replace)) {
    return text;
  }
  std::string ascii;
  for (const char byte : text) {
    const auto value = static_cast<std::uint8_t>(byte);
    if (value < 0x80 && byte != '%') {
      ascii += byte;
    } else {
      ascii += fmt::format("%{:02X}", value);
    }
  }
  return ascii;
}

}  // namespace

/// Held by the process that writes TO. File systems without flock() have none.
class TokenShards::Lock {
 public:
  explicit Lock(const std::string& to) : path_(lock_path(to)) {
    do {
      if (file_ >= 0) ::close(file_);
      file_ = ::open(path_.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644);
      if (file_ < 0) throw DataError("{}: can't be opened ({}).", path_, std::strerror(errno));
      if (::flock(file_, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK) {
        ::close(file_);
        throw UsageError("{}: another process is writing this file; wait until it has ended.", to);
      }
    } while (was_removed());
  }
  ~Lock() {
    ::unlink(path_.c_str());
    ::close(file_);
  }
  Lock(const Lock&) = delete;
  Lock& operator=(const Lock&) = delete;

 private:
  // By a process that ended after the file was opened here.
  bool was_removed() const {
    struct stat status {};
    return ::fstat(file_, &status) == 0 && status.st_nlink == 0;
  }
  std::string path_;
  int file_ = -1;
};

struct TokenShards::Open {
  Open(const std::string& path, std::int64_t token_bytes, std::int64_t tokens,
       std::int64_t documents)
      : path(path),
        tokens(path + ".partial", tokens == 0 ? 0 : kTokenHeaderBytes + token_bytes * tokens),
        ends(path + ".ends.partial", 8 * documents),
        num_tokens(tokens),
        num_documents(documents) {
    const TokenHeader room;
    if (tokens == 0) this->tokens.append(room.bytes().data(), kTokenHeaderBytes);
  }
  std::string path;
  GrowingFile tokens;
  GrowingFile ends;
  std::int64_t num_tokens;
  std::int64_t num_documents;
};

bool is_written_by(const std::string& to, const std::string& file) {
  const fs::path output = fs::absolute(to).lexically_normal();
  const fs::path path = fs::absolute(file).lexically_normal();
  if (path.parent_path() != output.parent_path()) return false;
  std::string name = path.filename();
  const std::string progress = progress_path(output.filename());
  if (name == progress || name == progress + ".new") return true;
  if (name == lock_path(output.filename())) return true;
  for (const std::string_view ending : {".ends.partial", ".partial"}) {
    if (!name.ends_with(ending)) continue;
    name.resize(name.size() - ending.size());
    break;
  }
  if (name == output.filename().native()) return true;
  const std::string stem = output.stem().native() + "-", extension = output.extension();
  if (!name.starts_with(stem) || !name.ends_with(extension)) return false;
  if (name.size() < stem.size() + extension.size() + 5) return false;
  name = name.substr(stem.size(), name.size() - stem.size() - extension.size());
  return name.find_first_not_of("0123456789") == std::string::npos;
}

TokenShards::TokenShards(ShardOptions options) : options_(std::move(options)) {
  options_.settings = as_utf8(options_.settings);
  std::error_code error;
  const fs::path folder = fs::path(options_.to).parent_path();
  if (!folder.empty()) fs::create_directories(folder, error);
  if (error) throw DataError("{}: can't be made ({}).", folder.native(), error.message());
  lock_ = std::make_unique<Lock>(options_.to);
  has_journal_ = fs::exists(progress_path(options_.to), error);
  if (has_journal_) {
    read_journal();
    return;
  }
  if (fs::exists(shard_path(0), error)) {
    throw UsageError("{}: exists already; remove it, or write to another file.", shard_path(0));
  }
}

TokenShards::~TokenShards() {
  if (!open_ || has_journal_) return;
  std::error_code error;
  fs::remove(open_->tokens.path(), error);
  fs::remove(open_->ends.path(), error);
}

std::string TokenShards::shard_path(std::int64_t shard) const {
  if (options_.shard_tokens == 0) return options_.to;
  const fs::path to(options_.to);
  const std::string number = fmt::format("-{:05}", shard);
  return (to.parent_path() / (to.stem().native() + number + to.extension().native())).native();
}

void TokenShards::open_shard(std::int64_t num_tokens, std::int64_t num_documents) {
  open_ = std::make_unique<Open>(shard_path(totals_.shards), options_.token_bytes, num_tokens,
                                 num_documents);
}

void TokenShards::append(std::span<const std::int32_t> ids, std::int64_t read) {
  if (!open_) open_shard(0, 0);
  if (options_.token_bytes == 4) {
    open_->tokens.append(ids.data(), ids.size_bytes());
  } else {
    std::vector<std::uint16_t> narrow(ids.begin(), ids.end());
    open_->tokens.append(narrow.data(), narrow.size() * sizeof(narrow[0]));
  }
  open_->num_tokens += std::ssize(ids);
  open_->num_documents += 1;
  const auto end = static_cast<std::uint64_t>(open_->num_tokens);
  open_->ends.append(&end, sizeof(end));
  totals_.documents_read += read;
  totals_.documents += 1;
  totals_.tokens += std::ssize(ids);
  if (options_.shard_tokens > 0 && open_->num_tokens >= options_.shard_tokens) complete_shard();
  if (totals_.tokens - journaled_tokens_ >= options_.journal_tokens) write_journal();
}

void TokenShards::finish() {
  if (open_) complete_shard();
  remove_journal();
}

void TokenShards::remove_journal() {
  if (!has_journal_) return;
  ::unlink(progress_path(options_.to).c_str());
  sync_folder(options_.to);
  has_journal_ = false;
}

void TokenShards::complete_shard() {
  const TokenHeader header{.token_bytes = options_.token_bytes,
                           .num_tokens = open_->num_tokens,
                           .num_documents = open_->num_documents,
                           .vocab_size = options_.vocab_size,
                           .tokenizer_digest = options_.tokenizer_digest};
  const std::int64_t end = kTokenHeaderBytes + header.token_bytes * header.num_tokens;
  const std::array<char, 8> zeros{};
  open_->tokens.append(zeros.data(), static_cast<std::size_t>(header.ends_offset() - end));
  open_->tokens.append_all_of(open_->ends);
  open_->tokens.flush();
  open_->tokens.write_at_start(header.bytes());
  open_->tokens.sync();
  rename_over(open_->tokens.path(), open_->path);
  const std::string ends = open_->ends.path();
  open_.reset();
  totals_.shards += 1;
  // Before the ends go: a journal that speaks of them must not outlive them.
  if (options_.shard_tokens > 0) {
    write_journal();
  } else {
    remove_journal();
  }
  ::unlink(ends.c_str());
}

void TokenShards::write_journal() {
  if (!options_.can_resume) return;
  if (open_) {
    open_->tokens.sync();
    open_->ends.sync();
  }
  const nlohmann::json journal = {{"settings", options_.settings},
                                  {"documents_read", totals_.documents_read},
                                  {"documents", totals_.documents},
                                  {"tokens", totals_.tokens},
                                  {"shards", totals_.shards},
                                  {"shard_tokens", open_ ? open_->num_tokens : 0},
                                  {"shard_documents", open_ ? open_->num_documents : 0}};
  const std::string path = progress_path(options_.to);
  {
    GrowingFile file(path + ".new", 0);
    const std::string text = journal.dump() + "\n";
    file.append(text.data(), text.size());
    file.sync();
  }
  rename_over(path + ".new", path);
  journaled_tokens_ = totals_.tokens;
  has_journal_ = true;
}

void TokenShards::read_journal() {
  const std::string path = progress_path(options_.to);
  if (!options_.can_resume) {
    throw UsageError("{}: another run was stopped here; delete this file to start again.", path);
  }
  const std::string text = read_small_file(path, kMostJournalBytes);
  check_json_bounds(text, path);
  const nlohmann::json journal = nlohmann::json::parse(text, nullptr, false);
  const auto count = [&](const char* key) -> std::int64_t {
    if (!journal.is_object() || !journal.contains(key) || !journal[key].is_number_unsigned()) {
      throw DataError("{}: is damaged; delete it to start again.", path);
    }
    return journal[key].get<std::int64_t>();
  };
  const std::int64_t tokens = count("shard_tokens");
  const std::int64_t documents = count("shard_documents");
  totals_ = {count("documents_read"), count("documents"), count("tokens"), count("shards")};
  if (!journal.contains("settings") || journal["settings"] != options_.settings) {
    throw UsageError(
        "{}: a run with other texts, another tokenizer or other options was stopped here; repeat "
        "that command, or delete this file to start again.",
        path);
  }
  journaled_tokens_ = totals_.tokens;
  if (tokens == 0 && documents == 0) return;
  std::error_code error;
  const std::string shard = shard_path(totals_.shards);
  // The run was stopped between completing this shard and saying so: it is opened again.
  if (fs::exists(shard, error)) rename_over(shard, shard + ".partial");
  open_shard(tokens, documents);
}

}  // namespace sherd::data
