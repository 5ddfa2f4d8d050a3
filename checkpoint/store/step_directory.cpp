#include "checkpoint/store/step_directory.h"

#include <fmt/core.h>

#include "checkpoint/format/hdf5_memory_driver.h"
#include "checkpoint/format/manifest.h"
#include "core/error.h"

namespace sherd::checkpoint {
namespace {

constexpr std::string_view kTemporary = ".tmp-";
constexpr std::string_view kGone = ".gone-";
constexpr std::string_view kHint = ".latest-";

// The name must be durably gone before anything else changes. A removal that a power cut partly
// undoes must not leave a step- name on an incomplete directory.
std::string take_name_away(Disk& disk, const std::string& directory, std::int64_t step,
                           const std::string& name) {
  const std::string from = directory + "/" + step_directory_name(step);
  const std::string to = directory + "/" + name;
  if (!rename_new(disk, from, to)) throw DataError("{}: exists already", to);
  sync_directory(disk, directory);
  return to;
}

}  // namespace

std::string temporary_directory_name(std::int64_t step, const std::string& save_uuid) {
  return fmt::format("{}{}-{}", kTemporary, step_directory_name(step), save_uuid);
}

std::string prepare_checkpoints(Disk& disk, const std::string& output_dir) {
  start_hdf5();
  const std::string directory = output_dir + "/checkpoints";
  make_directory(disk, directory);
  // Also if it was there: the run that made it may have been cut off before it was durable.
  sync_directory(disk, output_dir);
  try {
    sync_directory(disk, output_dir + "/..");
  } catch (const DiskError& error) {  // a folder that may be passed through and not listed
    if (error.error_number != EACCES) throw;
  }
  return directory;
}

void remove_checkpoint(Disk& disk, const std::string& directory, std::int64_t step,
                       const std::string& tag) {
  const std::string name = fmt::format("{}{}-{}", kGone, step_directory_name(step), tag);
  remove_tree(disk, take_name_away(disk, directory, step, name));
}

std::string set_aside(Disk& disk, const std::string& directory, std::int64_t step,
                      const std::string& tag) {
  return take_name_away(disk, directory, step,
                        fmt::format("damaged-{}-{}", step_directory_name(step), tag));
}

Leftovers remove_leftovers(Disk& disk, const std::string& directory) {
  Leftovers leftovers;
  for (const std::string& name : list_directory(disk, directory)) {
    if (!name.starts_with(kTemporary) && !name.starts_with(kGone) && !name.starts_with(kHint)) {
      continue;
    }
    try {
      remove_tree(disk, directory + "/" + name);
      leftovers.removed.push_back(name);
    } catch (const DiskError& error) {
      leftovers.failures.emplace_back(error.what());
    }
  }
  return leftovers;
}

}  // namespace sherd::checkpoint
