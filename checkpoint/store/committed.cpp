#include "checkpoint/store/committed.h"

#include <fcntl.h>

#include <algorithm>
#include <cerrno>
#include <set>
#include <utility>

#include "checkpoint/format/manifest_check.h"
#include "core/error.h"

namespace sherd::checkpoint {
namespace {

constexpr std::string_view kStepPrefix = "step-";
constexpr std::size_t kStepDigits = 10;

std::string without_trailing_slashes(std::string path) {
  while (path.size() > 1 && path.ends_with('/')) path.pop_back();
  return path;
}

File open_directory(Disk& disk, const std::string& path) {
  try {
    return File(disk, path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW);
  } catch (const DiskError& error) {
    if (error.error_number != ENOTDIR && error.error_number != ELOOP) throw;
    throw DataError("{}: isn't a directory (a symbolic link to one is refused)", path);
  }
}

Manifest read_manifest(Disk& disk, const File& directory) {
  File file;
  try {
    file = open_plain(disk, directory, kManifestName, O_RDONLY);
  } catch (const DiskError& error) {
    if (error.error_number != ENOENT) throw;
    throw DataError("{}: isn't a checkpoint: it holds no {}; a checkpoint's directory is named {}",
                    directory.path(), kManifestName, step_directory_name(0));
  }
  const std::int64_t bytes = file.status().bytes;
  if (bytes > static_cast<std::int64_t>(kMaxManifestBytes)) {
    throw DataError("{}: has {} bytes; a manifest has at most {}", file.path(), bytes,
                    kMaxManifestBytes);
  }
  std::string text(static_cast<std::size_t>(bytes), '\0');
  file.read_at(text.data(), bytes, 0);
  return parse_manifest(text, file.path());
}

}  // namespace

Checkpoint::Checkpoint(Disk& disk, const std::string& path)
    : disk_(&disk),
      directory_(open_directory(disk, without_trailing_slashes(path))),
      manifest_(read_manifest(disk, directory_)) {
  const std::string name = directory_.path().substr(directory_.path().rfind('/') + 1);
  const auto named_for = step_of_directory(name);
  if (named_for && *named_for != manifest_.step) {
    throw DataError("{}: is of step {}, but its directory is named for another step",
                    manifest_path(), manifest_.step);
  }
  for (int shard = 0; shard < num_shards(); ++shard) open_shard(shard);
  open_index();
}

void Checkpoint::exchange_average() {
  const auto exchanged = [](const std::string& kind) {
    return kind == "average" ? "param" : kind == "param" ? "average" : kind;
  };
  bool found = false;
  for (sharding::StateTensor& tensor : manifest_.tensors) {
    found = found || tensor.kind == "average";
    tensor.kind = exchanged(tensor.kind);
  }
  if (!found) {
    throw DataError(
        "{}: has no average of the weights; a run keeps one with averages.type: ema or mean.",
        path());
  }
  for (auto& shard : manifest_.shards) {
    for (ShardDataset& dataset : shard.datasets) dataset.kind = exchanged(dataset.kind);
  }
}

std::string Checkpoint::shard_path(int shard) const {
  return path() + "/" + shard_name(shard, num_shards());
}

File Checkpoint::open_shard(int shard) const {
  return open_file(shard_name(shard, num_shards()),
                   manifest_.shards[static_cast<std::size_t>(shard)].bytes);
}

File Checkpoint::open_index() const {
  return open_file(kIndexName, manifest_.index_bytes);
}

File Checkpoint::open_file(const std::string& name, std::int64_t bytes) const {
  File file = open_plain(*disk_, directory_, name, O_RDONLY);
  const std::int64_t found = file.status().bytes;
  if (found != bytes) {
    throw DataError("{}: has {} bytes; the manifest states {}", file.path(), found, bytes);
  }
  return file;
}

bool Checkpoint::hold() const {
  try {
    if (!directory_.lock_shared()) return false;  // it is being removed
  } catch (const DiskError&) {                    // there are no locks here
  }
  const auto named = status_of(*disk_, path());
  return named && named->same_file(directory_.status());
}

bool Checkpoint::claim() const try { return directory_.lock(); } catch (const DiskError&) {
  return true;
}

std::vector<std::string> Checkpoint::foreign_entries() const {
  std::set<std::string> own = {kManifestName, kIndexName};
  for (int shard = 0; shard < num_shards(); ++shard) own.insert(shard_name(shard, num_shards()));
  std::vector<std::string> entries = list_directory(*disk_, path());
  std::erase_if(entries, [&own](const std::string& name) { return own.contains(name); });
  return entries;
}

std::optional<std::int64_t> step_of_directory(const std::string& name) {
  if (name.size() != kStepPrefix.size() + kStepDigits || !name.starts_with(kStepPrefix)) return {};
  std::int64_t step = 0;
  for (const char c : name.substr(kStepPrefix.size())) {
    if (c < '0' || c > '9') return {};
    step = step * 10 + (c - '0');
  }
  return step;
}

std::vector<std::int64_t> committed_steps(Disk& disk, const std::string& directory) {
  std::vector<std::int64_t> steps;
  if (!exists(disk, directory)) return steps;
  for (const std::string& name : list_directory(disk, directory)) {
    if (const auto step = step_of_directory(name)) steps.push_back(*step);
  }
  std::sort(steps.rbegin(), steps.rend());
  return steps;
}

namespace {

// False if a checkpoint that was listed has been removed, so that another one may be the newest
// now.
bool find_newest(Disk& disk, const std::string& directory, std::int64_t before, Newest& newest) {
  bool all_there = true;
  for (const std::int64_t step : committed_steps(disk, directory)) {
    if (step >= before) continue;
    const std::string path = without_trailing_slashes(directory) + "/" + step_directory_name(step);
    try {
      newest.checkpoint.emplace(disk, path);
      return true;
    } catch (const NewerFormat&) {  // nothing older takes its place
      throw;
    } catch (const DataError& error) {
      if (exists(disk, path)) {
        newest.refused.push_back({path, error.what()});
      } else {
        all_there = false;
      }
    }
  }
  return all_there;
}

}  // namespace

Newest newest_checkpoint(Disk& disk, const std::string& directory, std::int64_t before) {
  constexpr int kMostLooks = 1000;  // a run saves once between two of them at most
  Newest newest;
  for (int look = 0; look < kMostLooks; ++look) {
    newest = {};
    if (find_newest(disk, directory, before, newest)) break;
  }
  return newest;
}

}  // namespace sherd::checkpoint
