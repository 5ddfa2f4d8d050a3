/// The directories of checkpoints, and how they are created and removed.
///
///   checkpoints/
///     step-0000001200/                  a checkpoint: complete, durable, never changed
///     .tmp-step-0000001300-<uuid>/      a save in progress, or what is left of one
///     .gone-step-0000001100-<tag>/      a checkpoint that is being removed
///     damaged-step-0000001200-<tag>/    set aside, kept for people to look at
///     latest                            a hint for people
///
/// One rename gives a complete directory its step- name. One rename takes the name away before the
/// first file is removed. So a directory with the name is complete, whenever the machine stops.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "checkpoint/store/disk.h"

namespace sherd::checkpoint {

std::string temporary_directory_name(std::int64_t step, const std::string& save_uuid);

/// "<output_dir>/checkpoints": created if missing, and made durable. Also starts libhdf5, so that a
/// run with too little memory for its saves ends before it begins.
std::string prepare_checkpoints(Disk& disk, const std::string& output_dir);

/// Removes a checkpoint. `tag` distinguishes removals of the same step. If it fails halfway, the
/// rest no longer has a step- name, and the next remove_leftovers() removes it. Errors: DiskError.
void remove_checkpoint(Disk& disk, const std::string& directory, std::int64_t step,
                       const std::string& tag);

/// Renames a damaged checkpoint, so that its step can be saved again; returns the new name.
std::string set_aside(Disk& disk, const std::string& directory, std::int64_t step,
                      const std::string& tag);

struct Leftovers {
  std::vector<std::string> removed;   ///< names
  std::vector<std::string> failures;  ///< sentences
};
/// Removes what interrupted saves and removals have left. Called at start, by the owner of the
/// output lock: another run's temporary directory looks the same.
Leftovers remove_leftovers(Disk& disk, const std::string& directory);

}  // namespace sherd::checkpoint
