/// The files of a model's folder that aren't weights: config.json, tokenizer, generation settings.
///
/// A run keeps them in its own folder, so that it can go on, be sampled from and exported when the
/// folder that it came from is gone:
///
///   <output_dir>/huggingface/    the files, byte for byte, and
///                from.json       {"from": "FOLDER"}: as model.from names it
#pragma once

#include <string>
#include <vector>

#include "checkpoint/store/disk.h"

namespace sherd::huggingface {

/// The names of such files that are in `folder`.
std::vector<std::string> model_files(checkpoint::Disk& disk, const std::string& folder);
bool is_tokenizer_file(const std::string& name);

std::string kept_folder(const std::string& output_dir);
/// What `keep_files` may leave in a run's folder, if it is cut off, too.
std::vector<std::string> kept_names();
/// Whether `output_dir` keeps the files of the folder `from`.
bool keeps(checkpoint::Disk& disk, const std::string& output_dir, const std::string& from);
/// Copies them, durably; what was kept of another folder goes. The config.json that is there stays
/// untouched where it is of `from` already.
void keep_files(checkpoint::Disk& disk, const std::string& output_dir, const std::string& from);

}  // namespace sherd::huggingface
