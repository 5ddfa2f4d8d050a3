#include "checkpoint/store/output_lock.h"

#include <fmt/core.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdio>
#include <ctime>
#include <filesystem>
#include <optional>
#include <utility>

#include "checkpoint/format/strict_json.h"
#include "core/error.h"

namespace sherd::checkpoint {
namespace {

// Always the same length, so that rewriting it leaves nothing of the previous text.
constexpr std::size_t kRecordBytes = 256;

std::string host_name() {
  std::array<char, 128> host{};
  ::gethostname(host.data(), host.size() - 1);
  return host.data();
}

std::string own_record() {
  const std::time_t now = std::time(nullptr);
  std::tm utc{};
  ::gmtime_r(&now, &utc);
  std::array<char, 32> since{};
  std::strftime(since.data(), since.size(), "%Y-%m-%d %H:%M:%S UTC", &utc);
  std::string record =
      fmt::format("process {} on {} since {}", ::getpid(), host_name(), since.data());
  record.resize(kRecordBytes - 1, ' ');
  return record + "\n";
}

std::string owner(const File& file) {
  // A run that has only just taken the lock hasn't written yet.
  if (file.status().bytes < static_cast<std::int64_t>(kRecordBytes)) return "another run";
  std::string record(kRecordBytes, '\0');
  file.read_at(record.data(), kRecordBytes, 0);
  return printable(record.substr(0, record.find_last_not_of(" \n") + 1));
}

bool lock(const File& file) try { return file.lock(); } catch (const DiskError& error) {
  switch (error.error_number) {
    case ENOLCK:
    case ENOSYS:
    case EOPNOTSUPP:
    case EINVAL:
      throw UsageError(
          "{}; this file system has no locks, so a second run in the same folder couldn't be "
          "prevented. Put run.output_dir on a file system that has them.",
          error.what());
    default:
      throw;
  }
}

File open_lock(Disk& disk, const std::string& path) try {
  return open_plain(disk, path, O_RDWR | O_CREAT);
} catch (const DiskError&) {
  throw;
} catch (const DataError& error) {
  throw UsageError("{}; it is the output folder's lock. Remove it if no run is using the folder.",
                   error.what());
}

}  // namespace

OutputLock::OutputLock(Disk& disk, std::string output_dir)
    : disk_(disk),
      output_dir_(std::move(output_dir)),
      file_(open_lock(disk, output_dir_ + "/" + kLockName)),
      held_(file_.status()) {
  if (!lock(file_)) {
    throw UsageError(
        "{} is in use by {}; one run at a time writes there. Wait for it, stop it, or set "
        "run.output_dir to another folder.",
        output_dir_, owner(file_));
  }
  check();  // the file may have gone between open and lock
  const std::string record = own_record();
  try {
    file_.write_at(record.data(), static_cast<std::int64_t>(record.size()), 0);
  } catch (const DiskError&) {
    if (held_.bytes == 0) disk.unlink(file_.path());  // made just now, and no use
    throw;
  }
}

void OutputLock::check() const {
  const auto lost = [this](const char* event) {
    throw LockLost(
        "{}: {}, so the folder was removed, renamed or given to another run while this run had it. "
        "This run stops and writes nothing more there; its files are wherever the folder is now.",
        file_.path(), event);
  };
  std::optional<FileStatus> found;
  try {
    found = status_of(disk_, file_.path());
  } catch (const DiskError& error) {
    if (error.error_number != ENOTDIR && error.error_number != ELOOP) throw;
  }
  if (!found) lost("the lock that this run holds no longer exists");
  if (!found->same_file(held_)) lost("isn't the file that this run has locked");
}

namespace {

// Another user's process doesn't show its files; it is enough that it is alive.
bool has_open(int process, const FileStatus& file, Disk& disk) {
  namespace fs = std::filesystem;
  const std::string folder = fmt::format("/proc/{}/fd", process);
  std::error_code error;
  fs::directory_iterator entries(folder, error);
  if (error == std::errc::permission_denied) return true;
  for (; !error && entries != fs::directory_iterator(); entries.increment(error)) {
    const fs::path target = fs::read_symlink(entries->path(), error);
    if (error) break;
    if (const auto found = status_of(disk, target.string()); found && found->same_file(file)) {
      return true;
    }
  }
  return false;
}

}  // namespace

std::string holder_of(Disk& disk, const std::string& output_dir) try {
  const File file = open_plain(disk, output_dir + "/" + kLockName, O_RDONLY);
  const std::string record = owner(file);
  int process = 0;
  std::array<char, 128> host{};
  if (std::sscanf(record.c_str(), "process %d on %127s since", &process, host.data()) != 2)
    return "";
  return host.data() == host_name() && has_open(process, file.status(), disk) ? record : "";
} catch (const DataError&) {
  return "";  // no lock, or none of a run's
}

}  // namespace sherd::checkpoint
