#include "checkpoint/store/commit.h"

#include <fmt/core.h>
#include <xxhash.h>

#include <cerrno>
#include <utility>

#include "checkpoint/format/manifest.h"
#include "checkpoint/store/step_directory.h"
#include "checkpoint/store/verify.h"
#include "core/error.h"

namespace sherd::checkpoint {
namespace {

constexpr std::int64_t kMaxTextBytes = std::int64_t{1} << 30;

}  // namespace

std::string part_name(int rank, int world) {
  return fmt::format("part-{:05}-of-{:05}.json", rank, world);
}

Commit::Commit(Disk& disk, CommitPlan plan)
    : disk_(disk),
      plan_(std::move(plan)),
      temporary_(plan_.directory + "/" + temporary_directory_name(plan_.step, plan_.save_uuid)),
      final_(plan_.directory + "/" + step_directory_name(plan_.step)) {}

void Commit::run() {
  check_lock();
  const std::string manifest_text = write_files();
  // Made durable in this order: the shards (synced by their writers), index and manifest, the names
  // of all files, and only then the name that makes it a checkpoint.
  sync_directory(disk_, temporary_);
  check_lock();
  rename_into_place(manifest_text);
  sync_directory(disk_, plan_.directory);
}

void Commit::check_lock() const {
  if (plan_.lock) plan_.lock->check();
}

// Whoever removes a part decides what happens to its shard (Writer::Save::do_discard).
std::vector<ShardInfo> Commit::take_parts() {
  std::vector<ShardInfo> shards;
  for (int rank = 0; rank < plan_.world; ++rank) {
    const std::string path = temporary_ + "/" + part_name(rank, plan_.world);
    shards.push_back(parse_shard(read_file(disk_, path, kMaxTextBytes), path));
    if (!remove_file(disk_, path)) throw DataError("{}: rank {} has discarded it", path, rank);
  }
  return shards;
}

std::string Commit::write_files() {
  Manifest manifest;
  manifest.save_uuid = plan_.save_uuid;
  manifest.step = plan_.step;
  manifest.global = plan_.global;
  manifest.tensors = *plan_.tensors;
  manifest.shards = take_parts();

  const std::string index = (*plan_.build_index)(manifest);
  write_new_file(disk_, temporary_ + "/index.h5", index);
  manifest.index_bytes = static_cast<std::int64_t>(index.size());
  manifest.index_checksum = XXH3_64bits(index.data(), index.size());

  std::string text = manifest_to_json(manifest);
  // A checkpoint that a resume would refuse mustn't be committed: a hole between ranks shows here.
  parse_manifest(text, temporary_ + "/manifest.json");
  write_new_file(disk_, temporary_ + "/manifest.json", text);
  return text;
}

void Commit::rename_into_place(const std::string& manifest_text) {
  bool done = false;
  try {
    done = rename_new(disk_, temporary_, final_);
  } catch (const DiskError& error) {
    // NFS repeats a request whose answer was lost, and then finds nothing to rename. The rename has
    // happened exactly if our manifest, including the uuid, is there.
    if (error.error_number != ENOENT) throw;
    const std::string path = final_ + "/manifest.json";
    if (!exists(disk_, path) || read_file(disk_, path, kMaxTextBytes) != manifest_text) throw;
    done = true;
  }
  if (!done) {
    make_way();
    if (!rename_new(disk_, temporary_, final_)) throw DataError("{}: exists again", final_);
  }
  renamed_ = true;
}

// The output lock keeps other runs away, so an entry at our step is older than this run. Either it
// was found damaged at the start, or the user chose to begin at an earlier checkpoint. All of it is
// read to tell these apart. Its new name is made durable before ours is given: a power cut must
// never lose data that somebody may still want to look at.
// A checkpoint of another model isn't read: its own manifest says how large it is.
void Commit::make_way() {
  VerifyReport report;
  bool ours = true;
  try {
    const Checkpoint there(disk_, final_);
    ours = is_ours(there);
    if (ours) report = verify(there, VerifyDepth::kDeep);
  } catch (const NewerFormat&) {  // not damaged
    throw;
  } catch (const DataError& error) {
    report.problems.emplace_back(error.what());
  }
  if (!ours) {
    throw DataError("{}: exists already and is of another model; it is never replaced", final_);
  }
  if (report.good()) {
    throw DataError("{}: exists already and is whole; a checkpoint is never replaced", final_);
  }
  const std::string aside = set_aside(disk_, plan_.directory, plan_.step, plan_.save_uuid);
  note_ = fmt::format("the damaged checkpoint of this step is kept as {} ({})", aside,
                      report.problems[0]);
}

bool Commit::is_ours(const Checkpoint& there) const try {
  if (!plan_.belongs) return there.manifest().tensors == *plan_.tensors;
  plan_.belongs(there);
  return true;
} catch (const DataError&) {
  return false;
}

void Commit::hint() const {
  check_lock();
  const std::string path = plan_.directory + "/.latest-" + plan_.save_uuid;
  try {
    write_new_file(disk_, path, step_directory_name(plan_.step) + "\n", false);
    rename_over(disk_, path, plan_.directory + "/latest");
  } catch (const DiskError&) {
    disk_.unlink(path);
    throw;
  }
}

void Commit::undo() {
  check_lock();
  if (renamed_) {
    remove_checkpoint(disk_, plan_.directory, plan_.step, plan_.save_uuid);
  } else {
    remove_tree(disk_, temporary_);
  }
}

}  // namespace sherd::checkpoint
