/// The directories that checkpoints live in, and how they come and go.
///
///   checkpoints/
///     step-0000001200/                  a checkpoint: complete, durable, never changed
///     .tmp-step-0000001300-<uuid>/      a save that is on, or what is left of one
///     .gone-step-0000001100-<tag>/      a checkpoint that is being removed
///     damaged-step-0000001200-<tag>/    set aside, kept for people to look at
///     latest                            a hint for people
///
/// A step- name is given by one rename of a complete directory, and taken away by one rename before
/// the first file goes: what has the name is whole, whenever the machine stops.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "checkpoint/store/disk.h"

namespace sherd::checkpoint {

std::string temporary_directory_name(std::int64_t step, const std::string& save_uuid);

/// "<output_dir>/checkpoints": made if it isn't there, and durable. Starts libhdf5 too, so that a run
/// which has too little memory for its saves ends before it begins.
std::string prepare_checkpoints(Disk& disk, const std::string& output_dir);

/// Removes a checkpoint. `tag` tells removals of the same step apart. If it fails halfway, the rest
/// has no step- name any longer and goes at the next remove_leftovers(). Errors: DiskError.
void remove_checkpoint(Disk& disk, const std::string& directory, std::int64_t step,
                       const std::string& tag);

/// Renames a damaged checkpoint, so that its step can be saved again; returns the new name.
std::string set_aside(Disk& disk, const std::string& directory, std::int64_t step,
                      const std::string& tag);

struct Leftovers {
  std::vector<std::string> removed;   ///< names
  std::vector<std::string> failures;  ///< sentences
};
/// Removes what saves and removals that were cut off have left. At start, by the owner of the
/// output lock: another run's temporary directory looks the same.
Leftovers remove_leftovers(Disk& disk, const std::string& directory);

}  // namespace sherd::checkpoint
